from __future__ import annotations

from pathlib import Path

import pytest

from unmask.commands.recipe import encoder_config, load_recipe
from unmask.commands.recipe_files import as_overrides
from unmask.core.errors import SettingsError
from unmask.masking.settings import STRATEGIES
from unmask.masking.units import SpanUnits
from unmask.model.config import Rotary
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.settings import AdamWSettings


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_survives_its_file(tmp_path: Path, strategy: str) -> None:
    """Its name too, and what a checkpoint knows of it: a run goes on only where both do."""
    recipe = load_recipe(options={"masking.strategy": strategy})
    (tmp_path / "r.toml").write_text(recipe.to_toml())
    again = load_recipe(str(tmp_path / "r.toml"), complete=False)
    assert again == recipe
    assert again.masking.strategy == strategy
    assert again.fingerprinted() == recipe.fingerprinted()


@pytest.mark.parametrize("line", ['start = "runs/a/model"', 'model = "base"', "training = 5"])
def test_a_section_is_a_table(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.toml").write_text(f"{line}\n")
    section = line.split(maxsplit=1)[0]
    with pytest.raises(SettingsError, match=rf"r\.toml: {section} = .*: expected a table of settings, \[{section}\]"):
        load_recipe(str(tmp_path / "r.toml"))


def test_settings_are_reached_by_their_dotted_keys() -> None:
    recipe = load_recipe(
        options={"training.steps": 7, "training.seed": None},
        overrides=(
            "model.num_layers=2",
            "masking.rate=0.25",
            "training.learning_rate = 1e-3",
            "training.optimizer.kind=adamw",
            "training.optimizer.betas=[0.8, 0.9]",
            "corpus.documents=line",
            "checkpoint.every_steps=20",
        ),
    )
    assert recipe.training.steps == 7
    assert recipe.training.minutes is None, "steps replace minutes"
    assert recipe.model.num_layers == 2
    assert recipe.masking.rate == 0.25
    assert recipe.training.optimizer == AdamWSettings(kind="adamw", betas=(0.8, 0.9))
    assert recipe.corpus.documents == "line"
    assert recipe.checkpoint.every_steps == 20


def test_the_order_of_settings_does_not_matter() -> None:
    settings = ["training.schedule.warmup=0.1", "training.schedule.kind=cosine", "training.optimizer.kind=muon"]
    settings += ["masking.rate=0.2", "masking.strategy=span", "tokenizer.kind=bpe"]
    schedule = load_recipe("tiny", overrides=settings).training.schedule
    assert (schedule.kind, schedule.warmup) == ("cosine", 0.1)  # type: ignore[union-attr]
    assert load_recipe("tiny", overrides=settings) == load_recipe("tiny", overrides=settings[::-1])


def test_settings_as_a_dict() -> None:
    """By section and key, or dotted; what a string of them says in TOML."""
    given = {
        "masking": {"rate": {"start": 0.4, "end": 0.2, "kind": "linear"}, "units": {"kind": "words"}},
        "training.tokens": None,
        "corpus": {"validation": ["a b.txt", 'quo"te.txt'], "column": "none", "cleaning": {"duplicates": "drop"}},
        "training": {"steps": 7, "learning_rate": 1e-3},
    }
    recipe = load_recipe(overrides=as_overrides(given))
    assert recipe.masking.rate.model_dump()["start"] == 0.4  # type: ignore[union-attr]
    assert (recipe.training.steps, recipe.training.learning_rate) == (7, 1e-3)
    assert recipe.corpus.validation == ("a b.txt", 'quo"te.txt')
    assert recipe.corpus.column == "none", "a name, and not the absence of one"
    assert recipe.corpus.cleaning.duplicates == "drop"
    assert as_overrides(("a.b=1",)) == ("a.b=1",)
    with pytest.raises(SettingsError, match="give a list of .* or a dict, not the string 'masking.rate=0.3'"):
        as_overrides("masking.rate=0.3")
    with pytest.raises(SettingsError, match=r"masking\.rate = \{0\.3\} is set, which no recipe holds"):
        as_overrides({"masking": {"rate": {0.3}}})


def test_a_strategy_is_shorthand_for_a_pair() -> None:
    recipe = load_recipe(options={"masking.strategy": "span"})
    assert recipe.masking.units == SpanUnits()
    assert recipe.masking.weights.kind == "uniform"
    changed = load_recipe(options={"masking.strategy": "span"}, overrides=("masking.units.p=0.3",))
    assert changed.masking.units == SpanUnits(p=0.3)
    assert changed.masking.strategy is None, "what is changed is no longer the strategy of that name"
    assert load_recipe(overrides=("masking.units.kind=span",)).masking.strategy is None
    longer = load_recipe(overrides=("masking.strategy=span", "masking.units.kind=span", "masking.units.max_words=5"))
    assert longer.masking.units == SpanUnits(max_words=5)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("training.learning_rat=1",), "learning_rate"),
        (("training.steps=1.5",), "training.steps"),
        (("model.hidden_size=30",), "hidden_size"),
        (("model.layout=bert", "model.local_window=64", "model.global_every=2"), "global_every, local_window"),
        (("masking.units.kind=spam",), "masking.units"),
        (("learning_rate=1",), "learning_rate=1"),
        (("training.minutes=2", "training.minutes.x=1"), "training.minutes"),
        (("training.optimizer.betas=[1.5, 2.0]",), "training.optimizer.betas"),
        (("tokenizer.path=x", "tokenizer.vocab_size=99"), "vocab_size"),
        (("model.max_position_embeddings=64",), "model.max_position_embeddings"),
    ],
)
def test_wrong_settings_are_named(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load_recipe(overrides=overrides)


def test_a_layout_fills_in_what_is_left_open(tokenizer: Tokenizer) -> None:
    config = encoder_config(load_recipe(overrides=("model.local_window=64",)), tokenizer)
    assert config.rotary == Rotary(global_every=3, local_window=64, global_rope_theta=160_000, local_rope_theta=10_000)
    assert (config.intermediate_size, config.norm_eps, config.type_vocab_size) == (384, 1e-5, None)
    config = encoder_config(load_recipe(overrides=("model.layout=bert", "model.dropout=0.1")), tokenizer)
    assert config.rotary is None
    assert (config.intermediate_size, config.norm_eps, config.type_vocab_size) == (1024, 1e-12, 2)
    assert config.dropout == 0.1
    assert config.first_position == 0
    odd = ("model.layout=roberta", "model.hidden_size=36", "model.norm_eps=1e-6", "model.type_vocab_size=3")
    config = encoder_config(load_recipe(overrides=odd), tokenizer)
    assert (config.hidden_size // config.num_heads, config.norm_eps, config.type_vocab_size) == (9, 1e-6, 3)
    assert config.first_position == tokenizer.special.pad + 1
