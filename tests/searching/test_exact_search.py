from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.searching import exact_search
from unmask.searching.exact_search import blocks_of, search_exactly

RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(9, 24)).astype(np.float32)
VECTORS = RNG.normal(size=(600, 24)).astype(np.float32)
VECTORS[300:] = VECTORS[:300][::-1]  # each vector twice: ties everywhere
DOCUMENTS = np.sort(RNG.integers(0, 150, len(VECTORS)))


def naive(queries: NDArray[np.float32], top_k: int) -> list[list[tuple[float, int, int]]]:
    """Score, document and passage, by sorting all of them."""
    scores = np.multiply(queries[:, None], VECTORS[None], dtype=np.float64).sum(axis=2)
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
