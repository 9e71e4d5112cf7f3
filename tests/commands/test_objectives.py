"""Runs with other objectives beside masked tokens: figures, files, resuming, and what cannot be."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unmask
from tests.commands.checkpoints import Stopping
from tests.conftest import SMALL
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.core.errors import DataError
from unmask.core.interruption import Interrupted
from unmask.data.data_folder import load_manifest
from unmask.train.callbacks import read_metrics
from unmask.train.checkpoints import list_checkpoints

PAIRS = ("model.layout=bert", "objectives.pairs.kind=next_sentence")
RETROMAE = ("objectives.retromae.weight=0.5", "masking.rate=0.3")
SPANS = ("masking.strategy=span", "objectives.span_boundary.weight=0.5")


def small_run(corpus: Path, out: Path, *settings: str, steps: int = 2, **options: object) -> unmask.Run:
    return unmask.pretrain(
        [corpus], out=out, steps=steps, vocab_size=200, settings=(*SMALL, "evaluation.times=1", *settings), **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "names"),
    [(PAIRS, ["next_sentence"]), (RETROMAE, ["retromae"]), ((*PAIRS, *SPANS), ["next_sentence", "span_boundary"])],
)
def test_a_run_tells_of_its_objectives(
    corpus_file: Path, tmp_path: Path, settings: tuple[str, ...], names: list[str]
) -> None:
    run = small_run(corpus_file, tmp_path / "run", *settings)
    assert list(run.summary["objectives"]) == names
    lines = read_metrics(run.folder / "metrics.jsonl")
    (trained,) = [line for line in lines if line["kind"] == "train"]
    assert list(trained["objectives"]) == names
    assert lines[-1]["objectives"] == run.summary["objectives"]
    for name, figures in run.summary["objectives"].items():
        assert 0.0 <= figures["accuracy"] <= 1.0
        assert figures["count"] > 20
        chance = 0.69 if "sentence" in name else 5.2
        assert trained["objectives"][name] == pytest.approx(chance, abs=0.35)
        assert figures["loss"] == pytest.approx(chance, abs=0.6)
    types = '"token_type_ids"' in (run.folder / "model" / "tokenizer_config.json").read_text()
    assert types == ("next_sentence" in names)


def test_a_run_goes_on_with_all_of_its_heads(corpus_file: Path, tmp_path: Path) -> None:
    """A run stopped in the middle and resumed ends with the same weights and figures."""
    lengths = "training.length_schedule={places=[0.0,0.5],lengths=[32,64]}"
    settings = (*PAIRS, *SPANS, *RETROMAE, "checkpoint.every_steps=2", lengths)
    whole = small_run(corpus_file, tmp_path / "whole", *settings, steps=6)
    with pytest.raises(Interrupted):
        small_run(corpus_file, tmp_path / "again", *settings, steps=6, callbacks=[Stopping(4)])
    again = unmask.pretrain(out=tmp_path / "again", resume=True)
    assert again.summary["objectives"] == whole.summary["objectives"]
    first, second = (
        load_file(list_checkpoints(run.folder / "checkpoints")[-1] / "model.safetensors") for run in (whole, again)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = read_metrics(again.folder / "metrics.jsonl")
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)


LEARN = "objectives.label.weight=1"
WORDS = {"glad": ["cheerful", "sunny", "laughing", "merry"], "sad": ["gloomy", "rainy", "weeping", "bitter"]}


def write_table(path: Path) -> Path:
    """400 reviews whose adjectives tell the mood."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["review", "mood"])
        for i in range(400):
            mood = ("glad", "sad")[i % 2]
            words = WORDS[mood]
            rows.writerow([f'the {words[i % 4]} day, and the {words[i // 4 % 4]} night, said number "{i % 17}"', mood])
    return path


def test_from_a_table_to_a_classifier(tmp_path: Path) -> None:
    """Figures in metrics and summary; and a folder that classifies in transformers."""
    settings = (*SMALL, LEARN, "corpus.label=mood", "evaluation.times=1")
    table = write_table(tmp_path / "reviews.csv")
    run = unmask.pretrain([table], out=tmp_path / "run", steps=160, vocab_size=200, settings=settings)
    figures = run.summary["objectives"]["label"]
    manifest = load_manifest(run.folder / "data")
    assert manifest.labels == {"glad": 200, "sad": 200}
    assert figures["count"] == manifest.validation.documents >= 8
    assert figures["accuracy"] == 1.0
    lines = read_metrics(run.folder / "metrics.jsonl")
    assert lines[-1]["objectives"] == run.summary["objectives"]
    trained = [line["objectives"]["label"] for line in lines if line["kind"] == "train"]
    assert trained[-1] < 0.1 < trained[0]
    assert "token_type_ids" not in (run.folder / "model" / "tokenizer_config.json").read_text()

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    texts = ["the merry day, and the sunny night", "the bitter day, and the rainy night"]
    with torch.no_grad():
        classes = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits.argmax(-1).tolist()
    assert [model.config.id2label[number] for number in classes] == ["glad", "sad"]


def test_data_without_classes(data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="corpus.label"):
        unmask.pretrain([data_folder], out=tmp_path / "run", steps=2, settings=(*SMALL, LEARN))
    with pytest.raises(DataError, match="corpus.label"):
        forecast_run([data_folder], load_recipe(options={"training.steps": 2}, overrides=(*SMALL, LEARN)))
