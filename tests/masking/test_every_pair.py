"""Properties of every pair of units and weights: the exact rate, the minimum, whole units, shares of replacement."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from tests.masking.helpers import assert_mean, make_rows, masker_with
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.masking.settings import STRATEGIES
from unmask.masking.units import PlainUnits
from unmask.masking.weights import AnyWeights
from unmask.tokenizer.tokenizer import Tokenizer


def kinds_of(union: object) -> list[str]:
    """The kinds of a tagged union of settings."""
    return [member.model_fields["kind"].default for member in get_args(get_args(union)[0])]


UNITS, WEIGHTS = kinds_of(PlainUnits), kinds_of(AnyWeights)
STRATEGY_NAMES = sorted(STRATEGIES)


def pair(units: str, weights: str, **others: object) -> dict[str, object]:
    extra = {"background": "anywhere"} if weights == "anchors" else {}
    return {"units": {"kind": units}, "weights": {"kind": weights, **extra}, **others}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("units", UNITS)
def test_the_expected_rate_is_exact(tokenizer: Tokenizer, units: str, weights: str) -> None:
    """Segments of 1 to 30 tokens, words of 2.5 tokens on average, whatever the pair."""
    rows = make_rows(tokenizer, 1500, [1, 4, 9, 30], mean_word=2.5)
    assert_mean((masker_with(tokenizer, seed=2, **pair(units, weights, rate=0.2))(rows).labels >= 0).sum(1), 0.2 * 44)


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
def test_the_floor_of_one_target(tokenizer: Tokenizer, strategy: str) -> None:
    """If it is on, every piece with text has a target; if it is off, some have none."""
    rows = make_rows(tokenizer, 300, [1, 3, 0, 12], mean_word=2.0)
    for floor in (True, False):
        target = masker_with(tokenizer, strategy=strategy, rate=0.05, least_one=floor)(rows).labels >= 0
        for number, length in enumerate([1, 3, 0, 12]):
            has_one = (target & (rows.segment_ids == number)).any(1)
            assert bool(has_one.all()) == (floor and length > 0), (floor, length)
        assert not (target & ~rows.maskable).any()


def draws(rows: Rows, masked: MaskedRows, tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """For each target: its unit, and its replacement (0: mask, 1: random token, 2: unchanged)."""
    target = masked.labels >= 0
    unit = torch.arange(len(target))[:, None] * rows.shape[1] + masked.boundaries.before
    kind = torch.where(masked.input_ids == tokenizer.special.mask, 0, 1 + (masked.input_ids == rows.input_ids).long())
    return unit[target], kind[target]


@pytest.mark.parametrize("per", ["token", "unit"])
@pytest.mark.parametrize("units", UNITS)
def test_shares_of_tokens_and_of_units(tokenizer: Tokenizer, units: str, per: str) -> None:
    """80 / 10 / 10 of the draws; with a draw per unit, no unit has two kinds of replacement."""
    rows = make_rows(tokenizer, 1500, [120], mean_word=2.0)
    values = pair(units, "uniform", rate=0.3, replacement={"per": per})
    unit, kind = draws(rows, masker_with(tokenizer, seed=2, with_boundaries=True, **values)(rows), tokenizer)
    _, number, sizes = torch.unique(unit, return_inverse=True, return_counts=True)
    one_hot = torch.zeros(len(sizes), 3).index_put_((number, kind), torch.ones(len(kind)), accumulate=True)
    mixed = ((one_hot > 0).sum(1) > 1).double().mean()
    if per == "unit":
        assert mixed == 0
    elif units != "tokens":
        assert mixed > 0.02, "units of several tokens have several draws"
    shares = (one_hot > 0).double().mean(0) if per == "unit" else torch.bincount(kind).double() / len(kind)
    count = len(sizes) if per == "unit" else len(kind)
    for share, expected in zip(shares.tolist(), (0.8, 0.1, 0.1), strict=True):
        assert abs(share - expected) < 4 * (expected * (1 - expected) / count) ** 0.5


def test_chosen_spans_are_as_long_as_the_papers(tokenizer: Tokenizer) -> None:
    """Joshi et al. 2020: geometric, p = 0.2, cut at 10, each length in its share among the spans that are *chosen*.

    In a document of 4,000 tokens with a budget of 600, the budget's preference for short units is below 1 %.
    """
    rows = make_rows(tokenizer, 60, [4000], mean_word=1.0)
    masked = masker_with(tokenizer, strategy="span", rate=0.15, seed=2, with_boundaries=True)(rows)
    unit, _ = draws(rows, masked, tokenizer)
    sizes = torch.unique(unit, return_counts=True)[1]
    assert len(sizes) > 8000
    weights = torch.tensor([0.2 * 0.8**k for k in range(10)])
    for length, expected in enumerate((weights / weights.sum()).tolist(), start=1):
        share = float((sizes == length).double().mean())
        assert abs(share - expected) < 4 * (expected * (1 - expected) / len(sizes)) ** 0.5, length
    assert sizes.max() == 10
    assert abs(float(sizes.double().mean()) - 3.797) < 4 * float(sizes.double().std()) / len(sizes) ** 0.5
