"""Throughput in turns: which steps count."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("trained")


def a_turn(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, watch: Any, steps: list[float]
) -> tuple[list[float], int]:
    """What a turn takes of steps that last so long, and how many it makes."""
    now, made = 100.0, 0  # seconds, steps
    monkeypatch.setattr(script.time, "perf_counter", lambda: now)
    watch.begin()
    for step in steps:
        now, made = now + step, made + 1
        if watch.tick():
            break
    return watch.taken(), made


def test_the_first_seconds_do_not_count(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [0.9, 0.8, 0.7, *(0.5 for _ in range(20))]
    taken, made = a_turn(script, monkeypatch, script.Stopwatch("cpu", 2.0), steps)
    assert taken == pytest.approx([0.5] * 4)
    assert made == 7


def test_of_long_steps_the_first_does_not_count_and_one_does(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in (4.0, 0.0):
        watch = script.Stopwatch("cpu", seconds)
        assert a_turn(script, monkeypatch, watch, [9.0, 8.0, 7.0]) == (pytest.approx([8.0]), 2)


def test_a_trial_takes_the_fastest_of_the_first_steps(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert a_turn(script, monkeypatch, script.Trial(), [0.9, 0.5, 0.7, 0.1]) == (pytest.approx([0.5]), 3)
    assert a_turn(script, monkeypatch, script.Trial(), [9.0, 8.0]) == (pytest.approx([9.0]), 1)
