"""A batch in a line, which units, weights and the budget work on; its partition into units, and their boundaries.

Shape suffix: T = all positions of a batch in a line (B rows x S positions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.compiled import arrays
from unmask.errors import DataError
from unmask.masking import row_loops
from unmask.rows.rows import Rows


@dataclass(frozen=True)
class FlatRows:
    """A batch in a line, with what every strategy needs.

    Attributes:
        input_ids_T: int64: the ids before masking.
        maskable_T: bool.
        word_starts_T: bool: words begin here; the first maskable token of a segment always begins one.
        segment_T: int64: running number of the segment; padding has numbers of its own. The halves of a pair are two
            segments here, so that a text is masked alike whatever stands beside it.
        segment_begin_T: int64: place in the line at which the token's segment begins.
        bits_T: int64: 64 random bits a token, a hash of (seed, epoch, segment, position).
        width: Positions of a row, which no segment exceeds.
        annotations: By name, int64 [T]: columns of the prepared data, as `unmask.rows.rows` describes them.
    """

    input_ids_T: Tensor
    maskable_T: Tensor
    word_starts_T: Tensor
    segment_T: Tensor
    segment_begin_T: Tensor
    bits_T: Tensor
    width: int
    annotations: Mapping[str, Tensor]

    def annotation(self, name: str, wanted_by: str) -> Tensor:
        """A column of annotation.

        Raises:
            DataError: The rows do not have it; the text says how to get it.
        """
        if name not in self.annotations:
            raise DataError(
                f"{wanted_by} needs the annotation {name!r}, which these rows do not have; make it with "
                f"`unmask prepare ... --annotate {name}`, or where raw text is given to `unmask pretrain` with "
                f"--set 'annotation.columns=[\"{name}\"]'"
            )
        return self.annotations[name]

    def segment_sum(self, values_T: Tensor) -> Tensor:
        """Sums over each segment, at every token of it: [T]."""
        return take(_sums(self.segment_begin_T, values_T), self.segment_begin_T)


@dataclass(frozen=True)
class FlatUnits:
    """A partition of the maskable tokens into units.

    Attributes:
        begin_T: int64: place at which the token's unit begins; a token that cannot be masked is its own, empty unit.
        size_T: int64: tokens of the unit that begins here; 0 where none does.
    """

    begin_T: Tensor
    size_T: Tensor

    def largest(self, values_T: Tensor) -> Tensor:
        """The largest of each unit's tokens, at the place where it begins."""
        return torch.from_numpy(row_loops.largest(*arrays(self.begin_T, values_T)))


def flatten(rows: Rows, key: int) -> FlatRows:
    """Lays a batch in a line and gives every token its random bits.

    Args:
        rows: B rows of S positions.
        key: A hash of seed and epoch.
    """
    found = row_loops.segments_and_bits(key, *arrays(rows.segment_ids, rows.segment_keys, rows.position_ids))
    segment_T, segment_begin_T, bits_T = (torch.from_numpy(array) for array in found)
    return FlatRows(
        input_ids_T=rows.input_ids.reshape(-1),
        maskable_T=rows.maskable.reshape(-1),
        word_starts_T=rows.word_starts.reshape(-1),
        segment_T=segment_T,
        segment_begin_T=segment_begin_T,
        bits_T=bits_T,
        width=rows.shape[1],
        annotations={name: column.reshape(-1) for name, column in rows.annotations.items()},
    )


def partition(rows: FlatRows, starts_T: Tensor) -> FlatUnits:
    """Makes units of where they begin. A unit also ends at a token that cannot be masked and at its segment's end.

    Args:
        rows: The batch.
        starts_T: [T], bool; values at tokens that cannot be masked do not matter.
    """
    found = row_loops.partition(*arrays(rows.maskable_T, rows.segment_begin_T, starts_T))
    return FlatUnits(*(torch.from_numpy(array) for array in found))


def _sums(begin_T: Tensor, values_T: Tensor) -> Tensor:
    """Sums of values by the place that each token names."""
    return torch.from_numpy(row_loops.sums(*arrays(begin_T, values_T)))


@dataclass(frozen=True)
class Boundaries:
    """The tokens just outside of each token's span, which the span-boundary objective predicts from.

        tokens   [CLS] a b c d e [SEP]        unit: b c d
        before             1 1 1              column of a, at each token of the unit
        behind             5 5 5              column of e

    Only what stands at targets means anything.

    Attributes:
        before: [B, S], int64: column of the token before the span's first; -1 where the token is in no span, since
            another strategy of a mixture masked its text.
        behind: [B, S], int64: column of the token behind its last; -1 likewise.
    """

    before: Tensor
    behind: Tensor

    def part(self, begin: int, end: int) -> Boundaries:
        """Rows `begin` to `end`, without a copy."""
        return Boundaries(self.before[begin:end], self.behind[begin:end])

    def to(self, device: torch.device) -> Boundaries:
        """The same on another device."""
        return Boundaries(self.before.to(device), self.behind.to(device))


def boundaries(units: FlatUnits, shape: tuple[int, int], in_span_T: Tensor | None = None) -> Boundaries:
    """The boundaries of a partition.

    A unit never leaves its segment, and a segment begins and ends with a special token, so both are in the segment.

    Args:
        units: The partition.
        shape: (B, S) of the batch.
        in_span_T: [T], bool: whether the token's unit is a span; None: all are.
    """
    length = shape[1]
    begin_T = units.begin_T
    row_begin_T = torch.arange(len(begin_T)) // length * length
    before_T = begin_T - row_begin_T - 1
    behind_T = before_T + units.size_T[begin_T] + 1
    if in_span_T is not None:
        before_T, behind_T = pick(in_span_T, before_T, -1), pick(in_span_T, behind_T, -1)
    return Boundaries(before_T.view(shape), behind_T.view(shape))


# What torch does slowly for 8-byte integers on CPUs, done otherwise, since the masker asks for it all the time. For
# 65,536 integers on one core, indexing takes 128 microseconds and `index_select` 32; `where` takes 180, since it is not
# vectorised, and four operations on bits 60.
def take(values: Tensor, places_T: Tensor) -> Tensor:
    """`values[places_T]` along the first dimension."""
    return values.index_select(0, places_T)


def pick(condition_T: Tensor, yes: Tensor | int, no: Tensor | int) -> Tensor:
    """`where`, for int64.

    Args:
        condition_T: bool.
        yes, no: int64, or integers; at least one of them is a tensor.
    """
    differ = yes ^ no  # chosen by bits: no ^ ((yes ^ no) & -condition)
    return condition_T.to(torch.int64).neg_().bitwise_and_(differ).bitwise_xor_(no)
