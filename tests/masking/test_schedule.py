from __future__ import annotations

import pytest
from pydantic import ValidationError

from unmask.masking.settings import CosineRate, LinearRate, StepRate, rate_at


def test_rates_over_progress() -> None:
    linear = LinearRate(kind="linear", start=0.3, end=0.15)
    cosine = CosineRate(kind="cosine", start=0.3, end=0.1)
    steps = StepRate(kind="steps", places=(0.0, 0.5), rates=(0.3, 0.15))
    assert [linear.at(p) for p in (0, 0.5, 1)] == pytest.approx([0.3, 0.225, 0.15])
    assert [cosine.at(p) for p in (0, 0.5, 1)] == pytest.approx([0.3, 0.2, 0.1])
    assert cosine.at(0.1) > 0.3 - 0.1 * 0.2
    assert [steps.at(p) for p in (0, 0.49, 0.5, 1)] == [0.3, 0.3, 0.15, 0.15]
    assert rate_at(0.2, 0.7) == 0.2
    assert rate_at(linear, 1.0) == 0.15


@pytest.mark.parametrize(
    ("places", "rates", "message"),
    [
        ((0.0,), (0.1, 0.2), "1 places but 2 rates"),
        ((0.1,), (0.1,), "must begin with 0"),
        ((0.0, 0.5, 0.5), (0.1, 0.2, 0.3), "and rise"),
        ((), (), "must begin with 0"),
        ((0.0,), (1.0,), "less than 1"),
    ],
)
def test_steps_that_make_no_sense(places: tuple[float, ...], rates: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StepRate(kind="steps", places=places, rates=rates)
