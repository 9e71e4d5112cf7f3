"""What a step costs as the work grows: tokens of the steps that were made, over their time."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("scaling")


class Point:
    """Stands for a process: its turns are steps of these tokens and seconds."""

    def __init__(self, memory: int, *turns: tuple[list[int], list[float]]) -> None:
        self.memory, self.turns, self.closed = memory, list(turns), False
        self.tokens: list[int] = []
        self.seconds: list[float] = []

    def go(self) -> None:
        tokens, seconds = self.turns.pop(0)
        self.tokens += tokens
        self.seconds += seconds

    def close(self) -> None:
        self.closed = True


def work(script: types.ModuleType, length: int) -> Any:
    return script.Work("data", "4x256", length, 8192, "modernbert", "muon", "no", "cpu")


def test_tokens_are_those_of_the_steps_that_count(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "128": Point(2**20, ([8000, 8000], [1.0, 1.0]), ([2000], [0.5])),  # an epoch's last step is a small one
        "3,000": Point(2**21, ([5000], [2.0]), ([5000], [2.0])),
    }
    asked = {}

    def start(systems: dict[str, Any]) -> dict[str, Point]:
        asked.update(systems)
        return points

    monkeypatch.setattr(script, "start", start)
    works = {"128": work(script, 128), "3,000": work(script, 3000)}
    found = script.measure(works, rounds=2)
    assert asked == {name: ("ours", each) for name, each in works.items()}
    assert found == {
        "128": script.Cost(8192, 18_000 / 2.5, 2**20),
        "3,000": script.Cost(6000, 10_000 / 4.0, 2**21),
    }
    assert all(point.closed and not point.turns for point in points.values())
    assert script.table({"length": found}) == [
        "| what grows | to | positions a step | tokens a second | of the first | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- |",
        "| length | 128 | 8,192 | 7,200 | 100% | 1 |",
        "| length | 3,000 | 6,000 | 2,500 | 35% | 2 |",
    ]
