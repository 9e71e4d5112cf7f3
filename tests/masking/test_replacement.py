"""What stands in the place of what was chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.masking.helpers import assert_share, make_rows
from unmask.core.errors import SettingsError
from unmask.core.hashing import mix
from unmask.masking.draw import random_tokens, replace_tokens
from unmask.masking.masker import Masker
from unmask.tokenizer.tokenizer import Tokenizer


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
