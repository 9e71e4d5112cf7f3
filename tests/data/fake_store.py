"""A store of known tokens, without a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.data.store import GatheredPieces, ShardCounts


class FakeStore:
    """What a stream reads of `TokenStore`."""

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
