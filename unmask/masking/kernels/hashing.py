"""The hashes of `unmask.hashing`, for kernels: the same numbers."""

from __future__ import annotations

from unmask.compiled import compiled
from unmask.hashing import GOLDEN

_MULTIPLY_1 = -4658895280553007687
_MULTIPLY_2 = -7723592293110705685


@compiled
def mix(word: int) -> int:
    """Scrambles a 64-bit integer."""
    word = word ^ ((word >> 30) & 0x3FFFFFFFF)
    word = word * _MULTIPLY_1
    word = word ^ ((word >> 27) & 0x1FFFFFFFFF)
    word = word * _MULTIPLY_2
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@compiled
def token_in_word(token: int, place: int) -> int:
    """A token's share in the hash of its word."""
    return mix(mix(token + 1) + place * GOLDEN)


@compiled
def longer(sequence: int, mixed_word: int) -> int:
    """The hash of some words and one more behind them."""
    return mix(sequence + GOLDEN) + mixed_word
