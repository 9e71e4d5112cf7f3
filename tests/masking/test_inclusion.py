"""Every unit is masked with the probability that its weight gives, whatever its size, its place and its document."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.masking.helpers import copies_of, make_rows, masker_of
from unmask.data.rows import Rows
from unmask.masking.draw import POINT, FlatRows, FlatUnits, draw_units, flatten, partition
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES
from unmask.masking.weights import UniformWeights
from unmask.measure.masking import asked_for
from unmask.tokenizer.tokenizer import Tokenizer

COPIES, EPOCHS = 100, 15


def by_halving(weights: np.ndarray, sizes: np.ndarray, rate: float) -> np.ndarray:
    """min(1, c x weight) for the c that gives the expected tokens, found by halving an interval."""
    low, high = -2000.0, 2000.0  # of log2 c
    for _ in range(300):
        middle = (low + high) / 2
        expected = (np.minimum(1.0, np.exp2(np.minimum(np.log2(weights) + middle, 1.0))) * sizes).sum()
        low, high = (middle, high) if expected < rate * sizes.sum() else (low, middle)
    return np.minimum(1.0, np.exp2(np.minimum(np.log2(weights) + high, 1.0)))


def units_of(sizes: list[list[int]], num_copies: int) -> tuple[FlatRows, FlatUnits, torch.Tensor]:
    """Copies of segments of units of these sizes, and the number of each unit at the place where it begins."""
    lengths = [sum(segment) for segment in sizes]
    width = sum(lengths)
    ids = torch.full((num_copies, width), 20)
    segments = torch.tensor([n for n, length in enumerate(lengths) for _ in range(length)], dtype=torch.int32)
    rows = Rows(
        input_ids=ids,
        segment_ids=segments.expand(num_copies, -1),
        position_ids=torch.tensor([p for length in lengths for p in range(length)]).expand(num_copies, -1),
        word_starts=torch.tensor([p == 0 for s in sizes for n in s for p in range(n)]).expand(num_copies, -1),
        maskable=torch.ones(num_copies, width, dtype=torch.bool),
        segment_keys=torch.arange(num_copies)[:, None] * 1000 + segments[None],
    )
    flat = flatten(rows, 5)
    units = partition(flat, rows.word_starts.reshape(-1))
    number_T = torch.cumsum(rows.word_starts, 1).reshape(-1) - 1
    return flat, units, number_T


def drawn(
    sizes: list[int], weights: list[float] | None, rate: float, copies: int = 20_000, **options: object
) -> tuple[np.ndarray, np.ndarray]:
    """[copies, units], bool each: what is chosen and what is predicted of a segment with units of these sizes."""
    flat, units, number_T = units_of([sizes], copies)
    log2_T = None
    if weights is not None:
        logs = torch.from_numpy(np.round(np.log2(weights) * 2**POINT).astype(np.int64))
        log2_T = logs[number_T]
    actual = draw_units(flat, units, log2_T, rate, **options)  # type: ignore[arg-type]
    begins_T = units.size_T > 0
    for chosen_T in actual:
        assert torch.equal(chosen_T, chosen_T[units.begin_T]), "units are masked whole"
    chosen, predicted = (chosen_T[begins_T].view(copies, len(sizes)).numpy() for chosen_T in actual)
    return chosen, predicted


def assert_probabilities(actual: np.ndarray, expected: np.ndarray) -> None:
    """Column by column, within five standard deviations of independent draws."""
    deviation = np.sqrt(expected * (1.0 - expected) / len(actual))
    assert (np.abs(actual.mean(0) - expected) <= 5.0 * deviation + 1e-9).all(), (actual.mean(0), expected)


WEIGHTED = [
    ([1, 2, 3, 4, 5, 6], [1.0] * 6, 0.15),
    ([1, 1, 1, 6], [4.0, 1.0, 1.0, 0.5], 0.15),
    ([3, 1, 2, 1], [1000.0, 1.0, 2.0, 3.0], 0.5),  # the heaviest is always taken, and the others share what it leaves
    ([5, 1], [1.0, 1e-9], 0.9),
    ([1, 7], [1e300, 1e-290], 0.5),
    ([4, 4, 1, 1, 2], [0.1, 9.0, 9.0, 0.3, 1.0], 0.4),
]


@pytest.mark.parametrize(("sizes", "weights", "rate"), WEIGHTED, ids=str)
def test_units_are_taken_in_proportion_to_their_weights(sizes: list[int], weights: list[float], rate: float) -> None:
    """Probabilities up to 1; the expected tokens follow the rate, and the number of units is one of two neighbours."""
    expected = by_halving(np.array(weights), np.array(sizes), rate)
    assert (expected * sizes).sum() == pytest.approx(rate * sum(sizes), rel=1e-9)
    chosen, predicted = drawn(sizes, weights, rate)
    assert_probabilities(chosen, expected)
    assert np.array_equal(chosen, predicted)
    counts = set(chosen.sum(1).tolist())
    assert counts <= {int(np.floor(expected.sum() + 1e-9)), int(np.ceil(expected.sum() - 1e-9))}


def test_any_two_units_come_together() -> None:
    """The order is random, so neighbours are no more and no less likely to be masked together than others."""
    chosen, _ = drawn([1] * 8, [1.0, 2.0] * 4, 0.3, copies=40_000)
    both = chosen[:, :, None] & chosen[:, None, :]
    shares = both.mean(0)[1::2, 1::2][~np.eye(4, dtype=bool)]  # of the heavy ones among themselves
    assert shares.min() > 0.0
    assert np.ptp(shares) < 10 * np.sqrt(shares.mean() / 40_000)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5, 2.0]], ids=["equal", "weighted"])
def test_what_is_predicted_has_its_own_rate_and_is_chosen(weights: list[float] | None) -> None:
    sizes = [1, 2, 3, 2]
    chosen, predicted = drawn(sizes, weights, 0.6, prediction_rate=0.2)
    assert not (predicted & ~chosen).any()
    flat = np.array(weights or [1.0] * 4)
    assert_probabilities(chosen, by_halving(flat, np.array(sizes), 0.6))
    assert_probabilities(predicted, by_halving(flat, np.array(sizes), 0.2))


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5]], ids=["equal", "weighted"])
def test_rates_of_0_and_1_and_a_floor(weights: list[float] | None) -> None:
    sizes = [1, 4, 2]
    assert drawn(sizes, weights, 1.0, copies=500)[0].all()
    assert not drawn(sizes, weights, 0.0, copies=500)[0].any()
    one, _ = drawn(sizes, weights, 0.001, copies=20_000, least_one=True)
    assert (one.sum(1) == 1).all()
    expected = np.array(weights or [1.0] * 3)
    assert_probabilities(one, expected / expected.sum())


@given(
    units=st.lists(st.tuples(st.integers(1, 9), st.floats(1e-6, 1e6)), min_size=1, max_size=12),
    rate=st.floats(0.01, 0.99),
)
def test_the_audit_asks_for_what_halving_finds(units: list[tuple[int, float]], rate: float) -> None:
    """The audit's sorting and this halving are independent of each other, and of the masker's rounds."""
    sizes, weights = (np.array(column) for column in zip(*units, strict=True))
    expected = by_halving(weights.astype(float), sizes, rate)
    actual = asked_for(np.log2(weights), sizes, np.zeros(len(sizes), dtype=np.int64), np.full(len(sizes), rate))
    assert actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_units_of_every_strategy(tokenizer: Tokenizer, strategy: str) -> None:
    """Forty documents of 3 to 30 tokens, words of 1 to 6 pieces and more, a hundred times under other keys. Copies and
    epochs are independent draws: every unit by itself, against what the audit asks for; where units are drawn anew for
    each key and epoch, tokens stand for them."""
    one = make_rows(tokenizer, 8, [3, 5, 8, 13, 30], mean_word=2.5)
    rows = copies_of(one, COPIES)
    masker = masker_of(tokenizer, strategy=strategy, rate=0.15)
    hits, asked = np.zeros(rows.shape), np.zeros(rows.shape)
    for epoch in range(EPOCHS):
        hits += (masker(rows, epoch=epoch).labels >= 0).numpy()
        if epoch == 0 or strategy in ("span", "mixture"):
            asked_now = asked_of(masker, rows, epoch)
        asked += asked_now
    draws, inside = COPIES * EPOCHS, one.maskable.numpy()
    actual, expected = (counts.reshape(COPIES, *one.shape).sum(0)[inside] / draws for counts in (hits, asked))
    deviation = np.sqrt(expected * (1.0 - expected) / draws)
    assert (np.abs(actual - expected) <= 5.0 * deviation + 1e-9).all()
    if masker.settings.weights == UniformWeights():
        assert expected == pytest.approx(np.full_like(expected, 0.15), abs=1e-12)


def asked_of(masker: Masker, rows: Rows, epoch: int) -> np.ndarray:
    """[B, S]: the probability of each token's unit."""
    weighed = masker.weighed(rows, epoch=epoch)
    begin, sizes = weighed.units.begin_T.numpy(), weighed.units.size_T.numpy()
    places = np.flatnonzero(sizes)
    segments = (rows.segment_ids.long() + 100 * torch.arange(len(rows.input_ids))[:, None]).numpy().ravel()[places]
    logs = np.zeros(len(begin)) if weighed.log2_T is None else weighed.log2_T.numpy() / 2**POINT
    rates = np.full(len(begin), weighed.rate)
    asked = np.zeros(len(begin))
    asked[places] = asked_for(logs[places], sizes[places], segments, rates[places])
    return asked[begin].reshape(rows.shape)
