"""Systems that train in turn: each is a process of its own, counts only its own time, and waits when it is not asked.

A child holds a `Turn` and tells it of every step; a parent holds a `System` for each child. What passes between them is
a JSON line each way: until which second of its own time the child goes on, and what came of it.
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

STALL = 3.0  # a step counts at most so many times the median of the latest ones: a stall of the machine is no training


class Ended(Exception):
    """The parent has seen enough."""


class Turn:
    """A child's side: its clock, and when it evaluates and waits.

    Args:
        out: Where the parent reads, from `own_output`.
        evaluate: Gives (loss, accuracy); its time does not count.
        marks: Seconds at which it is called.
    """

    def __init__(self, out: TextIO, evaluate: Callable[[], tuple[float, float]], marks: Sequence[float]) -> None:
        self._out = out
        self._evaluate = evaluate
        self._marks = deque(sorted(marks))
        self._recent: deque[float] = deque(maxlen=51)
        self._points: list[tuple[float, float, float]] = []
        self.seconds = 0.0
        self.steps = 0
        self.tokens = 0
        self._until = 0.0

    def begin(self, **facts: Any) -> None:
        """Says what is to be known of the system, and waits for the first turn."""
        self._say(facts)
        self._wait()

    def now(self) -> float:
        """Seconds of training, those of the running step included."""
        return self.seconds + time.perf_counter() - self._last

    def step(self, tokens: int = 0) -> None:
        """A step has ended.

        Args:
            tokens: Of text that it read, where they are counted.

        Raises:
            Ended: No further turn will come.
        """
        taken = time.perf_counter() - self._last
        self._recent.append(taken)
        self.seconds += min(taken, STALL * statistics.median(self._recent))
        self.steps += 1
        self.tokens += tokens
        if self._marks and self.seconds >= self._marks[0]:
            while self._marks and self.seconds >= self._marks[0]:
                self._marks.popleft()
            self._look()
        if self.seconds >= self._until:
            self._report(finished=False)
            self._wait()
        self._last = time.perf_counter()

    def end(self) -> None:
        """The training is over: the last evaluation, and nothing more."""
        self._look()
        self._report(finished=True)

    def _look(self) -> None:
        self._points.append((self.seconds, *self._evaluate()))

    def _report(self, *, finished: bool) -> None:
        said = {"seconds": self.seconds, "steps": self.steps, "tokens": self.tokens, "points": self._points}
        self._say({**said, "finished": finished})
        self._points = []

    def _say(self, content: dict[str, Any]) -> None:
        print(json.dumps(content), file=self._out, flush=True)

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            raise Ended
        self._until = float(line)
        self._last = time.perf_counter()


class ChildEnded(SystemExit):
    """A process ended without being asked to, mostly since memory did not suffice; uncaught, it ends the benchmark."""


class Child:
    """The parent's side of a process that computes when it is asked to."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: object) -> dict[str, Any]:
        """What it answers to a line."""
        self.tell(line)
        return self.read()

    def tell(self, line: object) -> None:
        """Gives it a line, and does not wait for its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as reading shows
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def read(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise ChildEnded(f"{' '.join(map(str, self.process.args))} ended")
        return dict(json.loads(line))


class System(Child):
    """The parent's side of a `Turn`; `facts` are what it says of itself."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self.facts = self.read()
        self.seconds = 0.0
        self.steps = 0
        self.tokens = 0
        self.points: list[tuple[float, float, float]] = []
        self.finished = False

    def go(self, until: float) -> None:
        """Lets it train until its own clock says so."""
        answer = self.ask(until)
        self.seconds, self.steps, self.tokens = answer["seconds"], answer["steps"], answer["tokens"]
        self.points += [tuple(point) for point in answer["points"]]
        self.finished = answer["finished"]


def alternate(systems: dict[str, System], slices: Mapping[str, float], *, until: float | None = None) -> Iterator[str]:
    """Lets all of them train in turn, each to its end, or until this second of its own time; names those that are done.

    Args:
        systems: By name.
        slices: Seconds of a turn, by the same names.
        until: Where they stop.
    """
    running = dict(systems)
    while running:
        for name, system in list(running.items()):
            goal = system.seconds + slices[name]
            system.go(goal if until is None else min(goal, until))
            said = " ".join(f"{seconds:.0f}s:{loss:.3f}" for seconds, loss, _ in system.points[-1:])
            print(f"{name}: {system.seconds:.0f} s, {system.steps} steps, {said}", file=sys.stderr, flush=True)
            if system.finished or (until is not None and system.seconds >= until):
                del running[name]
                yield name


def own_output() -> TextIO:
    """Standard output for the parent alone, from a child's beginning on; what libraries print goes elsewhere."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out
