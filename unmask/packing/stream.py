"""An endless stream of packed rows whose place is a small cursor.

Pieces are shuffled by (seed, epoch) and taken in windows of about a million tokens. Each window is packed,
and its rows are shuffled. A window is made anew from its number, so resuming needs no skipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.hashing import GOLDEN, mix, permutation
from unmask.packing.pack import Fragment, pack_pieces
from unmask.packing.rows import Rows
from unmask.tokens.shards import TokenStore
from unmask.tokens.tokenizer import Tokenizer

WINDOW_TOKENS = 1 << 20
NUM_SPECIAL = 2  # [CLS] before and [SEP] behind each segment
_ORDER, _SHUFFLE = 1, 2


@dataclass(frozen=True)
class Cursor:
    """A place in the stream.

    Attributes:
        epoch: How often the corpus has been gone through.
        window: Number of the window in the epoch.
        row: Number of the next row in the window.
    """

    epoch: int = 0
    window: int = 0
    row: int = 0


class Batch(NamedTuple):
    """Some rows and where they come from.

    Attributes:
        rows: The rows.
        epoch: The epoch that all of them belong to.
        num_tokens: Tokens of text in them, without special tokens and padding.
        cursor: The place behind them.
    """

    rows: Rows
    epoch: int
    num_tokens: int
    cursor: Cursor


class RowStream:
    """Packs the pieces of a store into rows, epoch after epoch.

    Args:
        store: The tokens.
        tokenizer: For the special tokens and for which tokens may be masked.
        length: Positions of a row.
        seed: Of the order.
        shuffle: False keeps the order of the corpus, for evaluation.
    """

    def __init__(
        self, store: TokenStore, tokenizer: Tokenizer, *, length: int, seed: int, shuffle: bool = True
    ) -> None:
        if length <= NUM_SPECIAL:
            raise DataError(f"rows of {length} positions have no room for text beside {NUM_SPECIAL} special tokens")
        self.store = store
        self.tokenizer = tokenizer
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self._key_of_piece = mix(mix(store.document * np.int64(GOLDEN)) + store.offset)
        self._epoch: tuple[int, list[NDArray[np.int64]]] | None = None
        self._window: tuple[tuple[int, int], list[list[Fragment]]] | None = None

    def batches(self, cursor: Cursor, num_rows: int) -> Iterator[Batch]:
        """Gives batches for ever, from a place on. A batch never mixes epochs, so that its masks have one epoch.

        Args:
            cursor: Where to begin.
            num_rows: Rows of a batch. Where they do not divide the epoch's last window, its batches have fewer,
                but about equally many: a step on a few rows would move the weights as far as one on many.
        """
        while True:
            epoch = cursor.epoch
            rows: list[list[Fragment]] = []
            wanted = num_rows
            if cursor.window + 1 == len(self._windows(epoch)):  # the end of the epoch
                left = len(self._rows_of(cursor)) - cursor.row
                wanted = math.ceil(left / math.ceil(left / num_rows))
            while len(rows) < wanted and cursor.epoch == epoch:
                window = self._rows_of(cursor)
                taken = window[cursor.row : cursor.row + wanted - len(rows)]
                rows += taken
                cursor = self._advance(cursor, len(taken), len(window))
            num_tokens = sum(fragment.length for row in rows for fragment in row)
            yield Batch(self.assemble(rows), epoch, num_tokens, cursor)

    def _advance(self, cursor: Cursor, taken: int, window_rows: int) -> Cursor:
        if cursor.row + taken < window_rows:
            return replace(cursor, row=cursor.row + taken)
        if cursor.window + 1 < len(self._windows(cursor.epoch)):
            return Cursor(cursor.epoch, cursor.window + 1, 0)
        return Cursor(cursor.epoch + 1, 0, 0)

    def _windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """The pieces of each window of an epoch."""
        if self._epoch is None or self._epoch[0] != epoch:
            size = len(self.store)
            order = permutation(size, _ORDER, self.seed, epoch) if self.shuffle else np.arange(size)
            before = np.cumsum(self.store.lengths[order]) - self.store.lengths[order]
            cuts = np.flatnonzero(np.diff(before // WINDOW_TOKENS)) + 1
            self._epoch = epoch, np.split(order, cuts)
        return self._epoch[1]

    def _rows_of(self, cursor: Cursor) -> list[list[Fragment]]:
        """The packed rows of a window."""
        place = cursor.epoch, cursor.window
        if self._window is None or self._window[0] != place:
            pieces = self._windows(cursor.epoch)[cursor.window]
            packed = pack_pieces(self.store.lengths[pieces], row_length=self.length, overhead=NUM_SPECIAL)
            if self.shuffle:
                packed = [packed[i] for i in permutation(len(packed), _SHUFFLE, self.seed, *place)]
            self._window = place, [[f._replace(piece=int(pieces[f.piece])) for f in row] for row in packed]
        return self._window[1]

    def assemble(self, rows: list[list[Fragment]]) -> Rows:
        """Fetches the tokens of some rows.

        Returns:
            The batch; see `Rows` for a drawing.
        """
        shape = len(rows), self.length
        special = self.tokenizer.special
        input_ids = np.full(shape, special.pad, dtype=np.int64)
        segment_ids = np.full(shape, -1, dtype=np.int32)
        position_ids = np.zeros(shape, dtype=np.int64)
        word_starts = np.zeros(shape, dtype=bool)
        keys = np.zeros(shape, dtype=np.int64)
        positions = np.arange(self.length)
        for r, fragments in enumerate(rows):
            begin = 0
            for number, (piece, start, length) in enumerate(fragments):
                end = begin + length + NUM_SPECIAL
                ids, starts = self.store.read(piece, start, length)
                input_ids[r, begin] = special.cls
                input_ids[r, begin + 1 : end - 1] = ids
                input_ids[r, end - 1] = special.sep
                word_starts[r, begin + 1 : end - 1] = starts
                word_starts[r, begin + 1] = True  # a long piece may be cut within a word
                segment_ids[r, begin:end] = number
                position_ids[r, begin:end] = positions[: end - begin]
                keys[r, begin:end] = self._key_of_piece[piece] ^ start
                begin = end
        maskable = self.tokenizer.ordinary[input_ids]  # special, unknown and padding tokens are not ordinary
        arrays = (input_ids, segment_ids, position_ids, word_starts, maskable, mix(keys))
        return Rows(*(torch.from_numpy(array) for array in arrays))
