"""Meanings of the masking settings, and which ones are refused."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from unmask.core.errors import SettingsError
from unmask.core.settings import validated
from unmask.masking.settings import (
    STRATEGIES,
    LineRate,
    MaskingSettings,
    StepRate,
    Strategy,
    needed_annotations,
    rate_at,
    rate_range,
)
from unmask.masking.units import SpanUnits, SubtreeUnits
from unmask.masking.weights import FirstWeights, PosWeights


def test_rates_over_progress() -> None:
    linear = LineRate(kind="linear", start=0.3, end=0.15)
    cosine = LineRate(kind="cosine", start=0.3, end=0.1)
    steps = StepRate(kind="steps", places=(0.0, 0.5), rates=(0.3, 0.15))
    assert [rate_at(linear, p) for p in (0, 0.5, 1)] == pytest.approx([0.3, 0.225, 0.15])
    assert [rate_at(cosine, p) for p in (0, 0.5, 1)] == pytest.approx([0.3, 0.2, 0.1])
    assert rate_at(cosine, 0.1) > 0.3 - 0.1 * 0.2
    assert [rate_at(steps, p) for p in (0, 0.49, 0.5, 1)] == [0.3, 0.3, 0.15, 0.15]
    assert rate_at(0.2, 0.7) == 0.2
    assert [rate_range(each) for each in (linear, steps, 0.2)] == [(0.15, 0.3), (0.15, 0.3), (0.2, 0.2)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [("uniform", [0.25] * 4), ((1.0, 0.0, 3.0), [0.25, 0.0, 0.75]), ("geometric", [0.5 / 0.9375, 0.25 / 0.9375])],
)
def test_lengths_of_spans_are_chosen(lengths: Any, expected: list[float]) -> None:
    thresholds = [0, *SpanUnits(lengths=lengths, p=0.5, max_words=4).thresholds()]
    shares = [(high - low) / 2**32 for low, high in itertools.pairwise(thresholds)]
    assert shares[: len(expected)] == pytest.approx(expected, abs=1e-9)


def test_names_and_needs_of_strategies() -> None:
    assert get_args(Strategy) == tuple(STRATEGIES)
    needs = {name: needed_annotations(list(pair.values())) for name, pair in STRATEGIES.items()}
    assert {name: need for name, need in needs.items() if need} == {
        "entity": ("entities",), "phrase": ("chunks",), "syntax": ("dependencies",),
    }  # fmt: skip
    both = MaskingSettings(units=SubtreeUnits(), weights=PosWeights())
    assert needed_annotations({"parts": (both, FirstWeights(of="chunks"))}) == ("dependencies", "pos", "chunks")


def steps(places: list[float], rates: list[float], **others: float) -> dict[str, object]:
    return {"rate": {"kind": "steps", "places": places, "rates": rates}, **others}


def mixed(*parts: dict[str, object]) -> dict[str, object]:
    return {"units": {"kind": "mixture", "parts": parts}}


def uniform(low: float, high: float, **others: object) -> dict[str, object]:
    return {"rate": {"kind": "uniform", "low": low, "high": high, **others}}


def spans(*lengths: float) -> dict[str, object]:
    return {"units": {"kind": "span", "lengths": lengths}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (steps([0.0], [0.1, 0.2]), "1 places but 2 rates"),
        (steps([0.1], [0.1]), "start at 0"),
        (steps([0.0, 0.5, 0.5], [0.1, 0.2, 0.3]), "increase"),
        (steps([], []), "start at 0"),
        (steps([0.0], [1.0]), "less than 1"),
        (uniform(0.5, 0.4), "low"),
        ({"rate": 0.2, "prediction_rate": 0.3}, "prediction_rate"),
        (steps([0, 0.501, 0.505], [0.3, 0.1, 0.3], prediction_rate=0.2), "above the rate"),
        ({"rate": {"kind": "linear", "start": 0.3, "end": 0.1}, "prediction_rate": 0.2}, "above the rate"),
        ({**uniform(0.1, 0.5), "prediction_rate": 0.2}, "above the rate"),
        ({**uniform(0.2, 0.9, loss_weight="inverse"), "prediction_rate": 0.1}, "loss_weight"),
        ({**uniform(0.1, 0.5, loss_weight="inverse"), "least_one": True}, "least_one"),
        ({"rate": 0.4, "prediction_rate": 0.2, "least_one": True}, "least_one"),
        (mixed({"strategy": "random"}), "at least 2"),
        (mixed({"strategy": "x"}, {}), "'x'"),
        (mixed({"share": 0.0}, {"share": 0.0}), "all 0"),
        ({"strategy": "mixture", "weights": {"kind": "frequency"}}, "mixture"),
        ({"strategy": "mixture", "units": {"per": "step"}, "static": True}, "static"),
        (spans(), "lengths"),
        (spans(0.0, 0.0), "lengths"),
        (spans(*[1.0] * 101), "lengths"),
    ],
)
def test_what_makes_no_sense(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        validated(MaskingSettings, values, where="masking")
