"""Best-fit packing of document pieces into rows of one length. No token is dropped or repeated.

Short pieces are never cut: sorted by length, each goes into the row where it leaves the least room (best fit
decreasing). A piece longer than a row must be cut anyway, so it is cut where that fills rows: whole rows first, and
what remains, between one and two rows long, closes the rooms that short pieces have left. Rows of natural text come
out over 98 % full.

A window has tens of thousands of fragments, so they are columns and never objects, and loops pack them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.rows.packing_loops import best_fit

Ints = NDArray[np.int64]


class Fragment(NamedTuple):
    """Some consecutive tokens of a piece: a segment of a row without its special tokens."""

    piece: int
    start: int
    length: int


class Segment(NamedTuple):
    """What stands between `[CLS]` and the last `[SEP]`: one fragment, or the two halves of a pair.

    Attributes:
        parts: In the order in which they stand.
        label: Class of a pair, as `unmask.rows.sentence_pairs` counts them; None where it is no pair.
    """

    parts: tuple[Fragment, ...]
    label: int | None = None


@dataclass(frozen=True)
class PackedRows:
    """Rows of fragments, as columns. F fragments, row by row, in the order in which they stand.

    Attributes:
        begins: [num_rows + 1]: where each row's fragments begin.
        piece, start, length: [F]: what tokens they are.
        half: [F]: 1 where a fragment is the second half of a pair, else 0: there a segment begins.
        label: [F]: class of the pair that begins with it; -1 where none does.
    """

    begins: Ints
    piece: Ints
    start: Ints
    length: Ints
    half: Ints
    label: Ints

    @classmethod
    def of(cls, begins: Ints, piece: Ints, start: Ints, length: Ints) -> PackedRows:
        """Rows in which every fragment is a segment."""
        return cls(begins, piece, start, length, np.zeros_like(piece), np.full_like(piece, -1))

    def __len__(self) -> int:
        return len(self.begins) - 1

    @property
    def num_tokens(self) -> int:
        """Without special tokens."""
        return int(self.length.sum())

    def part(self, begin: int, end: int) -> PackedRows:
        """Rows `begin` to `end`, without a copy."""
        return self._of(self.begins[begin : end + 1] - self.begins[begin], slice(*self.begins[[begin, end]].tolist()))

    def in_order(self, order: Ints) -> PackedRows:
        """The rows in another order."""
        counts = np.diff(self.begins)[order]
        ends = np.cumsum(counts)
        fragments = np.repeat(self.begins[order] - ends + counts, counts) + np.arange(len(self.piece))
        return self._of(np.concatenate([[0], ends]), fragments)

    def followed_by(self, other: PackedRows) -> PackedRows:
        """These rows and others behind them."""
        names = ("piece", "start", "length", "half", "label")
        columns = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in names)
        return PackedRows(np.concatenate([self.begins, other.begins[1:] + self.begins[-1]]), *columns)

    def _of(self, begins: Ints, fragments: slice | Ints) -> PackedRows:
        columns = (self.piece, self.start, self.length, self.half, self.label)
        return PackedRows(begins, *(column[fragments] for column in columns))

    def joined(self) -> tuple[Ints, Ints, Ints]:
        """The fragments in the order of the text, neighbours joined: piece, start, length."""
        order = np.lexsort((self.start, self.piece))
        piece, start, length = self.piece[order], self.start[order], self.length[order]
        goes_on = (piece[1:] == piece[:-1]) & (start[1:] == start[:-1] + length[:-1])
        first = np.flatnonzero(~np.concatenate([[False], goes_on]))[: len(piece)]
        return piece[first], start[first], np.add.reduceat(length, first) if len(first) else length

    def pieces(self) -> list[list[int]]:
        """Of each row the pieces in it."""
        return [each.tolist() for each in np.split(self.piece, self.begins[1:-1])] if len(self) else []

    def __iter__(self) -> Iterator[list[Segment]]:
        """Row by row its segments, to look at."""
        columns = zip(self.piece.tolist(), self.start.tolist(), self.length.tolist(), strict=True)
        fragments = [Fragment(*each) for each in columns]
        second = [*(self.half[1:] == 1).tolist(), False]
        for begin, end in zip(self.begins[:-1].tolist(), self.begins[1:].tolist(), strict=True):
            yield [
                Segment(tuple(fragments[f : f + 1 + second[f]]), None if self.label[f] < 0 else int(self.label[f]))
                for f in range(begin, end)
                if not self.half[f]
            ]


def pack_pieces(lengths: Ints, *, row_length: int, overhead: int) -> PackedRows:
    """Packs pieces into rows.

    Args:
        lengths: [num_pieces]: tokens of each piece; empty ones are passed over.
        row_length: Positions of a row.
        overhead: Special tokens of each fragment.

    Returns:
        The rows; `piece` is an index into `lengths`.

    Example: pieces of 3, 2 and 9 tokens in rows of 7 without overhead: the long piece fills a row, and its last two
    tokens close the row of the short ones: `[(2, 0, 7)], [(0, 0, 3), (1, 0, 2), (2, 7, 2)]`.

    Source: Johnson 1973 (best fit decreasing needs at most 11/9 of the optimal number of rows); cutting is ours.
    """
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    short = np.flatnonzero((lengths > 0) & (lengths <= row_length - overhead))
    by_length = short[np.argsort(-lengths[short], kind="stable")]
    row, piece, start, length = best_fit(lengths, by_length, row_length, overhead)
    order = np.argsort(row, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(row))]) if len(row) else np.zeros(1, dtype=np.int64)
    return PackedRows.of(begins, piece[order], start[order], length[order])
