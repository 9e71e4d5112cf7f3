"""Counting for the audit: stretches of a batch, and rates with their errors.

Shape suffixes: T = all positions of a batch in a line; P = document pieces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A promise is broken beyond so many standard errors. Where all strategies are audited, some 300 figures are judged; by
# chance one of them lies beyond about once in 90,000 audits.
SIGMAS = 5.5

Counts = NDArray[np.int64]


class Ratio(NamedTuple):
    """A share of tokens, and its standard error."""

    rate: float
    stderr: float

    def differs_from(self, expected: float) -> bool:
        """Whether chance does not explain the difference."""
        return abs(self.rate - expected) > SIGMAS * self.stderr + 1e-9


def ratio_of_sums(targets_P: Counts, sizes_P: Counts, variance: float = 0.0) -> Ratio:
    """The share of targets, with document pieces as the independent draws.

    Pieces that all come out alike have no spread, and one piece tells nothing of chance at all; but each is drawn by
    chance, whose variance is known: the error counts as much at least. That is a quarter a piece where a budget of
    tokens is rounded.

    Args:
        targets_P, sizes_P: Targets and tokens of each piece.
        variance: Of the number of targets, by the way they are drawn.

    Source: Cochran 1977, Sampling Techniques, section 2.11.
    """
    total = max(int(sizes_P.sum()), 1)
    rate = targets_P.sum() / total
    square = max(float(((targets_P - rate * sizes_P) ** 2).sum()), 0.25 * int((sizes_P > 0).sum()), variance)
    return Ratio(float(rate), square**0.5 / total)


def stretches(*columns_BS: NDArray[np.signedinteger]) -> Counts:
    """[T]: a running number for each stretch of a row in which all columns stay the same."""
    begins_BS = np.ones(columns_BS[0].shape, dtype=bool)
    begins_BS[:, 1:] = np.any([column[:, 1:] != column[:, :-1] for column in columns_BS], axis=0)
    return np.cumsum(begins_BS.ravel()) - 1
