"""A trained model, its graphs, and copies to break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import unmask


@pytest.fixture(scope="session")
def onnx_folder(run: unmask.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs of the short run, with 8-bit weights too."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return unmask.export(run.folder, tmp_path_factory.mktemp("onnx") / "graphs", int8=True).folder


@pytest.fixture
def copy(run: unmask.Run, tmp_path: Path) -> Path:
    """A copy of the short run's model."""
    return Path(shutil.copytree(run.folder / "model", tmp_path / "copy"))
