from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.commands.checkpoints import released
from tests.core.hub_helpers import FakeHub
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def model_folder(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A model with its tokenizer, as a run leaves it."""
    return released(make_model(num_layers=2), tokenizer, tmp_path / "released")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub; the folder that commands start in is an empty one too."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


@pytest.fixture
def hub(cache: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A hub with one model."""
    fake = FakeHub({"owner/name": model_folder}, cache)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return fake
