"""Runs that learn classes of documents, from a table to a sequence classifier; and what cannot be."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unmask
from tests.command_line import Main
from tests.conftest import SMALL
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.data_folder import load_manifest
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.tokenizer.settings import TokenizerSettings
from unmask.train.trackers import read_metrics

LEARN = ("objectives.label.weight=1",)
READ = ("corpus.label=mood",)
WORDS = {"glad": "cheerful sunny laughing merry", "sad": "gloomy rainy weeping bitter", "": "some of the other words"}


def write_table(path: Path, num_rows: int = 400, moods: tuple[str, ...] = ("glad", "sad")) -> Path:
    """Reviews whose adjectives tell the mood."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["review", "mood"])
        for i in range(num_rows):
            mood = moods[i % len(moods)]
            words = WORDS[mood].split()
            rows.writerow([f'the {words[i % 4]} day, and the {words[i // 4 % 4]} night, said number "{i % 17}"', mood])
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "reviews.csv")


def small_run(path: Path, out: Path, *settings: str, steps: int = 2, **options: object) -> unmask.Run:
    return unmask.pretrain(
        [path], out=out, steps=steps, vocab_size=200, settings=(*SMALL, "evaluation.times=1", *settings), **options
    )  # type: ignore[arg-type]


def test_from_a_table_to_a_classifier(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Figures in metrics, summary, report and log; and a folder that classifies in transformers."""
    caplog.set_level("INFO", logger="unmask")
    run = small_run(table, tmp_path / "run", *READ, *LEARN, steps=160)
    figures = run.summary["objectives"]["label"]
    manifest = load_manifest(run.folder / "data")
    assert manifest.labels == {"glad": 200, "sad": 200}
    assert "label: 2 classes (glad 200, sad 200)" in caplog.text
    assert figures["count"] == manifest.validation.documents >= 8
    assert figures["accuracy"] == 1.0
    lines = read_metrics(run.folder / "metrics.jsonl")
    assert lines[-1]["objectives"] == run.summary["objectives"]
    trained = [line["objectives"]["label"] for line in lines if line["kind"] == "train"]
    assert trained[-1] < 0.1 < trained[0]
    assert f"label: right of {figures['count']}" in (run.folder / "report.html").read_text()
    assert "label loss" in caplog.text
    assert len(run.model.fill("the [MASK] day", top_k=2).masks[0]) == 2

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    texts = ["the merry day, and the sunny night", "the bitter day, and the rainy night"]
    with torch.no_grad():
        found = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits.argmax(-1).tolist()
    assert [model.config.id2label[number] for number in found] == ["glad", "sad"]


def test_a_run_goes_on_exactly(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (*READ, *LEARN, "checkpoint.every_steps=2", "corpus.holdout=0.2")
    whole = small_run(table, tmp_path / "whole", *settings, steps=5)

    from unmask.commands import training_run as sitting

    train = sitting.train

    def stops(*args: object, **options: object) -> object:
        for report in train(*args, **options):  # type: ignore[arg-type]
            yield report
            if report.step == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(sitting, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        small_run(table, tmp_path / "again", *settings, steps=5)
    monkeypatch.undo()
    again = unmask.pretrain(out=tmp_path / "again", resume=True)
    assert again.summary["objectives"] == whole.summary["objectives"]
    first, second = (load_file(run.folder / "model" / "model.safetensors") for run in (whole, again))
    assert first.keys() == second.keys()
    assert "classifier.weight" in first
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_prepared_data_is_learned_from(
    table: Path, tmp_path: Path, main: Main, caplog: pytest.LogCaptureFixture
) -> None:
    """Prepared once by the command line; a run without the objective says that the classes are not learned."""
    data = tmp_path / "data"
    code, out, err = main("prepare", table, "--out", data, "--vocab-size", 200, "--set", "corpus.label=mood", "--json")
    assert code == 0, err
    assert json.loads(out)["labels"] == {"glad": 200, "sad": 200}
    assert json.loads(out)["unlabelled"] == 0
    assert "label: 2 classes (glad 200, sad 200)" in err
    caplog.set_level("INFO", logger="unmask")
    run = unmask.pretrain([data], out=tmp_path / "one", steps=2, settings=(*SMALL, *LEARN))
    assert list(run.summary["objectives"]) == ["label"]
    assert "not learned" not in caplog.text
    run = unmask.pretrain([data], out=tmp_path / "two", steps=2, settings=SMALL)
    assert run.summary["objectives"] == {}
    assert "the classes are not learned: that is asked for with settings=['objectives.label.weight=1']" in caplog.text
    assert "id2label" not in json.loads((run.folder / "model" / "config.json").read_text())


def test_documents_without_a_class_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="unmask")
    run = small_run(write_table(tmp_path / "a.csv", moods=("glad", "", "sad", "")), tmp_path / "run", *READ, *LEARN)
    assert "label: 2 classes (glad 100, sad 100); 200 documents without a class" in caplog.text
    assert 0 < run.summary["objectives"]["label"]["count"] < load_manifest(run.folder / "data").validation.documents


@pytest.mark.parametrize("kind", ["next_sentence", "sentence_order"])
def test_with_pairs(table: Path, tmp_path: Path, kind: str) -> None:
    run = small_run(table, tmp_path / "run", *READ, *LEARN, "model.layout=bert", f"objectives.pairs.kind={kind}")
    assert list(run.summary["objectives"]) == [kind, "label"]
    counts = [figures["count"] for figures in run.summary["objectives"].values()]
    assert counts[1] < counts[0] if kind == "next_sentence" else counts[1] == counts[0] > 0
    config = json.loads((run.folder / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["id2label"] == {"0": "glad", "1": "sad"}


def test_a_dry_run_trains_the_head(table: Path) -> None:
    """Under the column's name in the sample; the head of ModernBERT's layout has the classifier alone of its own."""
    overrides = (*SMALL, "tokenizer.vocab_size=200", *READ)
    with_head, without = (
        forecast_run([table], load_recipe(options={"training.steps": 9}, overrides=(*overrides, *more)))
        for more in (LEARN, ())
    )
    assert with_head["num_parameters"] - without["num_parameters"] == 2 * 64 + 2


def test_a_dry_run_knows_classes_beyond_its_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the order of their classes, after many without one, of which the sample ends."""
    table = write_table(tmp_path / "a.csv", moods=("glad", "sad", ""))
    head, *rows = table.read_text().splitlines(keepends=True)
    table.write_text(head + "".join(sorted(rows, key=lambda row: row.split(",")[-1])))
    assert table.read_text().splitlines()[1].endswith(",")
    monkeypatch.setattr("unmask.commands.dry_run.SAMPLE_BYTES", 5000)
    overrides = (*SMALL, "tokenizer.vocab_size=150", *READ)
    with_head, without = (
        forecast_run([table], load_recipe(options={"training.steps": 9}, overrides=(*overrides, *more)))
        for more in (LEARN, ())
    )
    assert with_head["documents"] == 400
    assert with_head["num_parameters"] - without["num_parameters"] == 2 * 64 + 2


def test_held_out_text_without_classes(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "held.txt").write_text("the cheerful day, and the gloomy night\n" * 3)
    caplog.set_level("INFO", logger="unmask")
    run = small_run(table, tmp_path / "run", *READ, *LEARN, f'corpus.validation=["{tmp_path / "held.txt"}"]')
    assert run.summary["objectives"] == {}
    assert "label is not evaluated on the held-out text: nothing of it is to be told there" in caplog.text


def test_errors_before_anything_is_done(table: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"objectives.label learns the classes of documents; name the column of the "
                       r"tables in which they stand with settings=\['corpus.label=COLUMN'\], or remove"):  # fmt: skip
        small_run(table, tmp_path / "run", *LEARN)
    with pytest.raises(SettingsError, match="name the column"):
        forecast_run([table], load_recipe(options={"training.steps": 2}, overrides=LEARN))
    with pytest.raises(CorpusError, match=r"there is no column 'mod' for corpus.label; columns are review, mood"):
        small_run(table, tmp_path / "run", "corpus.label=mod", "corpus.column=review", *LEARN)
    with pytest.raises(SettingsError, match=r"objectives.label.weight = 0: input should be greater than 0"):
        load_recipe(overrides=("objectives.label.weight=0",))
    with pytest.raises(SettingsError, match=r"unknown key 'objectives.labels'; did you mean 'label'"):
        load_recipe(overrides=("objectives.labels.weight=1",))
    assert not (tmp_path / "run" / "recipe.toml").exists()


def prepared(path: Path, out: Path, label: str | None) -> Path:
    prepare([path], out, corpus=CorpusSettings(label=label), tokenizer=TokenizerSettings(vocab_size=200))
    return out


def test_data_without_classes(table: Path, tmp_path: Path) -> None:
    data = prepared(table, tmp_path / "data", None)
    message = r"which this data was prepared without; make it with unmask prepare \.\.\. --set corpus.label=COLUMN"
    with pytest.raises(DataError, match=message):
        unmask.pretrain([data], out=tmp_path / "run", steps=2, settings=(*SMALL, *LEARN))
    with pytest.raises(DataError, match=message):
        forecast_run([data], load_recipe(options={"training.steps": 2}, overrides=(*SMALL, *LEARN)))
    with pytest.raises(DataError, match=r"prepared with other settings than \[corpus\] of the recipe asks for"):
        unmask.pretrain([data], out=tmp_path / "run", steps=2, settings=(*SMALL, *LEARN, *READ))


def test_a_single_class(tmp_path: Path) -> None:
    """It can be prepared, since more may come, but not told from others."""
    data = prepared(write_table(tmp_path / "a.csv", moods=("glad", "")), tmp_path / "data", "mood")
    with pytest.raises(DataError, match=r"all labelled documents are 'glad'; name another column in corpus.label, or "):
        unmask.pretrain([data], out=tmp_path / "run", steps=2, settings=(*SMALL, *LEARN))
