"""Compiled loops of near-duplicates: hashes of words, MinHash signatures, sketches and clusters.

Arrays: C = characters of some texts in a line; N = texts; W = their words; K = hash functions; B = bands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unmask.core import hashing
from unmask.core.compiled import compiled
from unmask.core.hashing import GOLDEN

Ints = NDArray[np.int64]
Codes = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

SHINGLE = 5  # words that make a shingle
ALONE = 1 << 24  # added to a folded character that is a word by itself
DIGIT = ord("0")
_PRIME = 1099511628211  # of FNV-1a
_SPREAD = np.uint32(2654435769)  # odd; its product's upper bits depend on all bits

# For one number, compiled from the same source.
mix_hash = cast(Callable[[int], int], compiled(cast(Any, hashing.mix)))


@compiled
def hash_words(codes_C: Codes, ends_N: Ints, folded: Codes) -> tuple[Ints, Ints, Ints]:
    """Hashes of the normal forms of texts, and of their words.

    `folded` is, by code point, what it counts as: 0 stands between words, `DIGIT` is a digit. Code points beyond the
    table are themselves.

    Returns:
        Of normal forms [N], of words [W], and where each text's words end [N]. A text without words counts as one
        word, as it is.
    """
    num_texts, table = len(ends_N), len(folded)
    normal_N = np.empty(num_texts, dtype=np.int64)
    word_ends_N = np.empty(num_texts, dtype=np.int64)
    words_W = np.empty(len(codes_C) + num_texts, dtype=np.int64)
    num_words, begin = 0, 0
    for text in range(num_texts):
        normal, word, before, first_word = GOLDEN, 0, 0, num_words
        for place in range(begin, ends_N[text] + 1):  # the end ends a word, too
            code = np.int64(codes_C[place]) if place < ends_N[text] else 0
            fold = np.int64(folded[code]) if code < table else code
            if fold != 0 and fold < ALONE:
                if fold != DIGIT or before != DIGIT:  # a number counts as one digit
                    word = ((GOLDEN if word == 0 else word) ^ fold) * _PRIME
            else:
                if word != 0:
                    words_W[num_words] = mix_hash(word)
                    normal = (normal ^ words_W[num_words]) * GOLDEN
                    num_words += 1
                    word = 0
                if fold != 0:
                    words_W[num_words] = mix_hash(fold)
                    normal = (normal ^ words_W[num_words]) * GOLDEN
                    num_words += 1
            before = fold
        if num_words == first_word:
            for place in range(begin, ends_N[text]):
                normal = (normal ^ np.int64(codes_C[place])) * _PRIME
            words_W[num_words] = mix_hash(normal)
            num_words += 1
        normal_N[text] = mix_hash(normal ^ ((normal >> 32) & 0xFFFFFFFF))
        word_ends_N[text] = num_words
        begin = ends_N[text]
    return normal_N, words_W[:num_words].copy(), word_ends_N


@compiled
def shingle(words_W: Ints, first: int, width: int) -> int:
    """The hash of `width` words in their order."""
    value = width
    for place in range(first, first + width):
        value = (value ^ words_W[place]) * GOLDEN
        value ^= (value >> 29) & 0x7FFFFFFFF
    return mix_hash(value)


@compiled
def sketch(words_W: Ints, begins_N: Ints, ends_N: Ints, most: int) -> tuple[Ints, Ints]:
    """The `most` smallest shingles of each text in their order, one text behind another, and where each text's end.

    The shingles of a text with fewer words than one has are its words.
    """
    found = np.empty(int((ends_N - begins_N).sum()), dtype=np.int64)
    sketch_ends_N = np.empty(len(begins_N), dtype=np.int64)
    end = 0
    for text in range(len(begins_N)):
        begin, number = end, 0
        width = SHINGLE if ends_N[text] - begins_N[text] >= SHINGLE else 1
        for first in range(begins_N[text], ends_N[text] - width + 1):
            found[begin + number] = shingle(words_W, first, width)
            number += 1
        found[begin : begin + number].sort()
        for place in range(begin, begin + number):
            if end == begin or (found[place] != found[end - 1] and end - begin < most):
                found[end] = found[place]
                end += 1
        sketch_ends_N[text] = end
    return found[:end].copy(), sketch_ends_N


@compiled
def hash_minima(
    words_W: Ints, begins_N: Ints, ends_N: Ints, factors_K: Codes, terms_K: Codes, num_bands: int, rows: int
) -> tuple[Ints, Bytes]:
    """MinHash signatures: bands, each as a hash of its minima and its number, and a byte of each minimum.

    The hash functions are `factor * shingle + term` modulo 2^32, with odd factors; a band has `rows` minima.

    Returns:
        Bands [N, B], and bytes [N, K]: two that are not of the same minimum are equal in 1 of 256 cases.
    """
    num_texts, num_hashes = len(begins_N), len(factors_K)
    bands_NB = np.empty((num_texts, num_bands), dtype=np.int64)
    bytes_NK = np.empty((num_texts, num_hashes), dtype=np.uint8)
    least_K = np.empty(num_hashes, dtype=np.uint32)
    for text in range(num_texts):
        least_K[:] = 0xFFFFFFFF
        width = SHINGLE if ends_N[text] - begins_N[text] >= SHINGLE else 1
        for first in range(begins_N[text], ends_N[text] - width + 1):
            low = np.uint32(shingle(words_W, first, width) & 0xFFFFFFFF)
            for k in range(num_hashes):
                least_K[k] = min(least_K[k], np.uint32(factors_K[k] * low + terms_K[k]))
        for k in range(num_hashes):
            bytes_NK[text, k] = np.uint32(least_K[k] * _SPREAD) >> np.uint32(24)
        for band in range(num_bands):
            value = band
            for k in range(band * rows, (band + 1) * rows):
                value = mix_hash(value + GOLDEN) + np.int64(least_K[k])
            bands_NB[text, band] = mix_hash(value)
    return bands_NB, bytes_NK


@compiled
def set_bits(bits: Bytes, values: Ints) -> None:
    """Puts hashes into a set of bits, of a power of two of bytes; changed in place."""
    mask = len(bits) * 8 - 1
    for value in values:
        place = value & mask
        bits[place >> 3] |= np.uint8(1 << (place & 7))


@compiled
def find_likely(words_W: Ints, ends_N: Ints, bits: NDArray[np.uint8], share: float) -> NDArray[np.bool_]:
    """Which texts have at least this share of their shingles, counted as often as they stand there, among those known.

    `bits` is a set as of `set_bits`, `share` in [0, 1].
    """
    likely_N = np.zeros(len(ends_N), dtype=np.bool_)
    mask, begin = len(bits) * 8 - 1, 0
    for text in range(len(ends_N)):
        width = SHINGLE if ends_N[text] - begin >= SHINGLE else 1
        last = ends_N[text] - width + 1
        may_miss = (1.0 - share) * (last - begin)
        missed = 0
        for first in range(begin, last):
            place = shingle(words_W, first, width) & mask
            missed += 1 - ((bits[place >> 3] >> (place & 7)) & 1)
            if missed > may_miss:
                break
        likely_N[text] = missed <= may_miss
        begin = ends_N[text]
    return likely_N


@compiled
def jaccard(one: Ints, other: Ints, most: int) -> float:
    """Jaccard similarity of two sets, each given by its `most` smallest members in their order.

    Exact where neither has so many; else that of the `most` smallest members of their union.
    """
    a, b, union, both = 0, 0, 0, 0
    if len(one) < most and len(other) < most:
        most = len(one) + len(other)
    while union < most and (a < len(one) or b < len(other)):
        union += 1
        if b == len(other) or (a < len(one) and one[a] < other[b]):
            a += 1
        elif a == len(one) or other[b] < one[a]:
            b += 1
        else:
            both += 1
            a += 1
            b += 1
    return both / union


@compiled
def join_alike(parent_N: Ints, values_N: Codes, order_N: Ints, bytes_NK: Bytes, least: int, most: int) -> None:
    """Joins clusters of members that have equal values and are alike; each is known by its smallest member.

    Args:
        parent_N: A member of the same cluster, smaller unless it is the smallest; changed in place.
        values_N: What makes two members worth comparing.
        order_N: An order of the members in which equal values stand together.
        bytes_NK: Two are alike if at least `least` of their bytes agree.
        least: Bytes that agree.
        most: How many before it in the order a member is compared with.
    """
    begin = 0
    for place in range(1, len(order_N)):
        if values_N[order_N[place]] != values_N[order_N[place - 1]]:
            begin = place
        for before in range(place - 1, max(begin, place - most) - 1, -1):
            one, other = root_of(parent_N, order_N[place]), root_of(parent_N, order_N[before])
            if one == other:
                continue
            same = 0
            for k in range(bytes_NK.shape[1]):
                same += bytes_NK[order_N[place], k] == bytes_NK[order_N[before], k]
            if same >= least:
                parent_N[max(one, other)] = min(one, other)


@compiled
def root_of(parent_N: Ints, member: int) -> int:
    """The smallest member of a cluster."""
    while parent_N[member] != member:
        parent_N[member] = parent_N[parent_N[member]]
        member = parent_N[member]
    return member


@compiled
def all_roots(parent_N: Ints) -> Ints:
    """The smallest member of each one's cluster."""
    roots_N = np.empty(len(parent_N), dtype=np.int64)
    for member in range(len(parent_N)):
        roots_N[member] = root_of(parent_N, member)
    return roots_N
