"""Numbers in loops: bf16 is read and written as bits, all arithmetic is in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from unmask.compiled import inlined


@intrinsic
def float_of_bits(context: Any, bits: Any) -> Any:
    """The float32 that these 32 bits are."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of_float(context: Any, number: Any) -> Any:
    """The 32 bits of a float32."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@inlined
def _from_bf16(bits: int) -> float:
    return float_of_bits(np.uint32(np.uint32(bits) << np.uint32(16)))


@inlined
def _to_bf16(number: float) -> int:
    """Rounded to the nearest, halves to even."""
    bits = bits_of_float(np.float32(number))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def load(element: Any) -> float:
    """An element of an array as float32, whether it is one or 16 bits of bf16."""
    raise NotImplementedError("for compiled loops only")


def store(array: Any, place: int, number: float) -> None:
    """Writes a float32 into a line of either kind."""
    raise NotImplementedError("for compiled loops only")


@overload(load, inline="always")
def _load(element: Any) -> Any:
    if element == types.uint16:

        def read(element: Any) -> Any:
            return _from_bf16(element)

    else:

        def read(element: Any) -> Any:
            return element

    return read


@overload(store, inline="always")
def _store(array: Any, place: Any, number: Any) -> Any:
    if array.dtype == types.uint16:

        def write(array: Any, place: Any, number: Any) -> Any:
            array[place] = _to_bf16(number)

    else:

        def write(array: Any, place: Any, number: Any) -> Any:
            array[place] = number

    return write


@inlined
def exp(x: float) -> float:
    """The exponential, to two units in the last place; 0 below -87. Source: Cephes, expf."""
    one = np.float32(1.0)
    y = max(min(x, np.float32(88.0)), np.float32(-87.0))
    n = np.floor(y * np.float32(1.44269504088896341) + np.float32(0.5))
    r = y - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + one
    power = float_of_bits(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)))
    number = np.float32(0.0) if x < np.float32(-87.0) else p * power
    return number if x == x else x  # noqa: PLR0124  (what is not a number stays so)


@inlined
def largest_of(line: Any, scratch: Any) -> float:
    """The largest number of a line: halves are compared with each other, since one running maximum would be compared
    number by number.

    Args:
        line: float32; it is not changed.
        scratch: As long; what it holds is lost.
    """
    count = len(line)
    for place in range(count):
        scratch[place] = line[place]
    while count > 1:
        half = (count + 1) // 2
        for place in range(count - half):
            other = scratch[place + half]
            scratch[place] = other if other > scratch[place] else scratch[place]
        count = half
    return scratch[0]
