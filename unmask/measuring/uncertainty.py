"""How sure a measured figure is: intervals, standard errors over documents, ratios and breakdowns.

Intervals hold the true value in 95 of 100 cases. This is the one place where standard errors over documents are
computed.

What is measured, such as a loss per token, is a ratio of two sums. Tokens of a document, and all that it is cut into
(pieces, passages, held-out parts), are alike: a writer's words and turns run through all of it. So what is drawn
independently is the source document, and the standard error is of these. It tells how much the figure would change with
other documents of the same kind; of the seed of a training it tells nothing.

    r = sum of y / sum of x    over documents g, such as y = the losses and x = the number of predicted tokens
    r without g, minus r       = (r x_g - y_g) / (X - x_g), X being the sum of x
    variance                   = sum of its squares over g

That is the delete-one jackknife, written out. The long documents of a text are few, so its degrees of freedom are fewer
than the documents: they are those of a sum of squares with the same mean and variance (Satterthwaite), computed as if
documents' own ratios varied alike. With equal documents they are one less than the documents.

In simulations with 8 to 50 documents, log-normal lengths (whose logarithms deviate by up to 0.8) and effects of
documents that are normal, or skewed by up to 2, the 95 % intervals hold the true ratio in 92 to 99 of 100 cases
(`tests/measuring/test_coverage.py`), where normal intervals on the usual error hold it in 80 to 94. With lengths that
deviate by 1.5 they are wider than needed, and hold it in 96 to 99.5. Two things they do not know of: where the long
documents are the hard ones and effects are skewed too, it is about 90; and what the corpus calls documents may still be
alike, such as the lines of one book.

Source: Bell and McCaffrey 2002 (Bias reduction in standard errors for linear regression with multi-stage samples) for
both; Pustejovsky and Tipton 2018 (Small-sample methods for cluster-robust variance estimation), who call it CR3. Its
factor (G - 1) / G is left out, as they do: skewed effects need the room.

Shape suffix: G = documents, or other independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
_ROUNDING = 1e-9  # of figures of the order of 1: what subtracting and adding them up may change
_MOST_ITEMS = 20_000  # shares of more come in steps too small to matter


def wilson(successes: float, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a share, which lies within [0, 1] and is of use for few trials and shares near 0 or 1.

    Args:
        successes: How many of the trials succeeded; a tie is half a success.
        trials: At least 1.
        confidence: Of 1.

    Source: Wilson 1927 (Probable inference, the law of succession, and statistical inference).
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return 0.0 if successes <= 0 else low, 1.0 if successes >= trials else high  # not by rounding beside them


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The interval of the mean of some independent values by Student's t; None where they tell nothing of chance.

    That is so of a single value, and of values that are all equal, up to rounding. Shares of n items come in steps of
    1/n, so a few of them are equal by accident; what they really vary by is somewhere below a step, and not 0.
    Student's t is for values without steps, and an interval without width would show any difference, however small.

    Source: Student 1908 (The probable error of a mean).
    """
    if len(values) < 2 or max(values) - min(values) <= _ROUNDING * max(1.0, *map(abs, values)):
        return None
    mean, variance = _mean_and_variance(values)
    half = student_quantile(0.5 + confidence / 2, len(values) - 1) * math.sqrt(variance / len(values))
    return mean - half, mean + half


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Of some values, in floating point: `statistics` counts in fractions, which takes most of a comparison's time."""
    mean = fmean(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def shares_interval(differences: Sequence[float], items: int, confidence: float) -> tuple[float, float] | None:
    """The interval of the mean of differences between two shares of the same items; None for a single one.

    Student's t, with a variance of one difference that is never less than its steps and its items allow, since a few
    such differences are equal, or nearly so, by accident:

    - 1/(6 items^2), what rounding to steps of 1/items adds to the variance of two shares;
    - |mean|/items: a net difference of k items is one of k changed items at the least, and changes that are as likely
      in either direction vary by their number.

    Args:
        differences: One a seed, of any sign.
        items: Of which the shares are; at least 1.
        confidence: Of 1.

    Source: Student 1908; Sheppard 1898 (rounding); McNemar 1947 (changes of paired items).
    """
    count = len(differences)
    if count < 2:
        return None
    mean, variance = _mean_and_variance(differences)
    spread = max(variance, 1.0 / (6.0 * items**2), abs(mean) / items)
    half = student_quantile(0.5 + confidence / 2, count - 1) * math.sqrt(spread / count)
    return mean - half, mean + half


def items_of_shares(values: Sequence[float]) -> int | None:
    """The smallest number of items of which all values can be shares; None where they are no shares of a few items.

    Values that happen to be shares of fewer items than they are count as that, which makes intervals wider.
    """
    if not values or min(values) < 0.0 or max(values) > 1.0:
        return None
    items = np.arange(1, _MOST_ITEMS + 1)
    for value in values:
        counts = value * items
        items = items[np.abs(counts - np.rint(counts)) <= _ROUNDING]
    return int(items[0]) if len(items) else None


@lru_cache(maxsize=4096)
def student_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t distribution.

    With t = sqrt(degrees) tan(angle), the distribution's density is the power degrees - 1 of the angle's cosine; that
    is added up and looked up, which takes milliseconds; quantiles are kept.

    Args:
        probability: In [0.5, 1).
        degrees: Of freedom, at least 1; need not be whole.
    """
    angle = np.linspace(0.0, math.pi / 2, 200_001)
    density = np.cos(angle) ** (degrees - 1)
    steps = (density[1:] + density[:-1]) / 2
    mass = np.concatenate([np.zeros(1), np.cumsum(steps)])
    wanted = (2 * probability - 1) * mass[-1]
    return math.sqrt(degrees) * math.tan(float(np.interp(wanted, mass, angle)))


def student_margin(stderr: float, degrees: float, confidence: float = CONFIDENCE) -> float:
    """Half the width of an interval by Student's t.

    Args:
        stderr: Standard error of the figure.
        degrees: Of freedom of the standard error, at least 1; need not be whole.
        confidence: Of 1.
    """
    return stderr * student_quantile(0.5 + confidence / 2, degrees)


FEW = 20  # fewer documents are warned of
_SUM_ROUNDING = 1e-12  # of what sums of losses come to


@dataclass(frozen=True)
class Uncertain:
    """A ratio of sums, and how sure it is.

    Attributes:
        value: The ratio; not a number where nothing was counted.
        stderr: Its standard error; None with fewer than two documents, where one is all but everything, and where all
            of them have the same ratio, which tells nothing of chance; never 0.
        degrees: Of freedom of the standard error, at least 1; None where there is none.
        draws: How many documents, or other independent draws, were counted.
    """

    value: float
    stderr: float | None
    degrees: float | None
    draws: int

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % interval by Student's t: what stands behind ± in every table."""
        if self.stderr is None or self.degrees is None:
            return None
        return student_margin(self.stderr, self.degrees)

    @property
    def interval(self) -> tuple[float, float] | None:
        """That holds the true ratio in 95 of 100 cases."""
        margin = self.margin
        return None if margin is None else (self.value - margin, self.value + margin)

    @property
    def share_interval(self) -> tuple[float, float] | None:
        """The interval of a share, cut at 0 and 1."""
        interval = self.interval
        return None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))


def ratio_over_draws(above_G: ArrayLike, below_G: ArrayLike) -> Uncertain:
    """The ratio of two sums over independent draws; see the module's docstring.

    Args:
        above_G: [G]: what each document adds above the line.
        below_G: [G]: what it adds below, not negative. A document with nothing below counts where it adds something
            above, since the ratio has it too; one with nothing at all does not.
    """
    above, below = np.asarray(above_G, dtype=np.float64), np.asarray(below_G, dtype=np.float64)
    counted = (below > 0.0) | (above != 0.0)
    above, below = above[counted], below[counted]
    total = float(below.sum())
    value = float(above.sum()) / total if total > 0.0 else math.nan
    if len(below) < 2 or not math.isfinite(value) or total - float(below.max()) <= _SUM_ROUNDING * total:
        return Uncertain(value, None, None, len(below))
    share = below / total
    change = (share * value - above / total) / (1.0 - share)  # of the ratio, where a document is left out
    stderr = math.sqrt(float(np.square(change).sum()))
    if stderr <= _SUM_ROUNDING * max(1.0, abs(value)):
        return Uncertain(value, None, None, len(below))
    return Uncertain(value, stderr, _degrees(share), len(below))


def _degrees(share: NDArray[np.float64]) -> float:
    """Satterthwaite's degrees of freedom of the jackknife, where documents' ratios are normal and vary alike.

    The variance is the quadratic form of A = (I - 1 share') D (I - share 1') in these ratios, D being diagonal, and has
    trace(A)^2 / trace(A^2) degrees. The traces are sums over pairs of documents, here multiplied out.
    """
    weight = np.square(share / (1.0 - share))
    weight /= weight.sum()
    squares = float(np.square(share).sum())
    once, twice = float((weight * share).sum()), float((weight * share * share).sum())
    trace = float((weight * (1.0 - 2.0 * share + squares)).sum())
    alone = float((weight * weight * (1.0 + 2.0 * squares - 4.0 * share)).sum())
    pairs = squares * squares + 2.0 * twice + 2.0 * once * once - 4.0 * squares * once
    return max(1.0, trace * trace / (alone + pairs))


def plain_interval(interval: tuple[float, float] | None) -> list[float] | None:
    """As JSON gives it back, so that results equal what is read from their files."""
    return None if interval is None else list(interval)


def few_documents(documents: int) -> str | None:
    """What must be said where figures rest on few documents; None where they rest on enough."""
    if documents >= FEW:
        return None
    if documents < 2:
        return (
            "all of the measured text is one document, so that there is no standard error and no interval: how much "
            "the figures would change with other text is not known; measure on several documents"
        )
    return (
        f"the measured text is of {documents} documents only: the intervals are wide, and less reliable than with "
        f"{FEW} or more"
    )


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
