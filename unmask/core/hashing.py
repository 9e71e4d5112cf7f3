"""Integer hashes in place of random generators: the same number for the same place, on every device and worker.

One function serves numpy and torch; `unmask.masking.draw_loops` has its compiled forms. Signed 64-bit integers are used
throughout (torch has no unsigned arithmetic); they wrap, and the right shift is made logical by a mask.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, section 4.3, with the constants of Stafford's
variant 13), applied to a counter that advances by the golden ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Words = TypeVar("Words", "torch.Tensor", NDArray[np.int64])
Bits = TypeVar("Bits", "torch.Tensor", NDArray[np.int64], int)

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
_MULTIPLY_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MULTIPLY_2 = -7723592293110705685  # 0x94D049BB133111EB
_WRAP = 1 << 64
_AT_ONCE = 1 << 18


class BitField(NamedTuple):
    """A range of a hash's bits that is one random number: the lowest bit, and how many."""

    first: int
    size: int

    def of(self, bits: Bits) -> Bits:
        """The number, in [0, 2**size). Compiled loops use `unmask.masking.draw_loops.drawn`."""
        return (bits >> self.first) & ((1 << self.size) - 1)


# Fields on one line are drawn from one hash, and do not overlap.
ORDER, CROSSING = BitField(33, 31), BitField(0, 24)  # equally likely units: their order, and whether the last is drawn
EXCHANGE = BitField(0, 32)  # weighted units: the earlier unit with which one changes places
SPAN_LENGTH = BitField(0, 32)
BEGINNING = BitField(0, 32)  # of systematic sampling
SAMPLED_RATE = BitField(28, 32)  # of a segment
PART = BitField(34, 30)  # of a mixture: its part for a piece of a document
PART_OF_STEP = BitField(0, 30)  # its part for a whole step
SHOWN, RANDOM_TOKEN = BitField(32, 31), BitField(0, 31)  # shows the mask, a random token or the token; which random one
IS_WRONG, TAIL = BitField(63, 1), BitField(0, 32)  # of a fragment: whether its sentence pair is wrong; its cut
SEEN = BitField(33, 31)  # of a token's bits and another's place: whether it attends to it
REBUILT = BitField(33, 31)  # of a token's bits: whether it is reconstructed
DROPPED = BitField(33, 31)  # of an activation's place: whether dropout drops it


def mix(words: Words) -> Words:
    """Scrambles int64 of any shape: every bit of the result depends on every bit of the argument."""
    words = words ^ ((words >> 30) & 0x3FFFFFFFF)
    words = words * _MULTIPLY_1
    words = words ^ ((words >> 27) & 0x1FFFFFFFFF)
    words = words * _MULTIPLY_2
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


def mix_ints(*values: int) -> int:
    """Hashes Python integers, in order, to one signed 64-bit integer: `mix` without an array."""

    def mixed(value: int) -> int:
        value %= _WRAP
        value = (value ^ value >> 30) * _MULTIPLY_1 % _WRAP
        value = (value ^ value >> 27) * _MULTIPLY_2 % _WRAP
        return value ^ value >> 31

    state = 0
    for value in values:
        state = mixed((state + GOLDEN) % _WRAP ^ mixed(value + GOLDEN))
    return state - _WRAP if state >= _WRAP // 2 else state


def permutation(size: int, *key: int) -> NDArray[np.int64]:
    """The numbers 0 to `size` - 1 in an order that depends on the key alone."""
    words = np.arange(size, dtype=np.int64)
    words *= np.int64(GOLDEN)
    words += np.int64(mix_ints(*key))
    for begin in range(0, size, _AT_ONCE):  # in parts, so that temporary arrays stay small
        words[begin : begin + _AT_ONCE] = mix(words[begin : begin + _AT_ONCE])
    return np.argsort(words, kind="stable")


def token_in_word(input_ids: Words, place: Words) -> Words:
    """A token's term in the hash of its word, a sum over tokens; `place` is its position in the word, from 0."""
    return mix(mix(input_ids + 1) + place * GOLDEN)


def longer(sequence: Words, mixed_word: Words) -> Words:
    """Hashes of word sequences, each extended by a word that went through `mix`. A single word's hash is the word's
    own.

    With 64 bits, two of a million sequences collide with a probability below one in ten million. Then one is taken for
    the other, and nothing worse happens.
    """
    return mix(sequence + GOLDEN) + mixed_word
