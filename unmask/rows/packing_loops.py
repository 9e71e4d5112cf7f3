"""Loops that pack fragments into rows and fill the rows with their tokens, compiled.

Arrays: R = rows, S = positions, F = fragments of the rows, N = tokens of a window's text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.compiled import compiled

LEAST_CUT = 6  # tokens: a shorter fragment of a long piece would have hardly any context
_NONE = -1

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class _Rows(NamedTuple):
    """Rows that are being filled: for every room that some row has left, the rows that have it, the last one first.

    Attributes:
        last: [row_length + 1]: of each room, the row that was given it last.
        before: [most_rows]: of each row, the one that had its room before it.
        counts: [2]: rows that are begun, and fragments that are placed.
        row, piece, start, length: [most_fragments]: what was placed.
    """

    last: Ints
    before: Ints
    counts: Ints
    row: Ints
    piece: Ints
    start: Ints
    length: Ints


@compiled
def _write(rows: _Rows, row: int, piece: int, start: int, length: int) -> None:
    at = rows.counts[1]
    rows.row[at], rows.piece[at], rows.start[at], rows.length[at] = row, piece, start, length
    rows.counts[1] = at + 1


@compiled
def _least_room(rows: _Rows, size: int) -> int:
    """The smallest room that holds so many positions; -1 where none does."""
    for room in range(size, len(rows.last)):
        if rows.last[room] != _NONE:
            return room
    return _NONE


@compiled
def _add(rows: _Rows, size: int, piece: int, start: int, length: int) -> None:
    """Puts a fragment where it leaves the least room, or into a new row."""
    room = _least_room(rows, size)
    if room != _NONE:
        row = rows.last[room]
        rows.last[room] = rows.before[row]
    else:
        room, row = len(rows.last) - 1, rows.counts[0]
        rows.counts[0] += 1
    _write(rows, row, piece, start, length)
    left = room - size
    if left:
        rows.before[row] = rows.last[left]
        rows.last[left] = row


@compiled
def _most_room(rows: _Rows) -> int:
    """The largest room that is left in a row already begun; 0 where none is."""
    for room in range(len(rows.last) - 1, 0, -1):
        if rows.last[room] != _NONE:
            return room
    return 0


@compiled
def _cut_into(rows: _Rows, overhead: int, piece: int, start: int, length: int) -> None:
    """Places a fragment longer than a row, cut so that it closes rooms, the largest first."""
    whole = len(rows.last) - 1 - overhead
    while length:
        cut = min(_most_room(rows) - overhead, length - LEAST_CUT)
        if length <= whole and (cut < LEAST_CUT or _least_room(rows, length + overhead) != _NONE):
            cut = length
        elif cut < LEAST_CUT:
            cut = min(whole, max(length - LEAST_CUT, 1))
        _add(rows, cut + overhead, piece, start, cut)
        start += cut
        length -= cut


@compiled
def _full_rows(length: int, whole: int) -> int:
    """How many rows a piece fills alone; what remains of it is longer than a row."""
    return length // whole - (1 if length % whole else 0)


@compiled
def best_fit(lengths: Ints, by_length: Ints, row_length: int, overhead: int) -> tuple[Ints, Ints, Ints, Ints]:
    """See `unmask.rows.packing.pack_pieces`.

    Args:
        lengths: [num_pieces].
        by_length: Those that fit into a row, the longest first.
        row_length, overhead: As there.

    Returns:
        [F] each: row, piece, start and length of every fragment; those of a row in their order.
    """
    whole = row_length - overhead
    full, rest, num_long = 0, 0, 0
    for length in lengths:
        if length > whole:
            full += _full_rows(length, whole)
            rest += length - _full_rows(length, whole) * whole
            num_long += 1
    cuts = rest if whole < 2 * LEAST_CUT else rest // LEAST_CUT + num_long
    most = full + len(by_length) + cuts
    rows = _Rows(
        np.full(row_length + 1, _NONE, dtype=np.int64),
        np.full(most, _NONE, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
    )
    for piece in range(len(lengths)):
        if lengths[piece] > whole:
            for number in range(_full_rows(lengths[piece], whole)):
                _write(rows, rows.counts[0], piece, number * whole, whole)
                rows.counts[0] += 1
    for piece in by_length:
        _add(rows, lengths[piece] + overhead, piece, 0, lengths[piece])
    for piece in range(len(lengths)):
        if lengths[piece] > whole:
            done = _full_rows(lengths[piece], whole) * whole
            _cut_into(rows, overhead, piece, done, lengths[piece] - done)
    placed = rows.counts[1]
    return rows.row[:placed], rows.piece[:placed], rows.start[:placed], rows.length[:placed]


class Placed(NamedTuple):
    """Fragments with their places.

    Attributes:
        at: [F]: the place of the first token in the rows, row after row in one line.
        source: [F]: its place in the window's text.
        length, half: [F]: as in `PackedRows`.
        number: [F]: of its segment in the row, counted from 0.
        key: [F]: of the segment or of the half of a pair.
    """

    at: Ints
    source: Ints
    length: Ints
    half: Ints
    number: Ints
    key: Ints


@compiled
def places_in_rows(begins: Ints, length: Ints, half: Ints, row_length: int, has_cls: bool, has_sep: bool) -> Ints:
    """Where the tokens of every fragment begin: [F], in rows that stand in one line."""
    at = np.empty(len(length), dtype=np.int64)
    for row in range(len(begins) - 1):
        place = row * row_length
        for f in range(begins[row], begins[row + 1]):
            if not half[f] and has_cls:  # a second half begins behind the [SEP] of the first
                place += 1
            at[f] = place
            place += length[f]
            if has_sep:
                place += 1
    return at


class RowColumns(NamedTuple):
    """What is filled: [R x S] each, as `Rows` has them, with the values of padding in them; types of pairs only."""

    input_ids: Ints
    segment_ids: NDArray[np.int32]
    position_ids: Ints
    word_starts: Bools
    maskable: Bools
    segment_keys: Ints
    token_type_ids: Ints

    @classmethod
    def of_padding(cls, size: int, pad: int, *, with_types: bool) -> RowColumns:
        """Nothing but padding, at so many places.

        Args:
            size: R x S.
            pad: Id of the padding token.
            with_types: Whether there are types of tokens, as of pairs.
        """
        return cls(
            input_ids=np.full(size, pad, dtype=np.int64),
            segment_ids=np.full(size, -1, dtype=np.int32),
            position_ids=np.zeros(size, dtype=np.int64),
            word_starts=np.zeros(size, dtype=bool),
            maskable=np.zeros(size, dtype=bool),
            segment_keys=np.zeros(size, dtype=np.int64),
            token_type_ids=np.zeros(size if with_types else 0, dtype=np.int64),
        )

    def part(self, begin: int, end: int) -> RowColumns:
        """Places `begin` to `end`, without a copy."""
        return RowColumns(*(column[begin:end] for column in self))  # type: ignore[arg-type]


@compiled
def fill(
    placed: Placed,
    ids_N: NDArray[Any],
    starts_N: NDArray[np.uint8],
    ordinary_V: Bools,
    cls: int,
    sep: int,
    keeps_first: bool,
    into: RowColumns,
) -> Ints:
    """Fills rows with the tokens of their fragments.

    Args:
        placed: The fragments.
        ids_N, starts_N: Token ids and word starts.
        ordinary_V: What may be masked.
        cls, sep: Ids of `[CLS]` and `[SEP]`; -1 where there is none.
        keeps_first: Whether the first token of a segment without `[CLS]` is not to be masked.
        into: The rows.

    Returns:
        [F]: the place where the segment of each fragment begins.
    """
    begins = np.empty(len(placed.at), dtype=np.int64)
    begin = 0
    for f in range(len(placed.at)):
        at, length, second = placed.at[f], placed.length[f], placed.half[f]
        place = at
        if second:
            place = at - 1
        else:
            place = at - (cls >= 0)
            begin = place
            if cls >= 0:
                into.input_ids[place] = cls
        end = at + length + (sep >= 0)
        begins[f] = begin
        for i in range(place, end):
            into.segment_ids[i] = placed.number[f]
            into.position_ids[i] = i - begin
            into.segment_keys[i] = placed.key[f]
        if second:
            into.token_type_ids[at:end] = 1
        for n in range(length):
            token = ids_N[placed.source[f] + n]
            into.input_ids[at + n] = token
            into.word_starts[at + n] = starts_N[placed.source[f] + n] != 0
            into.maskable[at + n] = ordinary_V[token]
        into.word_starts[at] = True  # a long piece may be cut within a word
        if keeps_first and cls < 0 and not second:
            into.maskable[at] = False
        if sep >= 0:
            into.input_ids[end - 1] = sep
    return begins


@compiled
def fill_column(placed: Placed, values_N: NDArray[Any], into: Ints) -> None:
    """Puts a value of every token where the token stands."""
    for f in range(len(placed.at)):
        for n in range(placed.length[f]):
            into[placed.at[f] + n] = values_N[placed.source[f] + n]
