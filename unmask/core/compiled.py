"""Compiled loops over arrays on CPUs, which tensors they can process, and how many cores they have.

A mask, or a block of the model, takes dozens of tensor operations, and on a CPU each reads and writes megabytes. A
compiled loop reads its input once and writes its result once. Loops are functions over numpy arrays. Numba compiles
each once per user (about a second) and caches it in `~/.cache/unmask` for all environments. Loops release the GIL.

Loops of the model compute what tensor operations compute on other devices; tests compare both by making `serves` return
False. Masking always runs in loops, on the host.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from unmask.core.files import cache, say_once

if TYPE_CHECKING:
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered and products fused, so that loops become vector instructions; infinities and NaNs stay.
_MATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """Compiles a loop over integers for one core, at its first call."""
    return cast(Function, _Loop(function))


def inlined(function: Function) -> Function:
    """Compiles arithmetic that is inlined into loops over floating-point numbers."""
    return cast(Function, _Loop(function, fastmath=_MATH, inline="always"))


def parallel(function: Function) -> Function:
    """Compiles a loop over floating-point numbers for all cores, which share the iterations of `numba.prange`."""
    return cast(Function, _Loop(function, fastmath=_MATH, parallel=True))


class _Loop:
    """A loop that numba compiles at its first use: importing numba takes half a second."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self._options = function, options

    @functools.cached_property
    def dispatcher(self) -> Any:
        # Numba finds the loops that this one calls among its globals, so their dispatchers replace them there.
        import numba

        locators = numba.config.CACHE_LOCATOR_CLASSES  # type: ignore[attr-defined]
        numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.LoopFolder"  # type: ignore[attr-defined]
        try:
            dispatcher = numba.njit(cache=True, nogil=True, **self._options)(self.py_func)
            if "parallel" in self._options:
                dispatcher._cache = _shared_cache(dispatcher)
        except RuntimeError:  # the cache is not writable
            say_once(
                "compiled loops cannot be stored, so each command compiles them anew: set NUMBA_CACHE_DIR to a folder"
            )
            dispatcher = numba.njit(nogil=True, **self._options)(self.py_func)
        finally:
            numba.config.CACHE_LOCATOR_CLASSES = locators  # type: ignore[attr-defined]
        self.__dict__["dispatcher"] = dispatcher
        names = self.py_func.__globals__
        for name, value in list(names.items()):
            if isinstance(value, _Loop | _BytesAt):
                names[name] = value.dispatcher
        return dispatcher

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatcher, name)


def _shared_cache(loop: Any) -> Any:
    """A cache from which even the process that compiles a loop runs it, so that all processes compute the same bits.

    Numba compiles the body that threads run once by itself, and once inlined in the loop around it, with sums in
    another order. Both functions have the same name. The process that compiles would run the first, but only the second
    is cached. So a loop is compiled apart from the code that this process runs, and then loaded from the cache.
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
def _apart(target_context: Any) -> Any:  # one for all loops: a context with symbols of its own
    from numba.core.codegen import JITCPUCodegen

    return target_context.subtarget(_internal_codegen=JITCPUCodegen("unmask.exec"))


class _BytesAt:
    """In loops, `bytes_at(address, size)` is memory as a uint8 array, without a copy; compiled at its first use."""

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
    """The folder in which numba caches a compiled loop (the interface of its cache locators).

    Its name is a hash of the loop's file and of the files whose functions and numbers loops use. It contains no path,
    so a new environment finds loops that another has compiled.
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
        return ""  # the folder's name has a hash of the source

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
    folder = cast(Any, function).stats.cache_path
    names = f"*.{function.__name__}-*.nbi"
    return folder is not None and any(Path(folder).glob(names))


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The quota of CPU time of this process's control groups (Linux, version 2), in cores; None if there is none.

    Containers are limited in this way, and neither the number of cores nor the affinity shows it.
    """
    quotas: list[float] = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        name = next(line for line in own.read_text().splitlines() if line.startswith("0::/"))[4:]
        for folder in (root / name, *(root / name).parents):  # in a container, the root is often its own group
            if folder.is_relative_to(root) and (limit := folder / "cpu.max").is_file():
                most, period = limit.read_text().split()
                quotas += [] if most == "max" else [int(most) / int(period)]
    return min(quotas, default=None)


def cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return available if quota is None else max(1, min(available, math.ceil(quota)))


def keep_to_quota() -> None:
    """Limits torch's threads, and so those of loops, to the cores of the quota, if there is one: more threads use it up
    early in each period, and then all wait. OMP_NUM_THREADS has precedence."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ and cpu_quota() is not None:
        torch.set_num_threads(min(torch.get_num_threads(), cores()))


_threads = threading.local()  # numba keeps the number per thread of Python


def use_threads_of_torch() -> None:
    """Makes parallel loops use as many cores as tensor operations, and keeps numba from changing torch's number.

    At the first parallel loop of a process, numba starts its threads and sets OpenMP's number of threads to the number
    of cores. That is torch's number as well, so a limit of one thread would be lost.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == getattr(_threads, "num", None):  # a step calls this a hundred times
        return
    import numba

    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    _threads.num = threads


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Tensors as arrays, without a copy; bf16, which numpy lacks, as uint16."""
    import torch

    plain = [tensor.detach() for tensor in tensors]
    return tuple([(t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).numpy() for t in plain])


def serves(tensor: Tensor) -> bool:
    """Whether compiled loops can process a tensor. Not while a model is exported: a graph holds operations only."""
    import torch

    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()
