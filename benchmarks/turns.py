"""Systems that train in turn: each is a process of its own, counts only its own time, and waits between its turns.

A child holds a `Turn` and reports every step to it; the parent holds a `System` for each child. They exchange lines of
JSON: up to which second of its own time the child trains, and what it has reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import torch

STALL = 3.0  # a step counts at most so many times the median of the latest ones: a stall of the machine is no training


class Ended(Exception):
    """The parent has seen enough."""


class Turn:
    """A child's side: its clock, and when it evaluates and waits.

    Args:
        out: Where the parent reads, from `own_output`.
        evaluate: Gives figures, such as (loss, accuracy); its time does not count.
        marks: Seconds at which it is called.
        device: That trains; a step has ended when it has done all that it was given.
    """

    def __init__(
        self, out: TextIO, evaluate: Callable[[], Sequence[float]], marks: Sequence[float], device: str = "cpu"
    ) -> None:
        self._out, self._evaluate, self._marks, self._device = out, evaluate, deque(sorted(marks)), device
        self._recent: deque[float] = deque(maxlen=51)
        self._points: list[tuple[float, ...]] = []
        self.seconds, self.steps, self.tokens = 0.0, 0, 0
        self._until = 0.0

    def begin(self, **facts: Any) -> None:
        """Reports facts about the system, and waits for the first turn."""
        print(json.dumps(facts), file=self._out, flush=True)
        self._wait()

    def now(self) -> float:
        """Seconds of training, those of the running step included."""
        return self.seconds + time.perf_counter() - self._last

    def step(self, tokens: int = 0) -> None:
        """A step has ended, which read so many tokens of text. Raises `Ended` where no further turn will come."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - self._last
        self._recent.append(taken)
        self.seconds += min(taken, STALL * statistics.median(self._recent))
        self.steps += 1
        self.tokens += tokens
        if self._marks and self.seconds >= self._marks[0]:
            while self._marks and self.seconds >= self._marks[0]:
                self._marks.popleft()
            self._points.append((self.seconds, *self._evaluate()))
        if self.seconds >= self._until:
            self._report(finished=False)
            self._wait()
        self._last = time.perf_counter()

    def end(self) -> None:
        """The training is over: the last evaluation, and nothing more."""
        self._points.append((self.seconds, *self._evaluate()))
        self._report(finished=True)

    def _report(self, *, finished: bool) -> None:
        reached = {"seconds": self.seconds, "steps": self.steps, "tokens": self.tokens, "points": self._points}
        print(json.dumps({**reached, "finished": finished}), file=self._out, flush=True)
        self._points = []

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            raise Ended
        self._until = float(line)
        self._last = time.perf_counter()


class ChildEnded(SystemExit):
    """A process ended by itself, mostly because memory ran out; uncaught, it ends the benchmark."""


class Child:
    """The parent's side of a process that answers a line with a line of JSON."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: object) -> dict[str, Any]:
        self.tell(line)
        return self.read()

    def tell(self, line: object) -> None:
        """Sends a line without waiting for the answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as reading shows
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise ChildEnded(f"{' '.join(map(str, self.process.args))} ended")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class System(Child):
    """The parent's side of a `Turn`; `facts` are what it says of itself, `points` its (seconds, *figures)."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self.facts = self.read()
        self.seconds, self.steps, self.tokens, self.finished = 0.0, 0, 0, False
        self.points: list[tuple[float, ...]] = []

    def go(self, seconds: float) -> None:
        answer = self.ask(self.seconds + seconds)
        self.seconds, self.steps, self.tokens = answer["seconds"], answer["steps"], answer["tokens"]
        self.points += [tuple(point) for point in answer["points"]]
        self.finished = answer["finished"]


def alternate(systems: Mapping[str, System], seconds: float) -> Iterator[str]:
    """Lets all systems train in turns of so many seconds, each to its end; yields the names of those that are done."""
    running = dict(systems)
    while running:
        for name, system in list(running.items()):
            system.go(seconds)
            figures = " ".join(f"{figure:.3f}" for figure in system.points[-1][1:]) if system.points else ""
            print(f"{name}: {system.seconds:.0f} s, {system.steps} steps, {figures}", file=sys.stderr, flush=True)
            if system.finished:
                del running[name]
                yield name


def own_output() -> TextIO:
    """A child's standard output for its parent alone; what libraries print goes to standard error."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out
