"""Recipes that begin with a checkpoint: text gets its tokenizer, and what cannot be is found before the first run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.checkpoints import SHORT, released
from unmask.commands.compare import compare
from unmask.core.errors import DataError, SettingsError
from unmask.data.data_folder import load_manifest
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

QUICK = ("training.batch_tokens=512", *SHORT)


@pytest.fixture
def checkpoint(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return released(make_model(num_layers=1), tokenizer, tmp_path / "checkpoint")


def test_text_gets_the_tokenizer_of_the_checkpoint(checkpoint: Path, corpus_file: Path, tmp_path: Path) -> None:
    settings = (*QUICK, f"start.checkpoint='{checkpoint}'")
    options: dict[str, Any] = {"steps": 1, "seeds": 1, "base": "continue", "settings": settings}
    result = compare(("random", "span"), data=corpus_file, out=tmp_path / "out", **options)
    assert not [run for runs in result["runs"].values() for run in runs if "failed" in run]
    assert load_manifest(tmp_path / "out" / "data").tokenizer_sha256 == load_tokenizer(checkpoint).fingerprint


def test_what_cannot_be_compared_is_found_before_anything_is_begun(
    make_model: Callable[..., MaskedLM], checkpoint: Path, corpus_file: Path, data_folder: Path, tmp_path: Path
) -> None:
    words = load_tokenizer(data_folder / "tokenizer")
    words.backend.add_tokens(["<x>"])
    other = released(make_model(num_layers=1, vocab_size=256), Tokenizer(words.backend), tmp_path / "other")

    def recipe(name: str, start: Path, more: str = "") -> str:
        file = tmp_path / f"{name}.toml"
        file.write_text(f"[start]\ncheckpoint = '{start}'\n{more}\n[training]\nlearning_rate = 0.001\n")
        return str(file)

    own, others, longer = (
        recipe("own", checkpoint), recipe("others", other), recipe("longer", checkpoint, "extend_vocab = 4"),
    )  # fmt: skip
    for data, against, error, field in (
        (corpus_file, others, SettingsError, "tokenizer"),
        (data_folder, longer, SettingsError, "start.extend_vocab"),
        (data_folder, others, DataError, "other"),
    ):
        with pytest.raises(error, match=field):
            compare((own, against), data=data, out=tmp_path / "out", steps=1, seeds=1, settings=QUICK)
        assert not (tmp_path / "out").exists(), field
