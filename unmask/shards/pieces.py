"""Pieces of documents with their tokens, as they are taken from shards: in order without a copy, or gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import GOLDEN, mix


class TokenChunk(NamedTuple):
    """Some pieces, one behind another, without a copy.

    Attributes:
        input_ids: [num_tokens].
        word_starts: [num_tokens].
        lengths: [num_pieces], int64: tokens of each.
    """

    input_ids: NDArray[np.generic]
    word_starts: NDArray[np.uint8]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class GatheredPieces:
    """Some pieces, copied one behind another, and what is known of each.

    Attributes:
        piece: [num_pieces], int64: their numbers, in order.
        begin, lengths: [num_pieces], int64: where each begins here, and its tokens.
        input_ids: [num_tokens].
        word_starts: [num_tokens], uint8.
        document, offset, draw: [num_pieces], int64: as the columns of `TokenStore`.
        label: [num_pieces], int64; None where there are no classes.
        annotations: By column, [num_tokens].
    """

    piece: NDArray[np.int64]
    begin: NDArray[np.int64]
    lengths: NDArray[np.int64]
    input_ids: NDArray[np.unsignedinteger]
    word_starts: NDArray[np.uint8]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    draw: NDArray[np.int64]
    label: NDArray[np.int64] | None = None
    annotations: Mapping[str, NDArray[np.unsignedinteger]] = field(default_factory=dict)

    def number(self, piece: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of these each of some pieces is."""
        return np.searchsorted(self.piece, piece)

    def places(self, piece: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a token of each of some pieces stands here: the one with the number `start` of its piece."""
        return self.begin[self.number(piece)] + start

    @cached_property
    def key(self) -> NDArray[np.int64]:
        """[num_pieces], int64: a hash of the place in the corpus of each."""
        return mix(mix(self.document * np.int64(GOLDEN)) + self.offset)
