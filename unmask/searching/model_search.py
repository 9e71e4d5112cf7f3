"""A model that answers the queries of tasks, by its vectors of the passages of documents.

Tasks share most of their documents, so the vectors of a text are made once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.searching.document_reading import DocumentPart
from unmask.searching.exact_search import Vectors, blocks_of, search_exactly
from unmask.searching.passage_cutting import PassageCutter
from unmask.searching.search_encoder import SearchEncoder
from unmask.searching.search_tasks import SearchTask
from unmask.searching.vector_geometry import alignment, coordinates, effective_rank, sampled, uniformity
from unmask.using.sparse_vectors import SparseVectors

_AT_ONCE = 1024  # passages
_PAIRS_AT_ONCE = 256


@dataclass(frozen=True)
class _DocumentVectors:
    """Vectors of a document's passages [P, D], and the character at which each ends."""

    vectors_PD: Vectors
    ends_P: NDArray[np.int64]


class ModelSearch:
    """A model that is asked.

    Args:
        encoder: What embeds.
    """

    def __init__(self, encoder: SearchEncoder) -> None:
        self.encoder = encoder
        self._cutter = PassageCutter(encoder.model.tokenizer, encoder.settings)
        self._made: dict[str, _DocumentVectors] = {}
        self._queries: dict[str, Vectors] = {}

    def rank(self, task: SearchTask, top_k: int, count: Callable[[int, int], None]) -> NDArray[np.int64]:
        """The documents [queries, top_k] that are nearest to each query; -1 where there are no more.

        Args:
            task: What is asked, and searched.
            top_k: At least 1.
            count: Told how many documents are embedded, and of how many.
        """
        self._embed(task.documents, count)
        self._queries[task.name] = queries_QD = self.encoder.embed_queries(task.queries)
        vectors_ND, documents_N = self._passages(task)
        return search_exactly(queries_QD, blocks_of(vectors_ND, documents_N), top_k).documents_QK

    def _passages(self, task: SearchTask) -> tuple[Vectors, NDArray[np.int64]]:
        made = [self._made[text].vectors_PD for text in task.documents]
        return _joined(made), np.repeat(np.arange(len(made)), list(map(len, made)))

    def _embed(self, texts: Sequence[str], count: Callable[[int, int], None]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text not in self._made]
        parts = (DocumentPart(n, "", n, None, 0, text) for n, text in enumerate(missing))
        done: list[list[Any]] = [[[], []] for _ in missing]
        waiting: list[tuple[int, int, str]] = []

        def flush() -> None:
            vectors = self.encoder.embed_documents([text for _, _, text in waiting])
            for place, (number, end, _) in enumerate(waiting):
                done[number][0].append(vectors[place : place + 1])
                done[number][1].append(end)
            count(waiting[-1][0] + 1, len(missing))
            waiting.clear()

        count(0, len(missing))
        for passage in self._cutter.cut(parts):
            waiting.append((passage.part.document, passage.end, passage.embedded))
            if len(waiting) >= _AT_ONCE:
                flush()
        if waiting:
            flush()
        for text, (vectors, ends) in zip(missing, done, strict=True):
            self._made[text] = _DocumentVectors(_joined(vectors), np.array(ends))

    def alignments(self, task: SearchTask) -> NDArray[np.float64]:
        """The squared distance [queries] of each query and the passage that it belongs to, of a task that was ranked.

        That is the passage which a crop was taken out of, and the first one for titles and judged queries: not the
        nearest, which would be a choice by what is measured.
        """
        right = []
        for document, place in task.pairs:
            made = self._made[task.documents[document]]
            number = min(int(np.searchsorted(made.ends_P, place)), len(made.ends_P) - 1)
            right.append(made.vectors_PD[number : number + 1])
        queries = self._queries[task.name]
        parts = range(0, len(right), _PAIRS_AT_ONCE)
        each = [(queries[n : n + _PAIRS_AT_ONCE], _joined(right[n : n + _PAIRS_AT_ONCE])) for n in parts]
        return np.concatenate([alignment(_dense(one), _dense(other)) for one, other in each])

    def spread(self, task: SearchTask, seed: int) -> dict[str, Any]:
        """Uniformity and effective rank of the passages of a task that was ranked, some of them if they are many."""
        vectors_ND = self._passages(task)[0]
        chosen = sampled(len(vectors_ND), seed)
        if isinstance(vectors_ND, SparseVectors):
            some = coordinates(_dense(_joined([vectors_ND[number : number + 1] for number in chosen.tolist()])))
        else:
            some = vectors_ND[chosen]
        return {
            "uniformity": uniformity(some),
            "effective_rank": effective_rank(some),
            "dimension": self.encoder.width,
            "vectors": len(some),
        }


def _joined(parts: Sequence[Any]) -> Vectors:
    """Vectors one after the other, all of them dense or all sparse."""
    return SparseVectors.joined(parts) if isinstance(parts[0], SparseVectors) else np.concatenate(parts)


def _dense(vectors: Vectors) -> NDArray[np.float32]:
    return vectors.dense() if isinstance(vectors, SparseVectors) else vectors
