"""How good rankings are, and what vectors are like.

nDCG, reciprocal rank and recall among the first ten, of each query:

    relevant 2 1 1, found . 2 . 1 .    nDCG@10 = (2/log2(3) + 1/log2(5)) / (2/log2(2) + 1/log2(3) + 1/log2(4)) = 0.54
                                       MRR@10 = 1/2, recall@1 = 0, recall@10 = 2/3

As in trec_eval, and so in BEIR: the gain of a document is its grade itself (2 to the power of the grade, less 1, is
another nDCG); the ideal ranking is of all judged documents, found or not; grades of 0 and less are not relevant.

Of vectors, divided by their length:

    alignment         mean of |x - y|^2 over pairs of texts that belong together; lower is nearer
    uniformity        log of the mean of exp(-2 |x - y|^2) over pairs of different texts; lower is more spread out
    effective rank    exp of the entropy of the singular values, divided by their sum; 1: all texts lie on a line

Alignment alone says nothing: where all texts have one vector it is 0. A plain masked language model mostly has both
near 0, since its vectors share a large common part, which the effective rank shows too.

Source: Järvelin and Kekäläinen 2002 (Cumulated gain-based evaluation of IR techniques), with the discount of Burges et
al. 2005, log2(1 + rank); Voorhees 1999 (The TREC-8 question answering track report) for the reciprocal rank; Thakur et
al. 2021 (BEIR). Wang and Isola 2020 (Understanding contrastive representation learning through alignment and uniformity
on the hypersphere), section 4, with their exponents 2 and t = 2; Roy and Vetterli 2007 (The effective rank), section 2,
of the matrix of vectors as it is, its mean not subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

DEPTH = 10
FIGURES = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
NAMES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_1": "recall@1", "recall_at_10": "recall@10"}
MOST_VECTORS = 2000  # that pairs and singular values are taken of


def ranking_figures(
    documents_QK: NDArray[np.int64], relevant: Sequence[Mapping[int, int]]
) -> dict[str, NDArray[np.float64]]:
    """The figures of each query [Q], by their names.

    Args:
        documents_QK: Documents found, the best first; -1 where there are no more. Only the first ten count.
        relevant: Of each query the grades of the judged documents, at least one of them above 0.
    """
    figures = {name: np.zeros(len(relevant)) for name in FIGURES}
    discount = 1.0 / np.log2(np.arange(DEPTH) + 2.0)
    for query, grades in enumerate(relevant):
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        gains = np.array([max(0, grades.get(document, 0)) for document in documents_QK[query, :DEPTH].tolist()])
        places = np.flatnonzero(gains)
        best = np.array(ideal[:DEPTH]) @ discount[: len(ideal)]
        figures["ndcg_at_10"][query] = gains @ discount[: len(gains)] / best
        figures["mrr_at_10"][query] = 1.0 / (places[0] + 1) if len(places) else 0.0
        figures["recall_at_1"][query] = np.count_nonzero(gains[:1]) / len(ideal)
        figures["recall_at_10"][query] = len(places) / len(ideal)
    return figures


def unit(vectors_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """Vectors divided by their length; those of length 0 stay."""
    wide = vectors_ND.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(lengths > 0.0, lengths, 1.0)


def alignment(first_ND: NDArray[np.float32], second_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """The squared distance of each pair [N], whose mean is the alignment."""
    squares: NDArray[np.float64] = np.square(unit(first_ND) - unit(second_ND)).sum(axis=1)
    return squares


def uniformity(vectors_ND: NDArray[np.float32]) -> float | None:
    """Over all pairs of two different rows; None where there are none."""
    if len(vectors_ND) < 2:
        return None
    units = unit(vectors_ND)
    squares = np.maximum(0.0, 2.0 - 2.0 * (units @ units.T))[np.triu_indices(len(units), k=1)]
    return float(np.log(np.mean(np.exp(-2.0 * squares))))


def effective_rank(vectors_ND: NDArray[np.float32]) -> float:
    """From 1 to the smaller of the numbers of rows and columns."""
    values = np.linalg.svd(unit(vectors_ND), compute_uv=False)
    if not values.any():
        return 1.0
    share = values / values.sum()
    share = share[share > 0.0]
    return float(np.exp(-(share * np.log(share)).sum()))


def coordinates(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors [N, at most N] with the same inner products, on which alone the figures depend: shorter than vectors that
    are wider than they are many.
    """
    if vectors_ND.shape[1] <= len(vectors_ND):
        return vectors_ND
    wide = vectors_ND.astype(np.float64)
    values, rotated = np.linalg.eigh(wide @ wide.T)
    short: NDArray[np.float32] = (rotated * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
    short[~vectors_ND.any(axis=1)] = 0.0  # and not what rounding left
    return short


def sampled(num_vectors: int, seed: int, most: int = MOST_VECTORS) -> NDArray[np.int64]:
    """The numbers of all vectors, or of `most` of them, by the seed alone; sorted."""
    if num_vectors <= most:
        return np.arange(num_vectors)
    return np.sort(np.random.default_rng(seed).choice(num_vectors, most, replace=False))
