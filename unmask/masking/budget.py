"""The budget: which units are masked, so that the expected share of tokens is the rate, whatever the units' sizes.

In every segment, units are taken in the order of their keys until `rate x maskable tokens` is full. The unit that
crosses the budget is taken with probability (room left / its size): then the expected number of masked tokens is the
budget itself, given any order. All arithmetic is in integers, so it is the same on every device.

Shape suffixes: T = all positions of a batch in a line; U = units in key order (padded to T).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.masking.flat import FlatRows, FlatUnits
from unmask.masking.keys import KEY_BITS

RATE_BITS = 24


def choose(rows: FlatRows, units: FlatUnits, keys_T: Tensor, rate: float) -> Tensor:
    """Chooses units and marks their tokens.

    Args:
        rows: The batch.
        units: Its partition.
        keys_T: [T], int64 in [0, 2**31): the key of the unit that begins at each place.
        rate: Expected share of the maskable tokens, in [0, 1].

    Returns:
        [T], bool: whether a token is chosen.
    """
    # Units in the order of (segment, key). Places at which no unit begins have size 0 and change nothing.
    order_U = torch.argsort((rows.segment_T << KEY_BITS) | keys_T, stable=True)
    size_U = units.size_T[order_U]
    end_U = torch.cumsum(size_U, 0)
    # Segments are contiguous in the line and in key order alike, so they begin at the same index in both.
    before_segment_U = (end_U - size_U)[rows.segment_begin_T]
    begin_tokens_U = end_U - size_U - before_segment_U

    budget_U = rows.segment_sum(rows.maskable_T.to(torch.int64)) * round(rate * 2**RATE_BITS)
    room_U = budget_U - (begin_tokens_U << RATE_BITS)
    draw_U = rows.bits_T[order_U] & ((1 << RATE_BITS) - 1)
    taken_U = (size_U > 0) & (room_U > draw_U * size_U)

    taken_T = torch.zeros_like(rows.maskable_T)
    taken_T[order_U] = taken_U
    return taken_T[units.begin_T] & rows.maskable_T
