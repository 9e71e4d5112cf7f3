from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from unmask.core.errors import SettingsError
from unmask.search import exact as exact_search
from unmask.search.exact import blocks_of, search_exactly
from unmask.tasks.embed import Postings, SparseVectors

RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(9, 24)).astype(np.float32)
VECTORS = RNG.normal(size=(600, 24)).astype(np.float32)
VECTORS[300:] = VECTORS[:300][::-1]  # each vector twice: ties everywhere
DOCUMENTS = np.sort(RNG.integers(0, 150, len(VECTORS)))


def naive(
    queries: NDArray[np.float32], top_k: int, vectors: NDArray[np.float32] = VECTORS
) -> list[list[tuple[float, int, int]]]:
    """Score, document and passage, by sorting all of them."""
    scores = np.multiply(queries[:, None], vectors[None], dtype=np.float64).sum(axis=2)
    found = []
    for row in scores:
        best: dict[int, tuple[float, int, int]] = {}
        for passage in np.argsort(-row, kind="stable").tolist():
            document = int(DOCUMENTS[passage])
            best.setdefault(document, (float(row[passage]), document, passage))
        found.append(sorted(best.values(), key=lambda each: (-each[0], each[1]))[:top_k])
    return found


@pytest.mark.parametrize("size", [1, 7, 299, 301, 10_000])
@pytest.mark.parametrize("top_k", [1, 10, 200])
def test_blocks_of_any_size_give_what_sorting_gives(size: int, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "QUERIES_AT_ONCE", 4)
    monkeypatch.setattr(exact_search, "_CANDIDATE_NUMBERS", 24 * 50)
    found = search_exactly(QUERIES, blocks_of(VECTORS, DOCUMENTS, size), top_k)
    num_documents = len(np.unique(DOCUMENTS))
    for query, wanted in enumerate(naive(QUERIES, top_k)):
        count = min(top_k, num_documents)
        assert len(wanted) == count
        scores, documents, passages = map(list, zip(*wanted, strict=True))
        assert found.documents_QK[query, :count].tolist() == documents
        assert found.passages_QK[query, :count].tolist() == passages
        assert found.scores_QK[query, :count].tolist() == scores
        assert (found.documents_QK[query, count:] == -1).all()
        assert (found.scores_QK[query, count:] == -np.inf).all()


@pytest.mark.parametrize("size", [1, 7, 299, 10_000])
@pytest.mark.parametrize("top_k", [1, 10, 200])
def test_posting_lists_give_what_sorting_gives(size: int, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for documents that share no number with a query, which are not found. Some vectors are empty."""
    monkeypatch.setattr(exact_search, "QUERIES_AT_ONCE", 4)
    # Small whole numbers, so that sums do not depend on their order.
    queries, vectors = (np.where(np.abs(some) > 1.2, np.round(np.abs(some) * 3), 0) for some in (QUERIES, VECTORS))
    queries[3], vectors[40:44] = 0, 0
    queries, vectors = queries.astype(np.float32), vectors.astype(np.float32)
    sparse, searched = SparseVectors.of(queries), SparseVectors.of(vectors)
    np.testing.assert_array_equal(searched.dense(), vectors)
    found = search_exactly(sparse, blocks_of(searched, DOCUMENTS, size), top_k)
    for query, best in enumerate(naive(queries, 150, vectors)):
        wanted = [each for each in best if each[0] > 0][:top_k]
        assert bool(wanted) == (query != 3)
        columns = (found.scores_QK, found.documents_QK, found.passages_QK)
        got = list(zip(*(column[query, : len(wanted)].tolist() for column in columns), strict=True))
        assert got == wanted
        assert (found.documents_QK[query, len(wanted) :] == -1).all()
    with pytest.raises(SettingsError, match="have 24 numbers each, but the queries 8"):
        search_exactly(SparseVectors.of(queries[:, :8]), blocks_of(searched, DOCUMENTS), 1)


@pytest.mark.parametrize("size", [1, 3])
def test_a_query_that_shares_nothing_finds_nothing(size: int) -> None:
    """Neither with a block nor with any, nor where it is empty itself."""
    searched = SparseVectors.of(np.array([[0, 3, 0], [0, 2, 0], [5, 0, 0]], dtype=np.float32))
    for query, wanted in (([1, 0, 0], [2, -1]), ([0, 0, 1], [-1, -1]), ([0, 0, 0], [-1, -1])):
        asked = SparseVectors.of(np.array([query], dtype=np.float32))
        found = search_exactly(asked, blocks_of(searched, np.arange(3), size), 2)
        assert found.documents_QK.tolist() == [wanted]


def test_sparse_vectors() -> None:
    """Parts, lengths, and posting lists in a line."""
    vectors = SparseVectors.of(np.array([[0, 3, 0, 4], [0, 0, 0, 0], [2, 0, 0, 0]], dtype=np.float32))
    assert vectors[1:].dense().tolist() == [[0, 0, 0, 0], [2, 0, 0, 0]]
    assert SparseVectors.joined([vectors[2:], vectors[:1]]).dense().tolist() == [[2, 0, 0, 0], [0, 3, 0, 4]]
    np.testing.assert_allclose(vectors.unit().dense(), [[0, 0.6, 0, 0.8], [0, 0, 0, 0], [1, 0, 0, 0]], rtol=1e-6)
    line = vectors.postings().to_array()
    again = Postings.of_array(line, width=4, count=3)
    assert again.products(np.array([0, 3], dtype=np.int32), np.array([0.5, 2], dtype=np.float32)).tolist() == [8, 0, 1]
    for wrong in (line[:-1], line[:3], line.astype(np.int64)):
        with pytest.raises(ValueError, match="numbers"):
            Postings.of_array(wrong, width=4, count=3)
    for place in (0, 2):
        changed = line.copy()
        changed[place] = -7
        with pytest.raises(ValueError, match="do not begin one behind the other"):
            Postings.of_array(changed, width=4, count=3)
    for number in (3, -1, 1 << 30):
        changed = line.copy()
        changed[5] = number  # a vector
        with pytest.raises(ValueError, match="of vectors that are none of 3"):
            Postings.of_array(changed, width=4, count=3).products(np.arange(4, dtype=np.int32), np.ones(4, np.float32))


def test_it_finds_what_sentence_transformers_finds() -> None:
    util = pytest.importorskip("sentence_transformers.util")
    import torch

    vectors = RNG.normal(size=(3000, 24)).astype(np.float32)
    theirs = util.semantic_search(
        torch.from_numpy(QUERIES),
        torch.from_numpy(vectors),
        top_k=20,
        corpus_chunk_size=700,
        score_function=util.dot_score,
    )
    ours = search_exactly(QUERIES, blocks_of(vectors, np.arange(len(vectors)), 512), 20)
    for query, hits in enumerate(theirs):
        assert [hit["corpus_id"] for hit in hits] == ours.documents_QK[query].tolist()
        np.testing.assert_allclose([hit["score"] for hit in hits], ours.scores_QK[query], rtol=1e-5)


def test_equal_vectors_come_in_the_order_of_their_documents() -> None:
    """Also where products in float32 would tell them apart, and where all vectors of a block are candidates."""
    vectors = np.repeat(VECTORS[:1], 5000, axis=0)
    for size in (999, 5000):
        found = search_exactly(QUERIES, blocks_of(vectors, np.arange(5000), size), 30)
        assert (found.documents_QK == np.arange(30)).all()


def test_scores_that_rise_to_the_end_are_all_found() -> None:
    vectors = np.linspace(0.0, 1.0, 4000, dtype=np.float32)[:, None] * QUERIES[:1]
    found = search_exactly(QUERIES[:1], blocks_of(vectors, np.arange(4000), 64), 3)
    assert found.documents_QK.tolist() == [[3999, 3998, 3997]]


def test_errors() -> None:
    with pytest.raises(SettingsError, match="top_k takes a number from 1 on, not 0"):
        search_exactly(QUERIES, blocks_of(VECTORS, DOCUMENTS), 0)
    with pytest.raises(SettingsError, match="have 24 numbers each, but the queries 8"):
        search_exactly(QUERIES[:, :8], blocks_of(VECTORS, DOCUMENTS), 1)
