"""Every command and function that takes a model or a tokenizer takes a name of the hub, and a run notes its commit."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

import unmask
from tests.commands.checkpoints import SHORT, released
from tests.conftest import make_text
from tests.core.hub_helpers import COMMIT, OTHER, put_in_cache
from unmask.core.errors import RunError
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.tokenizer import Tokenizer

NAME = "owner/name"
SETTINGS = ("training.batch_tokens=512", *SHORT)


@pytest.fixture
def folder(cache: Path, model_folder: Path) -> Path:
    """The copy of a model; the library finds it without a network."""
    return put_in_cache(model_folder, cache, NAME)


@pytest.fixture
def text(cache: Path) -> Path:
    Path("text.txt").write_text(make_text(120, seed=3), encoding="utf-8")
    return Path("text.txt")


def test_a_training_begins_with_a_commit_and_keeps_to_it(
    cache: Path, folder: Path, text: Path, make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    lasting = f"{NAME}@{COMMIT}"
    run = unmask.pretrain([text], out="run", from_=NAME, steps=2, settings=SETTINGS)
    recipe = tomllib.loads((run.folder / "recipe.toml").read_text())
    assert recipe["start"]["checkpoint"] == lasting
    assert run.summary["start"]["checkpoint"] == lasting
    assert ModelCard.load(run.folder / "model" / "README.md").data.base_model == NAME
    assert json.loads((run.folder / "start" / "start.json").read_text())["checkpoint"] == lasting
    assert (
        unmask.pretrain([text], out="run", from_=NAME, steps=2, settings=SETTINGS, resume=True).summary == run.summary
    )

    newer = make_model(num_layers=2)
    newer.head.bias.data.add_(torch.arange(len(newer.head.bias)))
    put_in_cache(released(newer, tokenizer, tmp_path / "newer"), cache, NAME, commit=OTHER)  # the main branch moves on
    assert unmask.load(NAME).folder.name == OTHER
    with pytest.raises(RunError, match=f"with start.checkpoint = '{lasting}', but now it is '{NAME}@{OTHER}'"):
        unmask.pretrain([text], out="run", from_=NAME, steps=2, settings=SETTINGS, resume=True)
    again = unmask.pretrain([text], out="again", recipe="run/recipe.toml")
    assert again.summary["validation_loss"] == run.summary["validation_loss"]
    assert again.summary["start"] == run.summary["start"]
    shutil.rmtree(cache)
    assert unmask.pretrain([text], out="run", resume=True).summary == run.summary, "it goes on without the checkpoint"
