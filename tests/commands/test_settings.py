"""The reference of settings agrees with pydantic's view of the classes (types, defaults); and errors of
settings and options."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import Main
from tests.settings_page import PAGE, written
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.recipe_files import toml_value
from unmask.core.errors import SettingsError
from unmask.tasks.task import FinetuneSettings

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


def test_it_has_every_setting_that_pydantic_knows_and_no_other() -> None:
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
    assert compared > 150


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


def test_it_answers_without_torch() -> None:
    code = "import sys, unmask; unmask.settings('seed'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "unmask.commands.settings" in loaded
    assert not {"torch", "numpy", "pyarrow", "tokenizers"} & set(loaded)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.learningrate", "training.learning_rate"),
        ("trainig.learning_rate", "training.learning_rate"),
        ("training.rate", "masking.rate"),
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
    with pytest.raises(SettingsError, match="no such section of settings here") as error:
        unmask.prepare(corpus_file, out=tmp_path / "data", settings={"training.steps": 5})
    assert str(error.value.setting).startswith(("corpus.", "tokenizer.", "annotation."))
    assert not (tmp_path / "data").exists()


def test_an_unknown_setting_of_a_file_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[training]\nsteps = 2\nlearningrate = 1\n")
    with pytest.raises(SettingsError, match=r"a\.toml.*training\.learning_rate") as error:
        unmask.pretrain(out=tmp_path / "run", recipe=str(tmp_path / "a.toml"))
    assert "settings={" not in str(error.value)


def test_settings_of_other_commands_name_their_own(tmp_path: Path) -> None:
    for key in ("finetune.epoch", "training.epochs"):
        with pytest.raises(SettingsError, match=r"finetune\.epochs"):
            unmask.finetune("model", task="classify", train="a.csv", out=tmp_path / "run", settings={key: 2})


@pytest.mark.parametrize("strategy", ["mixture", "frequency"])
def test_a_runs_recipe_says_what_each_setting_means(strategy: str, tmp_path: Path) -> None:
    prompts = ["a = 1", "b\n\nc = 2"]
    more = ["training.schedule.kind=cosine", "annotation.columns=['pos']", "annotation.fields={pos = 'tags'}"]
    recipe = load_recipe(options={"masking.strategy": strategy, "evaluation.prompts": prompts}, overrides=more)
    text = recipe.to_toml()
    (tmp_path / "recipe.toml").write_text(text)
    assert load_recipe(str(tmp_path / "recipe.toml")) == recipe
    lines = text.splitlines()
    without = [line for above, line in pairwise(lines) if re.match(r"[a-z_]+ = ", line) and not above.startswith("# ")]
    assert without == ['pos = "tags"']
    assert "# Positions of a row, special tokens included.\nsequence_length = 128\n" in text


@pytest.mark.parametrize(
    ("command", "option", "nearest"),
    [
        ("pretrain --out run --strategy spn", "--strategy", "'span'"),
        ("pretrain --out run --tokenizer-kind bep", "--tokenizer-kind", "'bpe'"),
        ("pretrain --out run --recipe tyni", "--recipe", "'tiny'"),
        ("pretrain --out run --minutes -3", "--minutes", "training.minutes"),
        ("pretrain --out run --set training.optimizer.kind=adam", "--set", "'adamw'"),
        ("pretrain --out run --set masking.strategy=spn", "--set", "'span'"),
        ("search index model a.txt --out run --pooling men", "--pooling", "'mean'"),
        ("finetune model --train a.csv --out run --task clasify", "--task", "'classify'"),
        ("finetune model --train a.csv --out run --task classify --seeds 0", "--seeds", "finetune.seeds"),
        ("export model --out run --format onx", "--format", "'onnx'"),
        ("score model pairs --form plan", "--form", "'plain'"),
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
