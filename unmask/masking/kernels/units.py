"""Units: partitions, sums over them, and where spans and collocations begin.

Arrays: T = all positions of a batch in a line.
"""

from __future__ import annotations

import numpy as np

from unmask.compiled import compiled
from unmask.hashing import GOLDEN, SPAN_LENGTH
from unmask.masking.kernels.hashing import drawn, longer, mix, token_in_word
from unmask.masking.kernels.rows import Bools, Ints


@compiled
def partition(maskable_T: Bools, segment_begin_T: Ints, starts_T: Bools) -> tuple[Ints, Ints]:
    """The places where units begin, for each token, and their sizes at these places: both [T]."""
    begin_T = np.empty(len(maskable_T), dtype=np.int64)
    size_T = np.zeros(len(maskable_T), dtype=np.int64)
    within, unit = False, 0
    for place in range(len(maskable_T)):
        if not maskable_T[place]:
            begin_T[place] = place
            within = False
            continue
        if starts_T[place] or not within or segment_begin_T[place] == place:
            unit = place
        begin_T[place] = unit
        size_T[unit] += 1
        within = True
    return begin_T, size_T


@compiled
def sums(begin_T: Ints, values_T: Ints) -> Ints:
    """Sums of values by the place that each token names: [T], 0 where none does."""
    result_T = np.zeros(len(values_T), dtype=np.int64)
    for place in range(len(values_T)):
        result_T[begin_T[place]] += values_T[place]
    return result_T


@compiled
def largest(begin_T: Ints, values_T: Ints) -> Ints:
    """The largest value of each unit's tokens, at the place where it begins: [T]."""
    result_T = values_T.copy()
    for place in range(len(values_T)):
        begin = begin_T[place]
        result_T[begin] = max(result_T[begin], values_T[place])
    return result_T


@compiled
def span_starts(word_T: Bools, segment_begin_T: Ints, bits_T: Ints, ends: Ints) -> Bools:
    """Where spans begin that tile the words of each segment: the k-th is as long as the k-th word draws.

    Args:
        word_T: Where words begin.
        segment_begin_T: Where each token's segment begins.
        bits_T: Random bits.
        ends: Upper ends of the lengths 1, 2, ... on a scale of 2**32.
    """
    starts_T = np.zeros(len(word_T), dtype=np.bool_)
    word, tile_begins, own = 0, 0, 0
    for place in range(len(word_T)):
        if segment_begin_T[place] == place:
            word, tile_begins, own = 0, 0, place
        if not word_T[place]:
            continue
        if word == tile_begins:
            starts_T[place] = True
            while not word_T[own]:
                own += 1
            draw = drawn(mix(bits_T[own] + GOLDEN), SPAN_LENGTH)
            length = 1
            while length < len(ends) and draw >= ends[length - 1]:
                length += 1
            tile_begins += length
            own += 1
        word += 1
    return starts_T


@compiled
def _contains(places: Ints, word: int) -> bool:
    last = len(places) - 1
    return places[word & last] == word or places[(word >> 32) & last] == word


@compiled
def collocation_starts(
    most_words: int, places: Ints, ids_T: Ints, maskable_T: Bools, word_starts_T: Bools, segment_begin_T: Ints
) -> Bools:
    """Where units begin that are collocations, the longest at each place from left to right, or words.

    Args:
        most_words: Of a collocation.
        places: Of the hash set of collocations.
        ids_T, maskable_T, word_starts_T, segment_begin_T: The batch.
    """
    total = len(ids_T)
    starts_T = np.zeros(total, dtype=np.bool_)
    word_begins = np.empty(total + 1, dtype=np.int64)
    hashes = np.empty(total, dtype=np.int64)
    place = 0
    while place < total:
        if not maskable_T[place]:
            place += 1
            continue
        begin, num_words = place, 0  # of a run of tokens with nothing between them
        while place < total and maskable_T[place] and (place == begin or segment_begin_T[place] != place):
            if place == begin or word_starts_T[place]:
                word_begins[num_words] = place
                hashes[num_words] = 0
                num_words += 1
            own = num_words - 1
            hashes[own] += token_in_word(ids_T[place], place - word_begins[own])
            place += 1
        word = 0
        while word < num_words:
            starts_T[word_begins[word]] = True
            found, sequence = 1, hashes[word]
            for n in range(2, min(most_words, num_words - word) + 1):
                sequence = longer(sequence, mix(hashes[word + n - 1]))
                if _contains(places, sequence):
                    found = n
            word += found
    return starts_T


@compiled
def counts_in_segment(vocab_size: int, ids_T: Ints, segment_begin_T: Ints) -> Ints:
    """How often each token's id stands in its segment: [T]."""
    counts_T = np.empty(len(ids_T), dtype=np.int64)
    counts_V = np.zeros(vocab_size, dtype=np.int64)
    begin = 0
    while begin < len(ids_T):
        end = begin
        while end < len(ids_T) and segment_begin_T[end] == begin:
            counts_V[ids_T[end]] += 1
            end += 1
        for place in range(begin, end):
            counts_T[place] = counts_V[ids_T[place]]
        for place in range(begin, end):
            counts_V[ids_T[place]] = 0
        begin = end
    return counts_T
