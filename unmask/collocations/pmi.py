"""The pointwise mutual information of n words: how much likelier they stand together than their parts by chance.

    PMI(w1 ... wn) = min over all ways to cut w1 ... wn into parts  of  log( p(w1 ... wn) / product of p(part) )

The minimum is what keeps `new york is` out: cut into `new york` and `is`, it is about what chance makes of these.

Source: Levine et al. 2021 (PMI-Masking), section 4. p is a count divided by the number of words of the corpus, for any
number of words.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unmask.collocations.levels import Census


def pmi_of(census: Census) -> list[NDArray[np.float64]]:
    """The PMI of every frequent n-gram, in nats.

    Cut off the first l words as one part, and cut the rest in the best way or not at all: the best of all l is the best
    cut. Parts of a frequent n-gram are frequent, so all of them are in the levels below.

    Returns:
        For n = 1, 2, ...: [K]; infinite for n = 1, where there is nothing to cut.
    """
    logs = [np.log(level.counts) - math.log(max(census.num_words, 1)) for level in census.levels]
    best: list[NDArray[np.float64]] = []  # the largest sum of log p over all cuts, or of the whole
    found: list[NDArray[np.float64]] = []
    for n, log_p in enumerate(logs, start=1):
        numbers = np.arange(len(log_p))
        prefixes, suffixes = _ends(census, n, numbers)
        cut = np.full(len(log_p), -math.inf)
        for length in range(1, n):
            first, rest = prefixes[length - 1], suffixes[n - length - 1]
            cut = np.maximum(cut, logs[length - 1][first] + best[n - length - 1][rest])
        found.append(log_p - cut)
        best.append(np.maximum(log_p, cut))
    return found


def _ends(
    census: Census, n: int, numbers: NDArray[np.int64]
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """The numbers of the first and of the last 1, 2, ... n - 1 words of n-grams, each in its level."""
    prefixes: list[NDArray[np.int64]] = []
    suffixes: list[NDArray[np.int64]] = []
    first = last = numbers
    for level in reversed(census.levels[1:n]):
        first, last = level.prefix[first].astype(np.int64), level.suffix[last].astype(np.int64)
        prefixes.insert(0, first)
        suffixes.insert(0, last)
    return prefixes, suffixes
