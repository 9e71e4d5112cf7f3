"""What a checkpoint says of a recipe: filled in where it is open, an error where it is contradicted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.commands.recipe import Recipe, load_recipe, requested_recipe
from unmask.core.errors import ModelError, SettingsError
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.settings import TrainingSettings

MakeModel = Callable[..., MaskedLM]


@pytest.fixture
def checkpoint(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """4 layers of 32, 64 positions, BERT's layout with dropout."""
    save_model(make_model(layout="bert", dropout=0.1), tmp_path / "model")
    tokenizer.save(tmp_path / "model", max_length=64)
    return tmp_path / "model"


def load(checkpoint: Path, *settings: str) -> Recipe:
    return requested_recipe(from_=checkpoint, settings=settings)


def test_what_is_open_is_filled_in(checkpoint: Path) -> None:
    recipe = load(checkpoint)
    model, training = recipe.model, recipe.training
    assert (model.layout, model.num_layers, model.hidden_size, model.num_heads) == ("bert", 4, 32, 2)
    assert (model.intermediate_size, model.max_position_embeddings, model.dropout) == (48, 64, 0.1)
    assert (training.sequence_length, training.learning_rate) == (64, pytest.approx(1e-4 * 768 / 32))
    assert load(checkpoint.parent) == recipe, "the folder of a run"
    changed = load(checkpoint, "training.optimizer.kind=muon", "training.sequence_length=32", "model.dropout=0")
    assert changed.training.learning_rate == TrainingSettings.model_fields["learning_rate"].default, "Muon's usual rate"
    assert (changed.model.max_position_embeddings, changed.model.dropout) == (64, 0)


def test_the_architecture_of_modernbert(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_model(make_model(max_position_embeddings=512), tmp_path)
    tokenizer.save(tmp_path, max_length=512)
    recipe = load(tmp_path)
    assert (recipe.model.layout, recipe.model.global_every, recipe.model.local_window) == ("modernbert", 3, 8)
    assert recipe.training.sequence_length == 128, "the usual one, where the model is longer"
    with pytest.raises(SettingsError, match="local_window"):
        load(tmp_path, "model.local_window=16")


def test_a_resolved_recipe_can_be_given_back(checkpoint: Path, tmp_path: Path) -> None:
    recipe = load(checkpoint, "training.sequence_length=100", "start.extend_positions=true")
    assert recipe.model.max_position_embeddings == 100
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    assert load_recipe(str(tmp_path / "again.toml")) == recipe
    shutil.rmtree(checkpoint)
    assert load_recipe(str(tmp_path / "again.toml"), complete=False) == recipe
    with pytest.raises(ModelError, match="no such folder"):
        load_recipe(str(tmp_path / "again.toml"))


def test_a_changed_checkpoint_is_another_one(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "again.toml").write_text(load(checkpoint).to_toml())
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace('"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.2'))
    with pytest.raises(SettingsError, match="start.sha256"):
        load_recipe(str(tmp_path / "again.toml"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.num_layers=6", "model.num_layers"),
        ("tokenizer.path=x", "tokenizer"),
        ("training.sequence_length=65", "64 positions"),
        ("start.extend_positions=true", "start.extend_positions"),
    ],
)
def test_contradictions(checkpoint: Path, setting: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(checkpoint, setting)


def test_more_ids_than_rows(checkpoint: Path, tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer(tokenizer.backend)
    tokenizer.backend.add_tokens(["<a>", "<b>"])
    Tokenizer(tokenizer.backend).save(checkpoint, max_length=64)
    with pytest.raises(ModelError, match="202"):
        load(checkpoint)
