"""Systems that train in turns: each is a separate process, counts only its own time, and waits between its turns.

A child holds a `Turn` and reports every step to it; the parent holds a `System` for each child. They exchange lines of
JSON: the parent sends the second of the child's own time up to which to train, the child its progress and figures.
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

STALL = 3.0  # a step counts at most this multiple of the recent median, so that stalls of the machine do not count


class Ended(Exception):
    """The parent has closed the connection, so no further turn will come."""


class Turn:
    """A child's side: keeps its clock, evaluates it, and waits for its turns.

    Args:
        out: The stream that the parent reads, from `own_output`.
        evaluate: Returns figures, such as (loss, accuracy); its time does not count.
        marks: Seconds at which to evaluate.
        device: The device that trains; a step ends when the device has finished its work.
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
        """Seconds of training, including the current step."""
        return self.seconds + time.perf_counter() - self._last

    def step(self, tokens: int = 0) -> None:
        """Records the end of a step, with its number of text tokens. Raises `Ended` if no further turn will come."""
        if self._device == "cuda":
            import torch

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
        """Ends the training with the last evaluation."""
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
    """A child process has ended, usually because memory ran out. Uncaught, this ends the benchmark."""


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
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which `read` reports
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
    """The parent's side of a `Turn`; `facts` are those that the child reports, `points` its (seconds, *figures)."""

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
    """Trains all systems to their ends, in turns of `seconds`; yields the name of each when it is done."""
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
    """A child's standard output, reserved for its parent; output of libraries is redirected to standard error."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out
