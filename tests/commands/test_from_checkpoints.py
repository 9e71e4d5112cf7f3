"""Recipes that begin with a checkpoint: text gets its tokenizer, and what cannot be is found before the first run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.checkpoints import SHORT, released
from unmask.commands import compare as tuning
from unmask.commands.compare import ComparisonPlan, Protocol, TunePlan, read_inputs
from unmask.commands.compare import compare_plan as compare
from unmask.commands.compare import tune_plan as tune
from unmask.commands.recipe import load_recipe
from unmask.core.errors import DataError, SettingsError, UnmaskError
from unmask.data.data_folder import load_manifest
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

PAIR = '{"sentence_good": "The cat sees.", "sentence_bad": "Cat the sees."}\n'
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


def plan(data: Path, *recipes: str, **changes: Any) -> ComparisonPlan:
    protocol = Protocol(**{"steps": 1, "settings": QUICK, **changes})
    return ComparisonPlan(recipes=recipes, data=(str(data),), protocol=protocol, seeds=1)


def test_text_gets_the_tokenizer_of_the_checkpoint(checkpoint: Path, corpus_file: Path, tmp_path: Path) -> None:
    protocol = Protocol(steps=1, base="continue", settings=(*QUICK, f"start.checkpoint='{checkpoint}'"))
    asked = ComparisonPlan(recipes=("random", "span"), data=(str(corpus_file),), protocol=protocol, seeds=1)
    result = compare(asked, tmp_path / "out")
    assert not [run for runs in result["runs"].values() for run in runs if "failed" in run]
    found = load_manifest(tmp_path / "out" / "data").tokenizer_sha256
    assert found == load_tokenizer(checkpoint).fingerprint


def test_recipes_with_the_same_tokenizer_from_different_folders(
    checkpoint: Path, make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path
) -> None:
    wider = released(make_model(num_layers=1, hidden_size=48), tokenizer, tmp_path / "wider")
    files = [begins_with(folder, tmp_path / f"{folder.name}.toml") for folder in (checkpoint, wider)]
    new = load_recipe("tiny", overrides=(f"tokenizer.path='{wider}'",))
    recipes = {name: load_recipe(name, overrides=("training.steps=1",)) for name in files}
    assert set(read_inputs(recipes | {"new": new}, Protocol(steps=1), (str(corpus_file),))) == {str(corpus_file)}


def test_what_cannot_be_compared_is_found_before_anything_is_begun(
    checkpoint: Path, other: Path, corpus_file: Path, data_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.jsonl").write_text(PAIR.replace("cat", "cat " * 80))
    pairs = str(tmp_path / "long.jsonl")
    own, same = begins_with(checkpoint, tmp_path / "own.toml"), begins_with(checkpoint, tmp_path / "same.toml")
    others = begins_with(other, tmp_path / "others.toml")
    longer = begins_with(checkpoint, tmp_path / "longer.toml", "extend_vocab = 4")
    one_tokenizer = r"prepare text differently \(\[tokenizer\]\), .*; a checkpoint brings its own tokenizer: begin with"
    words = rf"start\.extend_vocab gives each run .*--from {checkpoint} --extend-vocab 4 --steps 1 --out RUN, and begin"
    cases: list[tuple[ComparisonPlan, type[UnmaskError], str]] = [
        (plan(corpus_file, own, others), SettingsError, one_tokenizer),
        (plan(corpus_file, "tiny", own), SettingsError, one_tokenizer),
        (plan(corpus_file, own, longer), SettingsError, words),
        (plan(data_folder, own, longer), SettingsError, words),
        (plan(data_folder, own, others), DataError, "was prepared with another tokenizer than that of .*other"),
        (
            plan(data_folder, own, same, pairs=pairs),
            SettingsError,
            "line 1: a sentence of .* but the model takes 1 to 62",
        ),
    ]
    for asked, error, message in cases:
        with pytest.raises(error, match=message):
            compare(asked, tmp_path / "out")
        assert not (tmp_path / "out").exists(), message


def test_a_search_leaves_the_layers_as_they_are(
    checkpoint: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    seen: list[tuple[str, ...]] = []

    def run(*_: Any, overrides: Any, data: tuple[str, ...], folder: Path, **__: Any) -> dict[str, Any]:
        seen.append(data)
        (folder / "model").mkdir(parents=True)
        return {"loss": float(len(overrides))}

    monkeypatch.setattr(tuning, "measured_run", run)
    recipe = begins_with(checkpoint, tmp_path / "own.toml")
    asked = TunePlan(recipe=recipe, data=(str(corpus_file),), protocol=Protocol(steps=1, settings=QUICK), trials=1)
    [trial] = tune(asked, tmp_path / "out")["trials"]
    assert "training.learning_rate" in trial["parameters"]
    assert "model.num_layers" not in trial["parameters"]
    [[data]] = seen
    assert load_manifest(Path(data)).tokenizer_sha256 == load_tokenizer(checkpoint).fingerprint
