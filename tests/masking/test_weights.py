"""Weighted keys: the order they make is that of a draw without replacement with these weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.masking.helpers import frequencies_of, make_rows, masker_of
from unmask.hashing import mix
from unmask.masking.engine import Masker
from unmask.masking.keys import POINT, _log2_exponential, fixed_log2, weighted_keys
from unmask.masking.weights import FrequencyWeights
from unmask.tokens.tokenizer import Tokenizer


def random_bits(count: int, seed: int = 0) -> torch.Tensor:
    return mix(torch.arange(count, dtype=torch.int64) + (seed << 40))


def test_the_logarithm_of_exponential_draws_by_numpy() -> None:
    """Table and interpolation against numpy on the same bits, over the whole range."""
    bits = torch.cat([random_bits(100_000), (torch.arange(1, 40) << 24), torch.tensor([-1, -(1 << 24), 0])])
    v = (((bits.numpy() >> 24) & ((1 << 40) - 1)) | 1) / 2.0**40
    expected = np.log2(-np.log1p(-v))
    found = _log2_exponential(bits).numpy() / 2**POINT
    assert np.abs(found - expected)[v < 0.9].max() < 2e-5
    assert np.abs(found - expected)[v < 0.999].max() < 2e-3
    assert np.abs(found - expected).max() < 0.7, "the largest draws, which are hardly ever taken"


def test_the_first_unit_is_drawn_in_proportion_to_its_weight() -> None:
    weights = np.array([1.0, 2.0, 4.0, 0.5, 3.0])
    draws = 200_000
    log2 = fixed_log2(torch.from_numpy(weights)).repeat(draws)
    keys = weighted_keys(random_bits(5 * draws), log2).view(draws, 5)
    first = torch.bincount(keys.argmin(1), minlength=5).double().numpy() / draws
    expected = weights / weights.sum()
    assert np.abs(first - expected).max() < 4 * (0.25 / draws) ** 0.5


def test_the_second_follows_from_what_is_left() -> None:
    """Given that the heaviest came first, the next is drawn in proportion among the others."""
    weights = np.array([8.0, 1.0, 2.0, 3.0])
    draws = 200_000
    keys = weighted_keys(random_bits(4 * draws), fixed_log2(torch.from_numpy(weights)).repeat(draws)).view(draws, 4)
    order = keys.argsort(1)
    second = torch.bincount(order[order[:, 0] == 0][:, 1], minlength=4).double().numpy()
    share = second[1:] / second.sum()
    assert np.abs(share - weights[1:] / 6).max() < 4 * (0.25 / second.sum()) ** 0.5


def test_extreme_weights_are_cut_and_keep_their_order() -> None:
    log2 = fixed_log2(torch.tensor([1e-300, 1.0, 1e300]))
    keys = weighted_keys(random_bits(3), log2)
    assert keys.tolist() == sorted(keys.tolist(), reverse=True)
    assert keys.min() >= 0
    assert keys.max() < 2**31


@pytest.mark.parametrize(("exponent", "prefers"), [(-0.5, "rare"), (0.5, "common"), (0.0, "none")])
def test_frequency_prefers_what_it_says(tokenizer: Tokenizer, exponent: float, prefers: str) -> None:
    rows = make_rows(tokenizer, 2000, [40])
    frequencies = frequencies_of(tokenizer)
    settings = masker_of(tokenizer, strategy="frequency").settings
    weights = FrequencyWeights(exponent=exponent, floor=1)
    masker = Masker(settings.model_copy(update={"weights": weights}), tokenizer, frequencies=frequencies)
    chosen = (masker(rows).labels >= 0)[rows.maskable]
    counts = torch.from_numpy(frequencies)[rows.input_ids[rows.maskable]]
    rare = counts < counts.median()
    shares = float(chosen[rare].double().mean()), float(chosen[~rare].double().mean())
    if prefers == "none":
        assert shares[0] == pytest.approx(shares[1], abs=0.01)
    else:
        assert (shares[0] > 1.3 * shares[1]) == (prefers == "rare")
        assert (shares[1] > 1.3 * shares[0]) == (prefers == "common")


def test_the_floor_bounds_the_preference(tokenizer: Tokenizer) -> None:
    """With a floor above every count all units are equally likely: the masks are those of exponent 0."""
    rows = make_rows(tokenizer, 50, [40])
    settings = masker_of(tokenizer, strategy="frequency").settings
    masks = [
        Masker(settings.model_copy(update={"weights": weights}), tokenizer, frequencies=frequencies_of(tokenizer))(rows)
        for weights in (FrequencyWeights(exponent=-2.0, floor=10**6), FrequencyWeights(exponent=0.0))
    ]
    assert torch.equal(masks[0].labels, masks[1].labels)
