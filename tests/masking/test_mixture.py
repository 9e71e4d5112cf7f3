"""Mixtures, rates of each piece, the rate of prediction, and the floor of one target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.masking.helpers import make_rows, masker_of
from unmask.core.errors import SettingsError
from unmask.core.settings import validated
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import BetaRate, MaskingSettings
from unmask.tokenizer.tokenizer import Tokenizer


def masker_with(tokenizer: Tokenizer, **values: object) -> Masker:
    return Masker(validated(MaskingSettings, values, where="masking"), tokenizer, seed=1)


def words_whole(rows: Rows, masked: MaskedRows) -> torch.Tensor:
    """[B]: whether all of a row's words of several pieces are masked as a whole or not at all."""
    target = masked.labels >= 0
    inside = rows.maskable & ~rows.word_starts
    split = inside[:, 1:] & (target[:, 1:] != target[:, :-1])
    return ~split.any(1)


def test_each_piece_has_one_strategy_of_the_mixture(tokenizer: Tokenizer) -> None:
    """Half words, half tokens: rows of whole words alone are those, and a few that tokens hit by chance."""
    rows = make_rows(tokenizer, 4000, [60], mean_word=3.0)
    parts = [{"strategy": "whole_word", "share": 0.7}, {"strategy": "random", "share": 0.3}]
    masker = masker_with(tokenizer, units={"kind": "mixture", "parts": parts}, rate=0.3)
    share = float(words_whole(rows, masker(rows)).double().mean())
    assert abs(share - 0.7) < 4 * (0.21 / 4000) ** 0.5 + 1e-3
    assert float(words_whole(rows, masker_of(tokenizer, rate=0.3)(rows)).double().mean()) < 1e-3


def test_shares_move_with_progress(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 2000, [60], mean_word=3.0)
    parts = [
        {"strategy": "whole_word", "share": {"kind": "linear", "start": 0.0, "end": 1.0}},
        {"strategy": "random", "share": {"kind": "linear", "start": 1.0, "end": 0.0}},
    ]
    masker = masker_with(tokenizer, units={"kind": "mixture", "parts": parts}, rate=0.3)
    shares = [float(words_whole(rows, masker(rows, progress=p)).double().mean()) for p in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.0, 0.5, 1.0], abs=0.05)


def test_a_part_masks_as_it_would_alone(tokenizer: Tokenizer) -> None:
    """Where the mixture is all of one strategy, the masks are those of the strategy."""
    rows = make_rows(tokenizer, 50, [30, 20])
    for name in ("random", "whole_word", "span"):
        parts = [{"strategy": name, "share": 1.0}, {"strategy": "random", "share": 0.0}]
        mixed = masker_with(tokenizer, units={"kind": "mixture", "parts": parts})(rows)
        alone = masker_with(tokenizer, strategy=name)(rows)
        assert torch.equal(mixed.labels, alone.labels)
        assert torch.equal(mixed.input_ids, alone.input_ids)


@pytest.mark.parametrize("told", ["epoch", "step"])
def test_steps_differ_where_no_progress_is_told(tokenizer: Tokenizer, told: str) -> None:
    """Also in epochs alone, and the same place always has the same strategy."""
    rows = make_rows(tokenizer, 200, [60], mean_word=3.0)
    parts = [{"strategy": "whole_word"}, {"strategy": "random"}]
    masker = masker_with(tokenizer, units={"kind": "mixture", "per": "step", "parts": parts}, rate=0.3)
    shares = [float(words_whole(rows, masker(rows, **{told: place})).double().mean()) for place in range(200)]
    whole = np.array(shares) > 0.5
    assert all(share == 1.0 or share < 0.05 for share in shares)
    assert abs(whole.mean() - 0.5) < 4 * (0.25 / 200) ** 0.5
    again = [float(words_whole(rows, masker(rows, **{told: place})).double().mean()) for place in range(20)]
    assert again == shares[:20]


@pytest.mark.parametrize(
    ("rate", "mean", "low", "high"),
    [
        ({"kind": "uniform", "low": 0.1, "high": 0.5}, 0.3, 0.1, 0.5),
        ({"kind": "beta", "mean": 0.3, "concentration": 6.0}, 0.3, 0.0, 1.0),
    ],
)
def test_each_piece_draws_its_rate(
    tokenizer: Tokenizer, rate: dict[str, object], mean: float, low: float, high: float
) -> None:
    rows = make_rows(tokenizer, 4000, [200])
    share = (masker_with(tokenizer, rate=rate)(rows).labels >= 0).sum(1).double() / 200
    assert low - 0.006 <= share.min()
    assert share.max() <= high + 0.006
    deviation = {"uniform": 0.4 / 12**0.5, "beta": (0.3 * 0.7 / 7.0) ** 0.5}[str(rate["kind"])]
    assert float(share.mean()) == pytest.approx(mean, abs=4 * deviation / 4000**0.5)
    assert float(share.std()) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(("mean", "concentration"), [(0.3, 8.0), (0.02, 8.0), (0.15, 1.0), (0.3, 0.2), (0.9, 2.0)])
def test_a_beta_distribution_has_its_mean(mean: float, concentration: float) -> None:
    """Also where its density has no bound at an end."""
    rates = BetaRate(kind="beta", mean=mean, concentration=concentration).quantiles()
    assert 0.5 * float((rates[1:] + rates[:-1]).mean()) == pytest.approx(mean, abs=2e-4)


def test_losses_are_weighed_by_the_inverse_of_the_rate(tokenizer: Tokenizer) -> None:
    """The sum of the weights of a row's targets is then its number of tokens, whatever its rate."""
    rows = make_rows(tokenizer, 500, [400])
    rate = {"kind": "uniform", "low": 0.1, "high": 0.9, "loss_weight": "inverse"}
    masked = masker_with(tokenizer, rate=rate)(rows)
    assert masked.loss_weights is not None
    sums = torch.where(masked.labels >= 0, masked.loss_weights, 0.0).sum(1)
    assert float((sums / 400 - 1).abs().max()) < 0.03
    assert masker_of(tokenizer)(rows).loss_weights is None


def test_more_is_corrupted_than_predicted(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 500, [100])
    masker = masker_with(tokenizer, rate=0.4, prediction_rate=0.15, replacement={"shares": [1.0, 0.0, 0.0]})
    masked = masker(rows)
    hidden, target = masked.input_ids != rows.input_ids, masked.labels >= 0
    assert (hidden | ~target).all(), "every target is hidden"
    assert hidden.sum(1).double().mean() == 40
    assert target.sum(1).double().mean() == 15
    assert torch.equal(masked.labels[target], rows.input_ids[target])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"units": {"kind": "mixture", "parts": [{"strategy": "random"}]}}, "at least 2 items"),
        ({"units": {"kind": "mixture", "parts": [{"strategy": "x"}, {}]}}, "unknown strategy 'x'"),
        ({"strategy": "mixture", "weights": {"kind": "frequency"}}, "the weights of a mixture stand in its parts"),
        ({"rate": 0.2, "prediction_rate": 0.3}, "prediction_rate 0.3 is more than the rate"),
        (
            {"rate": {"kind": "steps", "places": [0, 0.501, 0.505], "rates": [0.3, 0.1, 0.3]}, "prediction_rate": 0.2},
            "more than the rate",
        ),
        (
            {"rate": {"kind": "uniform", "low": 0.2, "high": 0.9, "loss_weight": "inverse"}, "prediction_rate": 0.1},
            "loss_weight = 'inverse' is for rates at which all that is hidden is predicted",
        ),
        (
            {"rate": {"kind": "uniform", "loss_weight": "inverse"}, "least_one": True},
            "least_one hides some whatever the rate is; leave it or least_one out",
        ),
        (
            {"strategy": "mixture", "units": {"per": "step"}, "static": True},
            "static masks cannot have a strategy for each step",
        ),
        ({"rate": {"kind": "linear", "start": 0.3, "end": 0.1}, "prediction_rate": 0.2}, "more than the rate"),
        ({"rate": {"kind": "uniform", "low": 0.5, "high": 0.4}}, "low 0.5 is not below high 0.4"),
        (
            {"units": {"kind": "mixture", "parts": [{"share": 0.0}, {"share": 0.0}]}},
            "shares of the parts are all 0",
        ),
    ],
)
def test_what_makes_no_sense(tokenizer: Tokenizer, values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        masker_with(tokenizer, **values)
