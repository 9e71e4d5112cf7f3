"""Best-fit packing of document pieces into rows of one length. No token is dropped or repeated.

Short pieces are never cut: sorted by length, each goes into the row where it leaves the least room (best fit
decreasing). A piece longer than a row must be cut anyway, so it is cut to fill rows: first whole rows; then the rest,
between one and two rows long, closes the gaps that short pieces left. Rows of natural text come out over 98 % full.

A window has tens of thousands of fragments, so they are columns, not objects, and compiled loops pack them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.compiled import compiled
from unmask.core.hashing import permutation

if TYPE_CHECKING:
    from unmask.data.store import TokenStore

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# ----------------------------------------
# The order of a split's pieces in an epoch: a function of seed and epoch.
#
# Up to `MIXED_PIECES` pieces and `MIXED_TOKENS` tokens, all pieces are shuffled and cut into windows of about a million
# tokens. For larger splits that would need gigabytes, so shards are shuffled and dealt into blocks of a few dozen; the
# pieces of a block are shuffled and cut into windows:
#
#     shards   7 2 9 | 4 0 5 | 1 8 ...       blocks of at most 2^28 tokens or 2^22 pieces
#     windows  0 1 2   3 4 5   6 7 ...       each with pieces from all shards of its block
#
# So memory is that of a block, for any corpus. The manifest's counts tell where a block's windows begin.

WINDOW_TOKENS = 1 << 20
MIXED_PIECES, MIXED_TOKENS = 1 << 24, 1 << 34
BLOCK_PIECES, BLOCK_TOKENS = 1 << 22, 1 << 28
ORDER, _SHARDS, _BLOCK = 1, 6, 7  # set these hashes apart from others of the same seed


class EpochOrder:
    """The windows of each epoch, and the pieces of each window."""

    def __init__(self, store: TokenStore, *, seed: int) -> None:
        self._store, self._counts, self._seed = store, store.counts, seed
        num_pieces, num_tokens = (int(column.sum()) for column in self._counts)
        self._is_mixed = num_pieces <= MIXED_PIECES and num_tokens <= MIXED_TOKENS  # all pieces are shuffled
        # For this epoch and for the next one, which a thread begins early; only the current block, to save memory
        self._mixed, self._blocks = lru_cache(maxsize=2)(self._mix), lru_cache(maxsize=2)(self._deal)
        self._block = lru_cache(maxsize=1)(self._shuffle)

    def num_windows(self, epoch: int) -> int:
        return len(self._mixed(epoch)) if self._is_mixed else int(self._blocks(epoch)[1][-1])

    def pieces(self, epoch: int, window: int) -> Ints:
        if self._is_mixed:
            return self._mixed(epoch)[window]
        # A block's windows have equal numbers of pieces, and so about equally many tokens.
        windows = self._blocks(epoch)[1]
        block = int(np.searchsorted(windows, window, side="right")) - 1
        pieces, number, of = self._block(epoch, block), window - windows[block], windows[block + 1] - windows[block]
        return pieces[len(pieces) * number // of : len(pieces) * (number + 1) // of]

    def _mix(self, epoch: int) -> list[Ints]:
        lengths = self._store.column("lengths")
        size = len(lengths)
        order = permutation(size, ORDER, self._seed, epoch)
        number = np.zeros(size, dtype=np.int64)  # number of each piece's window; in place, to save memory
        np.cumsum(lengths[order][:-1], out=number[1:])
        number //= WINDOW_TOKENS
        return np.split(order, np.flatnonzero(number[1:] != number[:-1]) + 1)

    def _deal(self, epoch: int) -> tuple[list[list[int]], Ints]:
        """The shards of each block, and its first window; then, after the last block, the number of windows."""
        counts = self._counts
        every = permutation(len(counts.pieces), _SHARDS, self._seed, epoch)
        shards: list[int] = every[counts.pieces[every] > 0].tolist()
        blocks: list[list[int]] = [[]]
        windows, pieces, tokens = [0], 0, 0
        for place, shard in enumerate(shards):
            blocks[-1].append(shard)
            pieces, tokens = pieces + int(counts.pieces[shard]), tokens + int(counts.tokens[shard])
            if pieces >= BLOCK_PIECES or tokens >= BLOCK_TOKENS or place + 1 == len(shards):
                blocks.append([])
                windows.append(windows[-1] + min(max(round(tokens / WINDOW_TOKENS), 1), pieces))
                pieces = tokens = 0
        return blocks, np.array(windows)

    def _shuffle(self, epoch: int, block: int) -> Ints:
        counts, ends = self._counts.pieces, np.cumsum(self._counts.pieces)
        pieces = np.concatenate([np.arange(ends[n] - counts[n], ends[n]) for n in self._blocks(epoch)[0][block]])
        return pieces[permutation(len(pieces), _BLOCK, self._seed, epoch, block)]


# ----------------------------------------
# Compiled loops that pack fragments into rows and fill the rows with their tokens.
#
# Arrays: R = rows, S = positions, F = fragments of the rows, N = tokens of a window's text.

LEAST_CUT = 6  # tokens: a shorter fragment of a long piece would have hardly any context
_NONE = -1


class _Rows(NamedTuple):
    """Rows that are being filled: for every size of room, a linked list of the rows with that much room, the last
    first."""

    last: Ints  # [row_length + 1]: for each room, the last row with it
    before: Ints  # [most_rows]: for each row, the one with the same room before it
    counts: Ints  # [2]: number of rows begun, and of fragments placed
    row: Ints  # [most_fragments], like the next ones: the placed fragments
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
    """The smallest room with at least `size` positions; -1 if there is none."""
    for room in range(size, len(rows.last)):
        if rows.last[room] != _NONE:
            return room
    return _NONE


@compiled
def _add(rows: _Rows, size: int, piece: int, start: int, length: int) -> None:
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
def best_fit(lengths: Ints, by_length: Ints, row_length: int, overhead: int) -> tuple[Ints, Ints, Ints, Ints]:
    """See `pack_pieces`; `by_length` are the pieces that fit into a row, the longest first. Returns [F] each: row,
    piece, start and length of every fragment; fragments of a row are in order."""
    whole = row_length - overhead
    full = np.zeros(len(lengths), dtype=np.int64)  # whole rows that a long piece fills; the rest is longer than a row
    rest = num_long = 0
    for piece in range(len(lengths)):
        if lengths[piece] > whole:
            full[piece] = lengths[piece] // whole - (1 if lengths[piece] % whole else 0)
            rest += lengths[piece] - full[piece] * whole
            num_long += 1
    cuts = rest if whole < 2 * LEAST_CUT else rest // LEAST_CUT + num_long
    most = full.sum() + len(by_length) + cuts
    placed = np.empty((4, most), dtype=np.int64)
    last, before = np.full(row_length + 1, _NONE, dtype=np.int64), np.full(most, _NONE, dtype=np.int64)
    rows = _Rows(last, before, np.zeros(2, dtype=np.int64), placed[0], placed[1], placed[2], placed[3])
    for piece in range(len(lengths)):
        for number in range(full[piece]):
            _write(rows, rows.counts[0], piece, number * whole, whole)
            rows.counts[0] += 1
    for piece in by_length:
        _add(rows, lengths[piece] + overhead, piece, 0, lengths[piece])
    for piece in range(len(lengths)):
        if lengths[piece] > whole:
            # The rest, longer than a row, is cut so that it fills rooms, the largest first.
            start = full[piece] * whole
            length = lengths[piece] - start
            while length:
                room = row_length  # the largest in a row already begun; 0: none
                while room > 0 and rows.last[room] == _NONE:
                    room -= 1
                cut = min(room - overhead, length - LEAST_CUT)
                if length <= whole and (cut < LEAST_CUT or _least_room(rows, length + overhead) != _NONE):
                    cut = length
                elif cut < LEAST_CUT:
                    cut = min(whole, max(length - LEAST_CUT, 1))
                _add(rows, cut + overhead, piece, start, cut)
                start += cut
                length -= cut
    num = rows.counts[1]
    return rows.row[:num], rows.piece[:num], rows.start[:num], rows.length[:num]


class PackedColumns(NamedTuple):
    """The fragments of rows, as `fill` reads them."""

    begins: Ints  # [R + 1]: where each row's fragments begin
    source: Ints  # [F]: where each one's tokens begin in the text
    length: Ints  # [F]
    half: Ints  # [F], as in `PackedRows`
    key: Ints  # [F]: key of the segment, or of the half of a pair
    row_length: int


class RowColumns(NamedTuple):
    """The arrays to fill: [R x S] each, as in `Rows`, initially with values of padding; token types only for pairs."""

    input_ids: Ints
    segment_ids: NDArray[np.int32]
    position_ids: Ints
    word_starts: Bools
    maskable: Bools
    segment_keys: Ints
    token_type_ids: Ints


@compiled
def fill(
    rows: PackedColumns,
    ids_N: NDArray[Any],
    starts_N: NDArray[np.uint8],
    ordinary_V: Bools,
    cls: int,
    sep: int,
    keeps_first: bool,
    into: RowColumns,
) -> tuple[Ints, Ints]:
    """Fills rows with the tokens of their fragments; see `fill_rows`. `cls` and `sep` are -1 if there is no such token.
    Returns [F] each, as positions in the flattened rows: that of each fragment's first token, and of its segment."""
    at, first = np.empty(len(rows.source), dtype=np.int64), np.empty(len(rows.source), dtype=np.int64)
    for row in range(len(rows.begins) - 1):
        place = begin = row * rows.row_length
        segment = -1
        for f in range(rows.begins[row], rows.begins[row + 1]):
            second, length, source = rows.half[f] != 0, rows.length[f], rows.source[f]
            own = place - 1 if second else place  # a second half includes the [SEP] of the first
            if not second:
                begin = place
                segment += 1
                if cls >= 0:
                    into.input_ids[place] = cls
                    place += 1
            end = place + length + (sep >= 0)
            at[f], first[f] = place, begin
            for i in range(own, end):
                into.segment_ids[i] = segment
                into.position_ids[i] = i - begin
                into.segment_keys[i] = rows.key[f]
            if second:
                into.token_type_ids[place:end] = 1
            for n in range(length):
                token = ids_N[source + n]
                into.input_ids[place + n] = token
                into.word_starts[place + n] = starts_N[source + n] != 0
                into.maskable[place + n] = ordinary_V[token]
            into.word_starts[place] = True  # a long piece may be cut within a word
            if keeps_first and cls < 0 and not second:
                into.maskable[place] = False
            if sep >= 0:
                into.input_ids[end - 1] = sep
            place = end
    return at, first


@compiled
def fill_column(at: Ints, source: Ints, length: Ints, values_N: NDArray[Any], into: Ints) -> None:
    for f in range(len(at)):
        for n in range(length[f]):
            into[at[f] + n] = values_N[source[f] + n]


@dataclass(frozen=True)
class PackedRows:
    """Rows of F fragments, as columns, row by row and in order."""

    begins: Ints  # [num_rows + 1]: where each row's fragments begin
    piece: Ints  # [F], like the next ones: the fragment's tokens
    start: Ints
    length: Ints
    half: Ints  # 1: the second half of a pair; 0: a segment begins here
    label: Ints  # class of the pair that begins here; -1: none

    def __len__(self) -> int:
        return len(self.begins) - 1

    def part(self, begin: int, end: int) -> PackedRows:
        fragments = slice(*self.begins[[begin, end]].tolist())
        columns = (column[fragments] for column in self._columns())
        return PackedRows(self.begins[begin : end + 1] - self.begins[begin], *columns)

    def in_order(self, order: Ints) -> PackedRows:
        counts = np.diff(self.begins)[order]
        ends = np.cumsum(counts)
        fragments = np.repeat(self.begins[order] - ends + counts, counts) + np.arange(len(self.piece))
        return PackedRows(np.concatenate([[0], ends]), *(column[fragments] for column in self._columns()))

    def followed_by(self, other: PackedRows) -> PackedRows:
        columns = map(np.concatenate, zip(self._columns(), other._columns(), strict=True))
        return PackedRows(np.concatenate([self.begins, other.begins[1:] + self.begins[-1]]), *columns)

    def _columns(self) -> tuple[Ints, ...]:
        return self.piece, self.start, self.length, self.half, self.label

    def joined(self) -> tuple[Ints, Ints, Ints]:
        """The fragments in text order, adjacent ones joined: piece, start, length."""
        order = np.lexsort((self.start, self.piece))
        piece, start, length = self.piece[order], self.start[order], self.length[order]
        goes_on = (piece[1:] == piece[:-1]) & (start[1:] == start[:-1] + length[:-1])
        first = np.flatnonzero(~np.concatenate([[False], goes_on]))[: len(piece)]
        return piece[first], start[first], np.add.reduceat(length, first) if len(first) else length

    def pieces(self) -> list[list[int]]:
        return [each.tolist() for each in np.split(self.piece, self.begins[1:-1])] if len(self) else []


def pack_pieces(lengths: Ints, *, row_length: int, overhead: int) -> PackedRows:
    """Packs pieces of these lengths [num_pieces] into rows, each fragment with `overhead` special tokens; empty pieces
    are skipped. In the result, `piece` is an index into `lengths`.

    Example: pieces of 3, 2 and 9 tokens in rows of 7 without overhead: the long piece fills a row, and its last two
    tokens complete the row of the short ones: `[(2, 0, 7)], [(0, 0, 3), (1, 0, 2), (2, 7, 2)]`.

    Source: Johnson 1973 (best fit decreasing needs at most 11/9 of the optimal number of rows); cutting is ours.
    """
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    short = np.flatnonzero((lengths > 0) & (lengths <= row_length - overhead))
    by_length = short[np.argsort(-lengths[short], kind="stable")]
    row, piece, start, length = best_fit(lengths, by_length, row_length, overhead)
    order = np.argsort(row, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(row))]) if len(row) else np.zeros(1, dtype=np.int64)
    each_a_segment = np.zeros_like(piece), np.full_like(piece, -1)
    return PackedRows(begins, piece[order], start[order], length[order], *each_a_segment)
