"""Files that do not match the folder's checksums: loading a model warns, or raises an error."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from tests.hostile_models import CONFIG, WEIGHTS, flip, write_text
from unmask.core.errors import ModelError
from unmask.model.folder import CHECKSUMS


def test_a_flipped_bit_is_told_or_refused(model_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    unmask.load(model_copy, strict=True)
    assert not caplog.messages
    flip(model_copy)
    unmask.load(model_copy)
    (message,) = caplog.messages
    assert WEIGHTS in message
    assert f"remove {CHECKSUMS}" in message
    with pytest.raises(ModelError, match=f"copy: {WEIGHTS}"):
        unmask.load(model_copy, strict=True)
    (model_copy / CHECKSUMS).unlink()
    unmask.load(model_copy, strict=True)


@pytest.mark.parametrize("name", [CONFIG, "tokenizer.json", "tokenizer_config.json"])
def test_every_file_that_decides(model_copy: Path, name: str) -> None:
    write_text(model_copy, name, (model_copy / name).read_text() + "\n")
    with pytest.raises(ModelError, match=f"copy: {name} is not as {CHECKSUMS}"):
        unmask.load(model_copy, strict=True)


def test_what_people_do_on_purpose_is_not_told(model_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("README.md", "notes.txt"):
        write_text(model_copy, name, "mine")
    write_text(model_copy, "modules.json", '[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    (model_copy / "special_tokens_map.json").unlink()  # which transformers 5 does not write
    unmask.load(model_copy, strict=True)
    assert not caplog.messages
