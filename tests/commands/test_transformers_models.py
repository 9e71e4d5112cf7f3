"""Encoders that transformers runs, from files to a saved model: they learn, and what is saved is what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from tests.commands.finetune_helpers import FAST, write_classes
from tests.commands.transformers_models import save_transformers
from unmask.core.errors import ModelError
from unmask.tasks.classify import ClassPrediction
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("seqeval")
TEXTS = ["The dog loves the ship at sea.", "The king sees the ship in the garden."]


def theirs(folder: Path, auto: str) -> tuple[Any, Any]:
    """The saved folder as users of transformers load it."""
    model, found = getattr(transformers, auto).from_pretrained(folder / "model", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert model.config.architectures == [type(model).__name__]
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder / "model")


def finetune(encoder: Path, task: str, train: Path, dev: Path, out: Path, *more: str) -> unmask.FineTuned:
    return unmask.finetune(encoder, task=task, train=train, validation=dev, out=out, settings=(*FAST, *more))


@pytest.mark.parametrize("name", ["Electra", "DebertaV2"])
def test_classes(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_transformers(name, tokenizer, tmp_path / "encoder")
    train, dev = write_classes(tmp_path / "train.jsonl", 96, 0), write_classes(tmp_path / "dev.jsonl", 24, 1)
    result = finetune(encoder, "classify", train, dev, tmp_path / "out", "finetune.epochs=6")
    assert result.summary["metrics"]["accuracy"] == 1.0
    found = result.model.predict(TEXTS)
    assert [each.label for each in found if isinstance(each, ClassPrediction)] == ["sea", "garden"]
    assert found == unmask.load(tmp_path / "out").predict(TEXTS)

    model, words = theirs(tmp_path / "out", "AutoModelForSequenceClassification")
    assert model.config.id2label == {0: "garden", 1: "sea"}
    assert model.config.problem_type == "single_label_classification"
    assert str(tmp_path) not in (tmp_path / "out" / "model" / "config.json").read_text()
    for text, ours in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            shares = model(**words(text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        assert isinstance(ours, ClassPrediction)
        assert list(ours.probabilities.values()) == pytest.approx(shares, abs=1e-6)


def test_a_fine_tuned_folder_predicts_and_embeds(tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_transformers("DistilBert", tokenizer, tmp_path / "encoder")
    train = write_classes(tmp_path / "train.jsonl", 16, 0)
    result = finetune(encoder, "classify", train, train, tmp_path / "a", "finetune.epochs=1")
    model = unmask.load(tmp_path / "a" / "model")
    assert len(model.predict(TEXTS)) == 2
    with pytest.raises(ModelError, match="classify"):
        model.fill("The [MASK].")
    alike = model.embed(TEXTS) - unmask.load(encoder).embed(TEXTS)
    assert 0.0 < np.abs(alike).max() < 1.0, "embeds with what it has learned"
    with pytest.raises(ModelError, match="distilbert"):
        _ = model.network
    more = finetune(tmp_path / "a" / "model", "classify", train, train, tmp_path / "b", "finetune.epochs=1")
    assert more.summary["labels"] == result.summary["labels"]
