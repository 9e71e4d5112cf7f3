"""Copies of a trained model to break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import unmask


@pytest.fixture
def copy(run: unmask.Run, tmp_path: Path) -> Path:
    """A copy of the short run's model."""
    return Path(shutil.copytree(run.folder / "model", tmp_path / "copy"))
