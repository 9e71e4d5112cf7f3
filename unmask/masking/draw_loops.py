"""The compiled loops of masking: hashes, segments, units, draws and replacements.

Hashes equal those of `unmask.core.hashing`. All arithmetic is in integers, or in double-precision additions and
products whose order depends on the segment alone, so results are the same on every machine.

Array suffixes: B = rows, S = positions, T = B x S in a line; V = vocabulary; D = directions of an embedding; P = places
of a hash set; u, v = units of a segment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unmask.core import hashing
from unmask.core.compiled import compiled
from unmask.core.hashing import (
    BEGINNING,
    CROSSING,
    EXCHANGE,
    GOLDEN,
    ORDER,
    RANDOM_TOKEN,
    SHOWN,
    SPAN_LENGTH,
    BitField,
    mix_ints,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

POINT = 18  # fixed-point logarithms count in 2**-18
RATE_BITS = CROSSING.size  # rates count in 2**-24
MOST_DOUBLINGS = 1000  # largest ratio of a segment's weights is 2**1000, within the range of doubles

_HALF, _LOW = POINT // 2, (1 << POINT // 2) - 1  # fractions of logarithms are looked up in two halves
_CHANCE_BITS = BEGINNING.size  # bits of fixed-point probabilities
_ONE = 1 << _CHANCE_BITS
_CHOSEN, _PREDICTED = mix_ints(6), mix_ints(7)  # draws that are independent of those for units, replacement and rates
_FEW = 16  # so few units are sorted rather than partitioned again
_PLACE_BITS = 32
_PLACE = (1 << _PLACE_BITS) - 1

# The hash of a single number, compiled from the same source.
mix = cast(Callable[[int], int], compiled(cast(Any, hashing.mix)))


# Compiled versions of functions in `unmask.core.hashing`, which documents them.
@compiled
def drawn(bits: int, field: BitField) -> int:
    return (bits >> field.first) & ((1 << field.size) - 1)


@compiled
def token_in_word(token: int, place: int) -> int:
    return mix(mix(token + 1) + place * GOLDEN)


@compiled
def longer(sequence: int, mixed_word: int) -> int:
    return mix(sequence + GOLDEN) + mixed_word


@compiled
def segments_and_bits(
    key: int, segments_BS: NDArray[np.integer[Any]], keys_BS: Ints, positions_BS: Ints
) -> tuple[Ints, Ints]:
    """The index of each token's segment start, and 64 random bits for each token: [T] each."""
    num_rows, length = segments_BS.shape
    begin_T = np.empty(num_rows * length, dtype=np.int64)
    bits_T = np.empty(num_rows * length, dtype=np.int64)
    begin, origin = 0, 0
    for b in range(num_rows):
        row = b * length
        for s in range(length):
            if s == 0 or segments_BS[b, s] != segments_BS[b, s - 1] or keys_BS[b, s] != keys_BS[b, s - 1]:
                begin = row + s
                origin = positions_BS[b, s]
            begin_T[row + s] = begin
            bits_T[row + s] = keys_BS[b, s] + (positions_BS[b, s] - origin) * GOLDEN + key
        for place in range(row, row + length):  # a loop of its own, so that it is vectorised
            bits_T[place] = mix(bits_T[place])
    return begin_T, bits_T


@compiled
def positions_and_keys(ids_BS: Ints, inside_BS: Bools) -> tuple[Ints, Ints]:
    """Positions within the rows, 0 at padding, and a hash of each row's content: both [B, S]."""
    num_rows, length = ids_BS.shape
    positions_BS = np.zeros((num_rows, length), dtype=np.int64)
    keys_BS = np.empty((num_rows, length), dtype=np.int64)
    for b in range(num_rows):
        first = 0
        while first < length and not inside_BS[b, first]:
            first += 1
        total = 0
        for s in range(first, length):
            total += token_in_word(ids_BS[b, s], s - first) if inside_BS[b, s] else 0
        key = mix(total)
        for s in range(length):
            keys_BS[b, s] = key
            if inside_BS[b, s]:
                positions_BS[b, s] = s - first
    return positions_BS, keys_BS


@compiled
def partition_loop(maskable_T: Bools, segment_begin_T: Ints, starts_T: Bools) -> tuple[Ints, Ints]:
    """The index of each token's unit start, and the size of each unit at its start: both [T]."""
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
    """Sums of values by `begin_T`, at the index that it gives: [T], 0 elsewhere."""
    result_T = np.zeros(len(values_T), dtype=np.int64)
    for place in range(len(values_T)):
        result_T[begin_T[place]] += values_T[place]
    return result_T


@compiled
def largest(begin_T: Ints, values_T: Ints) -> Ints:
    """The largest value of each unit's tokens, at the unit's start: [T]."""
    result_T = values_T.copy()
    for place in range(len(values_T)):
        begin = begin_T[place]
        result_T[begin] = max(result_T[begin], values_T[place])
    return result_T


@compiled
def span_starts(word_T: Bools, segment_begin_T: Ints, bits_T: Ints, ends: Ints) -> Bools:
    """The starts of spans that tile the words of each segment. The k-th word draws the length of the k-th span. `ends`
    are the cumulative probabilities of the lengths 1, 2, ... on a scale of 2**32."""
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
def hash_set(hashes: Ints) -> Ints:
    """A hash set for fast look-ups: [P], a power of two. A hash is at the index of its lower bits, or at the next free
    one after it (0 is free). At most a quarter of the places are used."""
    size = 4
    while size < 4 * len(hashes):
        size *= 2
    set_P = np.zeros(size, dtype=np.int64)
    for n in range(len(hashes)):
        at = hashes[n] & (size - 1)
        while set_P[at] != 0 and set_P[at] != hashes[n]:
            at = (at + 1) & (size - 1)
        set_P[at] = hashes[n]
    return set_P


@compiled
def collocation_starts(
    most_words: int, set_P: Ints, ids_T: Ints, maskable_T: Bools, word_starts_T: Bools, segment_begin_T: Ints
) -> Bools:
    """The starts of units: from left to right, the longest collocation at each word, or the word alone. `set_P` is the
    hash set of collocations, which have at most `most_words` words."""
    total, last = len(ids_T), len(set_P) - 1
    starts_T = np.zeros(total, dtype=np.bool_)
    word_begins = np.empty(total + 1, dtype=np.int64)
    hashes = np.empty(total, dtype=np.int64)
    place = 0
    while place < total:
        if not maskable_T[place]:
            place += 1
            continue
        begin, num_words = place, 0  # of a run of maskable tokens
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
            longest, sequence = 1, hashes[word]
            for n in range(2, min(most_words, num_words - word) + 1):
                sequence = longer(sequence, mix(hashes[word + n - 1]))
                at = sequence & last
                while set_P[at] != 0 and set_P[at] != sequence:
                    at = (at + 1) & last
                if set_P[at] == sequence:
                    longest = n
            word += longest
    return starts_T


@compiled
def counts_in_segment(vocab_size: int, ids_T: Ints, segment_begin_T: Ints) -> Ints:
    """The count of each token's id in its segment: [T]."""
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


@compiled
def cosines(
    table_VD: Ints, ids_T: Ints, maskable_T: Bools, segment_begin_T: Ints, unit_begin_T: Ints
) -> NDArray[np.float64]:
    """The cosine between the embeddings of each unit and its segment, at the unit's start: [T]; 0 if either embedding
    is zero. Both are sums over tokens, in fixed point."""
    total, width = len(ids_T), table_VD.shape[1]
    cosine_T = np.zeros(total, dtype=np.float64)
    whole = np.empty(width, dtype=np.int64)
    own = np.empty(width, dtype=np.int64)
    begin = 0
    while begin < total:
        whole[:] = 0
        end = begin
        while end < total and segment_begin_T[end] == begin:
            if maskable_T[end]:
                embedding = table_VD[ids_T[end]]
                for d in range(width):
                    whole[d] += embedding[d]
            end += 1
        length = 0
        for d in range(width):
            length += whole[d] * whole[d]
        place = begin
        while place < end:
            unit = place
            own[:] = 0
            while place < end and unit_begin_T[place] == unit:
                if maskable_T[place]:
                    embedding = table_VD[ids_T[place]]
                    for d in range(width):
                        own[d] += embedding[d]
                place += 1
            product, square = 0, 0
            for d in range(width):
                product += own[d] * whole[d]
                square += own[d] * own[d]
            cosine_T[unit] = float(product) / math.sqrt(max(float(square) * float(length), 1.0))
        begin = end
    return cosine_T


@compiled
def replaced(
    mask_id: int,
    mask_end: int,
    random_end: int,
    random_tokens: tuple[Ints, Ints],
    ids_T: Ints,
    chosen_T: Bools,
    bits_T: Ints,
    draw_place_T: Ints,
) -> Ints:
    """Ids with chosen tokens replaced by masks and random tokens: [T].

    A draw below `mask_end` of 2**31 gives the mask, one below `random_end` a random token from `random_tokens` (see
    `draw.random_tokens`). `draw_place_T` is the index of the token whose bits are used: the token, or its unit's first.
    """
    counts_V, ends_V = random_tokens
    seen_T = ids_T.copy()
    for place in range(len(ids_T)):
        if not chosen_T[place]:
            continue
        own_bits = mix(bits_T[place])
        whose = draw_place_T[place]
        draw = drawn(own_bits if whose == place else mix(bits_T[whose]), SHOWN)
        if draw < mask_end:
            seen_T[place] = mask_id
        elif draw < random_end:
            own, end = counts_V[ids_T[place]], ends_V[ids_T[place]]
            nth = (drawn(own_bits, RANDOM_TOKEN) * (ends_V[-1] - own)) >> RANDOM_TOKEN.size
            nth += own * (nth >= end - own)
            seen_T[place] = np.searchsorted(ends_V, nth, side="right")
    return seen_T


@compiled
def _pivot(words: Ints, low: int, high: int, share: float) -> int:
    # Guesses the quantile `share` of the units from a sample of five; never the smallest or the largest of them.
    step = (high - low - 1) // 4
    a, b, c = words[low], words[low + step], words[low + 2 * step]
    d, e = words[low + 3 * step], words[high - 1]
    a, b, d, e = min(a, b), max(a, b), min(d, e), max(d, e)
    c, e = min(c, e), max(c, e)
    c, d = min(c, d), max(c, d)
    b, e = min(b, e), max(b, e)
    a, d = min(a, d), max(a, d)
    a, c = min(a, c), max(a, c)
    b, d = min(b, d), max(b, d)
    b, c = min(b, c), max(b, c)
    return b if share < 0.3 else c if share < 0.7 else d


@compiled
def _around(room: int, count: int, words: Ints, other: Ints) -> tuple[int, int]:
    # Orders units so that the one that crosses the room is among the few from `low` to `high`: all units before are
    # smaller, all after are larger.
    low, high = 0, count
    while high - low > _FEW:
        pivot = _pivot(words, low, high, (room - low) / (high - low))
        smaller, larger = low, 0
        for u in range(low, high):  # without a branch, which would be mispredicted every other time
            word = words[u]
            is_smaller = word < pivot
            words[smaller] = word
            other[larger] = word
            smaller += is_smaller
            larger += not is_smaller
        if smaller > room:
            high = smaller  # larger units are not looked at again
        else:
            for u in range(larger):  # assigning a slice would also compile its error message, which takes 2 s
                words[smaller + u] = other[u]
            low = smaller
    return low, high


@compiled
def _take_first(room: int, least_one: bool, count: int, words: Ints, other: Ints, bits_T: Ints, taken_T: Bools) -> int:
    """Marks units of a segment in the order of their keys, as many as the room, in 2**-24.

    Units are partitioned by pivots until those that fill the room are known, so hardly any are sorted. The unit that
    crosses the room is taken with the probability of the remaining fraction, by its random bits. Reorders `words` (key
    and place of each unit). Returns how many of them, from the start, include all that a smaller room takes.
    """
    low, high = _around(room >> RATE_BITS, count, words, other)
    for u in range(low):
        taken_T[words[u] & _PLACE] = True
    for u in range(low, high):
        left = room - (u << RATE_BITS)
        if left <= 0 and not (least_one and u == 0):
            break
        smallest = u
        for v in range(u + 1, high):
            if words[v] < words[smallest]:
                smallest = v
        words[u], words[smallest] = words[smallest], words[u]
        place = words[u] & _PLACE
        taken_T[place] = left > drawn(bits_T[place], CROSSING) or (least_one and u == 0)
    return high


@compiled
def _of_units(taken_T: Bools, unit_begin_T: Ints) -> Bools:
    # Copies the mark at a unit's start to all of its tokens.
    chosen_T = np.empty(len(taken_T), dtype=np.bool_)
    for place in range(len(taken_T)):
        chosen_T[place] = taken_T[unit_begin_T[place]]
    return chosen_T


@compiled
def _capped(budget: float, count: int, sizes: Ints, weights: Floats, chances: Floats) -> None:
    """Turns weights into probabilities: in proportion, at most 1, with `budget` tokens in expectation.

    Probabilities above 1 become 1, and the budget that this leaves raises the others, until none is above 1.
    Source: Tillé 2006, Sampling Algorithms, section 2.10; here a unit costs its tokens.
    """
    for u in range(count):
        chances[u] = weights[u]  # a negative one will mean: always taken
    while True:
        tokens, heaviest = 0.0, 0.0
        for u in range(count):
            weight = max(chances[u], 0.0)
            tokens += weight * sizes[u]
            heaviest = max(heaviest, weight)
        scale = max(budget, 0.0) / tokens if tokens > 0.0 else 0.0
        if scale * heaviest < 1.0:
            break
        for u in range(count):
            if scale * chances[u] >= 1.0:
                chances[u] = -1.0
                budget -= sizes[u]
    for u in range(count):
        chances[u] = 1.0 if chances[u] < 0.0 else scale * chances[u]


@compiled
def _systematic(
    random: int, least_one: bool, count: int, order: Ints, chances: Floats, places: Ints, taken_T: Bools
) -> int:
    """Marks units so that each is taken with its own probability, and their number varies by less than one.

    The probabilities are added up in the given order. A unit is taken if its addition makes the sum pass u, u + 1,
    u + 2, ..., with a single random u, in 2**-32. Afterwards `order` begins with the units taken; returns their number.

    Source: Madow 1949 (On the theory of systematic sampling, II); Tillé 2006, Sampling Algorithms, section 7.1.
    """
    point = random
    if least_one:
        total = 0
        for u in range(count):
            total += int(chances[order[u]] * _ONE + 0.5)
        if total < _ONE:
            point = ((random >> 1) * total) >> (_CHANCE_BITS - 1)
    taken, passed = 0, 0
    for u in range(count):
        unit = order[u]
        passed += int(chances[unit] * _ONE + 0.5)
        if passed > point:
            taken_T[places[unit]] = True
            point += _ONE
            order[taken] = unit
            taken += 1
    return taken


@compiled
def _take_weighted(
    budgets: tuple[float, float],
    least_one: bool,
    begin: int,
    count: int,
    units: tuple[Ints, Ints, Ints],
    scratch: tuple[Floats, Floats],
    bits_T: Ints,
    marked: tuple[Bools, Bools],
) -> None:
    """Marks units of a segment with probabilities in proportion to their weights, and which of them are predicted.

    `budgets` are the expected numbers of tokens that are taken, and predicted (negative: all). `units` are the sizes of
    units, their starts, and a buffer for an order; `scratch` their weights, and a buffer for probabilities. `marked`
    receives the marks of units that are taken, and predicted.
    """
    sizes, places, order = units
    weights, chances = scratch
    for u in range(count):
        order[u] = u
    for u in range(count - 1, 0, -1):  # Fisher and Yates: a random order, without sorting
        other = (drawn(bits_T[places[u]], EXCHANGE) * (u + 1)) >> EXCHANGE.size
        order[u], order[other] = order[other], order[u]
    _capped(budgets[0], count, sizes, weights, chances)
    random = drawn(mix(bits_T[begin] + _CHOSEN), BEGINNING)
    taken = _systematic(random, least_one, count, order, chances, places, marked[0])
    if budgets[1] < 0.0:
        return
    predicted = np.empty(count, dtype=np.float64)
    _capped(budgets[1], count, sizes, weights, predicted)
    for u in range(count):  # probabilities given that a unit is taken; a smaller budget never raises a probability
        predicted[u] = min(predicted[u] / chances[u], 1.0) if chances[u] > 0.0 else 0.0
    random = drawn(mix(bits_T[begin] + _PREDICTED), BEGINNING)
    _systematic(random, least_one, taken, order, predicted, places, marked[1])


@compiled
def take_units(
    how: tuple[bool, int],
    powers: tuple[Floats, Floats, Floats],
    segment_begin_T: Ints,
    unit_begin_T: Ints,
    size_T: Ints,
    log2_T: Ints,
    bits_T: Ints,
    share_T: Ints,
) -> tuple[Bools, Bools]:
    """The tokens of chosen units, and of predicted ones. Each unit is taken with the probability of its weight.

    Among equal units, those with the smallest random bits are taken: the rate times their number, with a fraction
    decided at random. This is systematic sampling in a random order, without making the order.

    `how` tells whether at least one unit of each segment is taken, and the expected share to predict, negative for all.
    `log2_T` has no elements if all weights are equal; `share_T`, [T] or [1], is in 2**-24.
    """
    least_one, predicted_share = how
    wholes, coarse, fine = powers
    total, some, weighted = len(bits_T), predicted_share >= 0, len(log2_T) > 0
    taken_T = np.zeros(total, dtype=np.bool_)
    predicted_T = np.zeros(total if some else 0, dtype=np.bool_)
    words = np.empty(total, dtype=np.int64)  # random bits and index of each unit of the segment
    other, sizes, places = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64), words
    weights, chances = np.empty(total, dtype=np.float64), np.empty(total, dtype=np.float64)
    begin = 0
    while begin < total:
        end, count = begin, 0
        while end < total and segment_begin_T[end] == begin:
            words[count] = (drawn(bits_T[end], ORDER) << _PLACE_BITS) | end
            count += size_T[end] > 0
            end += 1
        share = share_T[begin] if len(share_T) > 1 else share_T[0]
        equal = True
        for u in range(1, count if weighted else 0):
            equal &= log2_T[words[u] & _PLACE] == log2_T[words[0] & _PLACE]
        if equal:
            high = _take_first(count * share, least_one, count, words, other, bits_T, taken_T)
            if some:
                room = count * predicted_share
                _take_first(room, least_one, high, words, other, bits_T, predicted_T)
        else:
            tokens = 0
            for u in range(count):
                places[u] = words[u] & _PLACE
                sizes[u] = size_T[places[u]]
                tokens += sizes[u]
            most = log2_T[places[0]]  # weights are relative to the segment's largest
            for u in range(1, count):
                most = max(most, log2_T[places[u]])
            for u in range(count):
                less = min(most - log2_T[places[u]], MOST_DOUBLINGS << POINT)
                weights[u] = wholes[less >> POINT] * coarse[(less >> _HALF) & _LOW] * fine[less & _LOW]
            budgets = (tokens * share / (1 << RATE_BITS), tokens * predicted_share / (1 << RATE_BITS))
            units = (sizes, places, other)
            _take_weighted(budgets, least_one, begin, count, units, (weights, chances), bits_T, (taken_T, predicted_T))
        begin = end
    chosen_T = _of_units(taken_T, unit_begin_T)
    return chosen_T, (_of_units(predicted_T, unit_begin_T) if some else chosen_T)
