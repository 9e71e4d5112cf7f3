"""The budget: which units are masked, so that the expected share of tokens is the rate, whatever the units' sizes.

In every segment, units are taken in the order of their keys until `rate x maskable tokens` is full. The unit that
crosses the budget is taken with probability (room left / its size): then the expected number of masked tokens is the
budget itself, given any order. All arithmetic is in integers, so it is the same on every device.

Shape suffixes: T = all positions of a batch in a line; U = units in key order (padded to T).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.masking.units import FlatRows
from unmask.masking.weights import KEY_BITS

RATE_BITS = 24


def choose(rows: FlatRows, starts_T: Tensor, keys_T: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Chooses units and marks their tokens.

    Args:
        rows: The batch.
        starts_T: Where units begin, as the units say.
        keys_T: [T], int64 in [0, 2**31): the key of the unit that begins at each place.
        rate: Expected share of the maskable tokens, in [0, 1].

    Returns:
        Two tensors [T]: bool, whether a token is chosen; int64, the place in the line at which its unit begins.
    """
    maskable_T = rows.maskable_T
    places_T = torch.arange(len(maskable_T), device=maskable_T.device)
    begin_T = _unit_begins(rows, starts_T, places_T)
    ones_T = maskable_T.to(torch.int64)
    size_T = torch.zeros_like(ones_T).scatter_add_(0, begin_T, ones_T)

    # Units in the order of (segment, key). Places at which no unit begins have size 0 and change nothing.
    order_U = torch.argsort((rows.segment_T << KEY_BITS) | keys_T, stable=True)
    size_U = size_T[order_U]
    end_U = torch.cumsum(size_U, 0)
    # Segments are contiguous in the line and in key order alike, so they begin at the same index in both.
    before_segment_U = (end_U - size_U)[rows.segment_begin_T]
    begin_tokens_U = end_U - size_U - before_segment_U

    tokens_T = torch.zeros_like(ones_T).scatter_add_(0, rows.segment_begin_T, ones_T)
    budget_U = tokens_T[rows.segment_begin_T] * round(rate * 2**RATE_BITS)
    room_U = budget_U - (begin_tokens_U << RATE_BITS)
    draw_U = rows.bits_T[order_U] & ((1 << RATE_BITS) - 1)
    taken_U = (size_U > 0) & (room_U > draw_U * size_U)

    taken_T = torch.zeros_like(maskable_T)
    taken_T[order_U] = taken_U
    return taken_T[begin_T] & maskable_T, begin_T


def _unit_begins(rows: FlatRows, starts_T: Tensor, places_T: Tensor) -> Tensor:
    """The place at which each token's unit begins; a token that cannot be masked is its own, empty unit.

    A unit also ends at a token that cannot be masked and at its segment's end.
    """
    before = torch.roll(rows.maskable_T, 1)
    first_T = ~before | (rows.segment_begin_T == places_T)
    begins_T = starts_T | first_T | ~rows.maskable_T
    return torch.cummax(torch.where(begins_T, places_T, 0), 0).values
