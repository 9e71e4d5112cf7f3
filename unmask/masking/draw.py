"""The draw: flattens a batch, partitions it into units, chooses units so that the share of masked tokens is the rate,
and replaces their tokens.

`draw_units` gives every unit the probability of its weight: the rate for equal units, otherwise in proportion to the
weights, at most 1 (the budget that this leaves raises the others). The number of units taken in a segment varies by
less than one. A unit's probability does not depend on its size, its place or the length of its segment.

One more draw partitions the chosen tokens into mask, random and unchanged. Random tokens are ordinary ones, never
special and never the token itself.

Shape suffixes: T = all positions of a batch in a line (B rows x S positions); V = vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.compiled import arrays
from unmask.core.errors import DataError, SettingsError
from unmask.core.hashing import SHOWN
from unmask.data.rows import Rows
from unmask.masking.draw_loops import (
    MOST_DOUBLINGS,
    POINT,
    RATE_BITS,
    largest,
    partition_loop,
    replaced,
    segments_and_bits,
    sums,
    take_units,
)

LARGEST_LOG2 = 1 << 29  # largest logarithm of a weight, in fixed point: 2**2048


@dataclass(frozen=True)
class FlatRows:
    """A flattened batch, with the columns that strategies need."""

    input_ids_T: Tensor  # int64: the ids before masking
    maskable_T: Tensor  # bool
    word_starts_T: Tensor  # bool: words begin here; the first maskable token of a segment always begins one
    # int64: index of the first token of the token's segment. The halves of a pair are two segments here, so that the
    # mask of a text does not depend on its partner; padding belongs to other segments
    segment_begin_T: Tensor
    bits_T: Tensor  # int64: 64 random bits for each token, a hash of (seed, epoch, segment, position)
    width: int  # positions of a row, which no segment exceeds
    # By name, int64 [T]: columns of the prepared data, as `unmask.data.rows` describes them
    annotations: Mapping[str, Tensor]

    def annotation(self, name: str, needed_by: str) -> Tensor:
        """A column of annotation. If it is missing, a DataError with the name of the strategy, `needed_by`, says how to
        get it."""
        if name not in self.annotations:
            raise DataError(
                f"{needed_by} needs the annotation {name!r}, which these rows lack; add it with `unmask prepare ... "
                f"--annotate {name}`, or in `unmask pretrain` of raw text with --set 'annotation.columns=[\"{name}\"]'"
            )
        return self.annotations[name]

    def segment_sum(self, values_T: Tensor) -> Tensor:
        """Sums over each segment, at every token of it: [T]."""
        sums_T = torch.from_numpy(sums(*arrays(self.segment_begin_T, values_T)))
        return sums_T.index_select(0, self.segment_begin_T)


@dataclass(frozen=True)
class FlatUnits:
    """A partition of the maskable tokens into units, int64: the index of the first token of each token's unit (a token
    that cannot be masked is its own, empty unit), and the size of the unit that begins at each token, or 0."""

    begin_T: Tensor
    size_T: Tensor

    def largest(self, values_T: Tensor) -> Tensor:
        """The largest value of each unit's tokens, at the unit's first token."""
        return torch.from_numpy(largest(*arrays(self.begin_T, values_T)))


def flatten(rows: Rows, key: int) -> FlatRows:
    """Flattens a batch, and gives every token its random bits; `key` is a hash of seed and epoch."""
    loop = segments_and_bits(key, *arrays(rows.segment_ids, rows.segment_keys, rows.position_ids))
    segment_begin_T, bits_T = map(torch.from_numpy, loop)
    return FlatRows(
        input_ids_T=rows.input_ids.reshape(-1),
        maskable_T=rows.maskable.reshape(-1),
        word_starts_T=rows.word_starts.reshape(-1),
        segment_begin_T=segment_begin_T,
        bits_T=bits_T,
        width=rows.shape[1],
        annotations={name: column.reshape(-1) for name, column in rows.annotations.items()},
    )


def partition(rows: FlatRows, starts_T: Tensor) -> FlatUnits:
    """Makes units from their starts. A unit also ends before a token that cannot be masked, and with its segment."""
    return FlatUnits(*map(torch.from_numpy, partition_loop(*arrays(rows.maskable_T, rows.segment_begin_T, starts_T))))


@dataclass(frozen=True)
class Boundaries:
    """The tokens just outside of each token's span, from which the span-boundary objective predicts.

        tokens   [CLS] a b c d e [SEP]        unit: b c d
        before             1 1 1              column of a, at each token of the unit
        behind             5 5 5              column of e

    [B, S], int64. Only values at targets have a meaning. They are -1 for tokens outside of spans, whose text another
    strategy of a mixture has masked.
    """

    before: Tensor
    behind: Tensor


def boundaries(units: FlatUnits, shape: tuple[int, int], in_span_T: Tensor | None = None) -> Boundaries:
    """The boundaries of a partition of a [B, S] batch. `in_span_T` tells whether a token's unit is a span; None: all
    are. Both boundary tokens are in the unit's segment, which begins and ends with a special token."""
    begin_T = units.begin_T
    row_begin_T = torch.arange(len(begin_T)) // shape[1] * shape[1]
    before_T = begin_T - row_begin_T - 1
    behind_T = before_T + units.size_T[begin_T] + 1
    if in_span_T is not None:
        before_T, behind_T = pick(in_span_T, before_T, -1), pick(in_span_T, behind_T, -1)
    return Boundaries(before_T.view(shape), behind_T.view(shape))


# For 8-byte integers on CPUs, torch's `index_select` takes a quarter of the time of indexing, so masking uses it
# throughout (32 and 128 microseconds for 65,536 numbers on one core). `where` is not vectorised for them: it takes 180
# microseconds, the four bit operations of `pick` take 60.
def pick(condition_T: Tensor, yes: Tensor | int, no: Tensor | int) -> Tensor:
    """`where` for int64; at least one of `yes` and `no` must be a tensor."""
    differ = yes ^ no  # chosen by bits: no ^ ((yes ^ no) & -condition)
    return condition_T.to(torch.int64).neg_().bitwise_and_(differ).bitwise_xor_(no)


def fixed_log2(values: Tensor) -> Tensor:
    """Logarithms of positive numbers to base 2, int64 in 2**-18, in the same shape."""
    logs = np.log2(np.maximum(values.detach().numpy().astype(np.float64), 1e-300))
    fixed = np.clip(np.round(logs * (1 << POINT)), -LARGEST_LOG2, LARGEST_LOG2).astype(np.int64)
    return torch.from_numpy(fixed)


@functools.cache
def powers() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Three tables of 2**-n: for integers n, for n in [0, 1) in 512 steps, and for n within such a step in 512 steps.
    A product of one entry of each is a power with an exponent in 2**-18. Fractions are rounded to 36 bits, so that the
    last bit of a machine's own powers does not matter."""
    half = 1 << POINT // 2
    steps = np.arange(half) / half
    coarse, fine = (np.round(np.exp2(-exponents) * 2.0**36) / 2.0**36 for exponents in (steps, steps / half))
    return np.ldexp(1.0, -np.arange(MOST_DOUBLINGS + 1)), coarse, fine


def draw_units(
    rows: FlatRows,
    units: FlatUnits,
    log2_T: Tensor | None,
    rate: float | Tensor,
    *,
    prediction_rate: float | None = None,
    least_one: bool = False,
) -> tuple[Tensor, Tensor]:
    """Chooses units by inclusion probabilities. Returns the tokens of chosen units, and of predicted ones: [T], bool.

    `log2_T`, int64, is the logarithm of each unit's weight, at its first token, to base 2 in 2**-18; None: all are
    equal. `rate` is the expected share of the maskable tokens, in [0, 1]; or one for each segment: [T], int64 in
    2**-24, the same at all its tokens. `prediction_rate` is at most the rate; None: all chosen tokens are predicted.
    `least_one` takes at least one unit of each segment, however small its share is.

    Source: Madow 1949 (On the theory of systematic sampling, II); Tillé 2006, Sampling Algorithms.
    """
    log2_or_none_T = torch.zeros(0, dtype=torch.int64) if log2_T is None else log2_T
    share_T = rate if isinstance(rate, Tensor) else torch.full((1,), round(rate * 2**RATE_BITS))
    predicted = -1 if prediction_rate is None else round(prediction_rate * 2**RATE_BITS)
    batch = arrays(rows.segment_begin_T, units.begin_T, units.size_T, log2_or_none_T, rows.bits_T, share_T)
    chosen_T, predicted_T = take_units((least_one, predicted), powers(), *batch)
    return torch.from_numpy(chosen_T), torch.from_numpy(predicted_T)


RandomTokens = tuple[NDArray[np.int64], NDArray[np.int64]]


def random_tokens(counts_V: NDArray[np.int64]) -> RandomTokens:
    """The tables for drawing random tokens: relative frequencies, whose sum must fit 31 bits (0 is never drawn), and
    their running sums."""
    if np.count_nonzero(counts_V) < 2:  # a random token must differ from the original
        raise SettingsError("random replacement needs at least two ordinary tokens in the vocabulary")
    return counts_V, np.cumsum(counts_V)


def replace_tokens(
    input_ids_T: Tensor,
    chosen_T: Tensor,
    bits_T: Tensor,
    *,
    unit_begin_T: Tensor,
    shares: tuple[float, float, float],
    per_unit: bool | Tensor,
    mask_id: int,
    tokens: RandomTokens,
) -> Tensor:
    """The model's input ids, [T], with masks and random tokens at chosen tokens. Draws are hashes of `bits_T`; `shares`
    are those of mask, random and unchanged; `per_unit` tells whether (or at which tokens) one draw serves a whole unit.
    """
    own_T = torch.arange(len(bits_T))
    if isinstance(per_unit, Tensor):
        draw_place_T = pick(per_unit, unit_begin_T, own_T)
    else:
        draw_place_T = unit_begin_T if per_unit else own_T
    mask_end, random_end = (round(sum(shares[:n]) * 2**SHOWN.size) for n in (1, 2))
    batch = arrays(input_ids_T, chosen_T, bits_T, draw_place_T)
    return torch.from_numpy(replaced(mask_id, mask_end, random_end, tokens, *batch))
