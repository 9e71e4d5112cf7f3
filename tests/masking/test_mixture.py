"""Mixtures, rates of each piece, and the rate of prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.masking.helpers import assert_share, make_rows, masker_of, masker_with
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.tokenizer.tokenizer import Tokenizer


def words_whole(rows: Rows, masked: MaskedRows) -> torch.Tensor:
    """[B]: whether all of a row's words of several pieces are masked as a whole or not at all."""
    target = masked.labels >= 0
    inside = rows.maskable & ~rows.word_starts
    split = inside[:, 1:] & (target[:, 1:] != target[:, :-1])
    return ~split.any(1)


def mixture(*parts: tuple[str, object], per: str = "row") -> dict[str, object]:
    """Units of strategies and their shares."""
    return {"kind": "mixture", "per": per, "parts": [{"strategy": name, "share": share} for name, share in parts]}


def test_each_piece_has_one_strategy_of_the_mixture(tokenizer: Tokenizer) -> None:
    """Rows with only whole words come from the first part; single tokens rarely give such rows by chance."""
    rows = make_rows(tokenizer, 4000, [60], mean_word=3.0)
    masker = masker_with(tokenizer, units=mixture(("whole_word", 0.7), ("random", 0.3)), rate=0.3, seed=1)
    assert_share(words_whole(rows, masker(rows)), 0.7)
    assert float(words_whole(rows, masker_of(tokenizer, rate=0.3)(rows)).double().mean()) < 1e-3


def test_shares_move_with_progress(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 2000, [60], mean_word=3.0)
    rising, falling = ({"kind": "linear", "start": start, "end": 1.0 - start} for start in (0.0, 1.0))
    masker = masker_with(tokenizer, units=mixture(("whole_word", rising), ("random", falling)), rate=0.3)
    shares = [float(words_whole(rows, masker(rows, progress=p)).double().mean()) for p in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.0, 0.5, 1.0], abs=0.05)


@pytest.mark.parametrize("name", ["random", "whole_word", "span"])
def test_a_part_masks_as_it_would_alone(tokenizer: Tokenizer, name: str) -> None:
    """Where the mixture is all of one strategy, the masks are those of the strategy."""
    rows = make_rows(tokenizer, 50, [30, 20])
    mixed = masker_with(tokenizer, units=mixture((name, 1.0), ("random", 0.0)))(rows)
    alone = masker_with(tokenizer, strategy=name)(rows)
    assert torch.equal(mixed.labels, alone.labels)
    assert torch.equal(mixed.input_ids, alone.input_ids)


@pytest.mark.parametrize("moves", ["epoch", "step"])
def test_steps_differ_where_the_progress_stands_still(tokenizer: Tokenizer, moves: str) -> None:
    """Also in single epochs, and the same place always has the same strategy."""
    rows = make_rows(tokenizer, 200, [60], mean_word=3.0)
    units = mixture(("whole_word", 1.0), ("random", 1.0), per="step")
    masker = masker_with(tokenizer, units=units, rate=0.3, seed=1)

    def shares(count: int) -> list[float]:
        return [float(words_whole(rows, masker(rows, **{moves: n})).double().mean()) for n in range(count)]  # type: ignore[arg-type]

    first = shares(200)
    assert all(share == 1.0 or share < 0.05 for share in first)
    assert_share(torch.tensor(first) > 0.5, 0.5)
    assert shares(20) == first[:20]


def test_each_piece_draws_its_rate(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 4000, [200])
    masker = masker_with(tokenizer, rate={"kind": "uniform", "low": 0.1, "high": 0.5})
    share = ((masker(rows).labels >= 0).sum(1).double() / 200).numpy()
    deviation = 0.4 / 12**0.5
    assert 0.1 - 0.006 <= share.min() <= share.max() <= 0.5 + 0.006
    assert share.mean() == pytest.approx(0.3, abs=4 * deviation / 4000**0.5)
    assert np.std(share) == pytest.approx(deviation, rel=0.05)


def test_losses_are_weighed_by_the_inverse_of_the_rate(tokenizer: Tokenizer) -> None:
    """The sum of the weights of a row's targets is then its number of tokens, whatever its rate."""
    rows = make_rows(tokenizer, 500, [400])
    masked = masker_with(
        tokenizer, rate={"kind": "uniform", "low": 0.1, "high": 0.9, "loss_weight": "inverse"}, seed=1
    )(rows)
    sums = torch.where(masked.labels >= 0, masked.loss_weights, 0.0).sum(1)
    assert float((sums / 400 - 1).abs().max()) < 0.03
    assert masker_of(tokenizer)(rows).loss_weights is None
