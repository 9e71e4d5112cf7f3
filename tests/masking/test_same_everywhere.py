"""Masks stay what they are, bit for bit, and rows from a GPU have the same."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from tests.masking.helpers import make_rows, masker_of, masker_with
from unmask.masking.settings import STRATEGIES
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)
STATIC = [name for name in ALL if not hasattr(STRATEGIES[name]["weights"], "score")]  # that follow no model


# The first half of the sha256 of what the model sees and what it is to predict; others stand in `tests/contract`.
AS_EVER: dict[str, tuple[dict[str, Any], str]] = {
    "adaptive": ({"strategy": "adaptive", "rate": 0.3}, "0129d807209b255a"),
    "semantic": ({"strategy": "semantic", "rate": 0.3}, "e5e9dac592e8e704"),
    "fewer predicted": (
        {"rate": 0.4, "prediction_rate": 0.2, "weights": {"kind": "frequency"}}, "f62d4d7823c01544",
    ),
    "sampled rates": ({"rate": {"kind": "beta"}}, "26ede5e5dd47282f"),
    "shown by unit": (
        {"rate": 0.3, "replacement": {"per": "unit", "random_from": "unigram", "shares": [0.5, 0.4, 0.1]}},
        "3832ac7b54f670b7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_EVER)
def test_masks_are_what_they_were(tokenizer: Tokenizer, name: str) -> None:
    """Bit for bit, since models were trained with them and measured on them: which bits draw what may not change."""
    settings, expected = AS_EVER[name]
    masked = masker_with(tokenizer, **settings)(make_rows(tokenizer, 8, [40, 7]), epoch=3)
    content = masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == expected


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
