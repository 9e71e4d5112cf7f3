"""The budget: which units are masked, so that the expected share of tokens is the rate, whatever the units' sizes.

In every segment, units are taken in the order of their keys until `rate x maskable tokens` is full. The unit that
crosses the budget is taken with probability (room left / its size): then the expected number of masked tokens is the
budget itself, given any order. All arithmetic is in integers, so it is the same on every device.

Shape suffixes: T = all positions of a batch in a line; U = units in key order (padded to T).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from unmask.compiled import arrays, serves
from unmask.masking.flat import FlatRows, FlatUnits
from unmask.masking.kernels.draw import take_units
from unmask.masking.keys import KEY_BITS
from unmask.masking.lines import put, take

RATE_BITS = 24


class Draw:
    """Units in the order in which they are taken; more of them for a higher rate, and always those of a lower one.

    Args:
        rows: The batch.
        units: Its partition.
        keys_T: [T], int64 in [0, 2**31): the key of the unit that begins at each place.
    """

    def __init__(self, rows: FlatRows, units: FlatUnits, keys_T: Tensor) -> None:
        self._rows, self._units, self._keys_T = rows, units, keys_T

    def up_to(self, rate: float | Tensor, *, least_one: bool = False) -> Tensor:
        """The tokens of the units that a budget holds.

        Args:
            rate: Expected share of the maskable tokens, in [0, 1]; or one for each segment: [T], int64 in 2**-24, the
                same at all places of a segment.
            least_one: Whether a segment's first unit is taken however small its budget is.

        Returns:
            [T], bool.
        """
        share_T = rate
        if not isinstance(share_T, Tensor):
            share_T = torch.full((1,), round(share_T * 2**RATE_BITS), device=self._keys_T.device)
        if not serves(self._keys_T):
            return self._up_to(share_T, least_one)
        rows, units = self._rows, self._units
        batch = arrays(rows.segment_begin_T, units.begin_T, units.size_T, self._keys_T, rows.bits_T, share_T)
        return torch.from_numpy(take_units(RATE_BITS, least_one, *batch))

    def _up_to(self, share_T: Tensor, least_one: bool) -> Tensor:
        order = self._order
        # Segments lie at the same places in both orders, so a segment's budget is the same in both.
        room_U = order.tokens_T * share_T - (order.before_U << RATE_BITS)
        taken_U = room_U > order.draw_U
        if least_one:
            taken_U |= order.before_U == 0
        taken_U &= order.size_U > 0
        return take(put(order.places_U, taken_U), self._units.begin_T) & self._rows.maskable_T

    @functools.cached_property
    def _order(self) -> _Order:
        return _Order(self._rows, self._units, self._keys_T)


class _Order:
    """All units sorted, for devices that kernels do not serve: places at which none begins have size 0."""

    def __init__(self, rows: FlatRows, units: FlatUnits, keys_T: Tensor) -> None:
        self.places_U = torch.argsort((rows.segment_T << KEY_BITS) | keys_T, stable=True)
        self.size_U = take(units.size_T, self.places_U)
        before_U = torch.cumsum(self.size_U, 0) - self.size_U
        # Segments are contiguous in the line and in key order alike, so they begin at the same index in both.
        self.before_U = before_U - take(before_U, rows.segment_begin_T)  # tokens of earlier units of the segment
        self.draw_U = (take(rows.bits_T, self.places_U) & ((1 << RATE_BITS) - 1)) * self.size_U
        self.tokens_T = rows.segment_sum(rows.maskable_T.to(torch.int64))
