"""Packed rows as one line of sequences, as kernels of attention over sequences of unequal length take them.

    rows          [CLS] a b [SEP] [CLS] c [SEP] [PAD]    [CLS] d e f g h i [SEP]      two rows of eight positions
    segment_ids     0   0 0   0     1   1   1    -1        0   0 0 0 0 0 0   0
    cu_seqlens      0               4             7        8                     16   16  16 ...

The numbers behind the last sequence are all the same: sequences of length 0. So the tensor has one of few lengths, and
nothing that was compiled for it must be compiled anew for each batch. They are few: each takes memory in the backward
pass of attention.

Shape suffixes: B = rows, S = positions, C = capacity for sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 65_535  # that one call takes: they are a dimension of the grid that a GPU's kernel is launched with


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of a batch in a line begin.

    Attributes:
        cu_seqlens: int32 [C + 1]: places at which sequences begin, then the number of positions, repeated.
        max_length: No sequence is longer; the length of a row, so that it stays the same from batch to batch.
    """

    cu_seqlens: Tensor
    max_length: int

    @classmethod
    def of(cls, segment_ids_BS: Tensor) -> Sequences:
        """The segments of packed rows; the padding at a row's end is a sequence of its own.

        The capacity is rounded up to one of four in each octave. On a GPU this waits for the device, since it has to
        say how many segments there are: a training step gets sequences that were made on the host.

        Args:
            segment_ids_BS: Integers; neighbours of the same number are one segment.
        """
        num_rows, length = segment_ids_BS.shape
        begins_BS = torch.ones_like(segment_ids_BS, dtype=torch.bool)
        begins_BS[:, 1:] = segment_ids_BS[:, 1:] != segment_ids_BS[:, :-1]
        places = torch.nonzero(begins_BS.flatten())[:, 0].to(torch.int32)
        step = 1 << max(0, (len(places) - 1).bit_length() - 3)
        capacity = max(len(places), min(-(-len(places) // step) * step, MOST))
        cu_seqlens = places.new_full((capacity + 1,), num_rows * length)
        cu_seqlens[: len(places)] = places
        return cls(cu_seqlens, length)

    @classmethod
    def of_rows(cls, num_rows: int, length: int, device: torch.device) -> Sequences:
        """A sequence a row. This does not wait for the device."""
        return cls(torch.arange(num_rows + 1, dtype=torch.int32, device=device) * length, length)

    def map(self, change: Callable[[Tensor], Tensor]) -> Sequences:
        """The same with a change made to its tensor."""
        return Sequences(change(self.cu_seqlens), self.max_length)
