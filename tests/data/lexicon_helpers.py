"""Corpora of a few words, for tests of lexicons."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from unmask.data.store import TokenChunk
from unmask.tokenizer.tokenizer import Tokenizer

Document = list[tuple[int, ...]]  # words, each some tokens


def chunks_of(documents: list[Document], size: int | None = None) -> Callable[[], Iterator[TokenChunk]]:
    """Documents as a corpus, `size` of them a chunk."""

    def go() -> Iterator[TokenChunk]:
        step = size or max(len(documents), 1)
        for begin in range(0, len(documents), step):
            part = documents[begin : begin + step]
            ids = np.array([id_ for document in part for word in document for id_ in word], dtype=np.uint16)
            starts = np.array([k == 0 for document in part for word in document for k in range(len(word))], np.uint8)
            lengths = np.array([sum(map(len, document)) for document in part], dtype=np.int64)
            yield TokenChunk(ids, starts, lengths)

    return go


def letter_ids(tokenizer: Tokenizer, count: int) -> list[int]:
    """Ids of entries that are letters only."""
    found = [int(i) for i in np.flatnonzero(tokenizer.ordinary) if tokenizer.text(int(i)).isalpha()]
    return found[:count]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    id_ = tokenizer.backend.token_to_id(token)
    assert id_ is not None, token
    return int(id_)
