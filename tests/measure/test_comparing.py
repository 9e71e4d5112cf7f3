from __future__ import annotations

import pytest

from unmask.core.errors import SettingsError
from unmask.measure.uncertainty import compare_figures, error_of_look, percent


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
