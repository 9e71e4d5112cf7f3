"""The nearest documents to some queries by exact inner products, in bounded memory.

A document is as near as its nearest passage. Vectors are read block by block, and only passages of a block that may
still be among the best are rescored:

    block ──products in float32──▶ scores [Q, P] ──at least the k-th best, less rounding──▶ few candidates
                                                                              │
                                     best k documents so far ◀──order── exact scores, in float64

The last bits of a matrix product in float32 depend on its shape, so they would order equal vectors by chance, and
differently for other block sizes. The order is by sums in float64 that depend on the two vectors alone; documents that
are equally near come in the order of their numbers.

Sparse vectors are searched by posting lists, in float64 from the beginning. A document that shares no number with the
query is not found.

Shape suffixes: Q = queries, P = passages of a block, D = dimension, K = places of a ranking, C = candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import SettingsError
from unmask.tasks.embed import Postings, SparseVectors

QUERIES_AT_ONCE = 1024
BLOCK_PASSAGES = 16_384
_CANDIDATE_NUMBERS = 1 << 23  # float64 numbers that are rescored at once: 64 MB
_ROUNDING = 2.0**-24  # of float32


@dataclass(frozen=True)
class VectorBlock:
    """Consecutive passages.

    Attributes:
        vectors_PD: float32; may be mapped from a file.
        documents_P: int64, ascending: the document of each.
        first: Number of the first passage.
        known_longest: `longest`, where it was computed before.
    """

    vectors_PD: NDArray[np.float32]
    documents_P: NDArray[np.int64]
    first: int
    known_longest: float | None = None

    @cached_property
    def longest(self) -> float:
        """An upper bound of the vectors' Euclidean lengths; computing it takes as long as a query."""
        if self.known_longest is not None:
            return self.known_longest
        squares = np.einsum("pd,pd->p", self.vectors_PD, self.vectors_PD)
        return float(np.sqrt(squares.max())) * 1.001  # more than float32 rounds off


@dataclass(frozen=True)
class PostingBlock:
    """Consecutive passages with sparse vectors. Attributes as for `VectorBlock`, but for the postings."""

    postings: Postings
    documents_P: NDArray[np.int64]
    first: int


Block = VectorBlock | PostingBlock
Vectors = NDArray[np.float32] | SparseVectors


@dataclass(frozen=True)
class Ranking:
    """The nearest documents to each query, the nearest first.

    Attributes:
        scores_QK: float64; minus infinity where there are fewer documents.
        documents_QK: int64; -1 there.
        passages_QK: int64: the nearest passage of each; -1 there.
    """

    scores_QK: NDArray[np.float64]
    documents_QK: NDArray[np.int64]
    passages_QK: NDArray[np.int64]

    @classmethod
    def joined(cls, rankings: Sequence[Ranking]) -> Ranking:
        """Rankings of consecutive queries as one."""
        return cls(*(np.concatenate([getattr(each, name) for each in rankings]) for name in cls.__dataclass_fields__))


def blocks_of(vectors_ND: Vectors, documents_N: NDArray[np.int64], size: int = BLOCK_PASSAGES) -> Iterator[Block]:
    """Vectors in memory as blocks; arguments as for `VectorBlock`."""
    for first in range(0, len(vectors_ND), size):
        vectors_PD, documents_P = vectors_ND[first : first + size], documents_N[first : first + size]
        if isinstance(vectors_PD, SparseVectors):
            yield PostingBlock(vectors_PD.postings(), documents_P, first)
        else:
            yield VectorBlock(vectors_PD, documents_P, first)


def search_exactly(queries_QD: Vectors, blocks: Iterable[Block], top_k: int) -> Ranking:
    """The documents whose nearest passage has the highest inner product with each query.

    Args:
        queries_QD: float32; sparse where the blocks are.
        blocks: All passages, in order. Their sizes change time and memory, never the result.
        top_k: Documents a query, at least 1.

    Raises:
        SettingsError: `top_k` is below 1, or the vectors are not as wide as the queries.
    """
    if top_k < 1:
        raise SettingsError(f"top_k takes a number from 1 on, not {top_k}", options=("top_k",))
    starts = range(0, max(1, len(queries_QD)), QUERIES_AT_ONCE)
    parts = [_Best(queries_QD[begin : begin + QUERIES_AT_ONCE], top_k) for begin in starts]
    width = queries_QD.width if isinstance(queries_QD, SparseVectors) else queries_QD.shape[1]
    for block in blocks:
        block_width = block.postings.width if isinstance(block, PostingBlock) else block.vectors_PD.shape[1]
        if block_width != width:
            raise SettingsError(
                f"the vectors that are searched have {block_width} numbers each, but the queries {width}: they are of "
                "different models; embed both with the same one"
            )
        if len(block.documents_P) and len(queries_QD):
            for part in parts:
                part.add(block)
    return Ranking.joined([part.ranking() for part in parts])


class _Candidates(NamedTuple):
    """Passages of a block that may be among the best: numbers of queries and passages, and exact scores; [C] each."""

    queries: NDArray[np.int64]
    passages: NDArray[np.int64]
    scores: NDArray[np.float64]


class _Best:
    """The best documents so far: rows of (query, document, passage, score), sorted by query, then the nearest first."""

    def __init__(self, queries_QD: Vectors, top_k: int) -> None:
        self.top_k = top_k
        self.kth_Q = np.full(len(queries_QD), -np.inf)
        self.queries = self.documents = self.passages = np.zeros(0, dtype=np.int64)
        self.scores = np.zeros(0)
        self.queries_QD = queries_QD
        if not isinstance(queries_QD, SparseVectors):
            self.queries_QD = np.ascontiguousarray(queries_QD)
            self.lengths_Q = np.linalg.norm(queries_QD.astype(np.float64), axis=1)

    def add(self, block: Block) -> None:
        is_sparse = isinstance(block, PostingBlock)
        for candidates in self._in_postings(block) if is_sparse else self._in_vectors(block):  # type: ignore[arg-type]
            if len(candidates.queries):
                self._merge(candidates, block)

    def _in_vectors(self, block: VectorBlock) -> Iterator[_Candidates]:
        vectors_PD, queries_QD = block.vectors_PD, self.queries_QD
        assert isinstance(queries_QD, np.ndarray)
        scores_QP = queries_QD @ vectors_PD.T
        # How far a product in float32 may lie from the exact one, in whatever order it was added up, both ways and
        # with some room: Higham 2002 (Accuracy and stability of numerical algorithms), section 3.1.
        slack_Q = 2.2 * vectors_PD.shape[1] * _ROUNDING * self.lengths_Q * block.longest
        least_Q = self.kth_Q - slack_Q
        is_candidate_QP = scores_QP >= least_Q[:, None]
        if np.count_nonzero(is_candidate_QP) > 4 * self.top_k * len(least_Q):
            least_Q = np.maximum(least_Q, _kth_of_block(scores_QP, block.documents_P, self.top_k) - slack_Q)
            is_candidate_QP = scores_QP >= least_Q[:, None]
        size = max(1, _CANDIDATE_NUMBERS // vectors_PD.shape[1])
        queries, passages = np.nonzero(is_candidate_QP)
        for begin in range(0, len(queries), size):
            of, at = queries[begin : begin + size], passages[begin : begin + size]
            # Products of two float32 are exact in float64, and numpy adds up each row in the same order.
            scores = np.multiply(queries_QD[of], vectors_PD[at], dtype=np.float64).sum(axis=1)
            yield _Candidates(of, at, scores)

    def _in_postings(self, block: PostingBlock) -> Iterator[_Candidates]:
        queries_QV = self.queries_QD
        assert isinstance(queries_QV, SparseVectors)
        of_queries = []
        for query, (begin, end) in enumerate(pairwise(queries_QV.begins.tolist())):
            scores_P = block.postings.products(queries_QV.tokens[begin:end], queries_QV.values[begin:end])
            passages = np.flatnonzero((scores_P > 0.0) & (scores_P >= self.kth_Q[query]))
            if len(passages) > 4 * self.top_k:  # the best passages of the best documents suffice
                order = passages[np.lexsort((passages, block.documents_P[passages], -scores_P[passages]))]
                _, first = np.unique(block.documents_P[order], return_index=True)
                passages = np.sort(order[np.sort(first)[: self.top_k]])
            of_queries.append(_Candidates(np.full(len(passages), query), passages, scores_P[passages]))
        yield _Candidates(*(np.concatenate(column) for column in zip(*of_queries, strict=True)))

    def _merge(self, new: _Candidates, block: Block) -> None:
        queries = np.concatenate([self.queries, new.queries])
        documents = np.concatenate([self.documents, block.documents_P[new.passages]])
        scores = np.concatenate([self.scores, new.scores])
        passages = np.concatenate([self.passages, block.first + new.passages])
        order = np.lexsort((passages, documents, -scores, queries))
        queries, documents, scores, passages = queries[order], documents[order], scores[order], passages[order]
        # The first of a document's passages is its best; a document may stand in two blocks.
        _, first = np.unique(queries * (documents.max() + 1) + documents, return_index=True)
        first.sort()
        begins = np.searchsorted(queries[first], np.arange(len(self.kth_Q)))
        best = first[np.arange(len(first)) - begins[queries[first]] < self.top_k]
        self.queries, self.documents = queries[best], documents[best]
        self.scores, self.passages = scores[best], passages[best]
        ends = np.searchsorted(self.queries, np.arange(len(self.kth_Q)), side="right")
        is_full = np.bincount(self.queries, minlength=len(self.kth_Q)) == self.top_k
        self.kth_Q[is_full] = self.scores[ends[is_full] - 1]

    def ranking(self) -> Ranking:
        shape = (len(self.kth_Q), self.top_k)
        begins = np.searchsorted(self.queries, np.arange(shape[0]))
        places = (self.queries, np.arange(len(self.queries)) - begins[self.queries])
        ranking = Ranking(np.full(shape, -np.inf), np.full(shape, -1, np.int64), np.full(shape, -1, np.int64))
        ranking.scores_QK[places] = self.scores
        ranking.documents_QK[places] = self.documents
        ranking.passages_QK[places] = self.passages
        return ranking


def _kth_of_block(scores_QP: NDArray[np.float32], documents_P: NDArray[np.int64], top_k: int) -> NDArray[np.float32]:
    """The score of the k-th best document of a block alone; minus infinity where it has fewer."""
    begins = np.flatnonzero(np.diff(documents_P, prepend=documents_P[0] - 1))
    if len(begins) < top_k:
        return np.full(len(scores_QP), -np.inf, dtype=np.float32)
    if len(begins) < len(documents_P):
        scores_QP = np.maximum.reduceat(scores_QP, begins, axis=1)
    place = scores_QP.shape[1] - top_k
    return np.partition(scores_QP, place, axis=1)[:, place]
