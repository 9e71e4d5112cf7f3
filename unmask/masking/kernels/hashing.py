"""The hashes of `unmask.hashing`, for kernels: the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from unmask import hashing
from unmask.compiled import compiled
from unmask.hashing import GOLDEN, BitField

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
