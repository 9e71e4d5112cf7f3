"""Which units of each segment are taken.

Array: T = all positions of a batch in a line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unmask.compiled import compiled
from unmask.hashing import BEGINNING, CROSSING, EXCHANGE, ORDER, mix_ints
from unmask.masking.row_loops import POINT, Bools, Ints, drawn, mix

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
def _around(
    budget: int, whole: int, count: int, words: Ints, other: Ints, size_T: Ints, by_size: bool
) -> tuple[int, int, int]:
    """Orders units so that the one that crosses the budget is among a few, all before are smaller, all behind larger.

    Returns:
        Where these few begin and end, and what the units before them cost.
    """
    low, high, before = 0, count, 0
    while high - low > _FEW:
        pivot = _pivot(words, low, high, (budget - before) / whole)
        smaller, larger, below = low, 0, 0
        for u in range(low, high):  # without a branch, which would be guessed wrong every other time
            word = words[u]
            is_smaller = word < pivot
            words[smaller] = word
            other[larger] = word
            below += (size_T[word & _PLACE] if by_size else 1) * is_smaller
            smaller += is_smaller
            larger += not is_smaller
        if before + below > budget:
            high = smaller  # what is larger is not looked at again
            whole = below
        else:
            for u in range(larger):  # assigning a slice would compile what to say of one that does not fit: 2 s
                words[smaller + u] = other[u]
            low = smaller
            before += below
            whole -= below
    return low, high, before


@compiled
def _take_first(
    room: int, how: tuple[bool, bool], count: int, words: Ints, other: Ints, size_T: Ints, bits_T: Ints, taken_T: Bools
) -> int:
    """Marks units of a segment in the order of their keys until what they cost fills the room.

    Units are parted by a pivot until those are known that fill it, so hardly any of them is sorted. The unit that
    crosses is taken with probability (room left / its cost), by its random bits.

    Args:
        room: In 2**-RATE_BITS.
        how: Whether the first unit is taken at any rate, and whether a unit costs its tokens; else it costs 1.
        count: How many units there are.
        words: Key and place of each unit; they are put into another order.
        other: As long at least, to work in.
        size_T: Tokens of the unit at each place.
        bits_T: Random bits.
        taken_T: Where units are marked, at the places where they begin.

    Returns:
        How many units at the beginning of `words` hold all that a smaller room could take.
    """
    least_one, by_size = how
    whole = count
    if by_size:
        whole = 0
        for u in range(count):
            whole += size_T[words[u] & _PLACE]
    low, high, before = _around(room >> RATE_BITS, whole, count, words, other, size_T, by_size)
    for u in range(low):
        taken_T[words[u] & _PLACE] = True
    for u in range(low, high):
        left = room - (before << RATE_BITS)
        if left <= 0 and not (least_one and before == 0):
            break
        smallest = u
        for v in range(u + 1, high):
            if words[v] < words[smallest]:
                smallest = v
        words[u], words[smallest] = words[smallest], words[u]
        place = words[u] & _PLACE
        cost = size_T[place] if by_size else 1
        taken = left > drawn(bits_T[place], CROSSING) * cost
        taken_T[place] = taken or (least_one and before == 0)
        before += cost
    return high


@compiled
def _of_units(taken_T: Bools, unit_begin_T: Ints) -> Bools:
    """What is marked where a unit begins, at all of its tokens."""
    chosen_T = np.empty(len(taken_T), dtype=np.bool_)
    for place in range(len(taken_T)):
        chosen_T[place] = taken_T[unit_begin_T[place]]
    return chosen_T


@compiled
def fill_tokens(
    least_one: bool,
    segment_begin_T: Ints,
    unit_begin_T: Ints,
    size_T: Ints,
    keys_T: Ints,
    bits_T: Ints,
    share_T: Ints,
) -> Bools:
    """The tokens of the units that each segment's budget of tokens holds, by the smallest keys first.

    Args:
        least_one: Whether a segment's first unit is taken at any rate.
        segment_begin_T: Where each token's segment begins.
        unit_begin_T, size_T: The units.
        keys_T: In [0, 2**31).
        bits_T: Random bits, which say whether the unit is taken that crosses the budget.
        share_T: The budget as a share of the tokens, in 2**-RATE_BITS; [T], or [1] for all segments alike.
    """
    total = len(keys_T)
    taken_T = np.zeros(total, dtype=np.bool_)
    words = np.empty(total, dtype=np.int64)  # key and place of each unit of the segment
    other = np.empty(total, dtype=np.int64)
    begin = 0
    while begin < total:
        end, count, tokens = begin, 0, 0
        while end < total and segment_begin_T[end] == begin:
            words[count] = (keys_T[end] << _PLACE_BITS) | end
            count += size_T[end] > 0
            tokens += size_T[end]
            end += 1
        room = tokens * (share_T[begin] if len(share_T) > 1 else share_T[0])
        _take_first(room, (least_one, True), count, words, other, size_T, bits_T, taken_T)
        begin = end
    return _of_units(taken_T, unit_begin_T)


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
        powers: As `unmask.masking.unit_draw.powers` makes them.
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
            high = _take_first(count * share, (least_one, False), count, words, other, size_T, bits_T, taken_T)
            if some:
                room = count * predicted_share
                _take_first(room, (least_one, False), high, words, other, size_T, bits_T, predicted_T)
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
