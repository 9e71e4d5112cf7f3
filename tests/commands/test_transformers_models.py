"""Encoders of transformers: those that it runs, fine-tuned, and XLM-R and CamemBERT, which ours runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from tokenizers import models, pre_tokenizers, trainers

import unmask
from tests.commands.checkpoints import further
from tests.commands.finetune_helpers import finetune, write_classes
from tests.commands.transformers_models import save_transformers
from tests.conftest import make_text
from unmask.core.errors import ModelError
from unmask.model.encoder import MaskedLM
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


PIECES = 150
XLM_R = ["<s>", "<pad>", "</s>", "<unk>"]
CAMEMBERT = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
# The beginning of transformers' names, the first entries, and the ids of <s> and </s>.
KINDS: dict[str, tuple[str, list[str], tuple[int, int]]] = {
    "xlm-roberta": ("XLMRoberta", XLM_R, (0, 2)),
    "camembert": ("Camembert", CAMEMBERT, (5, 6)),
}
SENTENCES = ["The cat sees the dog.", "The queen loves the king in Ångström, and no one follows her."]


def save(kind: str, folder: Path) -> Path:
    """A model with random weights, as transformers saves it."""
    name, first, (bos, eos) = KINDS[kind]
    trained = tokenizers.Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator([make_text(100)], trainers.UnigramTrainer(vocab_size=PIECES, show_progress=False))
    pieces = [(piece, float(score)) for piece, score in json.loads(trained.to_str())["model"]["vocab"]]
    vocab = [*((token, 0.0) for token in first), *pieces, ("<mask>", 0.0)]
    getattr(transformers, f"{name}Tokenizer")(vocab=vocab, model_max_length=64).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(vocab), max_position_embeddings=66, type_vocab_size=1, initializer_range=0.2,
        pad_token_id=1, bos_token_id=bos, eos_token_id=eos, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, f"{name}ForMaskedLM")(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def check_equal(folder: Path) -> None:
    """Ids, and the hidden states and logits at every token."""
    loaded = unmask.load(folder)
    assert isinstance(loaded.network, MaskedLM), "our encoder runs it"
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    for text in SENTENCES:
        ids = loaded.tokenizer.encode_prompt(text)
        assert ids.tolist() == words(text)["input_ids"]
        rows = torch.from_numpy(ids).long()[None]
        logits = loaded.network(rows, positions_N=torch.arange(len(ids)))
        assert logits.std() > 0.1
        assert (logits - model(input_ids=rows).logits[0]).abs().max() < 1e-4
        mean = model.base_model(input_ids=rows).last_hidden_state[0].mean(0).numpy()
        assert loaded.embed([text])[0] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_trained_on_and_written_as_what_it_was(kind: str, corpus_file: Path, tmp_path: Path) -> None:
    folder = save(kind, tmp_path / "released")
    check_equal(folder)
    expected = transformers.pipeline("fill-mask", model=str(folder), top_k=4)("The <mask> sees the dog.")
    (candidates,) = unmask.fill(folder, "The <mask> sees the dog.", top_k=4).masks
    assert [each.token_id for each in candidates] == [each["token"] for each in expected]
    assert unmask.evaluate(folder, corpus_file, pseudo_tokens=0).bits_per_byte > 0.0

    run = further(corpus_file, tmp_path / "run", folder, steps=3, extend_vocab=2 if kind == "xlm-roberta" else None)
    again = run.folder / "model"
    check_equal(again)
    for file, key in (
        ("config.json", "architectures"), ("config.json", "model_type"), ("tokenizer_config.json", "tokenizer_class"),
    ):  # fmt: skip
        old, new = (json.loads((place / file).read_text())[key] for place in (folder, again))
        assert new == old
    name = "roberta.embeddings.position_embeddings.weight"
    before, after = (load_file(place / "model.safetensors")[name] for place in (folder, again))
    assert not torch.equal(before, after), "it was trained"
    assert unmask.verify(again).passed
