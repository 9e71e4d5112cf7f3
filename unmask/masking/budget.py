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
        self._rows, self._units = rows, units
        # Places at which no unit begins have size 0 and change nothing.
        self._order_U = in_order_of_keys(rows, keys_T)
        self._size_U = take(units.size_T, self._order_U)
        end_U = torch.cumsum(self._size_U, 0)
        # Segments are contiguous in the line and in key order alike, so they begin at the same index in both.
        before_U = end_U - self._size_U
        self._before_U = before_U - take(before_U, rows.segment_begin_T)  # tokens of earlier units of the segment
        self._draw_U = (take(rows.bits_T, self._order_U) & ((1 << RATE_BITS) - 1)) * self._size_U
        self._tokens_T = rows.segment_sum(rows.maskable_T.to(torch.int64))

    def up_to(self, rate: float | Tensor, *, least_one: bool = False) -> Tensor:
        """The tokens of the units that a budget holds.

        Args:
            rate: Expected share of the maskable tokens, in [0, 1]; or one for each segment: [T], int64 in 2**-24, the
                same at all places of a segment.
            least_one: Whether a segment's first unit is taken however small its budget is.

        Returns:
            [T], bool.
        """
        share_T = rate if isinstance(rate, Tensor) else round(rate * 2**RATE_BITS)
        # Segments lie at the same places in both orders, so a segment's budget is the same in both.
        room_U = self._tokens_T * share_T - (self._before_U << RATE_BITS)
        taken_U = room_U > self._draw_U
        if least_one:
            taken_U |= self._before_U == 0
        taken_U &= self._size_U > 0
        return take(put(self._order_U, taken_U), self._units.begin_T) & self._rows.maskable_T


def in_order_of_keys(rows: FlatRows, keys_T: Tensor) -> Tensor:
    """Places in the order of (segment, key, place).

    On CPUs each row is sorted by itself, and the place goes into the lowest bits of what is sorted, so that plain
    integers are sorted instead of pairs; numpy does that with vector instructions, several times faster than torch.

    Args:
        rows: The batch.
        keys_T: [T], int64 in [0, 2**31).

    Returns:
        [T], int64, the same on every device.
    """
    place_bits = max(1, rows.width - 1).bit_length()
    if not len(keys_T) or keys_T.device.type != "cpu" or KEY_BITS + 2 * place_bits > 62:
        return torch.argsort((rows.segment_T << KEY_BITS) | keys_T, stable=True)
    segment_BS = rows.segment_T.view(-1, rows.width)
    word_BS = ((segment_BS - segment_BS[:, :1]) << (KEY_BITS + place_bits)).add_(
        keys_T.view_as(segment_BS) << place_bits
    )
    word_BS += torch.arange(rows.width)
    word_BS.numpy().sort(axis=1)
    word_BS &= (1 << place_bits) - 1
    word_BS += torch.arange(0, len(keys_T), rows.width)[:, None]
    return word_BS.view(-1)
