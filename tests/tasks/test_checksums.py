"""Files that are not what the folder's checksums were written for: a warning where a model is loaded, or an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import unmask
from tests.hostile_models import CONFIG, WEIGHTS, flip, write_text
from unmask.core.errors import ModelError
from unmask.model.folder import CHECKSUMS


@pytest.fixture
def copy(run: unmask.Run, tmp_path: Path) -> Path:
    """A copy of the short run's model."""
    return Path(shutil.copytree(run.folder / "model", tmp_path / "copy"))


def test_a_flipped_bit_is_told_or_refused(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    unmask.load(copy, strict=True)
    assert not caplog.messages
    flip(copy)
    unmask.load(copy)
    (message,) = caplog.messages
    assert WEIGHTS in message
    assert f"remove {CHECKSUMS}" in message
    with pytest.raises(ModelError, match=f"copy: {WEIGHTS}"):
        unmask.load(copy, strict=True)
    (copy / CHECKSUMS).unlink()
    unmask.load(copy, strict=True)


@pytest.mark.parametrize("name", [CONFIG, "tokenizer.json", "tokenizer_config.json"])
def test_every_file_that_decides(copy: Path, name: str) -> None:
    write_text(copy, name, (copy / name).read_text() + "\n")
    with pytest.raises(ModelError, match=f"copy: {name} is not what"):
        unmask.load(copy, strict=True)


def test_what_people_do_on_purpose_is_not_told(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("README.md", "notes.txt"):
        write_text(copy, name, "mine")
    write_text(copy, "modules.json", '[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    (copy / "special_tokens_map.json").unlink()  # which transformers 5 does not write
    unmask.load(copy, strict=True)
    assert not caplog.messages
