"""A loop that gathers pieces from where their shards are mapped: a window of them lies all over the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from unmask.compiled import compiled


def _pointer(_: Any, address: Any) -> Any:
    """A pointer to the byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.CPointer(types.uint8)(types.int64), generate


_at_address = cast(Callable[[int], Any], intrinsic(_pointer))


@compiled
def gather(address: NDArray[np.int64], size: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    """Copies stretches of memory, one behind another.

    Args:
        address, size: [num_stretches]: where each begins, and its bytes.
        into: [total bytes].
    """
    place = 0
    for n in range(len(address)):
        stretch = carray(_at_address(address[n]), (size[n],), np.uint8)
        for i in range(size[n]):
            into[place + i] = stretch[i]
        place += size[n]


@compiled
def read_int64(address: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of 8 bytes at each address."""
    found = np.empty(len(address), dtype=np.int64)
    for n in range(len(address)):
        found[n] = carray(_at_address(address[n]), (8,), np.uint8).view(np.int64)[0]
    return found


@compiled
def read_int32(address: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of 4 bytes at each address."""
    found = np.empty(len(address), dtype=np.int64)
    for n in range(len(address)):
        found[n] = carray(_at_address(address[n]), (4,), np.uint8).view(np.int32)[0]
    return found
