from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # scripts import each other by their names


@pytest.fixture(autouse=True)
def pictures(drawn: None) -> None:
    """Pictures are drawn."""
