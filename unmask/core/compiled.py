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
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCPUCodegen
from numba.core.sigutils import normalize_signature

if TYPE_CHECKING:
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
    loop = cast(Any, _compiled(function, fastmath=_MATH, parallel=True))
    if loop.stats.cache_path is not None:
        loop._cache = _KeptFirst(loop)
    return cast(Function, loop)


def _compiled(function: Function, **options: Any) -> Function:
    _forget_what_is_old(Path(function.__code__.co_filename).parent)
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # no folder for the cache can be written: then it is compiled in every process
        return cast(Function, numba.njit(nogil=True, **options)(function))


class _KeptFirst(FunctionCache):
    """Has the first process on a machine run the code that all later ones find, so that it gets the same bits.

    Numba compiles what threads share out by itself, and again inside the loop around it, where sums are put into
    another order. Both are functions of one name: the process that compiles runs the first of them, whereas only the
    second is kept. So a loop is compiled apart from what this process runs, and then loaded like any that was kept.
    """

    def __init__(self, loop: Any) -> None:
        super().__init__(loop.py_func)
        self._compiler = loop._compiler

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The loop for these types, compiled before if it is not there. Without one, numba compiles it as ever."""
        found = super().load_overload(sig, target_context)
        if found is None:
            self.save_overload(sig, self._compile(sig))
            found = super().load_overload(sig, target_context)
        return found

    def _compile(self, sig: Any) -> Any:
        compiler = copy.copy(self._compiler)
        target = compiler.targetdescr
        compiler.targetdescr = SimpleNamespace(
            options=target.options, typing_context=target.typing_context, target_context=_apart(target.target_context)
        )
        return compiler.compile(*normalize_signature(sig))


@functools.cache
def _apart(target_context: Any) -> Any:
    """A context with names of its own for what is compiled."""
    return target_context.subtarget(_internal_codegen=JITCPUCodegen("unmask.exec"))


@functools.cache
def _forget_what_is_old(folder: Path) -> None:
    """Removes what was compiled before any file of loops was changed.

    Numba looks at a loop's own file only, not at those whose functions and numbers the loop uses.
    """
    package = Path(__file__).parents[1]
    used = (package / "hashing.py", *package.glob("*/*_loops.py"))
    newest = max((path.stat().st_mtime for path in used if path.exists()), default=0.0)
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
