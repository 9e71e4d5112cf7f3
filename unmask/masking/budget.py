"""Which units are masked, so that the expected share of tokens is the rate.

`draw_units` gives every unit the probability that its weight names: equal units the rate, others in proportion to their
weights, at most 1 (what that leaves raises the others). The number of units in a segment varies by less than one. A
unit's probability depends neither on its size nor on its place nor on the length of its segment.

`fill_tokens` takes units in the order of their keys until a budget of tokens is full. The share of tokens varies less
then, but units of more tokens, the last spans of a segment and light units are taken less or more often than they
should be, by the more the shorter a segment is (docs/masking.md has figures).

All arithmetic is in integers, or in additions and products of double precision in an order that the segment alone
decides.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.compiled import arrays
from unmask.masking.flat import FlatRows, FlatUnits
from unmask.masking.kernels import draw as kernels
from unmask.masking.kernels.draw import RATE_BITS
from unmask.masking.keys import powers


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
    found = kernels.take_units((least_one, predicted), powers(), *batch)
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
    return torch.from_numpy(kernels.fill_tokens(least_one, *batch))


def _share(rate: float | Tensor) -> Tensor:
    return rate if isinstance(rate, Tensor) else torch.full((1,), round(rate * 2**RATE_BITS))
