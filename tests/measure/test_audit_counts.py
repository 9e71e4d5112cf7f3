"""Shares and their errors, for what an audit finds broken."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.measure.masking import ratio_of_sums


@pytest.mark.parametrize("rows", [1, 5, 30, 400])
def test_rows_that_come_out_alike_are_not_broken(rows: int) -> None:
    """Of 126 tokens at 15 % each row hides 18 or 19; that all of them have 19 is chance where they are few."""
    generator = np.random.default_rng(rows)
    for _ in range(300):
        targets = 18 + (generator.random(rows) < 0.9)
        assert not ratio_of_sums(targets, np.full(rows, 126)).differs_from(0.15)
    assert ratio_of_sums(np.full(4000, 19), np.full(4000, 126)).differs_from(0.15)
    assert ratio_of_sums(np.full(1, 40), np.full(1, 126)).differs_from(0.15)


def test_the_error_by_hand() -> None:
    ratio = ratio_of_sums(np.array([10, 30]), np.array([100, 100]))
    assert ratio.rate == pytest.approx(0.2)
    assert ratio.stderr == pytest.approx((10**2 + 10**2) ** 0.5 / 200)
    assert ratio_of_sums(np.array([19, 0]), np.array([126, 0])).stderr == pytest.approx(0.5 / 126)
