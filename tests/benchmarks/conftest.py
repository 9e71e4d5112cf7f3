from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # scripts import each other by their names


@pytest.fixture(autouse=True)
def pictures(drawn: None) -> None:
    """Pictures are drawn."""


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
