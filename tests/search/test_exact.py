from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from unmask.core.errors import DataError
from unmask.search import exact
from unmask.search.blocks import read_postings, stored_postings
from unmask.search.exact import blocks_of, search_exactly

RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(9, 24)).astype(np.float32)
VECTORS = RNG.normal(size=(600, 24)).astype(np.float32)
VECTORS[300:] = VECTORS[:300][::-1]  # each vector twice: ties everywhere
DOCUMENTS = np.sort(RNG.integers(0, 150, len(VECTORS)))


def naive(queries: NDArray[np.float32], vectors: NDArray[np.float32] = VECTORS) -> list[list[tuple[float, int, int]]]:
    """Score, document and passage, by sorting all of them."""
    scores = np.multiply(queries[:, None], vectors[None], dtype=np.float64).sum(axis=2)
    rankings = []
    for row in scores:
        best: dict[int, tuple[float, int, int]] = {}
        for passage in np.argsort(-row, kind="stable").tolist():
            document = int(DOCUMENTS[passage])
            best.setdefault(document, (float(row[passage]), document, passage))
        rankings.append(sorted(best.values(), key=lambda each: (-each[0], each[1])))
    return rankings


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("size", [1, 7, 299, 10_000])
@pytest.mark.parametrize("top_k", [1, 10, 200])
def test_blocks_of_any_size_give_what_sorting_gives(
    is_sparse: bool, size: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse search leaves out documents that share no token with a query; some queries and vectors are empty."""
    monkeypatch.setattr(exact, "QUERIES_AT_ONCE", 4)
    monkeypatch.setattr(exact, "_CANDIDATE_NUMBERS", 24 * 50)
    queries, vectors = QUERIES, VECTORS
    if is_sparse:  # small whole numbers, so that sums do not depend on their order
        queries, vectors = (
            np.where(np.abs(some) > 1.2, np.round(np.abs(some) * 3), 0).astype(np.float32)
            for some in (queries, vectors)
        )
        queries[3], vectors[40:44] = 0, 0
        actual = search_exactly(csr_array(queries), blocks_of(csr_array(vectors), DOCUMENTS, size), top_k)
    else:
        actual = search_exactly(queries, blocks_of(vectors, DOCUMENTS, size), top_k)
    for query, ranking in enumerate(naive(queries, vectors)):
        expected = [each for each in ranking if each[0] > 0 or not is_sparse][:top_k]
        assert bool(expected) == (not is_sparse or query != 3)
        columns = (actual.scores_QK, actual.documents_QK, actual.passages_QK)
        assert list(zip(*(column[query, : len(expected)].tolist() for column in columns), strict=True)) == expected
        assert (actual.documents_QK[query, len(expected) :] == -1).all()
        assert (actual.scores_QK[query, len(expected) :] == -np.inf).all()


def test_posting_lists_in_a_line() -> None:
    """They are read from a file, and reading never goes beyond its end."""
    vectors = csr_array(np.array([[0, 3, 0, 4], [0, 0, 0, 0], [2, 0, 0, 0]], dtype=np.float32))
    line = stored_postings(vectors)
    np.testing.assert_array_equal(read_postings(line, width=4, count=3).toarray(), vectors.toarray())
    for number in (3, -1, 1 << 30):
        changed = np.where(np.arange(len(line)) == 5, number, line).astype(np.int32)  # a vector
        block = exact.VectorBlock(read_postings(changed, width=4, count=3), np.arange(3), np.arange(3))
        with pytest.raises(DataError, match="beyond 3"):
            search_exactly(csr_array(np.ones((1, 4), dtype=np.float32)), [block], 3)


def test_equal_vectors_come_in_the_order_of_their_documents() -> None:
    """Also if products in float32 would order them, and if all vectors of a block are candidates."""
    vectors = np.repeat(VECTORS[:1], 5000, axis=0)
    for size in (999, 5000):
        found = search_exactly(QUERIES, blocks_of(vectors, np.arange(5000), size), 30)
        assert (found.documents_QK == np.arange(30)).all()
