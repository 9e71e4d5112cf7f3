"""The benchmark of opening, on a few pieces."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_both_ways_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = importlib.import_module("opening")
    monkeypatch.setattr(opening, "PIECES_A_SHARD", 500)
    opening.write(tmp_path, 1500)
    split = opening.split_of(tmp_path)
    assert (len(split.files), split.pieces, split.tokens) == (3, 1500, 7500)
    for way in opening.WAYS.values():
        figures = opening.measured(way, tmp_path)
        assert len(figures) == 2
        assert all(seconds > 0 for seconds, _ in figures)
