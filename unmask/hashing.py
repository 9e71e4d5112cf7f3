"""Integer hashes in place of random generators: the same number for the same place, on every device and worker.

One function in two forms, for numpy and for torch, equal bit for bit. Signed 64-bit integers are used throughout
(torch has no unsigned arithmetic); they wrap, and the right shift is made logical by a mask.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, section 4.3, with the constants of Stafford's
variant 13), applied to a counter that advances by the golden ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # text is hashed without torch, which takes seconds to import
    import torch

Words = TypeVar("Words", "torch.Tensor", NDArray[np.int64])

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
_MULTIPLY_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MULTIPLY_2 = -7723592293110705685  # 0x94D049BB133111EB
_WRAP = 1 << 64
_SIGN = 1 << 63


def mix(words: Words) -> Words:
    """Scrambles 64-bit integers: every bit of the result depends on every bit of the argument.

    Args:
        words: int64, any shape, a torch tensor or a numpy array.

    Returns:
        The same shape and type.
    """
    words = words ^ ((words >> 30) & 0x3FFFFFFFF)
    words = words * _MULTIPLY_1
    words = words ^ ((words >> 27) & 0x1FFFFFFFFF)
    words = words * _MULTIPLY_2
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


def mix_ints(*values: int) -> int:
    """Hashes some Python integers to one signed 64-bit integer; their order matters."""
    state = 0
    for value in values:
        state = _signed(_mix_int(_signed(state + GOLDEN) ^ _mix_int(_signed(value + GOLDEN))))
    return state


def _mix_int(value: int) -> int:
    """`mix` of one number, without an array: a batch's masks begin with a few of these."""
    value %= _WRAP
    value = (value ^ value >> 30) * _MULTIPLY_1 % _WRAP
    value = (value ^ value >> 27) * _MULTIPLY_2 % _WRAP
    return _signed(value ^ value >> 31)


def _signed(value: int) -> int:
    value %= _WRAP
    return value - _WRAP if value >= _SIGN else value


def permutation(size: int, *key: int) -> NDArray[np.int64]:
    """The numbers 0 to `size` - 1 in an order that depends on the key alone."""
    counters = np.arange(size, dtype=np.int64) * np.int64(GOLDEN) + np.int64(mix_ints(*key))
    return np.argsort(mix(counters), kind="stable")


def token_in_word(input_ids: Words, place: Words) -> Words:
    """A token's share in the hash of its word, which is the sum over the word's tokens.

    Args:
        input_ids: int64, any shape.
        place: int64, the same shape: which token of its word it is, counted from 0.
    """
    return mix(mix(input_ids + 1) + place * GOLDEN)


def longer(sequence: Words, mixed_word: Words) -> Words:
    """The hash of some words and one more behind them. That of a single word is the word's own.

    With 64 bits, two of a million sequences get the same hash with a probability below one in ten million; then one of
    them is taken for the other, and nothing worse happens.

    Args:
        sequence: int64, any shape: hashes of sequences of words.
        mixed_word: int64, the same shape: hashes of the words that follow, each through `mix`.
    """
    return mix(sequence + GOLDEN) + mixed_word
