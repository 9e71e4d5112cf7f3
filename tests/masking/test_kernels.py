"""What loops do quickly, done the plain way; and the lengths that spans are drawn from."""

from __future__ import annotations

import pytest
import torch

from tests.masking.helpers import make_rows
from unmask.masking.draw import FlatRows, FlatUnits, draw_units, flatten, partition
from unmask.tokenizer.tokenizer import Tokenizer

RATES = [0.0, 0.003, 0.15, 0.5, 0.97, 1.0]


@pytest.mark.parametrize("rate", RATES)
def test_equal_units_are_taken_by_their_random_bits(tokenizer: Tokenizer, rate: float) -> None:
    rows = flatten(make_rows(tokenizer, 20, [150, 1, 17, 16, 60]), 1)
    units = partition(rows, rows.word_starts_T)
    chosen_T, predicted_T = draw_units(rows, units, None, rate, prediction_rate=rate / 3)
    assert torch.equal(chosen_T, by_sorting(rows, units, rate))
    assert torch.equal(predicted_T, by_sorting(rows, units, rate / 3))


def by_sorting(rows: FlatRows, units: FlatUnits, rate: float) -> torch.Tensor:
    """The plain way: all units of a segment sorted, then one after the other."""
    taken = torch.zeros_like(rows.maskable_T)
    share = round(rate * 2**24)
    for begin in rows.segment_begin_T.unique().tolist():
        places = ((rows.segment_begin_T == begin) & (units.size_T > 0)).nonzero().flatten().tolist()
        room = len(places) * share
        for place in sorted(places, key=lambda place: (int(rows.bits_T[place]) >> 33 & (2**31 - 1), place)):
            taken[place] = room > (int(rows.bits_T[place]) & (2**24 - 1))
            room -= 1 << 24
    return taken[units.begin_T] & rows.maskable_T
