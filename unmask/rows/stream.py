"""An endless stream of packed rows whose place is a small cursor.

Pieces are shuffled by (seed, epoch) and taken in windows of about a million tokens. Each window is packed,
and its rows are shuffled. A window is made anew from its number, so resuming needs no skipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.hashing import GOLDEN, mix, mix_ints, permutation
from unmask.rows.packing import Fragment, Segment, pack_pieces
from unmask.rows.rows import Rows
from unmask.rows.sentence_pairs import PAIR_OVERHEAD, PAIRS, PairKind, check_pairs, make_pairs
from unmask.shards.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

WINDOW_TOKENS = 1 << 20
LABEL = "label"  # by which rows call the classes of documents
_ORDER, _SHUFFLE = 1, 2


@dataclass(frozen=True)
class Cursor:
    """A place in the stream.

    Attributes:
        epoch: How often the corpus has been gone through.
        window: Number of the window in the epoch.
        row: Number of the next row in the window.
        lengths: Lengths of this window's rows, as (first row, length); more than one where the length was changed
            within the window.
    """

    epoch: int = 0
    window: int = 0
    row: int = 0
    lengths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> Cursor:
        """Takes back what `dataclasses.asdict` and JSON made of one.

        Raises:
            TypeError, ValueError: It is something else.
        """
        lengths = tuple((int(row), int(length)) for row, length in content["lengths"])
        places = {name: int(number) for name, number in content.items() if name != "lengths"}
        return cls(**places, lengths=lengths)

    def with_length(self, length: int) -> Cursor:
        """The same place, with rows of this length from here on."""
        earlier = tuple(entry for entry in self.lengths if entry[0] < self.row)
        if earlier and earlier[-1][1] == length:
            return replace(self, lengths=earlier)
        return replace(self, lengths=(*earlier, (self.row, length)))


class RowBatch(NamedTuple):
    """Some rows and where they come from.

    Attributes:
        rows: The rows.
        epoch: The epoch that all of them belong to.
        num_tokens: Tokens of text in them, without special tokens and padding.
        cursor: The place behind them.
        documents: [num_segments], int64: number of the document that each segment is of (of a pair, its first half),
            row by row, or of its group where groups were held out; None where the rows are of no store.
    """

    rows: Rows
    epoch: int
    num_tokens: int
    cursor: Cursor
    documents: NDArray[np.int64] | None = None


class RowStream:
    """Packs the pieces of a store into rows, epoch after epoch.

    Args:
        store: The tokens.
        tokenizer: For the special tokens and for which tokens may be masked.
        length: Positions of a row, unless a batch asks for others.
        seed: Of the order.
        shuffle: False keeps the order of the corpus, for evaluation.
        pairs: What pairs segments are made of; None makes none.
        with_labels: Whether rows tell the classes of documents (`Rows.classes["label"]`). Every segment carries that
            of its document, so a document that is cut carries it in each of its pieces; a pair whose halves differ in
            class has none. Where the tokenizer has no `[CLS]`, a segment's first token is never masked, since the
            class is told from it.

    Raises:
        DataError: Rows of this length have no room for text, no pairs can be made of this text, or it was prepared
            without classes.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        *,
        length: int,
        seed: int,
        shuffle: bool = True,
        pairs: PairKind | None = None,
        with_labels: bool = False,
    ) -> None:
        if pairs is not None:
            check_pairs(pairs, store, tokenizer)
        if with_labels and store.label is None:
            raise DataError("the text was prepared without classes; prepare it again with --set corpus.label=COLUMN")
        self._overhead = len(tokenizer.special.around) if pairs is None else PAIR_OVERHEAD
        if length <= self._overhead:
            raise DataError(f"rows of {length} positions have no room for text beside {self._overhead} special tokens")
        self.store = store
        self.tokenizer = tokenizer
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.pairs = pairs
        self._label_of_piece = store.label if with_labels else None
        self._key_of_piece = mix(mix(store.document * np.int64(GOLDEN)) + store.offset)
        self._epoch: tuple[int, list[NDArray[np.int64]]] | None = None
        self._window: tuple[Cursor, list[list[Segment]]] | None = None

    def batches(self, cursor: Cursor, num_rows: int) -> Iterator[RowBatch]:
        """Gives batches for ever, from a place on. A batch never mixes epochs, so that its masks have one epoch.

        Args:
            cursor: Where to begin.
            num_rows: Rows of a batch; see `batch`.
        """
        while True:
            batch = self.batch(cursor, num_rows)
            cursor = batch.cursor
            yield batch

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None) -> RowBatch:
        """The batch at a place.

        Args:
            cursor: The place.
            num_rows: Rows of the batch. Where they do not divide the epoch's last window, its batches have fewer,
                but about equally many: a step on a few rows would move the weights as far as one on many.
            length: Positions of its rows. Where it changes within a window, what is left of the window is packed
                anew; nothing is lost or repeated.
        """
        length = length or self.length
        cursor = cursor.with_length(length)
        epoch = cursor.epoch
        rows: list[list[Segment]] = []
        wanted = num_rows
        if cursor.window + 1 == len(self._windows(epoch)):  # the end of the epoch
            left = len(self._rows_of(cursor)) - cursor.row
            wanted = math.ceil(left / math.ceil(left / num_rows))
        while len(rows) < wanted and cursor.epoch == epoch:
            window = self._rows_of(cursor)
            taken = window[cursor.row : cursor.row + wanted - len(rows)]
            rows += taken
            cursor = self._advance(cursor, len(taken), len(window))
        num_tokens = sum(fragment.length for fragment in _fragments(rows))
        pieces = [segment.parts[0].piece for segments in rows for segment in segments]
        return RowBatch(self.assemble(rows, length), epoch, num_tokens, cursor, self.store.draw[pieces])

    def _advance(self, cursor: Cursor, taken: int, window_rows: int) -> Cursor:
        if cursor.row + taken < window_rows:
            return replace(cursor, row=cursor.row + taken)
        length = cursor.lengths[-1][1]
        if cursor.window + 1 < len(self._windows(cursor.epoch)):
            return Cursor(cursor.epoch, cursor.window + 1, 0, ((0, length),))
        return Cursor(cursor.epoch + 1, 0, 0, ((0, length),))

    def _windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """The pieces of each window of an epoch."""
        if self._epoch is None or self._epoch[0] != epoch:
            size = len(self.store)
            order = permutation(size, _ORDER, self.seed, epoch) if self.shuffle else np.arange(size)
            before = np.cumsum(self.store.lengths[order]) - self.store.lengths[order]
            cuts = np.flatnonzero(np.diff(before // WINDOW_TOKENS)) + 1
            self._epoch = epoch, np.split(order, cuts)
        return self._epoch[1]

    def _rows_of(self, cursor: Cursor) -> list[list[Segment]]:
        """The packed rows of a window."""
        place = replace(cursor, row=0)
        if self._window is None or self._window[0] != place:
            pieces = self._windows(cursor.epoch)[cursor.window]
            left = [Fragment(int(piece), 0, int(self.store.lengths[piece])) for piece in pieces]
            rows: list[list[Segment]] = []
            for begin, length in cursor.lengths:
                if begin:
                    left = _joined(rows[begin:])
                rows = rows[:begin] + self._pack(left, length, (cursor.epoch, cursor.window, begin))
            self._window = place, rows
        return self._window[1]

    def _pack(self, fragments: list[Fragment], length: int, place: tuple[int, int, int]) -> list[list[Segment]]:
        lengths = np.fromiter((f.length for f in fragments), dtype=np.int64, count=len(fragments))
        packed = pack_pieces(lengths, row_length=length, overhead=self._overhead)
        if self.shuffle:
            packed = [packed[i] for i in permutation(len(packed), _SHUFFLE, self.seed, *place)]
        rows = [
            [Fragment(fragments[f.piece].piece, fragments[f.piece].start + f.start, f.length) for f in row]
            for row in packed
        ]
        if self.pairs is None:
            return [[Segment((fragment,)) for fragment in row] for row in rows]
        key = mix_ints(PAIRS, self.seed, place[0])
        return make_pairs(self.pairs, rows, self.store, key=key, key_of_piece=self._key_of_piece)

    def assemble(self, rows: list[list[Segment]], length: int) -> Rows:
        """Fetches the tokens of some rows of this length.

        Returns:
            The batch; see `Rows` for a drawing.
        """
        shape = len(rows), length
        special = self.tokenizer.special
        input_ids = np.full(shape, special.pad, dtype=np.int64)
        segment_ids = np.full(shape, -1, dtype=np.int32)
        position_ids = np.zeros(shape, dtype=np.int64)
        word_starts = np.zeros(shape, dtype=bool)
        keys = np.zeros(shape, dtype=np.int64)
        annotations = {name: np.zeros(shape, dtype=np.int64) for name in self.store.annotations}
        types = np.zeros(shape, dtype=np.int64)
        classes = np.full(shape, -1, dtype=np.int64)
        labels = np.full(shape, -1, dtype=np.int64)
        positions = np.arange(length)
        for r, segments in enumerate(rows):
            begin = 0
            for number, segment in enumerate(segments):
                if segment.label is not None:
                    classes[r, begin] = segment.label
                if self._label_of_piece is not None:
                    labels[r, begin] = _common(self._label_of_piece, segment)
                place = begin
                for half, (piece, start, size) in enumerate(segment.parts):
                    opening = special.sep if half else special.cls  # a second half begins at the [SEP] before its text
                    first = place + (opening is not None)  # of the text
                    end = first + size + (special.sep is not None)
                    ids, starts = self.store.read(piece, start, size)
                    if opening is not None:
                        input_ids[r, place] = opening
                    input_ids[r, first : first + size] = ids
                    if special.sep is not None:
                        input_ids[r, end - 1] = special.sep
                    word_starts[r, first : first + size] = starts
                    word_starts[r, first] = True  # a long piece may be cut within a word
                    for name, column in annotations.items():
                        column[r, first : first + size] = self.store.read_annotation(name, piece, start, size)
                    types[r, first:end] = half
                    keys[r, place:end] = self._key_of_piece[piece] ^ start
                    place = end - 1
                segment_ids[r, begin:end] = number
                position_ids[r, begin:end] = positions[: end - begin]
                begin = end
        maskable = self.tokenizer.ordinary[input_ids]  # special, unknown and padding tokens are not ordinary
        if self._label_of_piece is not None and special.cls is None:
            maskable &= position_ids > 0
        named: dict[str, NDArray[np.int64]] = {} if self.pairs is None else {self.pairs: classes}
        if self._label_of_piece is not None:
            named[LABEL] = labels
        return Rows(
            input_ids=torch.from_numpy(input_ids),
            segment_ids=torch.from_numpy(segment_ids),
            position_ids=torch.from_numpy(position_ids),
            word_starts=torch.from_numpy(word_starts),
            maskable=torch.from_numpy(maskable),
            segment_keys=torch.from_numpy(mix(keys)),
            annotations={name: torch.from_numpy(column) for name, column in annotations.items()},
            classes={name: torch.from_numpy(column) for name, column in named.items()},
            token_type_ids=None if self.pairs is None else torch.from_numpy(types),
        )


def _common(label_of_piece: NDArray[np.int64], segment: Segment) -> int:
    """The class of all parts of a segment; -1 where it is not known, or they differ."""
    first, *others = (int(label_of_piece[fragment.piece]) for fragment in segment.parts)
    return first if all(other == first for other in others) else -1


def _fragments(rows: list[list[Segment]]) -> Iterator[Fragment]:
    return (fragment for row in rows for segment in row for fragment in segment.parts)


def _joined(rows: list[list[Segment]]) -> list[Fragment]:
    """The fragments of some rows in the order of the text, neighbours joined."""
    joined: list[Fragment] = []
    for fragment in sorted(_fragments(rows)):
        last = joined[-1] if joined else None
        if last is not None and last.piece == fragment.piece and last.start + last.length == fragment.start:
            joined[-1] = last._replace(length=last.length + fragment.length)
        else:
            joined.append(fragment)
    return joined
