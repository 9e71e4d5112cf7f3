"""The value type between data, masking and model: a batch of packed rows.

input_ids     [CLS] a b c [SEP] [CLS] d e [SEP] [PAD]
segment_ids     0   0 0 0   0     1   1 1   1    -1
position_ids    0   1 2 3   4     0   1 2   3     0
word_starts     0   1 0 1   0     0   1 1   0     0
maskable        0   1 1 1   0     0   1 1   0     0

Where sentence pairs are classified, a segment holds a pair, whose halves have keys of their own:

input_ids       [CLS] a b [SEP] c d e [SEP] [PAD]
segment_ids       0   0 0   0   0 0 0   0    -1
position_ids      0   1 2   3   4 5 6   7     0
token_type_ids    0   0 0   0   1 1 1   1     0
segment_keys      A   A A   B   B B B   B     0
classes           0  -1 -1 -1  -1 -1 -1 -1   -1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """A batch of rows. B rows, S positions.

    Attributes:
        input_ids: [B, S], int64: token ids with special tokens.
        segment_ids: [B, S], int32: which segment of the row a token belongs to, counted from 0; -1 for padding.
            A segment is a piece of one document with its own special tokens; attention stays within it.
        position_ids: [B, S], int64: position within the segment.
        word_starts: [B, S], bool: whether a word begins at the token; false at special tokens.
        maskable: [B, S], bool: tokens of the text; false at special, unknown and padding tokens.
        segment_keys: [B, S], int64: a hash of which text the segment is, the same wherever the segment stands. Masks
            are drawn by it. In training that is the number of the document, and the place in it; of rows from
            elsewhere, and of held-out ones, the tokens. The halves of a pair have two, of which the second begins at
            the [SEP] before its text.
        annotations: By name, [B, S], int64: what annotators said of each token; 0 at special tokens and padding, and
            where nothing was said.
        classes: By objective, [B, S], int64: what class a segment belongs to, at its first position; -1 elsewhere, and
            where its class is not known.
        token_type_ids: [B, S], int64: 1 in the second half of a pair and at the [SEP] behind it, 0 elsewhere; None
            where segments are no pairs.
    """

    input_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    word_starts: Tensor
    maskable: Tensor
    segment_keys: Tensor
    annotations: Mapping[str, Tensor] = field(default_factory=dict)
    classes: Mapping[str, Tensor] = field(default_factory=dict)
    token_type_ids: Tensor | None = None

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def part(self, begin: int, end: int) -> Rows:
        """Rows `begin` to `end`, without a copy."""
        return self.map(lambda tensor: tensor[begin:end])

    def map(self, change: Callable[[Tensor], Tensor]) -> Rows:
        """The rows with a change made to each of their tensors."""
        changed: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Mapping):
                changed[entry.name] = {name: change(column) for name, column in value.items()}
            elif value is not None:
                changed[entry.name] = change(value)
        return replace(self, **changed)

    @property
    def shape(self) -> tuple[int, int]:
        """(B, S)."""
        num_rows, length = self.input_ids.shape
        return num_rows, length
