"""Standard errors over documents, against cases by hand, a plain jackknife and scipy; and recipes compared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from unmask.core.errors import SettingsError
from unmask.measure.uncertainty import (
    bootstrap_intervals,
    compare_figures,
    error_of_look,
    few_draws,
    percent,
    ratio_over_draws,
    wilson,
)


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


@pytest.mark.parametrize("others", [[1, 2, 1], [1] * 10])
def test_a_document_that_is_nearly_all_of_the_text_is_one_degree_of_freedom(others: list[int]) -> None:
    estimate = ratio_over_draws([60_000, *others], [100_000 - sum(others), *others])
    assert estimate.degrees == pytest.approx(1.0, abs=1e-3)


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


def test_few_draws_are_warned_of_by_their_name() -> None:
    assert few_draws(20, "groups") is None
    assert "3 groups" in str(few_draws(3, "groups"))
    assert "one document" in str(few_draws(1, "documents"))


def test_figures_of_any_kind_have_intervals_over_documents() -> None:
    """Ten of ten right: Wilson's lower bound is 10 / (10 + z^2). Of 400 the interval of a share is the normal one."""

    def measure(numbers: NDArray[np.int64]) -> dict[str, float | None]:
        share = float(np.mean(numbers % 4 == 0))
        return {"right": 1.0, "all_alike": 1.0, "share": share, "sum": 40.0 * share, "undefined": None}

    few = bootstrap_intervals(measure, range(10), shares=["right"])
    assert few["right"] == pytest.approx([10 / (10 + 1.959964**2), 1.0])
    assert few["undefined"] is few["all_alike"] is None
    many = bootstrap_intervals(measure, range(400), shares=["share"])
    half = 1.96 * math.sqrt(0.25 * 0.75 / 400)
    assert many["share"] == pytest.approx([0.25 - half, 0.25 + half], abs=0.2 * half)
    assert many["sum"] == pytest.approx([10 - 40 * half, 10 + 40 * half], abs=0.25 * 40 * half)
    of_eight = bootstrap_intervals(measure, [number // 8 for number in range(400)], shares=["share"])
    assert of_eight["share"] == pytest.approx(list(wilson(12.5, 50))), "50 documents, all alike"
    assert set(bootstrap_intervals(measure, ["one"] * 10).values()) == {None}


def test_two_recipes_by_hand() -> None:
    """Differences -1, -1.2, -0.8: mean -1, standard deviation 0.2; t of two degrees at 0.985.

    With two degrees, t at the probability p is (2p - 1) sqrt(2 / (4p (1 - p))).
    """
    compared = compare_figures({"span": [2.0, 2.3, 2.9], "random": [3.0, 3.5, 3.7]})
    [difference] = compared["differences"]
    half = 0.97 * (2 / (4 * 0.985 * 0.015)) ** 0.5 * 0.2 / 3**0.5
    assert difference["mean"] == pytest.approx(-1.0)
    assert difference["interval"] == pytest.approx([-1 - half, -1 + half], abs=1e-4)
    assert difference["better"] == "span"
    assert compared["recipes"]["span"]["mean"] == pytest.approx(2.4)
    assert compared["recipes"]["span"]["interval"][0] < 2.4 < compared["recipes"]["span"]["interval"][1]
    assert compared["confidence"] == pytest.approx(0.97)
    assert "span has a lower loss than random by 1.000 (0.348 to 1.652)" in compared["verdict"]
    turned = compare_figures({"random": [3.0, 3.5, 3.7], "span": [2.0, 2.3, 2.9]})
    assert turned["verdict"] == compared["verdict"]


def test_one_seed_shows_nothing() -> None:
    compared = compare_figures({"a": [2.0], "b": [1.0]})
    assert compared["recipes"]["a"]["interval"] is None
    assert compared["verdict"].startswith("no difference shown")


def test_several_recipes_widen_the_intervals() -> None:
    two = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, 2.2, 2.1]})
    three = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, 2.2, 2.1], "c": [1.1, 1.2, 1.2]})
    assert len(three["differences"]) == 3
    narrow, wide = two["differences"][0]["interval"], three["differences"][0]["interval"]
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    part = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, 2.2, 2.1], "c": [None, None, None]})
    assert part["confidence"] == three["confidence"], "a pair that no seed is left of had its part all the same"


def test_looks_share_the_error() -> None:
    """0.03, then a half, a sixth, a twelfth, ... of 0.015, whose sum is 1 - 1/k of it."""
    errors = [error_of_look(look) for look in range(1, 1001)]
    assert errors[:4] == pytest.approx([0.03, 0.0075, 0.0025, 0.00125])
    assert sum(errors) == pytest.approx(0.045 - 0.015 / 1000)
    figures = {"span": [2.0, 2.3, 2.9], "random": [4.0, 4.5, 4.7]}
    again = compare_figures(figures, look=2)
    assert again["differences"][0]["better"] == "span"
    half = 0.9925 * (2 / (4 * 0.99625 * 0.00375)) ** 0.5 * 0.2 / 3**0.5
    assert again["differences"][0]["interval"] == pytest.approx([-2 - half, -2 + half], abs=1e-4)
    assert compare_figures(figures, look=9)["differences"][0]["better"] is None, "a late look takes a clearer one"


def test_confidence_in_words() -> None:
    values = (0.97, 0.99, 0.985, 1 - 0.01 / 3, 0.5, 1 - 2.8e-5)
    assert [percent(value) for value in values] == ["97 %", "99 %", "98.5 %", "99.67 %", "50 %", "99.9972 %"]


def test_an_exploratory_figure_shows_only_what_the_deciding_one_does() -> None:
    figures = {"span": [2.0, 2.3, 2.9], "random": [4.0, 4.5, 4.7]}
    closed = compare_figures(figures, exploratory=3)
    assert closed["confidence"] == pytest.approx(1 - 0.03 / 3), "its part of three"
    assert closed["differences"][0]["better"] is None
    assert closed["differences"][0]["interval"][1] < 0, "it would be shown"
    assert closed["verdict"].startswith("exploratory: no difference shown")
    opened = compare_figures(figures, exploratory=3, open_pairs={("span", "random")})
    assert opened["differences"][0]["better"] == "span"


def test_figures_in_steps_that_are_equal_by_accident_show_nothing() -> None:
    """Shares of 20 pairs: 0.30 - 0.25 for every seed, up to rounding; a step of 1/20.

    One item of 20 in each: a variance of 0.05 / 20 at the least.
    """
    a, b = [0.35, 0.30, 0.40], [0.30, 0.25, 0.35]
    assert len({x - y for x, y in zip(a, b, strict=True)}) > 1, "floating-point numbers"
    compared = compare_figures({"a": a, "b": b}, what="share of wrong pairs", items=20)
    [difference] = compared["differences"]
    t = 0.97 * (2 / (4 * 0.985 * 0.015)) ** 0.5
    half = t * (0.05 / 20 / 3) ** 0.5
    assert difference["better"] is None
    assert difference["interval"] == pytest.approx([0.05 - half, 0.05 + half], abs=1e-4)
    finer = compare_figures({"a": a, "b": b}, items=2000)["differences"][0]
    assert finer["better"] == "b", "100 items of 2,000 in every seed"
    same = compare_figures({"a": [0.3, 0.3, 0.3], "b": [0.3, 0.3, 0.3]}, items=10)
    assert same["recipes"]["a"]["interval"] is None
    half = t * (1 / (6 * 10**2) / 3) ** 0.5
    assert same["differences"][0]["interval"] == pytest.approx([-half, half], abs=1e-4), "shares of 10"


def test_intervals_of_shares_hold_what_a_share_can_be() -> None:
    """Two seeds: half the width is 12.706 times half their distance, so 1.2706 about 0.6, and 0.127 about 0.5."""
    figures = {"far": [0.5, 0.7], "near": [0.49, 0.51]}
    compared = compare_figures(figures, items=1000)
    assert compared["recipes"]["far"]["interval"] == [0.0, 1.0]
    assert compared["recipes"]["near"]["interval"] == pytest.approx([0.373, 0.627], abs=1e-3)
    assert compared["differences"][0]["interval"] == [-1.0, 1.0]
    low, high = compare_figures(figures)["recipes"]["far"]["interval"]
    assert (low, high) == pytest.approx((0.6 - 1.2706, 0.6 + 1.2706), abs=1e-4), "a loss may be anything"


def test_runs_that_failed_are_left_out_by_pairs() -> None:
    compared = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, None, 2.3], "c": [None, None, 1.0]})
    by_pair = {(each["first"], each["second"]): each for each in compared["differences"]}
    assert by_pair["a", "b"]["values"] == pytest.approx([-1.0, -1.0])
    assert by_pair["a", "c"]["values"] == pytest.approx([0.3])
    assert by_pair["a", "c"]["interval"] is None
    assert compared["recipes"]["b"]["mean"] == pytest.approx(2.15)
    assert all(note in compared["verdict"] for note in ("1 of 3 runs of b", "2 of 3 runs of c"))
    assert [each["interval"] for each in compared["differences"]] == [None, None, None]
    apart = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, None, 2.4]})["differences"][0]
    alone = compare_figures({"a": [1.0, 1.3], "b": [2.0, 2.4]})["differences"][0]
    assert apart == alone, "the same seeds of both"
    nothing = compare_figures({"a": [1.0, 1.2], "b": [None, None]})
    assert (set(nothing["recipes"]), nothing["differences"]) == ({"a"}, [])
    assert "2 of 2 runs of b" in nothing["verdict"]
    for figures in ({"a": [None], "b": [None]}, {"a": [1.0]}, {"a": [1.0], "b": []}):
        with pytest.raises(SettingsError, match="at least two recipes"):
            compare_figures(figures)


@pytest.mark.parametrize(
    ("long", "steady", "is_warned"),
    [
        ([9.5, 9.0, 8.5], [2.1, 2.0, 1.9], True),  # deviations of 0.5 and 0.1
        ([9.5, 9.0, 8.5, None], [2.1, 2.0, 1.9, 5.0], True),  # by the seeds that both have
        ([9.5, 9.0, 8.5], [2.0, 2.0, 2.0], True),
        ([9.2, 9.0, 8.8], [2.1, 2.0, 1.9], False),  # 0.2 and 0.1 are alike enough
        ([3.5, 2.0, 1.5], [2.1, 2.0, 1.9], False),  # nothing is claimed
    ],
)
def test_runs_that_vary_very_unlike_are_warned_of(
    long: list[float | None], steady: list[float | None], is_warned: bool
) -> None:
    compared = compare_figures({"long": long, "steady": steady})
    assert ("runs of long vary more than 4 times as much as those of steady" in compared["verdict"]) == is_warned
