"""What a mask depends on, bit for bit; rows from a GPU; and replacements of chosen tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.masking.helpers import assert_share, make_rows, masker_of, masker_with
from unmask.core.errors import SettingsError
from unmask.core.hashing import mix
from unmask.masking.draw import random_tokens, replace_tokens
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)


@pytest.mark.parametrize("strategy", ALL)
def test_a_mask_depends_on_seed_epoch_and_content_alone(tokenizer: Tokenizer, strategy: str) -> None:
    """The same segment has the same mask in any batch, row, order and company."""
    rows = make_rows(tokenizer, 40, [20, 9])
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3, seed=3)
    whole = masker(rows, epoch=2)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = masker(rows.map(lambda tensor: tensor[order]), epoch=2)
    assert torch.equal(shuffled.input_ids, whole.input_ids[order])
    alone = masker(rows.part(7, 8), epoch=2)
    assert torch.equal(alone.labels, whole.labels[7:8])
    # the second segment of each row, moved to the front of a row of its own
    second = rows.map(lambda tensor: tensor[:, 22:33])
    assert torch.equal(masker(second, epoch=2).input_ids, whole.input_ids[:, 22:33])
    for other in (masker(rows, epoch=3), masker_of(tokenizer, strategy=strategy, rate=0.3, seed=4)(rows)):
        assert not torch.equal(other.labels, whole.labels)


def test_plain_rows_are_keyed_by_their_content_whatever_the_padding(tokenizer: Tokenizer) -> None:
    row = [2, *range(10, 40), 3]
    masker = Masker.from_tokenizer(tokenizer, rate=0.4)
    alone = masker([row]).input_ids[0]
    padded = masker([row + [0] * 9, list(range(10, 51))]).input_ids[0]
    tensor = masker(torch.tensor([row])).input_ids[0]
    assert torch.equal(alone, padded[:32])
    assert torch.equal(alone, tensor)
    other = masker([[2, *range(11, 41), 3]])
    assert not torch.equal(other.labels[0] == -100, masker([row]).labels[0] == -100)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[2, 100_000, 3]], "id 100000"),
        ([[2, -1, 3]], "id -1"),
        ([["a"]], "feature 0"),
        ([2, 50, 3], "feature 0"),
        ([[2, 3], [[2], [50, 3]]], "feature 1"),
        (torch.zeros(2, 3), "torch.float32"),
    ],
)
def test_rows_that_cannot_be_masked(tokenizer: Tokenizer, rows: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Masker.from_tokenizer(tokenizer)(rows)  # type: ignore[arg-type]


STATIC = [name for name in ALL if not hasattr(STRATEGIES[name]["weights"], "score")]  # that follow no model


# The first half of the sha256 of the model's input and labels; more hashes are in `tests/contract`.
AS_EVER: dict[str, tuple[dict[str, Any], str]] = {
    "adaptive": ({"strategy": "adaptive", "rate": 0.3}, "0129d807209b255a"),
    "semantic": ({"strategy": "semantic", "rate": 0.3}, "e5e9dac592e8e704"),
    "fewer predicted": (
        {"rate": 0.4, "prediction_rate": 0.2, "weights": {"kind": "frequency"}}, "f62d4d7823c01544",
    ),
    "sampled rates": ({"rate": {"kind": "uniform"}}, "98769b62f116215a"),
    "shown by unit": (
        {"rate": 0.3, "replacement": {"per": "unit", "random_from": "unigram", "shares": [0.5, 0.4, 0.1]}},
        "3832ac7b54f670b7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_EVER)
def test_masks_are_what_they_were(tokenizer: Tokenizer, name: str) -> None:
    """Bit for bit, since models were trained and measured with these masks: the use of random bits must not change."""
    settings, expected = AS_EVER[name]
    masked = masker_with(tokenizer, **settings)(make_rows(tokenizer, 8, [40, 7]), epoch=3)
    content = masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strategy", STATIC)
def test_a_gpu_masks_as_a_cpu_does(tokenizer: Tokenizer, strategy: str) -> None:
    """Rows from a GPU are masked on the host, and the result is on the GPU again."""
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3)
    for lengths in ([50, 9, 1], [400], [1, 1]):
        rows = make_rows(tokenizer, 64, lengths)
        for epoch in range(5):
            here, there = masker(rows, epoch=epoch), masker(rows.to(torch.device("cuda")), epoch=epoch)
            assert torch.equal(here.input_ids, there.input_ids.cpu())
            assert torch.equal(here.labels, there.labels.cpu())


@pytest.mark.parametrize("shares", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_forced_shares_are_exact(tokenizer: Tokenizer, shares: tuple[float, float, float]) -> None:
    masked = Masker.from_tokenizer(tokenizer, replacement=shares)(make_rows(tokenizer, 200, [120]))
    target = masked.labels != -100
    seen, true = masked.input_ids[target], masked.labels[target]
    mask, same = seen == tokenizer.special.mask, seen == true
    assert (mask.double().mean(), (~mask & ~same).double().mean(), same.double().mean()) == shares


def test_unigram_replacement_follows_the_frequencies(tokenizer: Tokenizer) -> None:
    frequencies = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    frequencies[[0, 4, 20, 21, 22]] = [10**6, 10**6, 600, 300, 100]
    masker = Masker.from_tokenizer(
        tokenizer, rate=0.5, replacement=(0.0, 1.0, 0.0), random_from="unigram", frequencies=frequencies
    )
    rows = make_rows(tokenizer, 2000, [120])
    masked = masker(rows)
    target = masked.labels != -100
    foreign = target & ~torch.isin(masked.labels, torch.tensor([20, 21, 22]))
    counts = torch.bincount(masked.input_ids[foreign], minlength=tokenizer.vocab_size)
    assert set(counts.nonzero()[:, 0].tolist()) == {20, 21, 22}
    assert (counts[[20, 21, 22]] / counts.sum()).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.01)


@pytest.mark.parametrize(("original", "shares"), [(1, {2: 0.5, 4: 0.5}), (4, {1: 2 / 3, 2: 1 / 3})])
def test_without_the_original_the_others_keep_their_proportions(original: int, shares: dict[int, float]) -> None:
    """Counts of 2, 1 and 1 for the ids 1, 2 and 4."""
    draws = 20_000
    seen = replace_tokens(
        torch.full((draws,), original),
        torch.ones(draws, dtype=torch.bool),
        mix(torch.arange(draws)),
        unit_begin_T=torch.arange(draws),
        shares=(0.0, 1.0, 0.0),
        per_unit=False,
        mask_id=9,
        tokens=random_tokens(np.array([0, 2, 1, 0, 1])),
    )
    counts = torch.bincount(seen, minlength=5)
    assert set(counts.nonzero()[:, 0].tolist()) == set(shares)
    for id_, share in shares.items():
        assert_share(seen == id_, share)


def test_a_vocabulary_without_choice() -> None:
    with pytest.raises(SettingsError, match="at least two ordinary tokens"):
        random_tokens(np.array([0, 0, 3]))


class Even:
    """Weights of a user, who may look at any table."""

    def log2(self, rows: object, units: object, tables: object) -> None:
        return None


def test_documents_are_counted_for_weights_of_users(tokenizer: Tokenizer, data_folder: Path) -> None:
    counted = Masker.from_tokenizer(tokenizer, weights=Even(), tables=data_folder).tables
    assert counted.num_documents > 0
    assert Masker.from_tokenizer(tokenizer, tables=data_folder).tables.documents_V is None
