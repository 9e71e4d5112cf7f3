"""Recipes that begin with a checkpoint: text gets its tokenizer, and what cannot be is found before the first run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.checkpoints import SHORT, released
from unmask.commands.compare import compare
from unmask.core.errors import DataError, SettingsError, UnmaskError
from unmask.data.data_folder import load_manifest
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

QUICK = ("training.batch_tokens=512", *SHORT)


@pytest.fixture
def checkpoint(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return released(make_model(num_layers=1), tokenizer, tmp_path / "checkpoint")


@pytest.fixture
def other(make_model: Callable[..., MaskedLM], data_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint with another tokenizer."""
    words = load_tokenizer(data_folder / "tokenizer")
    words.backend.add_tokens(["<x>"])
    return released(make_model(num_layers=1, vocab_size=256), Tokenizer(words.backend), tmp_path / "other")


def begins_with(checkpoint: Path, file: Path, more: str = "") -> str:
    """A recipe's file."""
    file.write_text(f"[start]\ncheckpoint = '{checkpoint}'\n{more}\n[training]\nlearning_rate = 0.001\n")
    return str(file)


def test_text_gets_the_tokenizer_of_the_checkpoint(checkpoint: Path, corpus_file: Path, tmp_path: Path) -> None:
    settings = (*QUICK, f"start.checkpoint='{checkpoint}'")
    options: dict[str, Any] = {"steps": 1, "seeds": 1, "base": "continue", "settings": settings}
    result = compare(("random", "span"), data=corpus_file, out=tmp_path / "out", **options)
    assert not [run for runs in result["runs"].values() for run in runs if "failed" in run]
    found = load_manifest(tmp_path / "out" / "data").tokenizer_sha256
    assert found == load_tokenizer(checkpoint).fingerprint


def test_what_cannot_be_compared_is_found_before_anything_is_begun(
    checkpoint: Path, other: Path, corpus_file: Path, data_folder: Path, tmp_path: Path
) -> None:
    own, others = begins_with(checkpoint, tmp_path / "own.toml"), begins_with(other, tmp_path / "others.toml")
    longer = begins_with(checkpoint, tmp_path / "longer.toml", "extend_vocab = 4")
    cases: list[tuple[Path, str, type[UnmaskError], str]] = [
        (corpus_file, others, SettingsError, "tokenizer"),
        (data_folder, longer, SettingsError, "start.extend_vocab"),
        (data_folder, others, DataError, "other"),
    ]
    for data, recipe, error, field in cases:
        with pytest.raises(error, match=field):
            compare((own, recipe), data=data, out=tmp_path / "out", steps=1, seeds=1, settings=QUICK)
        assert not (tmp_path / "out").exists(), field
