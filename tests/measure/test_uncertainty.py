"""Standard errors over documents, against cases by hand, a plain jackknife and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from unmask.measure.uncertainty import bootstrap_intervals, few_draws, ratio_over_draws, wilson


def test_two_documents_by_hand() -> None:
    """Losses 1 + 3 and 5: the ratio is 3; without one document it is 5, without the other 2."""
    estimate = ratio_over_draws([4.0, 5.0], [2.0, 1.0])
    assert estimate.value == 3.0
    assert estimate.stderr == pytest.approx(math.sqrt((5 - 3) ** 2 + (2 - 3) ** 2))
    assert estimate.degrees == pytest.approx(1.0)
    assert estimate.draws == 2
    assert estimate.interval == pytest.approx((3 - 12.7062 * math.sqrt(5), 3 + 12.7062 * math.sqrt(5)), rel=1e-4)
    assert estimate.share_interval is None, "3 is no share"


@pytest.mark.parametrize("seed", range(5))
def test_against_leaving_out_each_document_in_turn(seed: int) -> None:
    """The degrees of freedom by the matrix of the quadratic form, in another way than the product's sums."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 40))
    below = np.exp(rng.standard_normal(size) * rng.uniform(0, 2)) * 100
    above = below * (3 + rng.standard_normal(size))
    estimate = ratio_over_draws(above, below)
    keep = ~np.eye(size, dtype=bool)
    without = [above[rest].sum() / below[rest].sum() for rest in keep]
    assert estimate.value == pytest.approx(above.sum() / below.sum())
    assert estimate.stderr == pytest.approx(math.sqrt(sum((one - estimate.value) ** 2 for one in without)))
    # Each change as a linear form of the documents' own ratios, of which the variance is the sum of squares.
    share = below / below.sum()
    rows = []
    for rest in keep:
        weights = np.where(rest, share, 0) / share[rest].sum()
        rows.append(weights - share)
    eigenvalues = np.linalg.eigvalsh(np.array(rows) @ np.array(rows).T)
    assert estimate.degrees == pytest.approx(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())
    assert 1 <= estimate.degrees <= size - 1 + 1e-9
    assert estimate.interval[1] - estimate.value == pytest.approx(
        stats.t.ppf(0.975, estimate.degrees) * estimate.stderr, rel=1e-5
    )


def test_a_document_that_outweighs_all_others_leaves_one_degree_of_freedom() -> None:
    rng = np.random.default_rng(0)
    below = np.array([1e6, *[100.0] * 30])
    estimate = ratio_over_draws(below * rng.random(31), below)
    assert estimate.degrees == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("above", "below", "value", "draws"),
    [
        ([], [], math.nan, 0),
        ([3.0], [2.0], 1.5, 1),
        ([3.0, 0.0], [2.0, 0.0], 1.5, 1),  # a document without hidden tokens
        ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], 0.1, 3),  # equal up to rounding
        ([math.nan, 1.0], [1.0, 1.0], math.nan, 2),
        ([3e20, 4.0], [1e20, 1.0], 3.0, 2),  # one is all there is, up to rounding
        ([3.0, 4.0], [1.0, 0.0], 7.0, 2),  # and if the denominator would be 0 without it
        ([3.0, 4.0], [0.0, 0.0], math.nan, 2),
        ([math.inf, 1.0], [1.0, 1.0], math.inf, 2),
    ],
)
def test_where_there_is_no_standard_error(above: list[float], below: list[float], value: float, draws: int) -> None:
    """It is None, and never 0."""
    estimate = ratio_over_draws(above, below)
    assert estimate.value == pytest.approx(value, nan_ok=True)
    assert (estimate.stderr, estimate.degrees, estimate.interval) == (None,) * 3
    assert (estimate.share_interval is None) == (value != 0.1), "a share that all documents have in common"
    assert estimate.draws == draws


def test_a_document_with_nothing_below_the_line_counts_by_what_is_above() -> None:
    """As one whose hidden tokens have no bytes: 12 / 4 = 3; without each in turn 8 / 2, 6 / 2 and 10 / 4."""
    estimate = ratio_over_draws([4.0, 6.0, 2.0, 0.0], [2.0, 2.0, 0.0, 0.0])
    assert (estimate.value, estimate.draws) == (3.0, 3)
    assert estimate.stderr == pytest.approx(math.sqrt((4 - 3) ** 2 + (3 - 3) ** 2 + (2.5 - 3) ** 2))
    assert sum(estimate.interval) / 2 == pytest.approx(3.0), "centred on the figure that is shown"


def test_a_share_has_wilsons_interval() -> None:
    """Of 1 of 1 trials, n times: from n / (n + z^2) to 1. Where they vary, 0.9 +- z of as many trials as vary alike."""
    z2 = 1.959964**2
    perfect = ratio_over_draws([1.0] * 50, [1.0] * 50)
    assert perfect.share_interval == pytest.approx((50 / (50 + z2), 1.0), abs=1e-6)
    assert perfect.interval is None
    # Two documents of 300 words and one of 600 are 1 / (2/16 + 1/4) trials of what is right in all of them.
    unequal = ratio_over_draws([300.0, 300.0, 600.0], [300.0, 300.0, 600.0])
    assert unequal.share_interval == pytest.approx(((8 / 3) / (8 / 3 + z2), 1.0), abs=1e-6)
    single = ratio_over_draws([1.0] * 8 + [0.0] * 2, [1.0] * 10)
    assert single.share_interval == pytest.approx((0.4902, 0.9433), abs=1e-4), "8 of 10"
    # Several trials each: 0.8 (1 - 0.8) / stderr^2 trials, and the quantile of 3 degrees of freedom.
    several = ratio_over_draws([9.0, 7.0, 8.0, 8.0], [10.0] * 4)
    trials = 0.16 / several.stderr**2
    t2 = stats.t.ppf(0.975, 3) ** 2
    middle, under = (0.8 + t2 / (2 * trials)), 1 + t2 / trials
    half = math.sqrt(t2 * (0.16 / trials + t2 / (4 * trials**2)))
    assert several.share_interval == pytest.approx(((middle - half) / under, (middle + half) / under), rel=1e-6)


@pytest.mark.parametrize("share", [0.9, 0.97])
@pytest.mark.parametrize("most", [1, 5])
def test_intervals_of_shares_near_1_hold_them(share: float, most: int) -> None:
    """Fifty documents of one trial, or of up to five that are alike; Student's hold the share in 76 to 94 of 100."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(500):
        trials = rng.integers(1, most + 1, 50)
        chance = np.full(50, share) if most == 1 else rng.beta(8 * share, 8 * (1 - share), 50)
        low, high = ratio_over_draws(rng.binomial(trials, chance), trials).share_interval or (1.0, 0.0)
        covered += low <= share <= high
    assert covered / 500 == pytest.approx(0.955, abs=3 * math.sqrt(0.05 * 0.95 / 500))


def test_few_draws_are_warned_of_by_their_name() -> None:
    assert few_draws(20, "groups") is None
    assert "3 groups" in str(few_draws(3, "groups"))
    assert "one document" in str(few_draws(1, "documents"))


def test_figures_of_any_kind_have_intervals_over_documents() -> None:
    """Ten of ten right: Wilson's lower bound is 10 / (10 + z^2). Of 400 the interval of a share is the normal one."""

    def measure(numbers: NDArray[np.int64]) -> dict[str, float | None]:
        share = float(np.mean(numbers % 4 == 0))
        return {"right": 1.0, "share": share, "sum": 40.0 * share, "undefined": None}

    few = bootstrap_intervals(measure, range(10), shares=["right"])
    assert few["right"] == pytest.approx([10 / (10 + 1.959964**2), 1.0])
    assert few["undefined"] is None
    many = bootstrap_intervals(measure, range(400), shares=["share"])
    half = 1.96 * math.sqrt(0.25 * 0.75 / 400)
    assert many["share"] == pytest.approx([0.25 - half, 0.25 + half], abs=0.2 * half)
    assert many["sum"] == pytest.approx([10 - 40 * half, 10 + 40 * half], abs=0.25 * 40 * half)
    of_eight = bootstrap_intervals(measure, [number // 8 for number in range(400)], shares=["share"])
    assert of_eight["share"] == pytest.approx(list(wilson(12.5, 50))), "50 documents, all alike"
    assert set(bootstrap_intervals(measure, ["one"] * 10).values()) == {None}
