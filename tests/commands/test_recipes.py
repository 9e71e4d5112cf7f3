"""Every packaged recipe: it loads, it says what it is for, and it trains."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from unmask.commands.recipe import load_recipe
from unmask.commands.recipe_files import recipe_names
from unmask.masking.settings import rate_at

# Only sizes are changed: kinds, layouts, schedules, tokenizers and masking are the recipe's own.
SMALL = (
    "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2", "model.intermediate_size=64",
    "training.sequence_length=32", "training.batch_tokens=256", "evaluation.times=2",
)  # fmt: skip


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_two_steps(name: str, corpus_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    settings = list(SMALL)
    if recipe.training.length_schedule is not None:
        settings.append("training.length_schedule={places = [0.0, 0.5], lengths = [16, 32]}")
    if recipe.tokenizer.vocab_size is not None:
        settings.append("tokenizer.vocab_size=400")
    run = unmask.pretrain([corpus_file], out=tmp_path / "run", recipe=name, steps=2, settings=settings)
    assert run.summary["steps"] == 2
    kept = load_recipe(str(tmp_path / "run" / "recipe.toml"))
    assert kept.masking == recipe.masking
    assert kept.training.optimizer == recipe.training.optimizer
    assert run.model.network.config.layout == recipe.model.layout
    assert len(run.model.fill("The [MASK].", top_k=1).masks) == 1


def test_the_characters_have_the_frame_of_the_annotated_experiment() -> None:
    recipe = load_recipe("shakespeare-chars")
    training, model = recipe.training, recipe.model
    assert model.hidden_size == 128
    assert training.sequence_length == 32
    assert recipe.masking.replacement.shares == (0.8, 0.1, 0.1)
    assert rate_at(recipe.masking.rate, 1.0) == 0.15
    assert (recipe.corpus.holdout, recipe.corpus.holdout_from) == (0.1, "end")
    assert len(recipe.evaluation.prompts) == 10
    text = (Path(unmask.__file__).parent / "data" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    held_out = text[int(len(text) * 0.9) :]
    assert all(prompt in held_out and len(prompt) <= 32 for prompt in recipe.evaluation.prompts)
