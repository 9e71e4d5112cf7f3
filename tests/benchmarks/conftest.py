from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # scripts import each other by their names


class FewSteps:
    """A turn without a parent: some steps, then the end."""

    latest: FewSteps

    def __init__(self, out: object, evaluate: Any, marks: object, device: str = "cpu") -> None:
        self.evaluate, self.facts, self.counts = evaluate, {}, []
        FewSteps.latest = self

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    def begin(self, **facts: Any) -> None:
        self.facts = facts

    def now(self) -> float:
        return 6.0 * len(self.counts) / 40  # of 0.1 minutes

    def step(self, tokens: int = 0) -> None:
        self.counts.append(tokens)

    def end(self) -> None:
        self.figures = self.evaluate()


class SystemHere:
    """A system that is trained in this process by the command that would start its own, without turns."""

    def __init__(self, command: list[str]) -> None:
        script = importlib.import_module(Path(command[1]).stem)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command[1:])
            patch.setattr(torch, "set_num_threads", lambda number: None)
            script.main()
        turn = FewSteps.latest
        self.facts, self.counts, self.tokens, self.steps = turn.facts, turn.counts, turn.tokens, len(turn.counts)
        self.seconds, self.points, self.is_open = turn.now(), [(turn.now(), *turn.figures)], True

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a script in this process, with words of its command line."""

    def run(script: Any, *words: object) -> None:
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, words)])
        script.main()

    return run


@pytest.fixture
def cells_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are measured in a thread instead of a process."""
    cells = importlib.import_module("cells")
    monkeypatch.setattr(cells, "ProcessPoolExecutor", lambda jobs, **_: ThreadPoolExecutor(jobs))


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], list[SystemHere]]:
    """Makes a script train its systems in this process, one after the other; returns them, once they are trained."""
    systems: list[SystemHere] = []

    def alternate(trained: Mapping[str, SystemHere], seconds: float) -> Iterable[str]:
        systems.extend(trained.values())
        return iter(trained)

    def patched(script: ModuleType) -> list[SystemHere]:
        for name, value in (("System", SystemHere), ("alternate", alternate), ("Turn", FewSteps)):
            monkeypatch.setattr(script, name, value)
        monkeypatch.setattr(script, "own_output", io.StringIO)
        return systems

    return patched
