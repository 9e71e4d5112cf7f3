"""The nearest documents to each query by exact inner products, in bounded memory.

A document is as near as its nearest passage. Vectors are read block by block, and only those passages of a block that
may still be among the best are rescored:

    block ──products in float32──▶ scores [Q, P] ──at least the k-th best, less rounding──▶ few candidates
                                                                              │
                                     best k documents so far ◀──order── exact scores, in float64

The last bits of a matrix product in float32 depend on its shape, so they would order equal vectors by chance, and
differently for other block sizes. Ranking therefore uses sums in float64 that depend only on the two vectors; equally
near documents are ordered by their numbers.

Sparse vectors (scipy's `csr_array`) are searched by posting lists (`csc_array`: for each token, the vectors that hold
it), in float64 throughout. A document that shares no token with the query is not ranked.

Shape suffixes: Q = queries, P = passages of a block, D = dimension, K = places of a ranking, C = candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import DataError

QUERIES_AT_ONCE = 1024
BLOCK_PASSAGES = 16_384
_CANDIDATE_NUMBERS = 1 << 23  # float64 numbers that are rescored at once: 64 MB
_ROUNDING = 2.0**-24  # unit roundoff of float32

Vectors = Any  # [N, D] float32: an array, or a `csr_array` if they are sparse


@dataclass
class VectorBlock:
    vectors_PD: Any  # float32: an array, which may be mapped from a file; or a `csc_array` of sparse vectors
    documents_P: NDArray[np.int64]  # int64, ascending: the document of each passage; -1: skipped
    passages_P: NDArray[np.int64]  # int64, ascending: the number of each passage
    longest: float | None = None  # upper bound of the Euclidean lengths of dense vectors; None until first needed


class Ranking(NamedTuple):
    """The nearest documents to each query, the nearest first."""

    scores_QK: NDArray[np.float64]  # minus infinity where there are fewer documents
    documents_QK: NDArray[np.int64]  # -1 there
    passages_QK: NDArray[np.int64]  # the nearest passage of each; -1 there


def blocks_of(vectors_ND: Vectors, documents_N: NDArray[np.int64], size: int = BLOCK_PASSAGES) -> Iterator[VectorBlock]:
    """Vectors in memory as blocks; arguments as for `VectorBlock`, sparse ones as `csr_array`."""
    for first in range(0, vectors_ND.shape[0], size):
        vectors_PD, documents_P = vectors_ND[first : first + size], documents_N[first : first + size]
        vectors_PD = vectors_PD if isinstance(vectors_PD, np.ndarray) else vectors_PD.tocsc()
        yield VectorBlock(vectors_PD, documents_P, first + np.arange(len(documents_P)))


def search_exactly(queries_QD: Vectors, blocks: Iterable[VectorBlock], top_k: int) -> Ranking:
    """The `top_k` documents whose nearest passages have the highest inner product with each query (float32; sparse if
    the blocks are). Block sizes change time and memory, never the result."""
    starts = range(0, queries_QD.shape[0], QUERIES_AT_ONCE)
    parts = [_Best(queries_QD[begin : begin + QUERIES_AT_ONCE], top_k) for begin in starts]
    for block in blocks:
        for part in parts:
            part.add(block)
    return joined([part.ranking() for part in parts])


def no_hits(num_queries: int, top_k: int) -> Ranking:
    shape = num_queries, top_k
    return Ranking(np.full(shape, -np.inf), np.full(shape, -1, np.int64), np.full(shape, -1, np.int64))


def stacked(parts: Sequence[Vectors]) -> Vectors:
    """The vectors of several groups of texts as one array."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy.sparse import vstack  # slow to import

    return vstack(parts, format="csr")


def joined(rankings: list[Ranking]) -> Ranking:
    return Ranking(*map(np.concatenate, zip(*rankings, strict=True)))


class _Best:
    """The best documents so far: rows of (query, document, passage, score), sorted by query, then the nearest first."""

    def __init__(self, queries_QD: Vectors, top_k: int) -> None:
        self.top_k = top_k
        self.kth_Q = np.full(queries_QD.shape[0], -np.inf)
        self.queries = self.documents = self.passages = np.zeros(0, dtype=np.int64)
        self.scores = np.zeros(0)
        self.queries_QD = queries_QD
        if isinstance(queries_QD, np.ndarray):
            self.queries_QD = np.ascontiguousarray(queries_QD)
            self.lengths_Q = np.linalg.norm(queries_QD.astype(np.float64), axis=1)

    def add(self, block: VectorBlock) -> None:
        for queries_C, passages_C, scores_C in self._candidates(block):
            if not len(queries_C):
                continue
            queries = np.concatenate([self.queries, queries_C])
            documents = np.concatenate([self.documents, block.documents_P[passages_C]])
            scores = np.concatenate([self.scores, scores_C])
            passages = np.concatenate([self.passages, block.passages_P[passages_C]])
            order = np.lexsort((passages, documents, -scores, queries))
            queries, documents, scores, passages = queries[order], documents[order], scores[order], passages[order]
            # The first of a document's passages is its best; a document may be in two blocks.
            _, first = np.unique(queries * (documents.max() + 1) + documents, return_index=True)
            first.sort()
            begins = np.searchsorted(queries[first], np.arange(len(self.kth_Q)))
            best = first[np.arange(len(first)) - begins[queries[first]] < self.top_k]
            self.queries, self.documents = queries[best], documents[best]
            self.scores, self.passages = scores[best], passages[best]
            ends = np.searchsorted(self.queries, np.arange(len(self.kth_Q)), side="right")
            is_full = np.bincount(self.queries, minlength=len(self.kth_Q)) == self.top_k
            self.kth_Q[is_full] = self.scores[ends[is_full] - 1]

    def _candidates(self, block: VectorBlock) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]]:
        """Passages of a block that may be among the best: queries, passages and exact scores, [C] each."""
        vectors_PD, queries_QD = block.vectors_PD, self.queries_QD
        slack_Q = np.zeros(len(self.kth_Q))
        if is_dense := isinstance(vectors_PD, np.ndarray):
            if block.longest is None:  # takes as long as a query; the factor covers rounding in float32
                block.longest = float(np.sqrt(np.einsum("pd,pd->p", vectors_PD, vectors_PD).max())) * 1.001
            scores_QP, lowest = queries_QD @ vectors_PD.T, np.finfo(np.float32).min
            # Bound of a float32 product's error, for any order of summation, in both directions and with some margin:
            # Higham 2002 (Accuracy and stability of numerical algorithms), section 3.1.
            slack_Q = 2.2 * vectors_PD.shape[1] * _ROUNDING * self.lengths_Q * block.longest
        else:
            tokens = np.unique(queries_QD.indices)
            lists = vectors_PD[:, tokens].astype(np.float64)
            if lists.nnz and not 0 <= lists.indices.min() <= lists.indices.max() < lists.shape[0]:
                raise DataError(f"damaged posting lists: they name vectors beyond {lists.shape[0]:,}")
            # Products of two float32 are exact in float64, and are added up in the order of tokens.
            scores_QP = (queries_QD[:, tokens].astype(np.float64) @ lists.T).toarray()
            lowest = np.nextafter(0.0, 1.0)
        scores_QP[:, block.documents_P < 0] = -np.inf
        least_Q = np.maximum(self.kth_Q - slack_Q, lowest)
        is_candidate_QP = scores_QP >= least_Q[:, None]
        if np.count_nonzero(is_candidate_QP) > 4 * self.top_k * len(least_Q):
            least_Q = np.maximum(least_Q, _kth_of_block(scores_QP, block.documents_P, self.top_k) - slack_Q)
            is_candidate_QP = scores_QP >= least_Q[:, None]
        queries, passages = np.nonzero(is_candidate_QP)
        if not is_dense:
            yield queries, passages, scores_QP[queries, passages]
            return
        size = max(1, _CANDIDATE_NUMBERS // vectors_PD.shape[1])
        for begin in range(0, len(queries), size):
            queries_C, passages_C = queries[begin : begin + size], passages[begin : begin + size]
            # Products of two float32 are exact in float64, and numpy adds up each row in the same order.
            scores = np.multiply(queries_QD[queries_C], vectors_PD[passages_C], dtype=np.float64).sum(axis=1)
            yield queries_C, passages_C, scores

    def ranking(self) -> Ranking:
        shape = (len(self.kth_Q), self.top_k)
        begins = np.searchsorted(self.queries, np.arange(shape[0]))
        places = (self.queries, np.arange(len(self.queries)) - begins[self.queries])
        ranking = no_hits(*shape)
        for column, values in zip(ranking, (self.scores, self.documents, self.passages), strict=True):
            column[places] = values
        return ranking


def _kth_of_block(scores_QP: NDArray[Any], documents_P: NDArray[np.int64], top_k: int) -> NDArray[Any]:
    """The score of the k-th best document within a block; minus infinity if it has fewer documents."""
    begins = np.flatnonzero(np.diff(documents_P, prepend=documents_P[0] - 1))
    if len(begins) < top_k:
        return np.full(len(scores_QP), -np.inf)
    if len(begins) < len(documents_P):
        scores_QP = np.maximum.reduceat(scores_QP, begins, axis=1)
    place = scores_QP.shape[1] - top_k
    return np.partition(scores_QP, place, axis=1)[:, place]
