"""Runs that learn classes of documents, from a table to a sequence classifier; and what cannot be."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import unmask
from tests.command_line import Main
from tests.conftest import SMALL
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.core.errors import DataError
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
    assert len(run.model.fill("the [MASK] day", top_k=2).masks[0]) == 2

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    texts = ["the merry day, and the sunny night", "the bitter day, and the rainy night"]
    with torch.no_grad():
        found = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits.argmax(-1).tolist()
    assert [model.config.id2label[number] for number in found] == ["glad", "sad"]


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
    assert "the classes are not learned" in caplog.text
    assert "id2label" not in json.loads((run.folder / "model" / "config.json").read_text())


def prepared(path: Path, out: Path, label: str | None) -> Path:
    prepare([path], out, corpus=CorpusSettings(label=label), tokenizer=TokenizerSettings(vocab_size=200))
    return out


def test_data_without_classes(table: Path, tmp_path: Path) -> None:
    data = prepared(table, tmp_path / "data", None)
    with pytest.raises(DataError, match="corpus.label"):
        unmask.pretrain([data], out=tmp_path / "run", steps=2, settings=(*SMALL, *LEARN))
    with pytest.raises(DataError, match="corpus.label"):
        forecast_run([data], load_recipe(options={"training.steps": 2}, overrides=(*SMALL, *LEARN)))
    with pytest.raises(DataError, match="corpus"):
        unmask.pretrain([data], out=tmp_path / "run", steps=2, settings=(*SMALL, *LEARN, *READ))
