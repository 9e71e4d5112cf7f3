"""How loops over numbers are compiled for CPUs, and which tensors they serve.

A tensor operation on a CPU reads and writes megabytes for each of the dozens of steps that a mask takes or a block of
the model; a compiled loop reads its input once and writes its result once. Loops are functions over numpy arrays that
numba compiles once for a user (a second or so each; it keeps them in `~/.cache/unmask`, for all environments). They
hold no lock of Python's while they run.

A loop of the model computes what tensor operations compute on other devices; tests compare the two by making `serves`
say no. Masking is done by loops alone, on the host.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from unmask.core.files import cache

if TYPE_CHECKING:
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered and products fused, so that loops become vector instructions; infinities and NaNs stay.
_MATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """Compiles a loop over integers, for one core, when it is first called."""
    return cast(Function, _Loop(function))


def inlined(function: Function) -> Function:
    """Compiles arithmetic that loops over floating-point numbers use."""
    return cast(Function, _Loop(function, fastmath=_MATH, inline="always"))


def parallel(function: Function) -> Function:
    """Compiles a loop over floating-point numbers, for all cores: `numba.prange` is what they share out."""
    return cast(Function, _Loop(function, fastmath=_MATH, parallel=True))


class _Loop:
    """A loop that is handed to numba when it is first used: importing numba takes half a second."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self._options = function, options

    @functools.cached_property
    def dispatcher(self) -> Any:
        # Loops that it calls are found among its globals, so they take their places there.
        import numba

        before = numba.config.CACHE_LOCATOR_CLASSES  # type: ignore[attr-defined]
        numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.LoopFolder"  # type: ignore[attr-defined]
        try:
            made = numba.njit(cache=True, nogil=True, **self._options)(self.py_func)
            if "parallel" in self._options:
                made._cache = _shared_cache(made)
        except RuntimeError:  # the folder cannot be written: then it is compiled in every process
            made = numba.njit(nogil=True, **self._options)(self.py_func)
        finally:
            numba.config.CACHE_LOCATOR_CLASSES = before  # type: ignore[attr-defined]
        self.__dict__["dispatcher"] = made
        names = self.py_func.__globals__
        for name, value in list(names.items()):
            if isinstance(value, _Loop | _BytesAt):
                names[name] = value.dispatcher
        return made

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatcher, name)


def _shared_cache(loop: Any) -> Any:
    """A cache with which the first process on a machine runs the code that all later ones find, for the same bits.

    Numba compiles what threads share out by itself, and again inside the loop around it, where sums are put into
    another order. Both are functions of one name: the process that compiles runs the first of them, whereas only the
    second is kept. So a loop is compiled apart from what this process runs, and then loaded like any that was kept.
    """
    from numba.core.caching import FunctionCache
    from numba.core.sigutils import normalize_signature

    class SharedLoopCache(FunctionCache):
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            if (overload := super().load_overload(sig, target_context)) is None:
                compiler = copy.copy(loop._compiler)
                target = compiler.targetdescr
                compiler.targetdescr = SimpleNamespace(
                    options=target.options,
                    typing_context=target.typing_context,
                    target_context=_apart(target.target_context),
                )
                self.save_overload(sig, compiler.compile(*normalize_signature(sig)))
                overload = super().load_overload(sig, target_context)
            return overload

    return SharedLoopCache(loop.py_func)


@functools.cache
def _apart(target_context: Any) -> Any:  # one for all loops: a context with its own names for what is compiled
    from numba.core.codegen import JITCPUCodegen

    return target_context.subtarget(_internal_codegen=JITCPUCodegen("unmask.exec"))


class _BytesAt:
    """In loops, `bytes_at(address, size)` is memory as an array of uint8, without a copy; handed to numba as late."""

    @functools.cached_property
    def dispatcher(self) -> Any:
        import numba
        from numba.core import cgutils, types
        from numba.extending import intrinsic

        @intrinsic
        def pointer(_: Any, address: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return builder.inttoptr(arguments[0], cgutils.voidptr_t)

            return types.CPointer(types.uint8)(types.int64), generate

        @numba.njit(nogil=True)
        def bytes_at(address: Any, size: Any) -> Any:
            return numba.carray(pointer(address), (size,), np.uint8)  # type: ignore[attr-defined, call-arg]

        return bytes_at


bytes_at: Any = _BytesAt()


class LoopFolder:
    """The folder in which numba keeps a compiled loop (the interface of its cache locators).

    It is named after the text of the loop's file and of those whose functions and numbers loops use, and not after a
    path, so that a new environment finds what another has compiled.
    """

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._line, self._path = function.__code__.co_firstlineno, _loop_folder(file)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> LoopFolder | None:
        folder = cls(function, file)
        try:
            folder.ensure_cache_path()
        except OSError:
            return None
        return folder

    def ensure_cache_path(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        if not os.access(self._path, os.W_OK):
            raise PermissionError(self._path)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return ""  # the folder's name is one

    def get_disambiguator(self) -> str:
        return str(self._line)


@functools.cache
def _loop_folder(file: str) -> Path:
    import numba

    package = Path(__file__).parents[1]
    files = [Path(file), package / "core/hashing.py", *sorted(package.glob("*/*loops.py"))]
    texts = [numba.__version__.encode(), *(path.read_bytes() for path in files)]
    key = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    return Path(numba.config.CACHE_DIR or cache()) / "loops" / f"{Path(file).stem}-{key}"  # type: ignore[attr-defined]


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a loop was compiled on this machine before, and kept."""
    folder = cast(Any, function).stats.cache_path
    names = f"*.{function.__name__}-*.nbi"
    return folder is not None and any(Path(folder).glob(names))


_threads = threading.local()  # numba counts for each thread of Python by itself


def use_threads_of_torch() -> None:
    """Lets parallel loops use as many cores as tensor operations do, and not the other way round.

    When numba starts its threads, at the first parallel loop of a process, it sets OpenMP's number of threads to that
    of all cores, which is torch's number as well: with one thread asked for there would be as many as cores.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == getattr(_threads, "num", None):  # a step asks a hundred times
        return
    import numba

    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    _threads.num = threads


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The same numbers as arrays, without a copy; bf16, which numpy does not have, as 16 bits."""
    import torch

    plain = [tensor.detach() for tensor in tensors]
    return tuple([(t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).numpy() for t in plain])


def serves(tensor: Tensor) -> bool:
    """Whether compiled loops can work on a tensor. While a model is exported they cannot: a graph holds operations."""
    import torch

    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()
