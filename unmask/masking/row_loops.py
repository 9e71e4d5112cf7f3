"""Loops over rows, compiled: hashes, segments and random bits, units, sorting keys, and what chosen tokens become.

Hashes are those of `unmask.hashing`, number for number.

Arrays: B = rows, S = positions, T = B x S in a line; V = vocabulary; D = directions of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unmask import hashing
from unmask.compiled import compiled
from unmask.hashing import GOLDEN, ORDER, RANDOM_TOKEN, SHOWN, SPAN_LENGTH, WEIGHTED_ORDER, BitField

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


KEY_BITS = ORDER.size
POINT = 18  # fixed-point logarithms count in 2**-18


@compiled
def weighted_keys(table_bits: int, point: int, bits_T: Ints, log2_T: Ints, mantissas: Ints, corrections: Ints) -> Ints:
    """log2 of an exponential draw, less log2 of the weight, from the tables of `unmask.masking.unit_draw`: [T]."""
    keys_T = np.empty(len(bits_T), dtype=np.int64)
    low, draw_bits = (1 << table_bits) - 1, WEIGHTED_ORDER.size
    for place in range(len(bits_T)):
        draw = drawn(bits_T[place], WEIGHTED_ORDER) | 1
        mantissa, exponent = math.frexp(float(draw))
        fine = np.int64(mantissa * (1 << (2 * table_bits + 1))) - (1 << (2 * table_bits))
        coarse = draw >> (draw_bits - 2 * table_bits)
        log = ((exponent - draw_bits) << point) - log2_T[place]
        at = mantissas[fine >> table_bits]
        log += at + (((mantissas[(fine >> table_bits) + 1] - at) * (fine & low)) >> table_bits)
        at = corrections[coarse >> table_bits]
        log += at + (((corrections[(coarse >> table_bits) + 1] - at) * (coarse & low)) >> table_bits)
        keys_T[place] = min(max(log + (1 << 30), 0), (1 << 31) - 1)
    return keys_T


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
