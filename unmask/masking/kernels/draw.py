"""The budget of each segment, and what is put in the place of the tokens that it takes.

Arrays: T = all positions of a batch in a line; V = vocabulary.
"""

from __future__ import annotations

import numpy as np

from unmask.compiled import compiled
from unmask.masking.kernels.hashing import mix
from unmask.masking.kernels.rows import Bools, Ints

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
def _around(budget: int, tokens: int, count: int, words: Ints, other: Ints, size_S: Ints) -> tuple[int, int, int]:
    """Orders units so that the one that crosses the budget is among a few, all before are smaller, all behind larger.

    Returns:
        Where these few begin and end, and how many tokens the units before them have.
    """
    low, high, before = 0, count, 0
    while high - low > _FEW:
        pivot = _pivot(words, low, high, (budget - before) / tokens)
        smaller, larger, below = low, 0, 0
        for u in range(low, high):  # without a branch, which would be guessed wrong every other time
            word = words[u]
            is_smaller = word < pivot
            words[smaller] = word
            other[larger] = word
            below += size_S[word & _PLACE] * is_smaller
            smaller += is_smaller
            larger += not is_smaller
        if before + below > budget:
            high = smaller  # what is larger is not looked at again
            tokens = below
        else:
            for u in range(larger):  # assigning a slice would compile what to say of one that does not fit: 2 s
                words[smaller + u] = other[u]
            low = smaller
            before += below
            tokens -= below
    return low, high, before


@compiled
def take_units(
    rate_bits: int,
    least_one: bool,
    segment_begin_T: Ints,
    unit_begin_T: Ints,
    size_T: Ints,
    keys_T: Ints,
    bits_T: Ints,
    share_T: Ints,
) -> Bools:
    """The tokens of the units that each segment's budget holds, by the smallest keys first.

    Units are parted by a pivot until those are known that fill the budget, so hardly any of them is sorted.

    Args:
        rate_bits: Of the shares.
        least_one: Whether a segment's first unit is taken at any rate.
        segment_begin_T: Where each token's segment begins.
        unit_begin_T, size_T: The units.
        keys_T: In [0, 2**31).
        bits_T: Random bits, of which the lowest say whether the unit is taken that crosses the budget.
        share_T: The budget as a share of the tokens, in 2**-rate_bits; [T], or [1] for all segments alike.
    """
    total = len(keys_T)
    taken_T = np.zeros(total, dtype=np.bool_)
    words = np.empty(total, dtype=np.int64)  # key and place of each unit of the segment
    other = np.empty(total, dtype=np.int64)
    begin = 0
    while begin < total:
        end, count, tokens = begin, 0, 0
        while end < total and segment_begin_T[end] == begin:
            words[count] = (keys_T[end] << _PLACE_BITS) | (end - begin)
            count += size_T[end] > 0
            tokens += size_T[end]
            end += 1
        room = tokens * (share_T[begin] if len(share_T) > 1 else share_T[0])
        low, high, before = _around(room >> rate_bits, tokens, count, words, other, size_T[begin:end])
        for u in range(low):
            taken_T[begin + (words[u] & _PLACE)] = True
        mask = (1 << rate_bits) - 1
        for u in range(low, high):
            left = room - (before << rate_bits)
            if left <= 0 and not (least_one and before == 0):
                break
            smallest = u
            for v in range(u + 1, high):
                if words[v] < words[smallest]:
                    smallest = v
            words[u], words[smallest] = words[smallest], words[u]
            place = begin + (words[u] & _PLACE)
            taken = left > (bits_T[place] & mask) * size_T[place]
            taken_T[place] = taken or (least_one and before == 0)
            before += size_T[place]
        begin = end
    chosen_T = np.empty(total, dtype=np.bool_)
    for place in range(total):
        chosen_T[place] = taken_T[unit_begin_T[place]]
    return chosen_T


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
        bits_T: A number for each token; of its hash, the lower 31 bits draw the random token.
        draw_place_T: Whose upper bits draw what is put there: each token's own place, or that of its unit.
    """
    counts_V, ends_V, listed = random_tokens
    low_31 = (1 << 31) - 1
    seen_T = ids_T.copy()
    for place in range(len(ids_T)):
        if not chosen_T[place]:
            continue
        own_bits = mix(bits_T[place])
        whose = draw_place_T[place]
        draw = ((own_bits if whose == place else mix(bits_T[whose])) >> 32) & low_31
        if draw < mask_end:
            seen_T[place] = mask_id
        elif draw < random_end:
            own, end = counts_V[ids_T[place]], ends_V[ids_T[place]]
            drawn = ((own_bits & low_31) * (ends_V[-1] - own)) >> 31
            drawn += own * (drawn >= end - own)
            if len(listed):
                seen_T[place] = listed[drawn]
            else:
                seen_T[place] = np.searchsorted(ends_V, drawn, side="right")
    return seen_T
