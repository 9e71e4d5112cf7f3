"""The model's card: its header as the hub reads it, its figures those of the run, its snippets running; the user's
statements in it checked before training, changed without training again, never guessed."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData

import unmask
from tests.commands.checkpoints import further
from tests.conftest import SMALL
from unmask.commands.finetune import settings_of
from unmask.commands.recipe import load_recipe
from unmask.core.errors import RunError, SettingsError
from unmask.data.data_folder import load_manifest
from unmask.model.card_head import base_models
from unmask.report.cards import PLACE, write_card

MINIMAL_RECIPE: dict[str, dict[str, Any]] = {
    "model": {"layout": "bert", "max_position_embeddings": None},
    "training": {"sequence_length": 64},
    "masking": {"strategy": None, "units": {"lexicon": "/home/someone/mine.lexicon"}},
    "tokenizer": {"path": "/home/someone/secret/tokenizer"},
}


def card_of(run: unmask.Run) -> str:
    return (run.folder / "model" / "README.md").read_text(encoding="utf-8")


def written(run: unmask.Run, folder: Path, **changes: Any) -> ModelCard:
    """The card of a run, with another recipe, summary or manifest."""
    manifest = load_manifest(run.folder / "data")
    options = {"recipe": MINIMAL_RECIPE, "manifest": manifest, "summary": run.summary, "mask_token": "[MASK]"}
    write_card(folder, **(options | changes))
    return ModelCard.load(folder / "README.md")


def test_the_header_is_what_the_hub_reads(run: unmask.Run) -> None:
    data = ModelCard(card_of(run)).data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "fill-mask", None)
    assert data.to_dict()["mask_token"] == "[MASK]"
    assert {"modernbert", "sentence-transformers", "unmask"} <= set(data.tags)
    assert {data.language, data.base_model, data.datasets} == {None}, "nothing is guessed"
    [index] = data.to_dict()["model-index"]
    [result] = index["results"]
    assert result["dataset"] == {"name": "corpus.txt", "type": "custom", "split": "validation"}
    metrics = {each["type"]: each["value"] for each in result["metrics"]}
    assert metrics == {name: run.summary[f"validation_{name}"] for name in ("loss", "accuracy", "perplexity")}


def test_figures_are_those_of_the_run(run: unmask.Run) -> None:
    card, summary, manifest = card_of(run), run.summary, load_manifest(run.folder / "data")
    low, high = summary["validation_loss_interval"]
    for text in (
        f"| {summary['validation_loss']:.3f} ± {(high - low) / 2:.3f} |",
        f"| {manifest.train.documents:,} | {manifest.train.bytes:,} | {manifest.train.tokens:,} |",
        manifest.fingerprint,
        "start = 0.5\nend = 0.2",
    ):
        assert text in card, text
    assert "nan" not in card.lower().replace("nano", "")


def test_the_snippets_run(run: unmask.Run, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    snippets = re.findall(r"```python\n(.*?)```", card_of(run), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet.replace(PLACE, str(run.folder / "model")), "README.md", "exec"), {})
    assert capsys.readouterr().out.count("token") >= 4


@pytest.mark.parametrize(
    ("checkpoint", "name", "base"),
    [
        ("/home/someone/runs/novels/model", "`novels` (sha256 `abababababab`)", None),
        ("google-bert/bert-base-uncased@0123", "`google-bert/bert-base-uncased@0123`", "google-bert/bert-base-uncased"),
    ],
)
def test_a_model_that_began_as_another(
    run: unmask.Run, tmp_path: Path, checkpoint: str, name: str, base: str | None
) -> None:
    start = {"checkpoint": checkpoint, "sha256": "ab" * 32, "new_head": True, "positions": [64, 128], "new_words": 1000,
             "kept_tokens": 2630, "base_models": [base] if base else []}  # fmt: skip
    after = {"bits_per_token_byte": 0.9942, "bits_per_token_byte_interval": [0.9, 1.1], "documents": 7}
    domains = {"new": {"before": {"bits_per_token_byte": 2.8351}, "after": after}, "old": None}
    card = written(run, tmp_path, summary=run.summary | {"start": start, "domains": domains})
    rows = "(documents: 7) | 2.835 | 0.994 ± 0.100 |"
    for text in (name, "64 to 128 positions", "1,000 words", "2,630 of whose", rows):
        assert text in card.text, text
    assert "someone" not in card.content
    assert (card.data.base_model, card.data.get("base_model_relation")) == (base, base and "finetune")


def test_a_run_with_less_and_with_more(run: unmask.Run, tmp_path: Path) -> None:
    """One held-out document, an objective beside masked tokens, paths, a remark, a `|` in a table's cell."""
    summary = run.summary | {
        "validation_loss_stderr": None, "validation_loss_interval": None, "bits_per_token_byte_interval": None,
        "validation_documents": 1, "validation_warning": "there is one document",
        "objectives": {"sentence_order": {"loss": 0.5, "accuracy": 0.75, "count": 1200}},
    }  # fmt: skip
    card = written(run, tmp_path, summary=summary, mask_token='<"mask>', remark="it is stuck")
    loss = f"| {summary['validation_loss']:.3f} |"
    quoted = ('lexicon = "mine.lexicon"', 'path = "tokenizer"', '.fill("<\\"mask>", top_k=3)')
    for text in (loss, "There is one document.", "1,200 | 75.0% |", "**It is stuck.**", *quoted):
        assert text in card.text, text
    assert "someone" not in card.content
    assert card.data["mask_token"] == '<"mask>'


def test_odd_names_of_files(run: unmask.Run, tmp_path: Path) -> None:
    """They are names in the header and in the text, whatever characters they contain."""
    names = ["a: b.txt", 'it\'s "quoted" # no.txt', "line\n---\nbreak.txt", "`code` | cell.txt", "<b>ünï\x85.txt",
             "\udcff.txt"]  # fmt: skip

    def card_with(paths: list[str]) -> ModelCard:
        sources = [{"path": path, "bytes": 1} for path in paths]
        return written(run, tmp_path, manifest=replace(load_manifest(run.folder / "data"), sources=sources))

    card = card_with([f"/home/someone/{name}" for name in names])
    assert card.data.eval_results[0].dataset_name == ", ".join(names).translate({0xDCFF: "?", 0x85: " "})
    assert card.text.startswith("\n# bert")
    for name in ("`a: b.txt`", "`line --- break.txt`", "`` `code` | cell.txt ``", "`<b>ünï .txt`", "`?.txt`"):
        assert name in card.text
    many = card_with([f"/{n}.txt" for n in range(20)])
    assert many.data.eval_results[0].dataset_name.endswith("7.txt and 12 more")
    assert "Sources: `0.txt`, " in many.text
    assert "`7.txt` and 12 more.\n" in many.text


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
