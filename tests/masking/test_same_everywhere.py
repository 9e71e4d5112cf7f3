"""Masks stay what they are, bit for bit, and rows from a GPU have the same."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from tests.masking.helpers import make_rows, masker_of, tables_of
from unmask.core.settings import validated
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)
STATIC = [name for name in ALL if not hasattr(STRATEGIES[name]["weights"], "score")]  # that follow no model


AS_EVER = {
    "adaptive": "0129d807209b255a",
    "contextual": "a582a14c63df745f",
    "entity": "aef8385a6da5989d",
    "fewer predicted": "f62d4d7823c01544",
    "frequency": "aa565510006c7029",
    "mixture": "32dc7158727abcc6",
    "mixture by step": "3e4a282ccaf751bd",
    "phrase": "5d1eaeb90ea97669",
    "pmi": "025f598e421c8080",
    "random": "55a10b17ab64b3b3",
    "sampled rates": "26ede5e5dd47282f",
    "semantic": "e5e9dac592e8e704",
    "shown by unit": "3832ac7b54f670b7",
    "span": "3e4a282ccaf751bd",
    "syntax": "61c1ebcd319fc83b",
    "whole_word": "3e473efd2f24ece9",
}
OTHERS: dict[str, dict[str, Any]] = {
    "fewer predicted": {"rate": 0.4, "prediction_rate": 0.2, "weights": {"kind": "frequency"}},
    "sampled rates": {"rate": {"kind": "beta"}},
    "shown by unit": {"rate": 0.3, "replacement": {"per": "unit", "random_from": "unigram", "shares": [0.5, 0.4, 0.1]}},
    "mixture": {"strategy": "mixture", "rate": 0.3},
    "mixture by step": {
        "units": {"kind": "mixture", "per": "step", "parts": [{"strategy": "random"}, {"strategy": "span"}]},
        "rate": 0.3,
    },
}


def test_masks_are_what_they_were(tokenizer: Tokenizer) -> None:
    """Bit for bit, since models were trained with them and measured on them: which bits draw what may not change."""
    found = {strategy: digest(tokenizer, strategy)[:16] for strategy in ALL}
    for name, settings in OTHERS.items():
        masker = Masker(validated(MaskingSettings, settings, where="masking"), tokenizer, tables=tables_of(tokenizer))
        found[name] = digest_of(masker(make_rows(tokenizer, 8, [40, 7]), epoch=3))[:16]
    assert found == AS_EVER


def digest(tokenizer: Tokenizer, strategy: str) -> str:
    """Of what a strategy makes of some rows."""
    return digest_of(masker_of(tokenizer, strategy=strategy, rate=0.3)(make_rows(tokenizer, 8, [40, 7]), epoch=3))


def digest_of(masked: MaskedRows) -> str:
    """Of what the model sees and what it is to predict."""
    return hashlib.sha256(masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()).hexdigest()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strategy", STATIC)
def test_a_gpu_masks_as_a_cpu_does(tokenizer: Tokenizer, strategy: str) -> None:
    """Rows that come from a GPU are masked on the host, and what is made of them is there again."""
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3)
    for lengths in ([50, 9, 1], [400], [1, 1]):
        rows = make_rows(tokenizer, 64, lengths)
        for epoch in range(5):
            here, there = masker(rows, epoch=epoch), masker(rows.to(torch.device("cuda")), epoch=epoch)
            assert torch.equal(here.input_ids, there.input_ids.cpu())
            assert torch.equal(here.labels, there.labels.cpu())
