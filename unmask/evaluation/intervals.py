"""Intervals that hold the true value in 95 of 100 cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev

import numpy as np

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
    half = student_quantile(0.5 + confidence / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


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
    mean = fmean(differences)
    spread = max(
        math.fsum((value - mean) ** 2 for value in differences) / (count - 1), 1.0 / (6.0 * items**2), abs(mean) / items
    )
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
