"""What the systems of `train.py` have in common: the work they are told of, and which steps of a turn count."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch

TURN_SECONDS = 4.0  # of a turn, that count
WARM_SHARE = 0.5  # of them, so many seconds do not count before
WARM_STEPS = {"cpu": 1, "cuda": 5}  # at least; on a GPU a new Trainer compiles, and fills its caches


class Work(NamedTuple):
    """What every system is told."""

    data: str
    size: str
    length: int
    batch_tokens: int
    layout: str
    optimizer: str
    compiled: str
    device: str
    turn_seconds: float = TURN_SECONDS

    @property
    def layers(self) -> int:
        return int(self.size.split("x")[0])

    @property
    def hidden(self) -> int:
        return int(self.size.split("x")[1])

    @property
    def rows(self) -> int:
        return max(1, self.batch_tokens // self.length)


class Stopwatch:
    """The steps of one turn.

    Args:
        device: Where the work is done: times on a GPU run from a device that has nothing to do to one that has nothing
            to do, shared out over the steps, since single ones only say when the host was done with them.
        seconds: How long steps count.
        least_steps: How many count at least, however long they take.
        warm_seconds: That do not count before.
    """

    def __init__(
        self, device: str, seconds: float, least_steps: int = 1, *, warm_seconds: float = WARM_SHARE * TURN_SECONDS
    ) -> None:
        self._on_gpu, self._warm_seconds = device == "cuda", warm_seconds
        self._warm_steps, self._seconds, self._least_steps = WARM_STEPS[device], seconds, least_steps

    def begin(self) -> None:
        self._ends: list[float] = []  # of steps, from the last that does not count
        self.tokens: list[int] = []  # of the steps that count
        self._steps, self._began = 0, time.perf_counter()

    def tick(self, tokens: int) -> bool:
        """A step has ended, which read so many tokens of text. Whether that is enough."""
        self._steps += 1
        if self._ends:
            self._ends.append(time.perf_counter())
            self.tokens.append(tokens)
        elif self._steps >= self._warm_steps and time.perf_counter() - self._began >= self._warm_seconds:
            self._settle()
            self._ends.append(time.perf_counter())
        enough = len(self._ends) > self._least_steps and self._ends[-1] - self._ends[0] >= self._seconds
        if enough:
            self._settle()
            self._over = time.perf_counter()  # what a turn leaves is cleared away later
        return enough

    def taken(self) -> list[float]:
        """Seconds of the steps that count."""
        if not self._on_gpu:
            return [b - a for a, b in pairwise(self._ends)]
        count = len(self.tokens)
        return [(self._over - self._ends[0]) / count] * count

    def _settle(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


Turn = Callable[[Stopwatch], None]  # trains until it has been long enough
