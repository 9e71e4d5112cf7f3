"""Simulated coverage of the 95 % intervals: in how many of 100 cases they hold the true value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from unmask.measure.questions import Pair, tally
from unmask.measure.uncertainty import Uncertain, ratio_over_draws

TIMES = 4000
DEVIATION = 100 * math.sqrt(0.95 * 0.05 / TIMES)  # of a coverage, in per cent: 0.34
Effects = Callable[[np.random.Generator, int], NDArray[np.float64]]

# What a document adds to the loss of all its tokens, with mean 0 and deviation 1, and skews of 0 and 2.
EFFECTS: dict[str, Effects] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "exponential": lambda rng, size: rng.exponential(1.0, size) - 1.0,
}


def draw(rng: np.random.Generator, documents: int, spread: float, effects: Effects) -> Uncertain:
    """Documents of log-normal lengths, whose losses differ by 0.2 nats, with tokens that differ by 2.5."""
    tokens = np.maximum(20.0, 2000.0 * np.exp(spread * rng.standard_normal(documents)))
    means = 3.0 + 0.2 * effects(rng, documents) + 2.5 * rng.standard_normal(documents) / np.sqrt(tokens)
    return ratio_over_draws(means * tokens, tokens)


def held(estimates: list[Uncertain], true: float) -> float:
    """Of 100 intervals. Quantiles are scipy's, which are quicker; the product's are compared with them."""
    error = np.array([each.value - true for each in estimates])
    stderr, degrees = (np.array([getattr(each, name) for each in estimates]) for name in ("stderr", "degrees"))
    margins = stats.t.ppf(0.975, degrees) * stderr
    halves = [(each.interval[1] - each.interval[0]) / 2 for each in estimates[:20] if each.interval]
    assert halves == pytest.approx(margins[:20].tolist(), rel=1e-4)
    return float(100 * (np.abs(error) <= margins).mean())


@pytest.mark.slow
@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("spread", [0.0, 0.8])
@pytest.mark.parametrize("documents", [8, 20, 50])
def test_intervals_over_documents(documents: int, spread: float, effects: str) -> None:
    """95 are asked for. The room above is for few documents of unequal length, which the degrees of freedom count low.

    Normal intervals on the usual standard error hold it in as few as 80.
    """
    rng = np.random.default_rng(documents)
    coverage = held([draw(rng, documents, spread, EFFECTS[effects]) for _ in range(TIMES)], 3.0)
    highest = 98.0 if spread < 0.8 or documents >= 50 else 99.0
    assert 92.0 - 2 * DEVIATION <= coverage <= highest + 2 * DEVIATION


@pytest.mark.slow
@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("documents", [8, 50])
def test_intervals_over_documents_of_very_unequal_length(documents: int, effects: str) -> None:
    """As the docs say of a standard deviation of 1.5: intervals are wider than needed."""
    rng = np.random.default_rng(documents)
    coverage = held([draw(rng, documents, 1.5, EFFECTS[effects]) for _ in range(TIMES)], 3.0)
    assert 96.0 - 2 * DEVIATION <= coverage <= 99.5 + 2 * DEVIATION


@pytest.mark.slow
def test_intervals_where_long_documents_are_hard() -> None:
    """As the docs admit: if effects are skewed and grow with the length, coverage is lower."""
    rng = np.random.default_rng(0)

    def documents(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        lengths, other = rng.standard_normal((2, size))
        effect = stats.gamma.ppf(stats.norm.cdf(0.6 * lengths + 0.8 * other), 2.0)
        tokens = 2000.0 * np.exp(0.8 * lengths)
        return (3.0 + 0.2 * effect) * tokens, tokens

    above, below = documents(2_000_000)
    coverage = held([ratio_over_draws(*documents(12)) for _ in range(TIMES)], float(above.sum() / below.sum()))
    assert 88.0 <= coverage <= 92.0


@pytest.mark.slow
@pytest.mark.parametrize(("paradigms", "pairs"), [(5, 200), (12, 100), (67, 20)])
def test_intervals_over_paradigms(paradigms: int, pairs: int) -> None:
    """Paradigms from nearly hopeless to nearly solved; pairs alone hold it in far fewer cases."""
    rng = np.random.default_rng(0)
    times, covered, by_pairs = 600, 0, 0
    known = [Pair("", "", str(number), "", "") for number in range(paradigms) for _ in range(pairs)]
    for _ in range(times):
        shares = np.repeat(rng.beta(4.0, 1.5, paradigms), pairs)
        overall = tally(known, np.where(rng.random(len(shares)) < shares, 1.0, -1.0))
        assert overall["interval_over"] == "paradigms"
        covered += overall["interval"][0] <= 4.0 / 5.5 <= overall["interval"][1]
        half = 1.96 * math.sqrt(overall["accuracy"] * (1 - overall["accuracy"]) / overall["pairs"])
        by_pairs += abs(overall["accuracy"] - 4.0 / 5.5) <= half
    assert 92.0 <= 100 * covered / times <= 98.0
    assert by_pairs < 0.8 * covered
