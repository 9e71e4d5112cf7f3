"""What vectors of texts are like, whatever is searched: alignment, uniformity, effective rank.

    alignment         mean of |x - y|^2 over pairs of texts that belong together; lower is nearer
    uniformity        log of the mean of exp(-2 |x - y|^2) over pairs of different texts; lower is more spread out
    effective rank    exp of the entropy of the singular values, divided by their sum; 1: all texts lie on a line

All of vectors of length 1. Alignment alone says nothing: where all texts have one vector it is 0. A plain masked
language model mostly has both near 0, since its vectors share a large common part, which the effective rank shows too.

Source: Wang and Isola 2020 (Understanding contrastive representation learning through alignment and uniformity on the
hypersphere), section 4, with their exponents 2 and t = 2; Roy and Vetterli 2007 (The effective rank), section 2, of the
matrix of vectors as it is, whose mean is not taken away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_VECTORS = 2000  # that pairs and singular values are taken of


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
    found = unit(vectors_ND)
    squares = np.maximum(0.0, 2.0 - 2.0 * (found @ found.T))[np.triu_indices(len(found), k=1)]
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
    """Vectors [N, at most N] with the same inner products, which is all that the figures above depend on: short ones
    in place of those that are longer than there are of them.
    """
    if vectors_ND.shape[1] <= len(vectors_ND):
        return vectors_ND
    wide = vectors_ND.astype(np.float64)
    values, rotated = np.linalg.eigh(wide @ wide.T)
    short: NDArray[np.float32] = (rotated * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
    short[~vectors_ND.any(axis=1)] = 0.0  # and not what rounding left
    return short


def sampled(num_vectors: int, seed: int, most: int = MOST_VECTORS) -> NDArray[np.int64]:
    """Which vectors are looked at: all, or that many of them, by the seed alone; sorted."""
    if num_vectors <= most:
        return np.arange(num_vectors)
    return np.sort(np.random.default_rng(seed).choice(num_vectors, most, replace=False))
