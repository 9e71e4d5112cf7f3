"""Which units are masked, so that the expected share of tokens is the rate: fixed-point weights, keys, and the draw.

`draw_units` gives every unit the probability that its weight names: equal units the rate, others in proportion to their
weights, at most 1 (what that leaves raises the others). The number of units in a segment varies by less than one. A
unit's probability depends neither on its size nor on its place nor on the length of its segment.

`fill_tokens` takes units in the order of their keys, which are for it alone, until a budget of tokens is full. The
share of tokens varies less then, but units of more tokens, the last spans of a segment and light units are taken less
or more often than they should be, by the more the shorter a segment is (docs/masking.md has figures).

Logarithms of weights are in fixed point, and all arithmetic is in integers, or in additions and products of double
precision in an order that the segment alone decides: the same on every machine.

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
from unmask.masking import draw_loops, row_loops
from unmask.masking.draw_loops import MOST_DOUBLINGS, RATE_BITS
from unmask.masking.flat_rows import FlatRows, FlatUnits
from unmask.masking.row_loops import POINT

LARGEST_LOG2 = 1 << 29  # of a weight, in these: 2**2048
_TABLE_BITS = 12


def uniform_keys(bits_T: Tensor) -> Tensor:
    """Keys of equally likely units: some of the random bits. Args: bits_T: int64. Returns: int64 in [0, 2**31)."""
    return ORDER.of(bits_T)


def weighted_keys(bits_T: Tensor, log2_T: Tensor) -> Tensor:
    """Keys of units with weights.

    A key is E / w, of an exponential draw E and the weight w; its order is that of log2(E) - log2(w), and the first
    comes from a table.

    Args:
        bits_T: int64: 64 random bits.
        log2_T: int64: logarithm of the weight to base 2, in 2**-18; weights that differ by more than a factor of
            2**1000 or so are cut.

    Returns:
        int64 in [0, 2**31); a smaller key is drawn earlier.
    """
    batch = arrays(bits_T, log2_T, *_tables())
    return torch.from_numpy(row_loops.weighted_keys(_TABLE_BITS, POINT, *batch))


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


def draw_units(
    rows: FlatRows,
    units: FlatUnits,
    log2_T: Tensor | None,
    rate: float | Tensor,
    *,
    prediction_rate: float | None = None,
    least_one: bool = False,
) -> tuple[Tensor, Tensor]:
    """Chooses units by inclusion probabilities.

    Args:
        rows: The batch.
        units: Its partition.
        log2_T: [T], int64: logarithm of the weight of the unit that begins at each place, to base 2 in 2**-18; None:
            all are equal.
        rate: Expected share of the maskable tokens, in [0, 1]; or one for each segment: [T], int64 in 2**-24, the
            same at all places of a segment.
        prediction_rate: Expected share that is predicted, at most `rate`; None: all that are chosen.
        least_one: Whether one unit of a segment is taken however small its share is.

    Returns:
        [T], bool each: the tokens of the units that are chosen, and of those that are predicted.

    Source: Madow 1949 (On the theory of systematic sampling, II); Tillé 2006, Sampling Algorithms.
    """
    log2_or_none_T = torch.zeros(0, dtype=torch.int64) if log2_T is None else log2_T
    predicted = -1 if prediction_rate is None else round(prediction_rate * 2**RATE_BITS)
    batch = arrays(rows.segment_begin_T, units.begin_T, units.size_T, log2_or_none_T, rows.bits_T, _share(rate))
    found = draw_loops.take_units((least_one, predicted), powers(), *batch)
    chosen_T, predicted_T = (torch.from_numpy(array) for array in found)
    return chosen_T, predicted_T


def fill_tokens(
    rows: FlatRows, units: FlatUnits, keys_T: Tensor, rate: float | Tensor, *, least_one: bool = False
) -> Tensor:
    """The tokens of the units that a budget of tokens holds; a larger budget holds those of a smaller one.

    The unit that crosses the budget is taken with probability (room left / its size): then the expected number of
    masked tokens is the budget itself, given any order.

    Args:
        rows: The batch.
        units: Its partition.
        keys_T: [T], int64 in [0, 2**31): the key of the unit that begins at each place.
        rate: As for `draw_units`.
        least_one: Whether a segment's first unit is taken however small its budget is.

    Returns:
        [T], bool.

    Source: Efraimidis and Spirakis 2006 for weighted keys.
    """
    batch = arrays(rows.segment_begin_T, units.begin_T, units.size_T, keys_T, rows.bits_T, _share(rate))
    return torch.from_numpy(draw_loops.fill_tokens(least_one, *batch))


def _share(rate: float | Tensor) -> Tensor:
    return rate if isinstance(rate, Tensor) else torch.full((1,), round(rate * 2**RATE_BITS))
