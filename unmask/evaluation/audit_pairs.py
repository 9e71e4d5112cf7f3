"""How the two halves of sentence pairs are masked: each at the rate, and both at once.

Shape suffixes: T = all positions of a batch in a line; P = pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.evaluation.audit_counts import Counts, Ratio, ratio_of_sums, stretches
from unmask.evaluation.audit_inclusion import Expected
from unmask.masking.engine import MaskedRows
from unmask.packing.rows import Rows


@dataclass(frozen=True)
class PairAudit:
    """What a masker did to sentence pairs.

    Attributes:
        first: Share of the tokens in first halves that is predicted, with its standard error; a text that is too
            short to be cut is a first half without a second.
        second: The same in second halves.
        pairs: Pairs with text in both halves.
        with_both: Those of them in which tokens of both halves are predicted.
        expected: What the shares should be.
    """

    first: Ratio
    second: Ratio
    pairs: int
    with_both: int
    expected: tuple[float, float]

    def broken(self) -> Iterator[str]:
        """Halves whose rate is not the expected one, in words."""
        halves = (("first", self.first), ("second", self.second))
        for (name, found), expected in zip(halves, self.expected, strict=True):
            if found.differs_from(expected):
                yield f"{found.rate:.2%} of the tokens in {name} halves of pairs are predicted, not {expected:.2%}"


class PairTally:
    """Adds up batches of pairs."""

    def __init__(self) -> None:
        self._sizes: list[Counts] = []  # [P, 2]: of both halves
        self._targets: list[Counts] = []
        self._variance, self._expected = np.zeros(2), np.zeros(2)

    def add(self, rows: Rows, masked: MaskedRows, expected: Expected) -> None:
        """Counts one batch, whose rows have token types. Args: expected: As `InclusionTally.add` returns it."""
        assert rows.token_type_ids is not None
        place_T = 2 * stretches(rows.segment_ids.numpy()) + rows.token_type_ids.numpy().ravel()
        size = 2 * (int(place_T[-1]) // 2 + 1)

        def count(chosen_T: NDArray[np.bool_]) -> Counts:
            return np.bincount(place_T[chosen_T], minlength=size).reshape(-1, 2)

        self._sizes.append(count(rows.maskable.numpy().ravel()))
        self._targets.append(count(masked.labels.numpy().ravel() >= 0))
        self._variance += np.bincount(place_T % 2, expected.spread, minlength=2)
        self._expected += np.bincount(place_T % 2, expected.predicted, minlength=2)

    def result(self) -> PairAudit:
        """The sum of all batches."""
        sizes, targets = np.concatenate(self._sizes), np.concatenate(self._targets)
        whole = (sizes > 0).all(1)
        first, second = (
            ratio_of_sums(targets[:, half], sizes[:, half], float(self._variance[half])) for half in (0, 1)
        )
        shares = self._expected / np.maximum(sizes.sum(0), 1)
        both = int((targets[whole] > 0).all(1).sum())
        return PairAudit(first, second, int(whole.sum()), both, (float(shares[0]), float(shares[1])))
