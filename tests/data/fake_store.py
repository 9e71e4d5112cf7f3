"""A store of known tokens, without a file; and the segments of rows, as packed and as drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data.packing import PackedRows
from unmask.data.rows import Cursor, RowBatch, Rows, RowStream
from unmask.data.store import GatheredPieces, ShardCounts


class FakeStore:
    """The part of `TokenStore` that a stream uses."""

    def __init__(
        self,
        ids: Sequence[NDArray[np.int64]] | NDArray[np.int64],
        *,
        starts: Sequence[NDArray[np.int64]] | NDArray[np.int64],
        documents: Sequence[int],
        labels: Sequence[int] | None = None,
    ) -> None:
        self.annotations: tuple[str, ...] = ()
        self.lengths = np.array([len(each) for each in ids], dtype=np.int64)
        self.document = self.draw = np.array(documents, dtype=np.int64)
        self.offset = np.zeros(len(ids), dtype=np.int64)
        self.label = None if labels is None else np.array(labels, dtype=np.int64)
        self.is_labelled = labels is not None
        self.num_tokens = int(self.lengths.sum())
        self.counts = ShardCounts(np.array([len(ids)]), np.array([self.num_tokens]))
        self._ids, self._starts = ids, starts

    def __len__(self) -> int:
        return len(self.lengths)

    def column(self, name: str) -> NDArray[np.int64]:
        return getattr(self, name)  # type: ignore[no-any-return]

    def gather(self, pieces: NDArray[np.int64]) -> GatheredPieces:
        pieces = np.sort(pieces)
        begin = np.cumsum(self.lengths[pieces]) - self.lengths[pieces]
        ids, starts = (np.concatenate([each[n] for n in pieces]) for each in (self._ids, self._starts))
        return GatheredPieces(
            pieces,
            begin,
            self.lengths[pieces],
            ids.astype(np.uint16),
            starts.astype(np.uint8),
            document=self.document[pieces],
            offset=self.offset[pieces],
            draw=self.draw[pieces],
            label=None if self.label is None else self.label[pieces],
        )


def segments_of(rows: PackedRows) -> list[list[tuple[list[tuple[int, int, int]], int]]]:
    """For each row its segments: (piece, start, length) of their one or two parts, and the class, -1 for none."""
    parts = list(zip(rows.piece.tolist(), rows.start.tolist(), rows.length.tolist(), strict=True))
    second = [*(rows.half[1:] == 1).tolist(), False]
    return [
        [(parts[f : f + 1 + second[f]], int(rows.label[f])) for f in range(begin, end) if not rows.half[f]]
        for begin, end in zip(rows.begins[:-1].tolist(), rows.begins[1:].tolist(), strict=True)
    ]


def epoch_of(stream: RowStream, epoch: int = 0) -> list[RowBatch]:
    return list(takewhile(lambda batch: batch.epoch == epoch, stream.batches(Cursor(epoch), 4)))


def drawn_segments(batches: list[RowBatch]) -> Iterator[tuple[Rows, int, torch.Tensor]]:
    """Each segment of some batches: its rows, its row, and its places there."""
    for rows in (batch.rows for batch in batches):
        for r, numbers in enumerate(rows.segment_ids):
            for n in range(int(numbers.max()) + 1):
                yield rows, r, torch.nonzero(numbers == n).flatten()
