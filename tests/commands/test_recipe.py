"""Recipes: settings, settings left open, files, and each packaged recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from unmask.commands.recipe import Recipe, encoder_config, load_recipe
from unmask.commands.recipe_files import AUTO, as_overrides, recipe_names
from unmask.core.errors import SettingsError
from unmask.masking.settings import STRATEGIES, LineRate
from unmask.masking.units import SpanUnits
from unmask.model.config import EncoderConfig, Rotary
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.settings import ADAMW_RATE, AdamWSettings


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_survives_its_file(tmp_path: Path, strategy: str) -> None:
    """So do its name and its copy in a checkpoint: a run resumes only if they do."""
    recipe = load_recipe(options={"masking.strategy": strategy})
    (tmp_path / "r.toml").write_text(recipe.to_toml())
    again = load_recipe(str(tmp_path / "r.toml"), complete=False)
    assert again == recipe
    assert again.masking.strategy == strategy
    assert again.fingerprinted() == recipe.fingerprinted()


def test_a_section_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('start = "runs/a/model"\n')
    with pytest.raises(SettingsError, match=r"r\.toml: start = .*\[start\]"):
        load_recipe(str(tmp_path / "r.toml"))


def test_a_recipe_file_without_a_budget_takes_that_of_an_option(main: Main, data_folder: Path, tmp_path: Path) -> None:
    recipe, text = tmp_path / "span.toml", tmp_path / "nosuch.txt"
    recipe.write_text('[masking]\nstrategy = "span"\n', encoding="utf-8-sig")
    _, _, err = main("pretrain", text, "--recipe", recipe, "--minutes", 1, "--out", tmp_path / "out")
    assert "nosuch.txt" in err, "which is looked for once the recipe is checked"
    assert list(unmask.audit(data_folder, recipe=recipe, max_tokens=1_000).strategies) == ["span"]


def test_the_order_of_settings_does_not_matter() -> None:
    settings = ["training.schedule.warmup=0.1", "training.schedule.kind=cosine", "training.optimizer.kind=adamw"]
    settings += ["training.optimizer.betas=[0.8, 0.9]", "masking.rate=0.2", "masking.strategy=span"]
    recipe = load_recipe("tiny", overrides=settings)
    assert recipe.training.schedule.model_dump() == {"kind": "cosine", "warmup": 0.1}  # type: ignore[union-attr]
    assert recipe.training.optimizer == AdamWSettings(kind="adamw", betas=(0.8, 0.9))
    assert load_recipe("tiny", overrides=settings[::-1]) == recipe


@pytest.mark.parametrize("name", ["tiny", "bert-base"])
def test_a_schedule_takes_the_place_of_a_rate(name: str) -> None:
    schedule = ["masking.rate.start=0.3", "masking.rate.end=0.15", "masking.rate.kind=linear"]
    recipe = load_recipe(name, overrides=schedule, complete=False)
    assert recipe.masking.rate == LineRate(kind="linear", start=0.3, end=0.15)
    with pytest.raises(SettingsError, match=r"masking\.rate\.kind"):
        load_recipe(name, overrides=["masking.rate=0.2", *schedule[:2]], complete=False)


def test_kinds_of_tokenizers_share_their_settings(tmp_path: Path) -> None:
    first = ["tokenizer.kind=char", "tokenizer.bare=true", "tokenizer.vocab_size=300", "tokenizer.lowercase=true"]
    (tmp_path / "r.toml").write_text(load_recipe(overrides=first).to_toml())
    other = load_recipe(str(tmp_path / "r.toml"), options={"tokenizer.kind": "bpe"}).tokenizer
    assert other == TokenizerSettings(kind="bpe", vocab_size=300, lowercase=True)
    (tmp_path / "r.toml").write_text(load_recipe(overrides=["tokenizer.path=x"], complete=False).to_toml())
    assert load_recipe(str(tmp_path / "r.toml"), overrides=["tokenizer.kind=bpe"]).tokenizer.path is None


def test_paths_become_absolute_so_that_a_run_resumes_from_any_folder() -> None:
    collocations = ["masking.units.kind=collocations", "masking.units.lexicon=a.lexicon", "tokenizer.path=./tokens"]
    anchors = ["masking.weights.kind=anchors", "masking.weights.background=b/data", "tokenizer.path=owner/name"]
    informative = ["masking.weights.kind=informative", "masking.weights.lexicon=../a.lexicon"]
    one, two, three = (load_recipe(overrides=each, complete=False) for each in (collocations, anchors, informative))
    assert one.masking.units.lexicon == str(Path.cwd() / "a.lexicon")  # type: ignore[union-attr]
    assert two.masking.weights.background == str(Path.cwd() / "b" / "data")  # type: ignore[union-attr]
    assert three.masking.weights.lexicon == f"{Path.cwd()}/../a.lexicon"  # type: ignore[union-attr]
    assert (one.tokenizer.path, two.tokenizer.path) == (str(Path.cwd() / "tokens"), "owner/name")


def test_files_of_a_mixture_may_move() -> None:
    def mixture(lexicon: str, p: float = 0.2) -> Recipe:
        parts = [{"units": {"kind": "collocations", "lexicon": lexicon}}, {"units": {"kind": "span", "p": p}}]
        return load_recipe(overrides=as_overrides({"masking": {"units": {"kind": "mixture", "parts": parts}}}))

    assert mixture("a.safetensors") != mixture("b.safetensors")
    assert mixture("a.safetensors").fingerprinted() == mixture("b.safetensors").fingerprinted()
    assert mixture("a.safetensors").fingerprinted() != mixture("a.safetensors", 0.3).fingerprinted()


def test_settings_as_a_dict() -> None:
    """By section and key, or dotted."""
    settings = {
        "masking": {"rate": {"start": 0.4, "end": 0.2, "kind": "linear"}, "units": {"kind": "words"}},
        "training.tokens": None,
        "corpus": {"validation": ["a b.txt", Path('quo"te.txt')], "column": "none", "cleaning": {"duplicates": "drop"}},
        "training": {"steps": 7, "learning_rate": 1e-3},
    }
    recipe = load_recipe(overrides=as_overrides(settings))
    assert recipe.masking.rate.model_dump()["start"] == 0.4  # type: ignore[union-attr]
    assert (recipe.training.steps, recipe.training.learning_rate) == (7, 1e-3)
    assert recipe.training.minutes is None, "steps replace minutes"
    assert recipe.corpus.validation == tuple(str(Path.cwd() / name) for name in ("a b.txt", 'quo"te.txt'))
    assert recipe.corpus.column == "none", "a name, and not the absence of one"
    assert recipe.corpus.cleaning.duplicates == "drop"
    parts = [{"strategy": "random", "share": 0.5}, {"units": {"kind": "span", "lengths": [0.5, 0.5]}, "share": 0.5}]
    recipe = load_recipe(overrides=as_overrides({"masking": {"units": {"kind": "mixture", "parts": parts}}}))
    assert recipe.masking.units.parts[1].units.lengths == (0.5, 0.5)  # type: ignore[union-attr]
    weights = {"62.01": 3.0, "a": 1.0}
    tables = {"objectives": {"retromae": {}}, "finetune": {"class_weights": weights}, "masking": {}}
    assert as_overrides(tables) == (("objectives.retromae", {}), ("finetune.class_weights", weights))
    assert load_recipe(overrides=as_overrides({"objectives": {"retromae": {}}})).objectives.retromae is not None
    for wrong in ("masking.rate=0.3", {"masking": {"rate": {0.3}}}):
        with pytest.raises(SettingsError, match=r"masking\.rate"):
            as_overrides(wrong)


def test_a_rate_belongs_to_its_optimizer(tmp_path: Path) -> None:
    adamw = "training.optimizer.kind=adamw"
    (tmp_path / "a.toml").write_text("[training]\nminutes = 1\noptimizer = { kind = 'adamw' }\n")
    rates = [
        load_recipe(recipe, overrides=overrides).training.learning_rate
        for recipe, *overrides in (
            ("tiny", "training.optimizer.momentum=0.9"), ("tiny", adamw), ("bert-base", adamw),
            (str(tmp_path / "a.toml"),), ("tiny", adamw, "training.learning_rate=0.002"),
        )
    ]  # fmt: skip
    assert rates == [0.01, ADAMW_RATE, 1e-4, ADAMW_RATE, 0.002]


def test_a_strategy_is_shorthand_for_a_pair() -> None:
    recipe = load_recipe(options={"masking.strategy": "span"})
    assert (recipe.masking.units, recipe.masking.weights.kind) == (SpanUnits(), "uniform")
    changed = load_recipe(options={"masking.strategy": "span"}, overrides=("masking.units.p=0.3",))
    assert changed.masking.units == SpanUnits(p=0.3)
    assert changed.masking.strategy is None, "what is changed is no longer the strategy of that name"
    longer = load_recipe(overrides=("masking.strategy=span", "masking.units.kind=span", "masking.units.max_words=5"))
    assert longer.masking.units == SpanUnits(max_words=5)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("model.layout=bert", "model.local_window=64", "model.global_every=2"), "global_every, local_window"),
        (("learning_rate=1",), "learning_rate=1"),
        (("training.sampled_softmax=yes",), "training.sampled_softmax"),
        (("training.minutes=2", "training.minutes.x=1"), "training.minutes"),
        (("training.optimizer.betas=[1.5, 2.0]",), "training.optimizer.betas"),
        (("corpus.validation=[a.txt, b.txt]",), r'\["a\.txt", "b\.txt"\]'),  # a shell took the quotes away
        (("tokenizer.path=x", "tokenizer.vocab_size=99"), "vocab_size"),
        (("model.max_position_embeddings=64",), "model.max_position_embeddings"),
        (("objectives.pairs.kind=next_sentence",), "modernbert"),
        (("model.layout=bert", "objectives.pairs.kind=next_sentence", "model.type_vocab_size=1"), "type_vocab_size"),
        (("objectives.span_boundary.weight=1",), "objectives.span_boundary"),
        (("model.layout=bert", "model.max_position_embeddings=512"), "max_position_embeddings 512 exceeds"),
    ],
)
def test_wrong_settings_are_named(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load_recipe(overrides=overrides)


def test_a_layout_fills_in_what_is_left_open(tokenizer: Tokenizer) -> None:
    def config(*overrides: str) -> EncoderConfig:
        return encoder_config(load_recipe(overrides=overrides), tokenizer)

    modernbert = config("model.local_window=64")
    assert modernbert.rotary == Rotary(
        global_every=3, local_window=64, global_rope_theta=160_000, local_rope_theta=10_000
    )
    assert (modernbert.intermediate_size, modernbert.norm_eps, modernbert.type_vocab_size) == (384, 1e-5, None)
    bert = config("model.layout=bert", "model.dropout=0.1")
    assert (bert.rotary, bert.intermediate_size, bert.norm_eps, bert.type_vocab_size) == (None, 1024, 1e-12, 2)
    assert (bert.dropout, bert.first_position) == (0.1, 0)
    odd = config("model.layout=roberta", "model.hidden_size=36", "model.norm_eps=1e-6", "model.type_vocab_size=3")
    assert (odd.hidden_size // odd.num_heads, odd.norm_eps, odd.type_vocab_size) == (9, 1e-6, 3)
    assert odd.first_position == tokenizer.special.pad + 1


# Only sizes are changed: kinds, layouts, schedules, tokenizers and masking are the recipe's own.
SMALL = (
    "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2", "model.intermediate_size=64",
    "training.sequence_length=32", "training.batch_tokens=256", "evaluation.times=2",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted({*recipe_names()} - {AUTO}))  # whose sizes test_sizing.py has
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


def test_the_prompts_of_characters_are_held_out_text() -> None:
    recipe = load_recipe("shakespeare-chars")
    assert (recipe.corpus.holdout, recipe.corpus.holdout_from) == (0.1, "end")
    text = (Path(unmask.__file__).parent / "data" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    held_out = text[int(len(text) * 0.9) :]
    assert len(recipe.evaluation.prompts) == 10
    assert all(prompt in held_out and len(prompt) <= 32 for prompt in recipe.evaluation.prompts)


def test_objectives_of_a_recipe_can_be_taken_out() -> None:
    plain = load_recipe("bert-base", overrides=("objectives.pairs=none", "model.layout=roberta"))
    assert plain.objectives.pairs is None
    plain = load_recipe("spanbert-base", overrides=("objectives.span_boundary=none", "masking.strategy=whole_word"))
    assert plain.objectives.span_boundary is None
