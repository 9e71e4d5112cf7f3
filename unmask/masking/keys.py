"""Logarithms of weights in fixed point, powers to undo them, and sorting keys: the same on every machine.

A weighted key is E / w; its order is that of log2(E) - log2(w), and the first comes from a table. Keys are for a budget
of tokens (`unmask.masking.budget`) alone.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.compiled import arrays
from unmask.hashing import ORDER
from unmask.masking.kernels import keys as kernels
from unmask.masking.kernels.draw import MOST_DOUBLINGS
from unmask.masking.kernels.keys import POINT

LARGEST_LOG2 = 1 << 29  # of a weight, in these: 2**2048
_TABLE_BITS = 12


def uniform_keys(bits_T: Tensor) -> Tensor:
    """Keys of equally likely units: some of the random bits. Args: bits_T: int64. Returns: int64 in [0, 2**31)."""
    return ORDER.of(bits_T)


def weighted_keys(bits_T: Tensor, log2_T: Tensor) -> Tensor:
    """Keys of units with weights.

    Args:
        bits_T: int64: 64 random bits.
        log2_T: int64: logarithm of the weight to base 2, in 2**-18; weights that differ by more than a factor of
            2**1000 or so are cut.

    Returns:
        int64 in [0, 2**31); a smaller key is drawn earlier.
    """
    batch = arrays(bits_T, log2_T, *_tables())
    return torch.from_numpy(kernels.weighted_keys(_TABLE_BITS, POINT, *batch))


def fixed_log2(values: Tensor) -> Tensor:
    """Logarithms to base 2 in fixed point.

    Args:
        values: Positive numbers, any shape.

    Returns:
        int64, the same shape.
    """
    logs = np.log2(np.maximum(values.detach().numpy().astype(np.float64), 1e-300))
    fixed = np.clip(np.round(logs * (1 << POINT)), -LARGEST_LOG2, LARGEST_LOG2).astype(np.int64)
    return torch.from_numpy(fixed)


@functools.cache
def powers() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """2**-n for whole n; for n from 0 to 1 in 512 steps; and from there to the first of these in 512 steps.

    The product of one of each is a power with an exponent in 2**-18. The fractions are rounded to 36 bits, so that the
    last bit of a machine's own powers does not matter.
    """
    half = 1 << POINT // 2
    steps = np.arange(half) / half
    coarse, fine = (np.round(np.exp2(-exponents) * 2.0**36) / 2.0**36 for exponents in (steps, steps / half))
    return np.ldexp(1.0, -np.arange(MOST_DOUBLINGS + 1)), coarse, fine


@functools.cache
def _tables() -> tuple[Tensor, Tensor]:
    """log2 of mantissas in [1/2, 1], and log2(-ln(1 - v) / v) for v in [0, 1), in fixed point."""
    size = 1 << _TABLE_BITS
    grid = np.arange(size + 1) / size
    mantissas = np.log2(0.5 + 0.5 * grid)
    v = np.clip(grid, 1e-9, 1.0 - 0.5 / size / size)
    corrections = np.log2(-np.log1p(-v) / v)
    return tuple(  # type: ignore[return-value]
        torch.from_numpy(np.round(table * (1 << POINT)).astype(np.int64)) for table in (mantissas, corrections)
    )
