"""Where the units end in which targets stand: what the span-boundary objective predicts from.

    tokens   [CLS] a b c d e [SEP]        unit: b c d
    before             1 1 1              column of a, at each token of the unit
    behind             5 5 5              column of e

Shape suffixes: B = rows, S = positions, T = B x S in a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.masking.flat import FlatUnits
from unmask.masking.lines import pick


@dataclass(frozen=True)
class Boundaries:
    """The tokens just outside of each token's span. Only what stands at targets means anything.

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
