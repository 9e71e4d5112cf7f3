"""Adding up what was measured: ratios by document, and breakdowns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.evaluation.uncertainty import Uncertain, ratio_over_draws


class Ratio:
    """A sum divided by another, such as losses by tokens, with documents as the independent draws."""

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = {}

    def add(self, document: int, numerator: float, denominator: float) -> None:
        """Counts a part of a document."""
        sums = self._sums.setdefault(document, [0.0, 0.0])
        sums[0] += numerator
        sums[1] += denominator

    @property
    def denominator(self) -> float:
        """The sum below the line."""
        return sum(sums[1] for sums in self._sums.values())

    @property
    def value(self) -> float:
        """The ratio; not a number where nothing was counted."""
        return self.result.value

    @property
    def result(self) -> Uncertain:
        """The ratio, and how sure it is."""
        sums = np.array(list(self._sums.values())).reshape(-1, 2)
        return ratio_over_draws(sums[:, 0], sums[:, 1])


class Breakdown:
    """Losses and right answers by the kind of the token.

    Args:
        names: Of the kinds, in the order of their numbers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._sums = np.zeros((3, len(names)))

    def add(self, kinds: NDArray[np.int64], losses: NDArray[np.float64], right: NDArray[np.bool_]) -> None:
        """Counts tokens, each [N]; a negative kind is left out."""
        kept = kinds >= 0
        for row, weights in enumerate((losses, right, np.ones(len(kinds)))):
            self._sums[row] += np.bincount(kinds[kept], weights=weights[kept], minlength=len(self.names))

    def figures(self) -> dict[str, dict[str, Any]]:
        """Loss, accuracy and number of tokens of each kind that there is."""
        return {
            name: {"loss": loss / count, "accuracy": right / count, "predicted_tokens": int(count)}
            for name, loss, right, count in zip(self.names, *self._sums.tolist(), strict=True)
            if count
        }
