"""Keys of weighted units.

Arrays: T = all positions of a batch in a line; V = vocabulary; D = directions of an embedding.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unmask.compiled import compiled
from unmask.hashing import ORDER, WEIGHTED_ORDER
from unmask.masking.kernels.hashing import drawn
from unmask.masking.kernels.rows import Bools, Ints

KEY_BITS = ORDER.size
POINT = 18  # fixed-point logarithms count in 2**-18


@compiled
def weighted_keys(table_bits: int, point: int, bits_T: Ints, log2_T: Ints, mantissas: Ints, corrections: Ints) -> Ints:
    """log2 of an exponential draw, less log2 of the weight, from the tables of `unmask.masking.keys`: [T]."""
    keys_T = np.empty(len(bits_T), dtype=np.int64)
    low, draw_bits = (1 << table_bits) - 1, WEIGHTED_ORDER.size
    for place in range(len(bits_T)):
        draw = drawn(bits_T[place], WEIGHTED_ORDER) | 1
        mantissa, exponent = math.frexp(float(draw))
        fine = np.int64(mantissa * (1 << (2 * table_bits + 1))) - (1 << (2 * table_bits))
        coarse = draw >> (draw_bits - 2 * table_bits)
        log = ((exponent - draw_bits) << point) - log2_T[place]
        at = mantissas[fine >> table_bits]
        log += at + (((mantissas[(fine >> table_bits) + 1] - at) * (fine & low)) >> table_bits)
        at = corrections[coarse >> table_bits]
        log += at + (((corrections[(coarse >> table_bits) + 1] - at) * (coarse & low)) >> table_bits)
        keys_T[place] = min(max(log + (1 << 30), 0), (1 << 31) - 1)
    return keys_T


@compiled
def cosines(
    table_VD: Ints, ids_T: Ints, maskable_T: Bools, segment_begin_T: Ints, unit_begin_T: Ints
) -> NDArray[np.float64]:
    """Cosine between the embedding of each unit, at its first place, and that of its segment: [T].

    Both are sums over their tokens; 0 where either is zero.

    Args:
        table_VD: Embeddings in fixed point.
        ids_T, maskable_T, segment_begin_T, unit_begin_T: The batch and its units.
    """
    total, width = len(ids_T), table_VD.shape[1]
    cosine_T = np.zeros(total, dtype=np.float64)
    whole = np.empty(width, dtype=np.int64)
    own = np.empty(width, dtype=np.int64)
    begin = 0
    while begin < total:
        whole[:] = 0
        end = begin
        while end < total and segment_begin_T[end] == begin:
            if maskable_T[end]:
                embedding = table_VD[ids_T[end]]
                for d in range(width):
                    whole[d] += embedding[d]
            end += 1
        length = 0
        for d in range(width):
            length += whole[d] * whole[d]
        place = begin
        while place < end:
            unit = place
            own[:] = 0
            while place < end and unit_begin_T[place] == unit:
                if maskable_T[place]:
                    embedding = table_VD[ids_T[place]]
                    for d in range(width):
                        own[d] += embedding[d]
                place += 1
            product, square = 0, 0
            for d in range(width):
                product += own[d] * whole[d]
                square += own[d] * own[d]
            cosine_T[unit] = float(product) / math.sqrt(max(float(square) * float(length), 1.0))
        begin = end
    return cosine_T
