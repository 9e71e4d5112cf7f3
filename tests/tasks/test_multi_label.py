"""Any number of labels for a text: figures by hand, and the whole way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.finetune_helpers import MakeModel, finetune, run_snippets, save_encoder, texts, write_jsonl
from unmask.commands.finetune_run import intervals
from unmask.core.errors import CorpusError
from unmask.tasks.classify import LabelsPrediction, MultiLabel, TextRecord
from unmask.tasks.files import Labelled
from unmask.tasks.task import FinetuneSettings
from unmask.tokenizer.tokenizer import Tokenizer


def labelled(*labels: tuple[str, ...]) -> Labelled:
    records = [TextRecord(row, "t", label=each) for row, each in enumerate(labels, 2)]
    return Labelled(Path("train.csv"), records, {"text": "text", "label": "label"})


def test_what_is_learned_and_its_errors() -> None:
    settings = FinetuneSettings()
    task = MultiLabel.learned_from(labelled(("b", "a"), ("a", "b"), ()), settings, "mean")
    assert (task.names, task.pooling, task.columns) == (("a", "b"), "mean", {"text": "text", "label": "label"})
    for rows, message in (((("a",), ("a",)), "train.csv.*'a'"), ((("a",), ("a", "b")), "'b' .*row 3 .*least_examples")):
        with pytest.raises(CorpusError, match=message):
            MultiLabel.learned_from(labelled(*rows), settings, "first")
    note = task.check(labelled(("a", "z"), ("z",)), Path("train.csv"))
    assert "2 labels" in str(note)
    assert task.check(labelled(("a",)), Path("train.csv")) is None


def test_figures_by_hand() -> None:
    """Labels a and b; c is right once, and not known. Right: ab, none, c, a; predicted: a, b, none, a."""
    task = MultiLabel(("a", "b"))
    right = [TextRecord(row, "t", label=labels) for row, labels in enumerate((("a", "b"), (), ("c",), ("a",)))]
    shares = ((0.9, 0.4), (0.1, 0.6), (0.3, 0.2), (0.7, 0.4))
    found = [
        LabelsPrediction(labels, dict(zip("ab", share, strict=True)))
        for labels, share in zip((("a",), ("b",), (), ("a",)), shares, strict=True)
    ]
    metrics = task.measure(right, found)
    assert metrics["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))  # two right, one b too many, b and c missed
    assert metrics["macro_f1"] == pytest.approx((1 + 0 + 0) / 3)
    assert metrics["subset_accuracy"] == pytest.approx(1 / 4)
    # ab stand first and second; without a right label all is right; c stands last of three; a stands first
    assert metrics["ranking_precision"] == pytest.approx((1 + 1 + 1 / 3 + 1) / 4)
    assert task.items(right, "micro_f1") == 4


def test_intervals_read_each_prediction_once() -> None:
    """Figures of drawn texts are those of these texts alone; the ranking's precision is scikit-learn's."""
    metrics, rng, task = pytest.importorskip("sklearn.metrics"), np.random.default_rng(0), MultiLabel(tuple("abcd"))
    reads = list[Any]()

    class Shares(dict[str, float]):
        def values(self) -> Any:
            reads.append(self)
            return super().values()

    shares = rng.integers(1, 9, (30, 4)) / 10
    labels = [tuple(name for name in "abcdz" if rng.random() < 0.3) for _ in shares]
    records = [TextRecord(row, f"text {row}", label=each) for row, each in enumerate(labels)]
    predictions = [LabelsPrediction((), Shares(zip("abcd", each, strict=True))) for each in shares.tolist()]
    assert intervals(task, records, predictions).keys() == {*task.metrics}
    assert len(reads) == len(records)
    same = [replace(record, first="text") for record in records]
    assert set(intervals(task, same, predictions).values()) == {None}, "one text is one document"
    drawn = rng.integers(0, 30, 30)
    alone = task.measure([records[n] for n in drawn], [predictions[n] for n in drawn])
    assert task.measured(records, predictions)(drawn) == pytest.approx(alone)
    right = np.array([[name in labels[n] for name in "abcdz"] for n in drawn])
    theirs = metrics.label_ranking_average_precision_score(right, np.pad(shares[drawn], ((0, 0), (0, 1))))
    assert alone["ranking_precision"] == pytest.approx(theirs)


def test_from_files_to_predictions(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    paths = []
    for name, number, seed in (("train", 200, 0), ("dev", 40, 1)):
        rows = []
        for text, place in texts(number, seed):
            rows.append({"text": text, "labels": [place, *(["royal"] if "king" in text or "queen" in text else [])]})
        paths.append(write_jsonl(tmp_path / f"{name}.jsonl", rows))
    result = finetune(encoder, "multi_label", *paths, tmp_path / "out", "finetune.epochs=8")
    assert result.summary["metric"] == "micro_f1"
    assert result.summary["metrics"]["micro_f1"] > 0.95
    assert result.summary["labels"] == ["garden", "royal", "sea"]
    both, one = result.model.predict(["The king loves the ship at sea.", "The dog loves the ship in the garden."])
    assert (set(both.labels), set(one.labels)) == ({"royal", "sea"}, {"garden"})
    assert run_snippets(result).count("'label': 'royal'") == 2, "every label, of each text"
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline(
        "text-classification", model=str(result.folder / "model"), device="cpu", top_k=None
    )
    theirs = {each["label"]: each["score"] for each in pipeline(["The king loves the ship at sea."])[0]}
    assert theirs == pytest.approx(dict(both.probabilities), rel=1e-4)
