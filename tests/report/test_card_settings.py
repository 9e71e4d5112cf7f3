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


def test_a_card_is_written_once(data_folder: Path, tmp_path: Path) -> None:
    """What a user wrote there stays, also if the run resumes; its settings are those that the run began with."""
    unmask.pretrain([data_folder], out=tmp_path, steps=2, settings=(*SMALL, *SAID))
    assert said_in(tmp_path) == ("mit", ["fi"])
    path = tmp_path / "model" / "README.md"
    path.write_text(path.read_text().replace("license: mit", "license: wtfpl"))
    unmask.pretrain(out=tmp_path, resume=True)
    assert said_in(tmp_path) == ("wtfpl", ["fi"])
    with pytest.raises(RunError, match=r"card\.license"):
        unmask.pretrain(out=tmp_path, steps=2, settings=(*SMALL, "card.license=apache-2.0", SAID[1]), resume=True)


def test_a_fine_tuned_model_names_its_licence_and_base(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    train = write_classes(tmp_path / "dev.jsonl", 20, 0)
    encoder, out = save_encoder(make_model, tokenizer, tmp_path / "encoder"), tmp_path / "out"
    (encoder / "README.md").write_text("---\nbase_model: owner/first\n---\n")
    options = {"task": "classify", "train": train, "validation": train, "out": out}
    fast = (*FAST, "finetune.epochs=1")
    unmask.finetune(encoder, **options, settings=(*fast, *SAID))
    data = card_in(out).data
    assert (data.license, data.language) == ("mit", ["fi"])
    assert (data.base_model, data["base_model_relation"]) == ("owner/first", "finetune"), "as the encoder's card says"
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
    again = unmask.pretrain(out=done.folder, resume=True)
    data = card_in(again.folder).data
    assert (data.base_model, data["base_model_relation"]) == ("owner/name", "finetune")
    assert "`first` (sha256 `" in card_in(again.folder).text
    from_start = further(corpus_file, tmp_path / "from_start", done.folder / "start", steps=1)
    assert card_in(from_start.folder).data.base_model == "owner/name", "the untrained start of a run is the same model"
