"""N-grams of words that stand often in a corpus, counted exactly, level by level, and their PMI.

An n-gram is no more frequent than either of its two (n-1)-grams. So a pass over the corpus for each n counts only those
whose parts were frequent, and one more pass finds out what the frequent ones consist of. Memory holds what is frequent
and some chunks of the corpus; all else lies in sorted runs on the disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.shards.key_counter import RUN_KEYS, Counted, Counter
from unmask.shards.token_words import TokenWords


def pmi_of(census: Census) -> list[NDArray[np.float64]]:
    """The pointwise mutual information of n words: how much likelier they stand together than their parts by chance.

        PMI(w1 ... wn) = min over all ways to cut w1 ... wn into parts  of  log( p(w1 ... wn) / product of p(part) )

    The minimum is what keeps `new york is` out: cut into `new york` and `is`, it is about what chance makes of these.

    Cut off the first l words as one part, and cut the rest in the best way or not at all: the best of all l is the best
    cut. Parts of a frequent n-gram are frequent, so all of them are in the levels below.

    Returns:
        For n = 1, 2, ...: [K], in nats, of every frequent n-gram; infinite for n = 1, where there is nothing to cut.

    Source: Levine et al. 2021 (PMI-Masking), section 4. p is a count divided by the number of words of the corpus, for
    any number of words.
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


Corpus = Callable[[str], Iterator[tuple[NDArray[np.int64], TokenWords]]]
"""Goes through the corpus once, telling somebody for what: the tokens of each chunk, and its words."""


@dataclass(frozen=True)
class Level:
    """The frequent n-grams of one n. K = how many there are; those of n = 1 are words.

    Attributes:
        keys: [K], int64: their hashes, in increasing order.
        counts: [K], int64.
        words: [K, n], int32: numbers of their words in the first level.
        prefix: [K], int32: number of the first n - 1 words in the level below; empty for n = 1.
        suffix: [K], int32: number of the last n - 1 words.
    """

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    words: NDArray[np.int32]
    prefix: NDArray[np.int32]
    suffix: NDArray[np.int32]


@dataclass(frozen=True)
class Spellings:
    """The tokens of the frequent words, one word behind another.

    Attributes:
        input_ids: [num_tokens], int32.
        begins: [K + 1], int64.
        whole: [K], bool: words proper; false for what joins.
    """

    input_ids: NDArray[np.int32]
    begins: NDArray[np.int64]
    whole: NDArray[np.bool_]


@dataclass(frozen=True)
class Census:
    """What was counted.

    Attributes:
        num_words: Words of the corpus, all of them.
        levels: For n = 1, 2, ...
        spellings: Of the first level.
    """

    num_words: int
    levels: tuple[Level, ...]
    spellings: Spellings


def find(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Looks keys up in a sorted table. Returns: their numbers in it (any where they are not), and whether they are."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted


def take_census(corpus: Corpus, *, most_words: int, min_count: int, scratch: Path, run_keys: int = RUN_KEYS) -> Census:
    """Counts the n-grams of a corpus.

    Args:
        corpus: Gone through once for each n, and once more.
        most_words: Largest n.
        min_count: What is kept stands more often than this.
        scratch: Folder for temporary files.
        run_keys: Keys that are counted in memory at a time.
    """
    counted: list[Counted] = []
    num_words = 0
    for n in range(1, most_words + 1):
        with Counter(scratch, run_keys=run_keys) as counter:
            for _, words in corpus("counting words" if n == 1 else f"counting {n} words in a row"):
                num_words += words.num_words if n == 1 else 0
                counter.add(_candidates(words, n, counted))
            counted.append(counter.above(min_count))
        if not len(counted[-1].keys):
            break
    return _describe(corpus, counted, num_words)


def _candidates(words: TokenWords, n: int, counted: list[Counted]) -> NDArray[np.int64]:
    """The n-grams of a chunk of which both (n-1)-grams are frequent."""
    *_, shorter, longest = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)), *words.grams(n)]
    hashes, together = longest
    if n == 1 or not len(hashes):
        return hashes
    _, frequent = find(counted[-1].keys, shorter[0])
    return hashes[together & frequent[:-1] & frequent[1:]]


_Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]
"""Numbers of words, how many tokens each has, and these, one word behind another."""


def _describe(corpus: Corpus, counted: list[Counted], num_words: int) -> Census:
    """Finds out what the frequent n-grams consist of, from wherever they stand."""
    sizes = [len(level.keys) for level in counted]
    prefixes = [np.zeros(size, dtype=np.int32) for size in sizes]
    suffixes = [np.zeros(size, dtype=np.int32) for size in sizes]
    whole, spelled = np.zeros(sizes[0], dtype=bool), np.zeros(sizes[0], dtype=bool)
    found: list[_Found] = []
    for input_ids, words in corpus("reading the frequent ones"):
        below = np.zeros(0, dtype=np.int64)
        for n, (hashes, together) in enumerate(words.grams(len(counted)), start=1):
            place, frequent = find(counted[n - 1].keys, hashes)
            frequent &= together
            if n == 1:
                found.append(_spell(input_ids, words, np.where(frequent, place, -1), spelled, whole))
            else:  # all places are in the level below, since parts of the frequent are
                prefixes[n - 1][place[frequent]] = below[:-1][frequent]
                suffixes[n - 1][place[frequent]] = below[1:][frequent]
            below = place
    levels: list[Level] = []
    for (keys, counts), prefix, suffix in zip(counted, prefixes, suffixes, strict=True):
        table = np.arange(len(keys), dtype=np.int32)[:, None]
        if levels:
            table = np.concatenate([levels[-1].words[prefix], levels[-1].words[suffix][:, -1:]], axis=1)
        levels.append(Level(keys, counts, table, prefix, suffix))
    return Census(num_words, tuple(levels), _spellings(found, whole))


def _spell(
    input_ids: NDArray[np.int64],
    words: TokenWords,
    number: NDArray[np.int64],
    spelled: NDArray[np.bool_],
    whole: NDArray[np.bool_],
) -> _Found:
    """The words of a chunk that were not met before; marks them, and which are words proper.

    Args:
        input_ids: The tokens of the chunk.
        words: Its words.
        number: [W]: of each word among the frequent; -1 where it is none.
        spelled: [K]: what was met before; changed in place.
        whole: [K]; changed in place.
    """
    new = np.flatnonzero((number >= 0) & ~spelled[number] if len(spelled) else np.zeros(len(number), dtype=bool))
    numbers, first = np.unique(number[new], return_index=True)
    place = new[first]
    spelled[numbers] = True
    whole[numbers] = words.whole[place]
    return numbers, words.lengths[place], gather(input_ids, words.begins[place], words.lengths[place])


def _spellings(found: list[_Found], whole: NDArray[np.bool_]) -> Spellings:
    """Puts the words that were found in chunks into the order of their numbers."""
    none = np.zeros(0, dtype=np.int64)
    numbers, lengths, input_ids = (np.concatenate([none, *(part[k] for part in found)]) for k in range(3))
    order = np.argsort(numbers)
    begins = np.concatenate([[0], np.cumsum(lengths[order])])
    return Spellings(gather(input_ids, (np.cumsum(lengths) - lengths)[order], lengths[order]), begins, whole)


def gather(
    values: NDArray[np.integer[Any]], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Some slices of an array, one behind another."""
    before = np.cumsum(lengths) - lengths
    return values[np.repeat(begins - before, lengths) + np.arange(lengths.sum())].astype(np.int32)
