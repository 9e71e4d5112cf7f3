"""Recipes: settings, settings left open, files, and each packaged recipe; the reference of settings, which agrees with
pydantic's view of the classes, and errors of settings and options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import Main
from tests.settings_page import PAGE, written
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.recipe import Recipe, encoder_config, load_recipe
from unmask.commands.recipe_files import AUTO, as_overrides, recipe_names, toml_value
from unmask.core.errors import SettingsError
from unmask.masking.settings import STRATEGIES, LineRate
from unmask.masking.units import SpanUnits
from unmask.model.config import EncoderConfig, Rotary
from unmask.tasks.task import FinetuneSettings
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
        (("training.sampled_softmax=yes",), "training.sampled_softmax"),
        (("training.minutes=2", "training.minutes.x=1"), "training.minutes"),
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


def test_objectives_of_a_recipe_can_be_taken_out() -> None:
    plain = load_recipe("bert-base", overrides=("objectives.pairs=none", "model.layout=roberta"))
    assert plain.objectives.pairs is None
    plain = load_recipe("spanbert-base", overrides=("objectives.span_boundary=none", "masking.strategy=whole_word"))
    assert plain.objectives.span_boundary is None


# ----------------------------------------
# The reference of settings, and errors.

CLASSES = {"": Recipe, "finetune.": FinetuneSettings, "embedder.": EmbedderSettings}
REFERENCE = unmask.settings().settings


def names_in(schema: dict[str, Any], prefix: str, defs: dict[str, Any]) -> Iterator[str]:
    """The dotted names of settings in a JSON schema."""
    if "$ref" in schema:
        yield from names_in(defs[schema["$ref"].rpartition("/")[2]], prefix, defs)
    for part in (part for kind in ("anyOf", "oneOf", "allOf") for part in schema.get(kind, [])):
        yield from names_in(part, prefix, defs)
    for name, part in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from names_in(part, f"{prefix}{name}.", defs)


def leaves(names: set[str]) -> set[str]:
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def test_the_reference_has_every_setting_that_pydantic_knows_and_no_other() -> None:
    known: set[str] = set()
    for prefix, settings in CLASSES.items():
        schema = settings.model_json_schema()
        known |= set(names_in(schema, prefix, schema["$defs"]))
    listed = {each.name for each in REFERENCE if "[]" not in each.name}
    assert leaves(listed) == leaves(known)
    assert len(listed) > 200


def test_every_setting_has_a_meaning() -> None:
    assert [each.name for each in REFERENCE if not each.meaning.endswith(".") or each.meaning[0] == " "] == []


def test_defaults_are_those_of_the_classes() -> None:
    values: dict[str, Any] = Recipe.model_validate({"training": {"minutes": 1.0}}).model_dump(mode="json")
    values |= {"finetune": FinetuneSettings().model_dump(mode="json")}
    values |= {"embedder": EmbedderSettings().model_dump(mode="json")}
    compared = 0
    for each in REFERENCE:
        *path, name = each.name.split(".")
        table: Any = values
        for part in path:
            table = table.get(part) if isinstance(table, dict) else None
        is_other = each.kinds and isinstance(table, dict) and table.get("kind") not in each.kinds
        if not isinstance(table, dict) or is_other or each.name in ("training.minutes", "masking.strategy"):
            continue
        if not each.default:  # of a table
            assert isinstance(table[name], dict), each.name
            continue
        assert (None if each.default == "none" else toml_value(each.default)) == table[name], each.name
        compared += 1
    assert compared > 140


def test_values_are_those_that_the_classes_take() -> None:
    values = {each.name: each.values for each in REFERENCE}
    assert values["corpus.holdout"] == "number > 0 and <= 0.5"
    assert values["training.schedule.kind"] == "warmup_stable_decay, linear or cosine"
    assert values["masking.units.lengths"] == "geometric, uniform or list of numbers >= 0"
    assert values["masking.replacement.shares"] == "list of 3 numbers >= 0 and <= 1"
    assert values["finetune.seed"] == "whole number >= 0 and < 2147482648"
    assert values["finetune.class_weights"] == "balanced or table of names to numbers > 0"


def test_a_word_chooses_by_name_or_meaning(main: Main) -> None:
    names = [each.name for each in unmask.settings("Learning_Rate").settings]
    assert (
        {"training.learning_rate", "finetune.learning_rate", "embedder.learning_rate"}
        <= set(names)
        < {each.name for each in REFERENCE}
    )
    assert "training.optimizer.embedding_rate" in names, "by its meaning"
    code, out, _ = main("settings", "learning_rate", "--json")
    assert code == 0
    assert [each["name"] for each in json.loads(out)["settings"]] == names
    with pytest.raises(SettingsError, match=r"training\.learning_rate"):
        unmask.settings("learning-rat")


def test_the_page_shows_all_settings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert written(text) == text, "python -m tests.settings_page writes it anew"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.learningrate", "training.learning_rate"),
        ("trainig.learning_rate", "training.learning_rate"),
        ("masking.units.pp", "masking.units.p"),
        ("training.optimizer.momentm", "training.optimizer.momentum"),
    ],
)
def test_an_unknown_setting_names_the_nearest_of_all_sections(key: str, meant: str, tmp_path: Path, main: Main) -> None:
    with pytest.raises(SettingsError, match=key) as error:
        unmask.pretrain(out=tmp_path / "run", settings={key: 1})
    assert meant in str(error.value)
    assert "settings={" in str(error.value)
    code, _, err = main("pretrain", "--out", tmp_path / "run", "--set", f"{key}=1")
    assert code == 2
    assert "--set" in err
    assert "settings={" not in err


def test_prepare_refuses_settings_that_it_would_ignore(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"training\.steps") as error:
        unmask.prepare(corpus_file, out=tmp_path / "data", settings={"training.steps": 5})
    assert str(error.value.setting).startswith(("corpus.", "tokenizer.", "annotation."))
    assert not (tmp_path / "data").exists()


def test_an_unknown_setting_of_a_file_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[training]\nsteps = 2\nlearningrate = 1\n")
    with pytest.raises(SettingsError, match=r"a\.toml.*training\.learning_rate") as error:
        unmask.pretrain(out=tmp_path / "run", recipe=str(tmp_path / "a.toml"))
    assert "settings={" not in str(error.value)


@pytest.mark.parametrize(
    ("command", "option", "nearest"),
    [
        ("pretrain --out run --strategy spn", "--strategy", "'span'"),
        ("pretrain --out run --recipe tyni", "--recipe", "'tiny'"),
        ("pretrain --out run --minutes -3", "--minutes", "training.minutes"),
        ("pretrain --out run --set training.optimizer.kind=adam", "--set", "'adamw'"),
        ("search index model a.txt --out run --pooling men", "--pooling", "'mean'"),
        ("finetune model --train a.csv --out run --task clasify", "--task", "'classify'"),
        ("finetune model --train a.csv --out run --task classify --seeds 0", "--seeds", "finetune.seeds"),
        ("export model --out run --format onx", "--format", "'onnx'"),
        ("compare randm span --data a.txt --minutes 1", "strategy", "'random'"),
    ],
)
def test_a_wrong_value_names_its_option_and_the_nearest(
    command: str, option: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = main(*command.split())
    assert code == 2
    assert err.count("\n") == 1
    assert option in err
    assert nearest in err
    assert not (tmp_path / "run").exists()


def test_an_error_names_options_of_its_command_only(monkeypatch: pytest.MonkeyPatch, main: Main) -> None:
    def fails(*_: object, **__: object) -> None:
        raise SettingsError("wrong", options=("model", "set", "out"))

    monkeypatch.setattr("unmask.commands.cli._call", fails)
    assert main("embed", "model", "a.txt", "--out", "v.npy")[2] == "unmask: wrong (--out)\n"


def test_a_tracker_that_is_not_installed_is_missed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.train.callbacks.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"evaluation\.trackers.*wandb"):
        unmask.pretrain(out=tmp_path / "run", settings={"evaluation.trackers": ["wandb"]})
    assert not (tmp_path / "run").exists()
