"""Which units are masked, so that the expected share of tokens is the rate: fixed-point weights and the draw.

`draw_units` gives every unit the probability that its weight names: equal units the rate, others in proportion to their
weights, at most 1 (what that leaves raises the others). The number of units in a segment varies by less than one. A
unit's probability depends neither on its size nor on its place nor on the length of its segment.

Logarithms of weights are in fixed point, and all arithmetic is in integers, or in additions and products of double
precision in an order that the segment alone decides: the same on every machine.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core import hashing
from unmask.core.compiled import arrays, compiled
from unmask.core.errors import DataError
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
from unmask.data.rows import Rows

# ----------------------------------------
# A set of 64-bit hashes in one tensor, asked for many at once: two looks for each, and no search.
#
# Every hash of the set stands in one of two places, which are read off its lower and its upper bits (a cuckoo table,
# Pagh
# and Rodler 2004). A quarter of the places are in use at most; free ones hold a copy of some hash of the set, so that
# nothing has to be told apart. Binary search takes three to nine times as long on a CPU.
#
# Shape suffix: P = places.

_ROUNDS, _DOUBLINGS = 200, 5


@dataclass(frozen=True, eq=False)
class HashSet:
    """See the module's docstring. Make it with `HashSet.of`.

    Attributes:
        places_P: int64; a power of two of them.
        size: How many hashes there are.
    """

    places_P: Tensor
    size: int

    @classmethod
    def of(cls, hashes: Tensor) -> HashSet:
        """Makes a set of int64 hashes, in any order. They must be well mixed: places are read off their bits."""
        members = np.unique(hashes.cpu().numpy())
        if not len(members):
            return cls(torch.zeros(1, dtype=torch.int64), 0)
        bits = (4 * len(members) - 1).bit_length()
        for more in range(_DOUBLINGS):
            if (places := _placed(members, bits + more)) is not None:
                return cls(torch.from_numpy(places), len(members))
        raise AssertionError("the hashes are not mixed")

    def to(self, device: torch.device) -> HashSet:
        """The same set on another device."""
        return replace(self, places_P=self.places_P.to(device))


def _placed(members: NDArray[np.int64], bits: int) -> NDArray[np.int64] | None:
    """Places hashes among 2**bits: those that lost theirs to another go to their other place, until none has to.

    Returns:
        [2**bits], or None where that does not end.
    """
    last = (1 << bits) - 1
    choices = np.stack([members & last, (members >> 32) & last])
    numbers = np.arange(len(members))
    upper = np.zeros(len(members), dtype=np.int64)
    holder = np.full(last + 1, -1, dtype=np.int64)
    homeless = numbers
    for _ in range(_ROUNDS):
        holder[choices[upper[homeless], homeless]] = homeless
        homeless = numbers[holder[choices[upper, numbers]] != numbers]
        if not len(homeless):
            return members[np.maximum(holder, 0)]
        upper[homeless] ^= 1
    return None


# ----------------------------------------
# Loops over rows, compiled: hashes, segments and random bits, units, sorting keys, and what chosen tokens become.
#
# Hashes are those of `unmask.core.hashing`, number for number.
#
# Arrays: B = rows, S = positions, T = B x S in a line; V = vocabulary; D = directions of an embedding.

# For one number, compiled from the same source.
mix = cast(Callable[[int], int], compiled(cast(Any, hashing.mix)))


@compiled
def drawn(bits: int, field: BitField) -> int:
    """The number that a field of a hash is."""
    return (bits >> field.first) & ((1 << field.size) - 1)


@compiled
def token_in_word(token: int, place: int) -> int:
    """A token's share in the hash of its word."""
    return mix(mix(token + 1) + place * GOLDEN)


@compiled
def longer(sequence: int, mixed_word: int) -> int:
    """The hash of some words and one more behind them."""
    return mix(sequence + GOLDEN) + mixed_word


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@compiled
def segments_and_bits(
    key: int, segments_BS: NDArray[np.integer[Any]], keys_BS: Ints, positions_BS: Ints
) -> tuple[Ints, Ints, Ints]:
    """Running numbers of segments, the places where they begin, and 64 random bits a token: each [T]."""
    num_rows, length = segments_BS.shape
    segment_T = np.empty(num_rows * length, dtype=np.int64)
    begin_T = np.empty(num_rows * length, dtype=np.int64)
    bits_T = np.empty(num_rows * length, dtype=np.int64)
    number, begin, origin = 0, 0, 0
    for b in range(num_rows):
        row = b * length
        for s in range(length):
            if s == 0 or segments_BS[b, s] != segments_BS[b, s - 1] or keys_BS[b, s] != keys_BS[b, s - 1]:
                number += 1
                begin = row + s
                origin = positions_BS[b, s]
            segment_T[row + s] = number
            begin_T[row + s] = begin
            bits_T[row + s] = keys_BS[b, s] + (positions_BS[b, s] - origin) * GOLDEN + key
        for place in range(row, row + length):  # by itself, so that it becomes vector instructions
            bits_T[place] = mix(bits_T[place])
    return segment_T, begin_T, bits_T


@compiled
def positions_and_keys(ids_BS: Ints, inside_BS: Bools) -> tuple[Ints, Ints]:
    """Positions within the rows and a hash of what each row holds: both [B, S]. Padding has position 0."""
    num_rows, length = ids_BS.shape
    positions_BS = np.zeros((num_rows, length), dtype=np.int64)
    keys_BS = np.empty((num_rows, length), dtype=np.int64)
    for b in range(num_rows):
        first = 0
        while first < length and not inside_BS[b, first]:
            first += 1
        total = 0
        for s in range(first, length):
            word = mix(mix(ids_BS[b, s] + 1) + (s - first) * GOLDEN)
            total += word if inside_BS[b, s] else 0
        key = mix(total)
        for s in range(length):
            keys_BS[b, s] = key
            if inside_BS[b, s]:
                positions_BS[b, s] = s - first
    return positions_BS, keys_BS


@compiled
def up_to_last(pad_id: int, ids_BS: Ints) -> Bools:
    """[B, S]: true up to the last token of each row that is no padding."""
    num_rows, length = ids_BS.shape
    inside_BS = np.zeros((num_rows, length), dtype=np.bool_)
    for b in range(num_rows):
        end = length
        while end > 0 and ids_BS[b, end - 1] == pad_id:
            end -= 1
        inside_BS[b, :end] = True
    return inside_BS


@compiled
def partition_loop(maskable_T: Bools, segment_begin_T: Ints, starts_T: Bools) -> tuple[Ints, Ints]:
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


POINT = 18  # fixed-point logarithms count in 2**-18


@compiled
def cosines(
    table_VD: Ints, ids_T: Ints, maskable_T: Bools, segment_begin_T: Ints, unit_begin_T: Ints
) -> NDArray[np.float64]:
    """Cosine between the embedding of each unit, at its first place, and that of its segment: [T].

    Both are sums over their tokens; 0 where either is zero.

    Args:
        table_VD: Embeddings in fixed point.
        ids_T, maskable_T, segment_begin_T, unit_begin_T: The batch and its units.
    """
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
    random_tokens: tuple[Ints, Ints, Ints],
    ids_T: Ints,
    chosen_T: Bools,
    bits_T: Ints,
    draw_place_T: Ints,
) -> Ints:
    """Ids with masks and random tokens in the place of those chosen: [T].

    Args:
        mask_id: Id of the mask.
        mask_end, random_end: Draws below show the mask, those from there to the other a random token; of 2**31.
        random_tokens: [V]: how often each id is drawn, the running sum, and the ids that are drawn where all are
            equally likely; else nothing.
        ids_T, chosen_T: The batch.
        bits_T: A number for each token, whose hash draws what is put there.
        draw_place_T: Whose hash draws whether that is the mask: each token's own place, or that of its unit.
    """
    counts_V, ends_V, listed = random_tokens
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
            if len(listed):
                seen_T[place] = listed[nth]
            else:
                seen_T[place] = np.searchsorted(ends_V, nth, side="right")
    return seen_T


# ----------------------------------------
# Which units of each segment are taken.
#
# Array: T = all positions of a batch in a line.

Floats = NDArray[np.float64]

RATE_BITS = CROSSING.size
_HALF, _LOW = POINT // 2, (1 << POINT // 2) - 1  # fractions of logarithms are looked up in two halves
MOST_DOUBLINGS = 1000  # between the weights of a segment: still a number of double precision
_CHANCE_BITS = BEGINNING.size  # of probabilities
_ONE = 1 << _CHANCE_BITS
_CHOSEN, _PREDICTED = mix_ints(6), mix_ints(7)  # draws that are independent of those for units, replacement and rates
_FEW = 16  # units that are rather sorted than parted again
_PLACE_BITS = 32
_PLACE = (1 << _PLACE_BITS) - 1


@compiled
def _pivot(words: Ints, low: int, high: int, share: float) -> int:
    """A guess of what has this share of the units below it: one of five, and never the smallest or the largest."""
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
    """Orders units so that the one that crosses the room is among a few, all before are smaller, all behind larger.

    Returns:
        Where these few begin and end.
    """
    low, high = 0, count
    while high - low > _FEW:
        pivot = _pivot(words, low, high, (room - low) / (high - low))
        smaller, larger = low, 0
        for u in range(low, high):  # without a branch, which would be guessed wrong every other time
            word = words[u]
            is_smaller = word < pivot
            words[smaller] = word
            other[larger] = word
            smaller += is_smaller
            larger += not is_smaller
        if smaller > room:
            high = smaller  # what is larger is not looked at again
        else:
            for u in range(larger):  # assigning a slice would compile what to say of one that does not fit: 2 s
                words[smaller + u] = other[u]
            low = smaller
    return low, high


@compiled
def _take_first(room: int, least_one: bool, count: int, words: Ints, other: Ints, bits_T: Ints, taken_T: Bools) -> int:
    """Marks units of a segment in the order of their keys until there are as many as the room says.

    Units are parted by a pivot until those are known that fill it, so hardly any of them is sorted. The unit that
    crosses is taken with the probability of the fraction that is left, by its random bits.

    Args:
        room: Units, in 2**-RATE_BITS.
        least_one: Whether the first unit is taken at any rate.
        count: How many units there are.
        words: Key and place of each unit; they are put into another order.
        other: As long at least, to work in.
        bits_T: Random bits.
        taken_T: Where units are marked, at the places where they begin.

    Returns:
        How many units at the beginning of `words` hold all that a smaller room could take.
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
    """What is marked where a unit begins, at all of its tokens."""
    chosen_T = np.empty(len(taken_T), dtype=np.bool_)
    for place in range(len(taken_T)):
        chosen_T[place] = taken_T[unit_begin_T[place]]
    return chosen_T


@compiled
def _weigh(count: int, places: Ints, log2_T: Ints, powers: tuple[Floats, Floats, Floats], weights: Floats) -> None:
    """Weights of a segment's units, relative to the largest."""
    wholes, coarse, fine = powers
    most = log2_T[places[0]]
    for u in range(1, count):
        most = max(most, log2_T[places[u]])
    for u in range(count):
        less = min(most - log2_T[places[u]], MOST_DOUBLINGS << POINT)
        weights[u] = wholes[less >> POINT] * coarse[(less >> _HALF) & _LOW] * fine[less & _LOW]


@compiled
def _capped(budget: float, count: int, sizes: Ints, weights: Floats, chances: Floats) -> None:
    """Turns weights into probabilities: in proportion, at most 1, and so many tokens in expectation.

    What would be above 1 becomes 1, and what that leaves of the budget raises the others; this goes on until none is
    above 1 any more.

    Source: Tillé 2006, Sampling Algorithms, section 2.10; here a unit costs its tokens.
    """
    for u in range(count):
        chances[u] = weights[u]  # negative: always
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
    """Marks units so that each is taken with its own probability, and the number of them varies by less than one.

    The probabilities are added up in the given order; a unit is taken if the sum passes u, u + 1, u + 2, ... there,
    with one random u.

    Args:
        random: u, in 2**-32.
        least_one: Whether one unit is taken where their probabilities add up to less than 1.
        count: How many units there are.
        order: Their numbers; those that are taken stand at the beginning afterwards.
        chances: Probability of each unit, by number.
        places: Where each unit begins, by number.
        taken_T: Where units are marked.

    Returns:
        How many are taken.

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
    """Marks units of a segment with probabilities in proportion to their weights; those predicted are some of them.

    Args:
        budgets: Expected tokens that are taken, and that are predicted; the second is negative where these are all.
        least_one: Whether one unit is taken (and predicted) in any case.
        begin: Where the segment begins.
        count: How many units there are.
        units: Tokens of each; where it begins; and a place to put them into an order.
        scratch: Weights of the units; and a place for probabilities.
        bits_T: Random bits.
        marked: Where units are marked that are taken, and that are predicted.
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
    asked = np.empty(count, dtype=np.float64)
    _capped(budgets[1], count, sizes, weights, asked)
    for u in range(count):  # of those that are taken; a smaller budget never raises a probability
        asked[u] = min(asked[u] / chances[u], 1.0) if chances[u] > 0.0 else 0.0
    random = drawn(mix(bits_T[begin] + _PREDICTED), BEGINNING)
    _systematic(random, least_one, taken, order, asked, places, marked[1])


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
    """The tokens that are chosen and those that are predicted, each unit with the probability that its weight gives it.

    Of equal units those with the smallest random bits are taken: the rate times their number, the fraction by chance.
    That is systematic sampling in a random order, without having to make the order.

    Args:
        how: Whether one unit of each segment is taken in any case; and the expected share that is predicted, which is
            negative where that is all.
        powers: As `unmask.masking.draw.powers` makes them.
        segment_begin_T: Where each token's segment begins.
        unit_begin_T, size_T: The units.
        log2_T: Logarithms of weights in fixed point, where units begin; [0]: all are equal.
        bits_T: Random bits.
        share_T: Expected share of the tokens, in 2**-RATE_BITS; [T], or [1] for all segments alike.
    """
    least_one, predicted_share = how
    total, some, weighted = len(bits_T), predicted_share >= 0, len(log2_T) > 0
    taken_T = np.zeros(total, dtype=np.bool_)
    predicted_T = np.zeros(total if some else 0, dtype=np.bool_)
    words = np.empty(total, dtype=np.int64)  # random bits and place of each unit of the segment
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
            _weigh(count, places, log2_T, powers, weights)
            budgets = (tokens * share / (1 << RATE_BITS), tokens * predicted_share / (1 << RATE_BITS))
            units = (sizes, places, other)
            _take_weighted(budgets, least_one, begin, count, units, (weights, chances), bits_T, (taken_T, predicted_T))
        begin = end
    chosen_T = _of_units(taken_T, unit_begin_T)
    return chosen_T, (_of_units(predicted_T, unit_begin_T) if some else chosen_T)


# ----------------------------------------
# A batch in a line, which units, weights and the budget work on; its partition into units, and their boundaries.
#
# Shape suffix: T = all positions of a batch in a line (B rows x S positions).


@dataclass(frozen=True)
class FlatRows:
    """A batch in a line, with what every strategy needs.

    Attributes:
        input_ids_T: int64: the ids before masking.
        maskable_T: bool.
        word_starts_T: bool: words begin here; the first maskable token of a segment always begins one.
        segment_T: int64: running number of the segment; padding has numbers of its own. The halves of a pair are two
            segments here, so that a text is masked alike whatever stands beside it.
        segment_begin_T: int64: place in the line at which the token's segment begins.
        bits_T: int64: 64 random bits a token, a hash of (seed, epoch, segment, position).
        width: Positions of a row, which no segment exceeds.
        annotations: By name, int64 [T]: columns of the prepared data, as `unmask.data.rows` describes them.
    """

    input_ids_T: Tensor
    maskable_T: Tensor
    word_starts_T: Tensor
    segment_T: Tensor
    segment_begin_T: Tensor
    bits_T: Tensor
    width: int
    annotations: Mapping[str, Tensor]

    def annotation(self, name: str, wanted_by: str) -> Tensor:
        """A column of annotation.

        Raises:
            DataError: The rows do not have it; the text says how to get it.
        """
        if name not in self.annotations:
            raise DataError(
                f"{wanted_by} needs the annotation {name!r}, which these rows do not have; make it with "
                f"`unmask prepare ... --annotate {name}`, or where raw text is given to `unmask pretrain` with "
                f"--set 'annotation.columns=[\"{name}\"]'"
            )
        return self.annotations[name]

    def segment_sum(self, values_T: Tensor) -> Tensor:
        """Sums over each segment, at every token of it: [T]."""
        return take(_sums(self.segment_begin_T, values_T), self.segment_begin_T)


@dataclass(frozen=True)
class FlatUnits:
    """A partition of the maskable tokens into units.

    Attributes:
        begin_T: int64: place at which the token's unit begins; a token that cannot be masked is its own, empty unit.
        size_T: int64: tokens of the unit that begins here; 0 where none does.
    """

    begin_T: Tensor
    size_T: Tensor

    def largest(self, values_T: Tensor) -> Tensor:
        """The largest of each unit's tokens, at the place where it begins."""
        return torch.from_numpy(largest(*arrays(self.begin_T, values_T)))


def flatten(rows: Rows, key: int) -> FlatRows:
    """Lays a batch in a line and gives every token its random bits.

    Args:
        rows: B rows of S positions.
        key: A hash of seed and epoch.
    """
    found = segments_and_bits(key, *arrays(rows.segment_ids, rows.segment_keys, rows.position_ids))
    segment_T, segment_begin_T, bits_T = (torch.from_numpy(array) for array in found)
    return FlatRows(
        input_ids_T=rows.input_ids.reshape(-1),
        maskable_T=rows.maskable.reshape(-1),
        word_starts_T=rows.word_starts.reshape(-1),
        segment_T=segment_T,
        segment_begin_T=segment_begin_T,
        bits_T=bits_T,
        width=rows.shape[1],
        annotations={name: column.reshape(-1) for name, column in rows.annotations.items()},
    )


def partition(rows: FlatRows, starts_T: Tensor) -> FlatUnits:
    """Makes units of where they begin. A unit also ends at a token that cannot be masked and at its segment's end.

    Args:
        rows: The batch.
        starts_T: [T], bool; values at tokens that cannot be masked do not matter.
    """
    found = partition_loop(*arrays(rows.maskable_T, rows.segment_begin_T, starts_T))
    return FlatUnits(*(torch.from_numpy(array) for array in found))


def _sums(begin_T: Tensor, values_T: Tensor) -> Tensor:
    """Sums of values by the place that each token names."""
    return torch.from_numpy(sums(*arrays(begin_T, values_T)))


@dataclass(frozen=True)
class Boundaries:
    """The tokens just outside of each token's span, which the span-boundary objective predicts from.

        tokens   [CLS] a b c d e [SEP]        unit: b c d
        before             1 1 1              column of a, at each token of the unit
        behind             5 5 5              column of e

    Only what stands at targets means anything.

    Attributes:
        before: [B, S], int64: column of the token before the span's first; -1 where the token is in no span, since
            another strategy of a mixture masked its text.
        behind: [B, S], int64: column of the token behind its last; -1 likewise.
    """

    before: Tensor
    behind: Tensor

    def part(self, begin: int, end: int) -> Boundaries:
        """Rows `begin` to `end`, without a copy."""
        return Boundaries(self.before[begin:end], self.behind[begin:end])

    def to(self, device: torch.device) -> Boundaries:
        """The same on another device."""
        return Boundaries(self.before.to(device), self.behind.to(device))


def boundaries(units: FlatUnits, shape: tuple[int, int], in_span_T: Tensor | None = None) -> Boundaries:
    """The boundaries of a partition.

    A unit never leaves its segment, and a segment begins and ends with a special token, so both are in the segment.

    Args:
        units: The partition.
        shape: (B, S) of the batch.
        in_span_T: [T], bool: whether the token's unit is a span; None: all are.
    """
    length = shape[1]
    begin_T = units.begin_T
    row_begin_T = torch.arange(len(begin_T)) // length * length
    before_T = begin_T - row_begin_T - 1
    behind_T = before_T + units.size_T[begin_T] + 1
    if in_span_T is not None:
        before_T, behind_T = pick(in_span_T, before_T, -1), pick(in_span_T, behind_T, -1)
    return Boundaries(before_T.view(shape), behind_T.view(shape))


# What torch does slowly for 8-byte integers on CPUs, done otherwise, since the masker asks for it all the time. For
# 65,536 integers on one core, indexing takes 128 microseconds and `index_select` 32; `where` takes 180, since it is not
# vectorised, and four operations on bits 60.
def take(values: Tensor, places_T: Tensor) -> Tensor:
    """`values[places_T]` along the first dimension."""
    return values.index_select(0, places_T)


def pick(condition_T: Tensor, yes: Tensor | int, no: Tensor | int) -> Tensor:
    """`where`, for int64.

    Args:
        condition_T: bool.
        yes, no: int64, or integers; at least one of them is a tensor.
    """
    differ = yes ^ no  # chosen by bits: no ^ ((yes ^ no) & -condition)
    return condition_T.to(torch.int64).neg_().bitwise_and_(differ).bitwise_xor_(no)


LARGEST_LOG2 = 1 << 29  # of a weight, in these: 2**2048


def fixed_log2(values: Tensor) -> Tensor:
    """Logarithms to base 2 in fixed point.

    Args:
        values: Positive numbers, any shape.

    Returns:
        int64, the same shape.
    """
    logs = np.log2(np.maximum(values.detach().numpy().astype(np.float64), 1e-300))
    fixed = np.clip(np.round(logs * (1 << POINT)), -LARGEST_LOG2, LARGEST_LOG2).astype(np.int64)
    return torch.from_numpy(fixed)


@functools.cache
def powers() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """2**-n for whole n; for n from 0 to 1 in 512 steps; and from there to the first of these in 512 steps.

    The product of one of each is a power with an exponent in 2**-18. The fractions are rounded to 36 bits, so that the
    last bit of a machine's own powers does not matter.
    """
    half = 1 << POINT // 2
    steps = np.arange(half) / half
    coarse, fine = (np.round(np.exp2(-exponents) * 2.0**36) / 2.0**36 for exponents in (steps, steps / half))
    return np.ldexp(1.0, -np.arange(MOST_DOUBLINGS + 1)), coarse, fine


def draw_units(
    rows: FlatRows,
    units: FlatUnits,
    log2_T: Tensor | None,
    rate: float | Tensor,
    *,
    prediction_rate: float | None = None,
    least_one: bool = False,
) -> tuple[Tensor, Tensor]:
    """Chooses units by inclusion probabilities.

    Args:
        rows: The batch.
        units: Its partition.
        log2_T: [T], int64: logarithm of the weight of the unit that begins at each place, to base 2 in 2**-18; None:
            all are equal.
        rate: Expected share of the maskable tokens, in [0, 1]; or one for each segment: [T], int64 in 2**-24, the
            same at all places of a segment.
        prediction_rate: Expected share that is predicted, at most `rate`; None: all that are chosen.
        least_one: Whether one unit of a segment is taken however small its share is.

    Returns:
        [T], bool each: the tokens of the units that are chosen, and of those that are predicted.

    Source: Madow 1949 (On the theory of systematic sampling, II); Tillé 2006, Sampling Algorithms.
    """
    log2_or_none_T = torch.zeros(0, dtype=torch.int64) if log2_T is None else log2_T
    predicted = -1 if prediction_rate is None else round(prediction_rate * 2**RATE_BITS)
    batch = arrays(rows.segment_begin_T, units.begin_T, units.size_T, log2_or_none_T, rows.bits_T, _share(rate))
    found = take_units((least_one, predicted), powers(), *batch)
    chosen_T, predicted_T = (torch.from_numpy(array) for array in found)
    return chosen_T, predicted_T


def _share(rate: float | Tensor) -> Tensor:
    return rate if isinstance(rate, Tensor) else torch.full((1,), round(rate * 2**RATE_BITS))
