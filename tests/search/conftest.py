from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.checkpoints import released
from tests.model.helpers import MakeModel
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def model_folder(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A model that has learned nothing; texts that share words still have similar vectors."""
    return released(make_model(), tokenizer, tmp_path / "model")
