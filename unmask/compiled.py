"""How loops over numbers are compiled for CPUs, and which tensors they serve.

A tensor operation on a CPU reads and writes megabytes for each of the dozens of steps that a mask takes or a block of
the model; a compiled loop reads its input once and writes its result once. Loops are functions over numpy arrays that
numba compiles once on a machine (a second or so each; it keeps them beside the source, or in the user's cache folder
where that cannot be written). They hold no lock of Python's while they run.

A loop of the model computes what tensor operations compute on other devices; tests compare the two by making `serves`
say no. Masking is done by loops alone, on the host.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:  # text is fingerprinted without torch, which takes seconds to import
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered and products fused, so that loops become vector instructions; infinities and NaNs stay.
_MATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """Compiles a loop over integers, for one core, when it is first called."""
    return _compiled(function)


def inlined(function: Function) -> Function:
    """Compiles arithmetic that loops over floating-point numbers use."""
    return _compiled(function, fastmath=_MATH, inline="always")


def parallel(function: Function) -> Function:
    """Compiles a loop over floating-point numbers, for all cores: `numba.prange` is what they share out."""
    return _compiled(function, fastmath=_MATH, parallel=True)


def _compiled(function: Function, **options: Any) -> Function:
    _forget_what_is_old(Path(function.__code__.co_filename).parent)
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # no folder for the cache can be written: then it is compiled in every process
        return cast(Function, numba.njit(nogil=True, **options)(function))


@functools.cache
def _forget_what_is_old(folder: Path) -> None:
    """Removes what was compiled before a file of any folder of loops was changed.

    Numba looks at a loop's own file only, not at those whose functions the loop uses.
    """
    newest = max((path.stat().st_mtime for path in Path(__file__).parent.glob("*/kernels/*.py")), default=0.0)
    for index in (folder / "__pycache__").glob("*.nbi"):
        with contextlib.suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a loop was compiled on this machine before, and kept."""
    folder = cast(Any, function).stats.cache_path
    names = f"*.{function.__name__}-*.nbi"
    return folder is not None and any(Path(folder).glob(names))


def use_threads_of_torch() -> None:
    """Lets parallel loops use as many cores as tensor operations do, and not the other way round.

    When numba starts its threads, at the first parallel loop of a process, it sets OpenMP's number of threads to that
    of all cores, which is torch's number as well: whoever asked for one thread would have as many as there are cores.
    """
    import torch

    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The same numbers as arrays, without a copy; bf16, which numpy does not have, as 16 bits."""
    return tuple(array(tensor) for tensor in tensors)


def array(tensor: Tensor) -> Any:
    """See `arrays`."""
    import torch

    tensor = tensor.detach()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def serves(tensor: Tensor) -> bool:
    """Whether compiled loops can work on a tensor. While a model is exported they cannot: a graph holds operations."""
    import torch

    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()
