"""Counts over prepared text that only some strategies need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unmask.tokens.shards import TokenStore

CHUNK_TOKENS = 1 << 24


def document_frequencies(store: TokenStore, vocab_size: int) -> NDArray[np.int64]:
    """In how many rows of the shards (documents, or pieces of long ones) each id stands: [vocab_size].

    Memory is bounded: rows are taken in groups of some million tokens.
    """
    counts: NDArray[np.int64] = np.zeros(vocab_size, dtype=np.int64)
    ends = np.cumsum(store.lengths)
    cuts = np.flatnonzero(np.diff(ends // CHUNK_TOKENS, prepend=0)).tolist()
    for begin, end in zip([0, *cuts], [*cuts, len(store)], strict=True):
        if begin == end:
            continue
        ids = np.concatenate([store.read(piece, 0, int(store.lengths[piece]))[0] for piece in range(begin, end)])
        piece_of = np.repeat(np.arange(end - begin, dtype=np.int64), store.lengths[begin:end])
        pairs = np.unique(piece_of * vocab_size + ids.astype(np.int64))
        counts += np.bincount(pairs % vocab_size, minlength=vocab_size)
    return counts
