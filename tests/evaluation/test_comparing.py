from __future__ import annotations

import numpy as np
import pytest

from unmask.errors import SettingsError
from unmask.evaluation.comparing import compare_figures


def test_two_recipes_by_hand() -> None:
    """Differences -1, -1.2, -0.8: mean -1, standard deviation 0.2, t 4.3027."""
    found = compare_figures({"span": [2.0, 2.3, 2.9], "random": [3.0, 3.5, 3.7]})
    [difference] = found.differences
    half = 4.3027 * 0.2 / 3**0.5
    assert difference.estimate.mean == pytest.approx(-1.0)
    assert difference.estimate.interval == pytest.approx((-1 - half, -1 + half), abs=1e-4)
    assert difference.better == "span"
    assert found.recipes["span"].mean == pytest.approx(2.4)
    assert found.recipes["span"].interval is not None
    assert found.recipes["span"].interval[0] < 2.4 < found.recipes["span"].interval[1]
    assert found.verdict == "span has a lower loss than random by 1.000 (0.503 to 1.497) (3 seeds)"
    turned = compare_figures({"random": [3.0, 3.5, 3.7], "span": [2.0, 2.3, 2.9]})
    assert turned.verdict == found.verdict


def test_no_difference_is_a_verdict() -> None:
    found = compare_figures({"a": [2.0, 2.4, 2.1], "b": [2.1, 2.3, 2.1]}, what="bits per byte")
    assert found.differences[0].better is None
    assert found.verdict == "no difference shown in bits per byte over 3 seeds (a has the lowest mean)"


def test_one_seed_shows_nothing() -> None:
    found = compare_figures({"a": [2.0], "b": [1.0]})
    assert found.recipes["a"].interval is None
    assert found.verdict.startswith("no difference shown: one seed says nothing of chance (b has the lowest loss)")


def test_several_recipes_widen_the_intervals() -> None:
    two = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, 2.2, 2.1]})
    three = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, 2.2, 2.1], "c": [1.1, 1.2, 1.2]})
    assert len(three.differences) == 3
    narrow, wide = two.differences[0].estimate.interval, three.differences[0].estimate.interval
    assert narrow is not None
    assert wide is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert "no difference shown in" in three.verdict


def test_differences_that_are_none_are_seldom_shown() -> None:
    rng = np.random.default_rng(0)
    level = rng.normal(size=(600, 1, 4))  # of each seed, which all recipes share
    draws = level + 0.1 * rng.normal(size=(600, 3, 4))
    wrong = 0
    for each in draws:
        found = compare_figures({name: values.tolist() for name, values in zip("abc", each, strict=True)})
        wrong += any(difference.better is not None for difference in found.differences)
    assert wrong / 600 < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5
    assert wrong > 0


def test_figures_in_steps_that_are_equal_by_accident_show_nothing() -> None:
    """Shares of 20 pairs: 0.30 - 0.25 for every seed, whatever subtracting makes of it."""
    a, b = [0.35, 0.30, 0.40], [0.30, 0.25, 0.35]
    assert len({x - y for x, y in zip(a, b, strict=True)}) > 1, "floating-point numbers"
    found = compare_figures({"a": a, "b": b}, what="share of wrong pairs")
    [difference] = found.differences
    assert (difference.better, difference.estimate.interval) == (None, None)
    assert difference.estimate.mean == pytest.approx(0.05)
    assert found.verdict == (
        "no difference shown in share of wrong pairs over 3 seeds (b has the lowest mean); the same difference for "
        "every seed says nothing of chance"
    )
    same = compare_figures({"a": [0.3, 0.3], "b": [0.3, 0.3]})
    assert same.recipes["a"].interval is None
    assert same.verdict == "no difference shown in loss over 2 seeds (a has the lowest mean)"


def test_runs_that_failed_are_left_out_by_pairs() -> None:
    found = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, None, 2.3], "c": [None, None, 1.0]})
    by_pair = {(each.first, each.second): each.estimate for each in found.differences}
    assert by_pair["a", "b"].values == pytest.approx((-1.0, -1.0))
    assert by_pair["a", "c"].values == pytest.approx((0.3,))
    assert by_pair["a", "c"].interval is None
    assert found.recipes["b"].mean == pytest.approx(2.15)
    assert found.verdict.endswith("; 1 of 3 runs of b failed; 2 of 3 runs of c failed")
    assert [each.estimate.interval for each in found.differences] == [None, None, None]
    apart = compare_figures({"a": [1.0, 1.1, 1.3], "b": [2.0, None, 2.4]}).differences[0].estimate
    alone = compare_figures({"a": [1.0, 1.3], "b": [2.0, 2.4]}).differences[0].estimate
    assert apart == alone, "the same seeds of both"
    nothing = compare_figures({"a": [1.0, 1.2], "b": [None, None]})
    assert (set(nothing.recipes), nothing.differences) == ({"a"}, ())
    assert nothing.verdict == (
        "no difference shown: no two recipes have a loss of the same seed (a has the lowest loss); "
        "2 of 2 runs of b failed"
    )
    undefined = compare_figures({"a": [1.0, 1.2], "b": [2.0, None]}, what="error", without="have no error")
    assert undefined.verdict.endswith("; 1 of 2 runs of b have no error")
    with pytest.raises(SettingsError, match="two recipes at the least"):
        compare_figures({"a": [None], "b": [None]})


def test_what_cannot_be_compared() -> None:
    for figures in ({"a": [1.0]}, {"a": [1.0], "b": []}, {"a": [], "b": []}):
        with pytest.raises(SettingsError, match="two recipes at the least, and the same seeds of each"):
            compare_figures(figures)
