"""Rows: their segments and random bits, and keys of what they hold.

Arrays: B = rows, S = positions, T = B x S in a line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.compiled import compiled
from unmask.hashing import GOLDEN
from unmask.masking.kernels.hashing import mix

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@compiled
def segments_and_bits(
    key: int, segments_BS: NDArray[np.integer[Any]], keys_BS: Ints, positions_BS: Ints
) -> tuple[Ints, Ints, Ints]:
    """Running numbers of segments, the places where they begin, and 64 random bits a token: each [T]."""
    num_rows, length = segments_BS.shape
    segment_T = np.empty(num_rows * length, dtype=np.int64)
    begin_T = np.empty(num_rows * length, dtype=np.int64)
    bits_T = np.empty(num_rows * length, dtype=np.int64)
    number, begin, origin = 0, 0, 0
    for b in range(num_rows):
        row = b * length
        for s in range(length):
            if s == 0 or segments_BS[b, s] != segments_BS[b, s - 1] or keys_BS[b, s] != keys_BS[b, s - 1]:
                number += 1
                begin = row + s
                origin = positions_BS[b, s]
            segment_T[row + s] = number
            begin_T[row + s] = begin
            bits_T[row + s] = keys_BS[b, s] + (positions_BS[b, s] - origin) * GOLDEN + key
        for place in range(row, row + length):  # by itself, so that it becomes vector instructions
            bits_T[place] = mix(bits_T[place])
    return segment_T, begin_T, bits_T


@compiled
def positions_and_keys(ids_BS: Ints, inside_BS: Bools) -> tuple[Ints, Ints]:
    """Positions within the rows and a hash of what each row holds: both [B, S]. Padding has position 0."""
    num_rows, length = ids_BS.shape
    positions_BS = np.zeros((num_rows, length), dtype=np.int64)
    keys_BS = np.empty((num_rows, length), dtype=np.int64)
    for b in range(num_rows):
        first = 0
        while first < length and not inside_BS[b, first]:
            first += 1
        total = 0
        for s in range(first, length):
            word = mix(mix(ids_BS[b, s] + 1) + (s - first) * GOLDEN)
            total += word if inside_BS[b, s] else 0
        key = mix(total)
        for s in range(length):
            keys_BS[b, s] = key
            if inside_BS[b, s]:
                positions_BS[b, s] = s - first
    return positions_BS, keys_BS


@compiled
def up_to_last(pad_id: int, ids_BS: Ints) -> Bools:
    """[B, S]: true up to the last token of each row that is no padding."""
    num_rows, length = ids_BS.shape
    inside_BS = np.zeros((num_rows, length), dtype=np.bool_)
    for b in range(num_rows):
        end = length
        while end > 0 and ids_BS[b, end - 1] == pad_id:
            end -= 1
        inside_BS[b, :end] = True
    return inside_BS
