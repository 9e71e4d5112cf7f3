"""How kernels are compiled, and which tensors they serve.

A tensor operation on a CPU reads and writes megabytes for each of the dozens that a mask takes; a loop keeps a segment
in the processor's nearest cache and needs no sort of what is not drawn. Kernels are loops over numpy arrays that numba
compiles once on a machine (some seconds; it keeps them beside the source, or in the user's cache folder where that
cannot be written). They hold no lock of Python's while they run, and use one core.

Every kernel computes what tensor operations compute for other devices, bit for bit; tests compare the two by making
`serves` say no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a loop when it is first called."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder for the cache can be written: then it is compiled in every process
        return cast(Function, numba.njit(nogil=True)(function))


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The same numbers as arrays, without a copy."""
    return tuple(tensor.numpy() for tensor in tensors)


def serves(tensor: Tensor) -> bool:
    """Whether kernels can work on a tensor."""
    return tensor.device.type == "cpu"
