"""Masks are integers, equal on every machine: those of each strategy never change, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
import transformers

import unmask

Golden = Callable[[str, Any], None]
STRATEGIES = ("random", "whole_word", "span", "entity", "phrase", "pmi", "frequency", "syntax", "contextual",
              "mixture")  # fmt: skip
OF_A_MODEL = ("adaptive", "semantic")  # strategies that follow a model's scores in training are in test_training.py
RATES = (0.15, 0.4)
EPOCHS = (0, 3)
LONG_FORMS: dict[str, dict[str, Any]] = {
    "span of tokens x uniform": {"units": {"kind": "span", "of": "tokens", "lengths": [4, 2, 1]}},
    "span of uniform lengths x frequency": {
        "units": {"kind": "span", "lengths": "uniform", "max_words": 4},
        "weights": {"kind": "frequency"},
    },
    "words x rare": {"units": {"kind": "words"}, "weights": {"kind": "rare", "exponent": -1.0}},
    "words x informative": {"units": {"kind": "words"}, "weights": {"kind": "informative", "exponent": 1.0}},
    "tokens x tfidf": {"units": {"kind": "tokens"}, "weights": {"kind": "tfidf"}},
    "collocations x frequency": {"units": {"kind": "collocations"}, "weights": {"kind": "frequency"}},
    "words x pos": {
        "units": {"kind": "words"},
        "weights": {"kind": "pos", "default": 1.0, "weights": {"NOUN": 3.0, "VERB": 3.0}},
    },
    "phrase x first": {"units": {"kind": "phrase"}, "weights": {"kind": "first", "of": "chunks", "share": 1.0}},
    "subtree x uniform": {"units": {"kind": "subtree", "max_words": 3}, "weights": {"kind": "uniform"}},
    "subtree x role": {"units": {"kind": "subtree"}, "weights": {"kind": "role", "arguments": 4.0, "function": 0.25}},
    "entity x first": {"units": {"kind": "entity"}, "weights": {"kind": "first", "of": "entities", "share": 0.9}},
    "mixture by row": {
        "units": {
            "kind": "mixture",
            "per": "row",
            "parts": [
                {"strategy": "random", "share": {"kind": "linear", "start": 1.0, "end": 0.0}},
                {"strategy": "span", "share": {"kind": "linear", "start": 0.0, "end": 1.0}},
                {"units": {"kind": "words"}, "weights": {"kind": "frequency"}, "share": 0.5},
            ],
        }
    },
    "mixture by step": {
        "units": {"kind": "mixture", "per": "step", "parts": [{"strategy": "random"}, {"strategy": "span"}]}
    },
    "rate linear": {"strategy": "random", "rate": {"kind": "linear", "start": 0.4, "end": 0.1}},
    "rate cosine": {"strategy": "random", "rate": {"kind": "cosine", "start": 0.4, "end": 0.1}},
    "rate steps": {"strategy": "random", "rate": {"kind": "steps", "places": [0.0, 0.5], "rates": [0.3, 0.15]}},
    "masks alone": {"strategy": "span", "rate": 0.3, "replacement": (1.0, 0.0, 0.0)},
    "random tokens alone": {"strategy": "whole_word", "rate": 0.3, "replacement": (0.0, 1.0, 0.0)},
    "another seed": {"strategy": "whole_word", "rate": 0.3, "seed": 11},
}


def sha256(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()


def stored(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of a prepared folder's training part, with special tokens around each, as a data set has them."""
    for path in sorted((folder / "train").glob("*.arrow")):
        for row in pa.ipc.open_stream(path).read_all().to_pylist():
            columns = {name: list(row[name]) for name in ("entities", "chunks", "pos", "dependencies", "word_starts")}
            yield {"input_ids": [2, *row["input_ids"], 3], **{name: [0, *own, 0] for name, own in columns.items()}}


@pytest.fixture(scope="module")
def features(data: Path) -> list[dict[str, Any]]:
    return list(stored(data))[:120]


@pytest.fixture(scope="module")
def plain(features: list[dict[str, Any]]) -> list[list[int]]:
    return [row["input_ids"] for row in features]


@pytest.fixture(scope="module")
def counted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lexicon of the prepared data."""
    out = tmp_path_factory.mktemp("lexicon") / "found.safetensors"
    unmask.lexicon(data, out=out, min_count=3)
    return out


def masked_by(collator: unmask.MaskingCollator, features: list[dict[str, Any]], epoch: int, progress: float) -> str:
    collator.set_epoch(epoch, progress=progress)
    batch = collator(features)
    assert bool((batch["labels"] >= 0).any())
    return sha256(batch["input_ids"], batch["labels"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masks_of_a_strategy_stay(strategy: str, data: Path, features: list[dict[str, Any]], golden: Golden) -> None:
    for rate in RATES:
        collator = unmask.MaskingCollator(data / "tokenizer", strategy=strategy, rate=rate, seed=7, tables=data)
        for epoch in EPOCHS:
            golden(f"masks: {strategy}, rate {rate}, epoch {epoch}", masked_by(collator, features, epoch, 0.0))


@pytest.mark.parametrize("name", LONG_FORMS)
def test_masks_of_units_weights_and_rates_stay(
    name: str, data: Path, features: list[dict[str, Any]], golden: Golden
) -> None:
    collator = unmask.MaskingCollator(data / "tokenizer", tables=data, **{"seed": 7, **LONG_FORMS[name]})
    for epoch in EPOCHS:
        golden(f"masks: {name}, epoch {epoch}", masked_by(collator, features, epoch, 0.25))


@pytest.mark.parametrize("strategy", OF_A_MODEL)
def test_strategies_that_follow_a_model_are_for_training(strategy: str, data: Path) -> None:
    with pytest.raises(unmask.SettingsError):
        unmask.MaskingCollator(data / "tokenizer", strategy=strategy, tables=data)


def test_a_tokenizer_may_be_a_folder_or_an_object_of_two_libraries(plain: list[list[int]], data: Path) -> None:
    file = str(data / "tokenizer" / "tokenizer.json")
    given = (
        data / "tokenizer",
        str(data / "tokenizer"),
        tokenizers.Tokenizer.from_file(file),
        transformers.AutoTokenizer.from_pretrained(data / "tokenizer"),
    )
    maskers = [unmask.Masker.from_tokenizer(tokenizer, strategy="span", rate=0.2) for tokenizer in given]
    assert len({sha256(masker(plain).labels) for masker in maskers}) == 1


def test_the_masks_of_a_lexicon_stay(plain: list[list[int]], data: Path, counted: Path, golden: Golden) -> None:
    units = {"kind": "collocations", "lexicon": str(counted)}
    for given in ({"strategy": "pmi", "tables": counted}, {"units": units}, {"units": units, "tables": data}):
        masked = unmask.Masker.from_tokenizer(data / "tokenizer", rate=0.2, **given)(plain)
        golden("masks: pmi, lexicon of three", sha256(masked.input_ids, masked.labels))
    with pytest.raises(unmask.SettingsError, match="lexicon"):
        unmask.Masker.from_tokenizer(data / "tokenizer", units=units, tables=counted)


def test_counted_tokens_serve_as_frequencies(plain: list[list[int]], data: Path, golden: Golden) -> None:
    counts = unmask.count_tokens([{"input_ids": row} for row in plain], data / "tokenizer")
    assert counts.tolist() == np.bincount(np.concatenate(plain), minlength=len(counts)).tolist()
    masker = unmask.Masker.from_tokenizer(
        data / "tokenizer", strategy="frequency", random_from="unigram", rate=0.2, frequencies=counts
    )
    masked = masker(plain)
    golden("masks: frequency of counted rows, unigram", sha256(masked.input_ids, masked.labels))


def test_masked_rows_are_what_a_model_takes(plain: list[list[int]], data: Path) -> None:
    masked = unmask.Masker.from_tokenizer(data / "tokenizer", strategy="random", rate=0.2)(plain)
    assert isinstance(masked, unmask.MaskedRows)
    assert isinstance({**masked}, Mapping)
    assert list(masked.keys()) == ["input_ids", "labels", "attention_mask"]


def test_fixed_rows_are_masked_once_for_all(features: list[dict[str, Any]], data: Path, golden: Golden) -> None:
    collator = unmask.MaskingCollator(data / "tokenizer", strategy="span", rate=0.4, seed=7)
    rows = [{"input_ids": row["input_ids"]} for row in features[:20]]
    first = collator([collator.fixed(rows)[number] for number in range(20)])
    collator.set_epoch(5)
    second = collator([collator.fixed(rows)[number] for number in range(20)])
    assert torch.equal(first["labels"], second["labels"])
    golden("masks: fixed rows", sha256(first["input_ids"], first["labels"]))


def test_the_reference_interface_stays(golden: Golden) -> None:
    tokens = torch.arange(32 * 16).view(32, 16) * 7 % 67
    mlm = unmask.MLM(padding_token=0, mask_token=1, no_mask_tokens=[2], n_tokens=67, masking_prob=0.3, seed=5)
    for call in range(2):
        x, y = mlm(tokens)
        golden(f"masks: MLM, call {call}", sha256(x, y))
        predicted = y != 0
        assert torch.equal(y[predicted], tokens[predicted])
        assert not bool((predicted & (tokens <= 2)).any())
