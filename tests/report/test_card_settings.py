"""The user's statements for a model's card: checked before training, changed without training again, never guessed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData

import unmask
from tests.commands.checkpoints import further
from tests.commands.finetune_helpers import FAST, MakeModel, save_encoder, write_classes
from tests.conftest import SMALL
from unmask.commands.finetune import settings_of
from unmask.commands.recipe import load_recipe
from unmask.core.errors import RunError, SettingsError
from unmask.model.card_head import base_models
from unmask.tokenizer.tokenizer import Tokenizer

SAID = ("card.license=mit", "card.language=fi")


def card_in(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "model" / "README.md")


def said_in(folder: Path) -> tuple[object, object]:
    data = card_in(folder).data
    return data.license, data.language


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("card.license=Apache 2.0", "card.license.*'apache-2.0'"),
        ("card.licence=mit", r"card\.licence'.*card\.license"),
        ("card.language=['fi', 'Finnish']", "card.language.*'Finnish'"),
        ("card.license_name=my-own", "license_name"),
    ],
)
def test_mistakes_are_found_before_training(setting: str, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        load_recipe(overrides=(setting,))
    with pytest.raises(SettingsError, match=field):
        settings_of((setting,))


def test_the_card_is_no_part_of_what_is_trained(tmp_path: Path) -> None:
    said = (*SAID, "card.language=['no', 'code']", "card.license=openrail++")
    plain, described = load_recipe(), load_recipe(overrides=said)
    assert described.fingerprinted() == plain.fingerprinted()
    assert "card" not in plain.to_toml()
    (tmp_path / "r.toml").write_text(described.to_toml())
    assert load_recipe(str(tmp_path / "r.toml")) == described


def test_a_finished_run_is_told_its_licence(
    data_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without training again; so also a run that was stopped after its last step."""
    caplog.set_level("INFO", logger="unmask")
    options = {"out": tmp_path, "steps": 2}
    unmask.pretrain([data_folder], **options, settings=(*SMALL, "card.license=mit"))
    weights, before = (tmp_path / "model" / "model.safetensors").read_bytes(), card_in(tmp_path)
    assert said_in(tmp_path) == ("mit", None)
    unmask.pretrain(out=tmp_path, resume=True, settings={"card": {"license": "apache-2.0", "language": ["no", "fin"]}})
    after = card_in(tmp_path)
    assert said_in(tmp_path) == ("apache-2.0", ["no", "fin"])
    rest = ({**card.data.to_dict(), "license": None, "language": None} for card in (before, after))
    assert next(rest) == next(rest)
    assert after.text == before.text
    assert load_recipe(str(tmp_path / "recipe.toml")).card.license == "apache-2.0"

    (tmp_path / "summary.json").unlink()
    (tmp_path / "model" / "README.md").unlink()
    unmask.pretrain(**options, resume=True, settings=(*SMALL, "card.license=none"))
    assert "resuming from step 2" in caplog.text
    assert said_in(tmp_path) == (None, ["no", "fin"]), "what was not named now is as it was"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
    with pytest.raises(RunError, match=r"training\.seed"):
        unmask.pretrain(**options, resume=True, seed=7, settings=(*SMALL, "card.license=mit"))

    path = tmp_path / "model" / "README.md"
    path.write_text(path.read_text().replace("language:", "license: wtfpl\nlanguage:"))
    unmask.pretrain(out=tmp_path, resume=True)
    assert said_in(tmp_path) == ("wtfpl", ["no", "fin"]), "what a user wrote there himself stays"
    path.write_text("---\n- a list\n---\n")
    with pytest.raises(RunError, match=r"README\.md"):
        unmask.pretrain(out=tmp_path, resume=True, settings=["card.license=mit"])


def test_a_finished_fine_tuning_is_told_its_licence(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another training."""
    pytest.importorskip("sklearn")
    from unmask.commands.finetune_run import Runs

    train = write_classes(tmp_path / "dev.jsonl", 20, 0)
    encoder, out = save_encoder(make_model, tokenizer, tmp_path / "encoder"), tmp_path / "out"
    (encoder / "README.md").write_text("---\nbase_model: owner/first\n---\n")
    options = {"task": "classify", "train": train, "validation": train, "out": out}
    fast = (*FAST, "finetune.epochs=1")
    unmask.finetune(encoder, **options, settings=(*fast, *SAID))
    data = card_in(out).data
    assert (data.license, data.language) == ("mit", ["fi"])
    assert (data.base_model, data["base_model_relation"]) == ("owner/first", "finetune"), "as the encoder's card says"
    monkeypatch.setattr(Runs, "trainer", None)
    unmask.finetune(encoder, **options, settings=(*fast, "finetune.card.license=cc-by-4.0"), resume=True)
    assert said_in(out) == ("cc-by-4.0", ["fi"]), "what was not named now is as it was"
    own = ("card.license=other", "card.license_name=mine")
    unmask.finetune(encoder, **options, settings=(*fast, *own), resume=True)
    assert card_in(out).data["license_name"] == "mine"
    with pytest.raises(SettingsError, match="license_name"):
        unmask.finetune(encoder, **options, settings=(*fast, "card.license=mit"), resume=True)
    assert unmask.verify(out).passed


@pytest.mark.parametrize(
    ("base_model", "names"),
    [
        ("owner/first", ("owner/first",)),
        (["owner/first", "bert-base-uncased"], ("owner/first", "bert-base-uncased")),
        ("/home/someone/model", ()),
        ("folder/model", ()),
        (None, ()),
    ],
)
def test_what_the_hub_knows_a_folder_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base_model: object, names: tuple[str, ...]
) -> None:
    """A card's base model, unless it is a path; nothing from a config.json, where paths look like names."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"_name_or_path": "owner/other"}))
    assert base_models(str(tmp_path), tmp_path) == ()
    head = ModelCardData(base_model=base_model).to_yaml()  # type: ignore[arg-type]
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n\n# A model\n")
    assert base_models(str(tmp_path), tmp_path) == names
    assert base_models("owner/name@0123", tmp_path) == ("owner/name",), "its own name comes first"


def test_a_training_from_a_folder_names_what_the_hub_knows(run: unmask.Run, corpus_file: Path, tmp_path: Path) -> None:
    """Also where the folder is gone when the card is written."""
    first = Path(shutil.copytree(run.folder / "model", tmp_path / "first"))
    card = ModelCard.load(first / "README.md")
    card.data.base_model = "owner/name"
    card.save(first / "README.md")
    done = further(corpus_file, tmp_path / "out", first, steps=1)
    assert done.summary["start"]["base_models"] == ["owner/name"]
    shutil.rmtree(first)
    (done.folder / "summary.json").unlink()
    again = unmask.pretrain(out=done.folder, resume=True, settings=["card.license=mit"])
    data = card_in(again.folder).data
    assert (data.base_model, data["base_model_relation"], data.license) == ("owner/name", "finetune", "mit")
    assert "`first` (sha256 `" in card_in(again.folder).text
    from_start = further(corpus_file, tmp_path / "from_start", done.folder / "start", steps=1)
    assert card_in(from_start.folder).data.base_model == "owner/name", "the untrained start of a run is the same model"
