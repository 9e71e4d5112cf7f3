"""Systems that take turns."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
from turns import ChildEnded, Ended, Turn, alternate
from turns import System as Process

from tests.benchmarks.conftest import BENCHMARKS

CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from turns import Turn, own_output
out = own_output()
print("what a library prints")
turn = Turn(out, lambda: [turn.steps, 0.5], [0.0])
turn.begin(parameters=7)
for _ in range(3):
    turn.step(10)
turn.end()
"""


class System:
    """Stands in for a process; finished after `needs` seconds of training."""

    def __init__(self, name: str, needs: float, log: list[tuple[str, float]]) -> None:
        self._name, self._needs, self._log = name, needs, log
        self.seconds, self.steps, self.finished = 0.0, 0, False
        self.points: list[tuple[float, ...]] = []

    def go(self, seconds: float) -> None:
        self.seconds, self.steps = min(self.seconds + seconds, self._needs), self.steps + 1
        self.finished = self.seconds == self._needs
        self._log.append((self._name, self.seconds))


def test_each_trains_to_its_end_in_turns() -> None:
    log: list[tuple[str, float]] = []
    systems = {name: System(name, needs, log) for name, needs in (("long", 5.0), ("short", 2.0))}
    assert list(alternate(systems, 2.0)) == ["short", "long"]  # type: ignore[arg-type]
    assert log == [("long", 2.0), ("short", 2.0), ("long", 4.0), ("long", 5.0)]


def test_waiting_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes one second, the other's turn a hundred."""
    clock = [0.0]

    def readline() -> str:
        clock[0] += 100.0
        return f"{turn.seconds + 2.0}\n" if turn.steps < 4 else ""

    monkeypatch.setattr("turns.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=readline))
    turn = Turn(io.StringIO(), list, [])
    turn.begin()
    for _ in range(3):
        clock[0] += 1.0
        turn.step()
    clock[0] += 1.0
    with pytest.raises(Ended):
        turn.step()
    assert (turn.seconds, turn.steps) == (4.0, 4)


def test_a_process_and_its_parent() -> None:
    system = Process([sys.executable, "-c", CHILD, str(BENCHMARKS)])
    assert system.facts == {"parameters": 7}
    assert list(alternate({"only": system}, 100.0)) == ["only"]
    assert (system.steps, system.tokens) == (3, 30)
    assert [figures for _, *figures in system.points] == [[1, 0.5], [3, 0.5]]
    assert 0.0 < system.points[0][0] < system.points[1][0] == system.seconds
    with pytest.raises(ChildEnded):
        system.go(1.0)
