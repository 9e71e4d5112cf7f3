"""Weights: how likely a unit is to be drawn.

Drawing without replacement with weights is a sort: a unit gets the key E / w with E exponentially distributed, and
units are taken in the order of their keys (Efraimidis and Spirakis 2006). With equal weights any increasing function
of E serves, so the random bits themselves are the key.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from unmask.settings import Settings

KEY_BITS = 31


class Weights(Protocol):
    """A way to order units."""

    def keys(self, bits: Tensor) -> Tensor:
        """Sorting keys: int64 in [0, 2**31), the shape of `bits` (64 random bits a unit)."""
        ...


class UniformWeights(Settings):
    """Every unit is equally likely."""

    kind: Literal["uniform"] = "uniform"

    def keys(self, bits: Tensor) -> Tensor:
        """The upper random bits."""
        return (bits >> (64 - KEY_BITS)) & ((1 << KEY_BITS) - 1)


AnyWeights = UniformWeights
