"""Keys of weighted units.

Array: T = all positions of a batch in a line.
"""

from __future__ import annotations

import math

import numpy as np

from unmask.masking.kernels.compiler import compiled
from unmask.masking.kernels.rows import Ints


@compiled
def weighted_keys(
    draw_bits: int, table_bits: int, point: int, bits_T: Ints, log2_T: Ints, mantissas: Ints, corrections: Ints
) -> Ints:
    """log2 of an exponential draw, less log2 of the weight, from the tables of `unmask.masking.keys`: [T]."""
    keys_T = np.empty(len(bits_T), dtype=np.int64)
    low = (1 << table_bits) - 1
    for place in range(len(bits_T)):
        draw = ((bits_T[place] >> (64 - draw_bits)) & ((1 << draw_bits) - 1)) | 1
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
