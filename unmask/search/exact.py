"""The nearest documents to some queries by exact inner products, in bounded memory.

A document is as near as its nearest passage. Vectors are gone through block by block; of each block only passages are
looked at further that may still get among the best:

    block ──products in float32──▶ scores [Q, P] ──at least the k-th best, less what rounding may do──▶ few candidates
                                                                              │
                                     best k documents so far ◀──order── exact scores, in float64

Products in float32 come out of a library of matrix products, whose last bits depend on the shape of what it is given;
equal vectors could be told apart by them, and another size of blocks would give another order. So what decides are sums
in float64 that depend on the two vectors alone. Documents that are equally near come in the order of their numbers.

Sparse vectors are searched by posting lists, whose sums are in float64 from the beginning; what shares no number with a
query is not found by it.

Shape suffixes: Q = queries, P = passages of a block, D = dimension, K = places of a ranking, C = candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import SettingsError
from unmask.tasks.embed import Postings, SparseVectors

QUERIES_AT_ONCE = 1024
BLOCK_PASSAGES = 16_384
_CANDIDATE_NUMBERS = 1 << 23  # of float64 that candidates are rescored in at once: 64 MB
_ROUNDING = 2.0**-24  # of float32


@dataclass(frozen=True)
class VectorBlock:
    """Passages that follow each other.

    Attributes:
        vectors_PD: float32; may be mapped from a file.
        documents_P: int64: the document that each is of; documents stand in order.
        first: Number of the first passage.
        known_longest: `longest`, where it was computed before.
    """

    vectors_PD: NDArray[np.float32]
    documents_P: NDArray[np.int64]
    first: int
    known_longest: float | None = None

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.vectors_PD.shape[1]

    @cached_property
    def longest(self) -> float:
        """At least the Euclidean length of each vector; computed once, since it takes as long as a query."""
        if self.known_longest is not None:
            return self.known_longest
        squares = np.einsum("pd,pd->p", self.vectors_PD, self.vectors_PD)
        return float(np.sqrt(squares.max())) * 1.001  # more than float32 rounds off


@dataclass(frozen=True)
class PostingBlock:
    """Passages with sparse vectors that follow each other. Attributes as for `VectorBlock`, but for the postings."""

    postings: Postings
    documents_P: NDArray[np.int64]
    first: int

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.postings.width


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
        blocks: All passages, in order; of any sizes, which change nothing but time and memory.
        top_k: Documents a query, at least 1.

    Raises:
        SettingsError: `top_k` is none, or vectors have another width than the queries.
    """
    if top_k < 1:
        raise SettingsError(f"--top-k takes a number from 1 on, not {top_k}")
    starts = range(0, max(1, len(queries_QD)), QUERIES_AT_ONCE)
    parts = [_Best(_looker(queries_QD[begin : begin + QUERIES_AT_ONCE]), top_k) for begin in starts]
    width = queries_QD.width if isinstance(queries_QD, SparseVectors) else queries_QD.shape[1]
    for block in blocks:
        check_width(block.width, width)
        if len(block.documents_P) and len(queries_QD):
            for part in parts:
                part.add(block)
    return joined([part.ranking() for part in parts])


def check_width(found: int, wanted: int) -> None:
    """Raises: SettingsError: Vectors are of another width than queries."""
    if found != wanted:
        raise SettingsError(
            f"the vectors that are searched have {found} numbers each, but the queries {wanted}: they are of different "
            "models; embed both with the same one"
        )


def joined(rankings: Sequence[Ranking]) -> Ranking:
    """Rankings of queries that follow each other."""
    columns = ([getattr(ranking, name) for ranking in rankings] for name in Ranking.__dataclass_fields__)
    return Ranking(*map(np.concatenate, columns))


def exact_scores(first_CD: NDArray[np.float32], second_CD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Inner products [C] in float64, each of which depends on its two vectors alone.

    Products of two numbers of float32 are exact in float64, and numpy adds up each row in the same order.
    """
    return np.multiply(first_CD, second_CD, dtype=np.float64).sum(axis=1)


class _Near(NamedTuple):
    """Passages of a block that may be among the best: numbers of queries and passages, and exact scores [C]."""

    queries: NDArray[np.int64]
    passages: NDArray[np.int64]
    scores: NDArray[np.float64]


class _Looker(Protocol):
    """Some queries, which look at blocks."""

    def __len__(self) -> int:
        """How many they are."""

    def near(self, block: Any, kth_Q: NDArray[np.float64], top_k: int) -> Iterator[_Near]:
        """All passages of a block that may be among the best, those before the k-th at the least, in parts."""


class _Best:
    """The best documents so far, of some queries: lists of (query, document, passage, score), sorted by all of them."""

    def __init__(self, looker: _Looker, top_k: int) -> None:
        self.looker, self.top_k = looker, top_k
        self.kth_Q = np.full(len(looker), -np.inf)
        self.queries = self.documents = self.passages = np.zeros(0, dtype=np.int64)
        self.scores = np.zeros(0)

    def add(self, block: Block) -> None:
        """Looks at a block."""
        for near in self.looker.near(block, self.kth_Q, self.top_k):
            if len(near.queries):
                self._merge(near, block)

    def _merge(self, near: _Near, block: Block) -> None:
        queries = np.concatenate([self.queries, near.queries])
        documents = np.concatenate([self.documents, block.documents_P[near.passages]])
        scores = np.concatenate([self.scores, near.scores])
        passages = np.concatenate([self.passages, block.first + near.passages])
        order = np.lexsort((passages, documents, -scores, queries))
        queries, documents, scores, passages = queries[order], documents[order], scores[order], passages[order]
        # The first of a document's passages is its best; a document may stand in two blocks.
        _, first = np.unique(queries * (documents.max() + 1) + documents, return_index=True)
        first.sort()
        of_query = queries[first]
        begins = np.searchsorted(of_query, np.arange(len(self.kth_Q)))
        kept = first[np.arange(len(first)) - begins[of_query] < self.top_k]
        self.queries, self.documents = queries[kept], documents[kept]
        self.scores, self.passages = scores[kept], passages[kept]
        ends = np.searchsorted(self.queries, np.arange(len(self.kth_Q)), side="right")
        is_full = np.bincount(self.queries, minlength=len(self.kth_Q)) == self.top_k
        self.kth_Q[is_full] = self.scores[ends[is_full] - 1]

    def ranking(self) -> Ranking:
        """What was found."""
        shape = (len(self.kth_Q), self.top_k)
        begins = np.searchsorted(self.queries, np.arange(shape[0]))
        places = (self.queries, np.arange(len(self.queries)) - begins[self.queries])
        found = Ranking(np.full(shape, -np.inf), np.full(shape, -1, np.int64), np.full(shape, -1, np.int64))
        found.scores_QK[places] = self.scores
        found.documents_QK[places] = self.documents
        found.passages_QK[places] = self.passages
        return found


class _DenseQueries:
    def __init__(self, queries_QD: NDArray[np.float32]) -> None:
        self.queries_QD = np.ascontiguousarray(queries_QD)
        self.lengths_Q = np.linalg.norm(queries_QD.astype(np.float64), axis=1)

    def __len__(self) -> int:
        return len(self.queries_QD)

    def near(self, block: VectorBlock, kth_Q: NDArray[np.float64], top_k: int) -> Iterator[_Near]:
        vectors_PD = block.vectors_PD
        scores_QP = self.queries_QD @ vectors_PD.T
        # How far a product in float32 may lie from the exact one, in whatever order it was added up, both ways and
        # with some room: Higham 2002 (Accuracy and stability of numerical algorithms), section 3.1.
        slack_Q = 2.2 * vectors_PD.shape[1] * _ROUNDING * self.lengths_Q * block.longest
        least_Q = kth_Q - slack_Q
        is_candidate_QP = scores_QP >= least_Q[:, None]
        if np.count_nonzero(is_candidate_QP) > 4 * top_k * len(least_Q):
            least_Q = np.maximum(least_Q, _kth_of_block(scores_QP, block.documents_P, top_k) - slack_Q)
            is_candidate_QP = scores_QP >= least_Q[:, None]
        size = max(1, _CANDIDATE_NUMBERS // vectors_PD.shape[1])
        queries, passages = np.nonzero(is_candidate_QP)
        for begin in range(0, len(queries), size):
            of, at = queries[begin : begin + size], passages[begin : begin + size]
            yield _Near(of, at, exact_scores(self.queries_QD[of], vectors_PD[at]))


def _kth_of_block(scores_QP: NDArray[np.float32], documents_P: NDArray[np.int64], top_k: int) -> NDArray[np.float32]:
    """The score of the k-th best document of a block alone; minus infinity where it has fewer."""
    begins = np.flatnonzero(np.diff(documents_P, prepend=documents_P[0] - 1))
    if len(begins) < top_k:
        return np.full(len(scores_QP), -np.inf, dtype=np.float32)
    if len(begins) < len(documents_P):
        scores_QP = np.maximum.reduceat(scores_QP, begins, axis=1)
    place = scores_QP.shape[1] - top_k
    return np.partition(scores_QP, place, axis=1)[:, place]


class _SparseQueries:
    def __init__(self, queries_QV: SparseVectors) -> None:
        self.queries_QV = queries_QV

    def __len__(self) -> int:
        return len(self.queries_QV)

    def near(self, block: PostingBlock, kth_Q: NDArray[np.float64], top_k: int) -> Iterator[_Near]:
        found = []
        for query, (begin, end) in enumerate(pairwise(self.queries_QV.begins.tolist())):
            scores_P = block.postings.products(self.queries_QV.tokens[begin:end], self.queries_QV.values[begin:end])
            passages = np.flatnonzero((scores_P > 0.0) & (scores_P >= kth_Q[query]))
            if len(passages) > 4 * top_k:  # of a document all passages but the best are superfluous
                passages = _best_of_documents(scores_P, passages, block.documents_P, top_k)
            found.append(_Near(np.full(len(passages), query), passages, scores_P[passages]))
        yield _Near(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _best_of_documents(
    scores_P: NDArray[np.float64], passages: NDArray[np.int64], documents_P: NDArray[np.int64], top_k: int
) -> NDArray[np.int64]:
    """The best passages of the best documents of a block."""
    order = passages[np.lexsort((passages, documents_P[passages], -scores_P[passages]))]
    _, first = np.unique(documents_P[order], return_index=True)
    return np.sort(order[np.sort(first)[:top_k]])


def _looker(queries: Vectors) -> _Looker:
    return _SparseQueries(queries) if isinstance(queries, SparseVectors) else _DenseQueries(queries)
