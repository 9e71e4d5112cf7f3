from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def model_folder(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A model that has learned nothing; texts that share words have vectors that are near all the same."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(make_model(), folder)
    tokenizer.save(folder, max_length=64)
    return folder
