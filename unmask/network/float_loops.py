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
def largest_of(line: Any) -> float:
    """The largest number of a line of float32, which is not empty; what is not a number counts as the largest.

    Compared as integers in the same order: their running maximum is one that compilers know to share out.
    """
    largest = np.int32(-0x80000000)
    for place in range(len(line)):
        largest = max(largest, _in_order(np.int32(bits_of_float(line[place]))))
    return float_of_bits(np.uint32(_in_order(largest)))


@inlined
def _in_order(bits: int) -> int:
    """The bits of floating-point numbers as integers in the same order, and back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
