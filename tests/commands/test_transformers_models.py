"""Encoders that transformers runs, from files to a saved model: they learn, and what is saved is what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from tests.commands.finetune_helpers import (
    FAST,
    write_classes,
    write_conll,
    write_squad,
)
from tests.commands.transformers_models import save_transformers
from unmask.core.errors import ModelError
from unmask.model.transformers import TransformersNetwork
from unmask.tasks.answer import AnswerPrediction
from unmask.tasks.classify import ClassPrediction
from unmask.tasks.predict import load_fine_tuned
from unmask.tasks.tag import TagsPrediction
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("seqeval")
IDS = {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
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


@pytest.mark.parametrize(
    "name",
    ["Electra", "DebertaV2"],
)
def test_classes(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_transformers(name, tokenizer, tmp_path / "encoder")
    train, dev = write_classes(tmp_path / "train.jsonl", 96, 0), write_classes(tmp_path / "dev.jsonl", 24, 1)
    result = finetune(encoder, "classify", train, dev, tmp_path / "out", "finetune.epochs=6")
    assert result.summary["metrics"]["accuracy"] == 1.0
    assert result.summary["labels"] == ["garden", "sea"]
    found = result.model.predict(TEXTS)
    assert [each.label for each in found if isinstance(each, ClassPrediction)] == ["sea", "garden"]
    assert found == unmask.load(tmp_path / "out").predict(TEXTS)

    model, words = theirs(tmp_path / "out", "AutoModelForSequenceClassification")
    assert model.config.id2label == {0: "garden", 1: "sea"}
    assert model.config.label2id == {"garden": 0, "sea": 1}
    assert model.config.problem_type == "single_label_classification"
    assert str(tmp_path) not in (tmp_path / "out" / "model" / "config.json").read_text()
    for text, ours in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            shares = model(**words(text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        assert isinstance(ours, ClassPrediction)
        assert list(ours.probabilities.values()) == pytest.approx(shares, abs=1e-6)


def test_tags(tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_transformers("DistilBert", tokenizer, tmp_path / "encoder")
    train, dev = write_conll(tmp_path / "train.conll", 96, 0), write_conll(tmp_path / "dev.conll", 24, 1)
    result = finetune(encoder, "tag", train, dev, tmp_path / "out", "finetune.epochs=6")
    assert result.summary["metrics"]["entity_f1"] == 1.0
    text = "The king sleeps in Constantinople ."
    [found] = result.model.predict([text])
    assert isinstance(found, TagsPrediction)
    assert found.tags == ("O", "O", "O", "O", "B-place", "O")
    model, words = theirs(tmp_path / "out", "AutoModelForTokenClassification")
    inputs = words(text, return_tensors="pt")
    with torch.no_grad():
        shares = model(**inputs).logits.softmax(-1)[0]
    pieces = inputs.word_ids(0)
    first = [pieces.index(number) for number in range(6)]
    assert list(found.probabilities) == pytest.approx(shares[first].max(-1).values.tolist(), abs=1e-6)
    assert [model.config.id2label[number] for number in shares[first].argmax(-1).tolist()] == list(found.tags)


def test_answers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_transformers("MPNet", tokenizer, tmp_path / "encoder")
    train, dev = (write_squad(tmp_path / f"{n}.json", size, size) for n, size in (("train", 128), ("dev", 24)))
    result = finetune(encoder, "answer", train, dev, tmp_path / "out", "finetune.epochs=10")
    assert result.summary["metrics"]["exact_match"] > 0.9
    question, context = "Who sleeps?", "The winter is here. The queen sleeps in the garden."
    [found] = result.model.predict([(question, context)])
    assert isinstance(found, AnswerPrediction)
    assert found.answer == "queen"
    model, words = theirs(tmp_path / "out", "AutoModelForQuestionAnswering")
    inputs = words(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0]
    with torch.no_grad():
        out = model(**inputs)
    begin, end = (int(logits[0].argmax()) for logits in (out.start_logits, out.end_logits))
    assert context[offsets[begin][0] : offsets[end][1]] == "queen"


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
    with pytest.raises(ModelError, match=r"not fine-tuned for a task \(it is DistilBertForMaskedLM\)"):
        load_fine_tuned(encoder)
    more = finetune(tmp_path / "a" / "model", "classify", train, train, tmp_path / "b", "finetune.epochs=1")
    assert more.summary["labels"] == result.summary["labels"]


@pytest.mark.parametrize(
    ("name", "part"), [("Bert", {"hidden_act": "relu"}), ("ModernBert", {**IDS, "attention_bias": True})]
)
def test_layouts_of_ours_with_parts_that_we_lack(
    name: str, part: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    encoder = save_transformers(name, tokenizer, tmp_path / "encoder", head="ForMaskedLM", **part)
    train = write_classes(tmp_path / "train.jsonl", 32, 0)
    result = finetune(encoder, "classify", train, train, tmp_path / "out", "finetune.epochs=1")
    assert isinstance(result.model.network, TransformersNetwork)
    found = unmask.load(tmp_path / "out").predict(TEXTS)
    assert found == result.model.predict(TEXTS)
    model, words = theirs(tmp_path / "out", "AutoModelForSequenceClassification")
    assert all(getattr(model.config, key) == value for key, value in part.items())
    for text, ours in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            shares = model(**words(text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        assert isinstance(ours, ClassPrediction)
        assert list(ours.probabilities.values()) == pytest.approx(shares, abs=1e-6)
