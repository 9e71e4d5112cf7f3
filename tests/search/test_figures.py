from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from unmask.search.evaluate import (
    alignment,
    cosines,
    effective_rank,
    rank_lexically,
    ranking_figures,
    sampled,
    uniformity,
    unit,
)

NONE = [-1] * 10


def test_figures_are_those_of_hand() -> None:
    rankings = [[9, 1, 8, 2, *range(20, 26)], [5, *range(20, 29)], NONE, [*range(20, 30)], [3, *NONE[1:]]]
    relevant = [{1: 2, 2: 1, 3: 1, 8: 0}, {5: 1}, {7: 1}, {30: 1}, dict.fromkeys(range(12), 1)]
    actual = ranking_figures(np.array(rankings), relevant)
    log = math.log2
    best_of_twelve = sum(1 / log(rank + 1) for rank in range(1, 11))
    first = (2 / log(3) + 1 / log(5)) / (2 / log(2) + 1 / log(3) + 1 / log(4))
    np.testing.assert_allclose(actual["ndcg_at_10"], [first, 1.0, 0.0, 0.0, 1 / best_of_twelve])
    np.testing.assert_allclose(actual["mrr_at_10"], [1 / 2, 1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(actual["recall_at_1"], [0.0, 1.0, 0.0, 0.0, 1 / 12])
    np.testing.assert_allclose(actual["recall_at_10"], [2 / 3, 1.0, 0.0, 0.0, 1 / 12])


DOCUMENTS = ["the cat sat", "The dog, the dog!", "a bird", "the cat sat", "猫は魚を食べる"]


@pytest.mark.parametrize("kind", ["bm25", "tfidf"])
def test_words_find_what_shares_them(kind: str) -> None:
    if kind == "tfidf":
        pytest.importorskip("sklearn")
    queries = ["a CAT", "dog", "whale", "?!", "魚"]
    actual = rank_lexically(kind, DOCUMENTS, queries, 3).documents_QK.tolist()
    assert actual == [[2, 0, 3], [1, -1, -1], [-1, -1, -1], [-1, -1, -1], [4, -1, -1]]
    assert rank_lexically(kind, ["?", "!"], ["cat", "!"], 1).documents_QK.tolist() == [[-1], [-1]]


def test_geometry_of_vectors() -> None:
    """Four orthogonal vectors, of any lengths; and the same vector four times."""
    spread = np.diag([1.0, 2.0, 3.0, 4.0]).astype(np.float32)
    same = np.ones((4, 3), dtype=np.float32)
    assert effective_rank(cosines(spread)) == pytest.approx(4.0)
    assert effective_rank(cosines(same)) == pytest.approx(1.0)
    assert uniformity(cosines(spread)) == pytest.approx(-4.0)  # log exp(-2 |x - y|^2), the square being 2
    assert uniformity(cosines(same)) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(alignment(spread, spread[::-1] * 5), [2.0, 2.0, 2.0, 2.0])
    np.testing.assert_allclose(alignment(same, same * 7), 0.0, atol=1e-12)
    # Singular values 3 and 1 of unit rows: x, x, ..., and one at right angles to nine.
    rows = np.array([[1, 0]] * 9 + [[0, 1]], dtype=np.float32)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(cosines(rows)) == pytest.approx(math.exp(entropy))
    with_nothing = np.concatenate([spread, np.zeros((2, 4), dtype=np.float32)])
    assert effective_rank(cosines(csr_array(with_nothing))) == pytest.approx(4.0)
    assert issparse(unit(csr_array(with_nothing))), "as wide as a vocabulary"
    np.testing.assert_allclose(alignment(csr_array(spread), csr_array(spread[::-1] * 5)), [2.0, 2.0, 2.0, 2.0])
    assert effective_rank(cosines(np.zeros((3, 2), dtype=np.float32))) == 1.0
    # Singular values of the vectors themselves, where there are fewer dimensions than vectors.
    many = np.random.default_rng(0).normal(size=(300, 40)).astype(np.float32)
    values = np.linalg.svd(many / np.linalg.norm(many, axis=1, keepdims=True), compute_uv=False)
    shares = values / values.sum()
    assert effective_rank(cosines(many)) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
    assert sampled(5, seed=0, most=9).tolist() == [0, 1, 2, 3, 4]
    some = sampled(100, seed=1, most=9)
    assert (len(set(some.tolist())), some.tolist()) == (9, sampled(100, seed=1, most=9).tolist())
    assert some.tolist() != sampled(100, seed=2, most=9).tolist()
