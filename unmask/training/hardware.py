"""What this machine is good at."""

from __future__ import annotations

import ctypes
import sys
from typing import Literal

import torch

from unmask.errors import SettingsError

_WORTH_COMPILING = 5.0  # minutes of training, at least: compiling takes up to one (not measured on a GPU yet)
_WORTH_COMPILING_STEPS = 100  # fewer take less than that wherever a step takes less than three seconds
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def choose_device() -> torch.device:
    """The GPU where there is one, NVIDIA's, AMD's or Apple's, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def sums_dtype(device: torch.device) -> torch.dtype:
    """What losses are added up in: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_dtype(precision: Literal["auto", "bf16", "float32"], device: torch.device) -> torch.dtype:
    """The type of the activations.

    `auto` is bf16 on GPUs with bf16 tensor cores and on CPUs with AMX or AVX512-bf16 instructions, where products
    are several times faster than in float32; float32 elsewhere, where bf16 would be emulated, and on Apple's GPUs,
    where nobody has measured it.
    """
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if device.type == "cpu" and _cpu_multiplies_bf16() else torch.float32


def _cpu_multiplies_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def why_not_compiled(
    choice: Literal["auto", "yes", "no"],
    device: torch.device,
    *,
    minutes: float | None = None,
    steps: int | None = None,
) -> str | None:
    """Why blocks are not compiled (`unmask.network.compiling`); None: they are.

    `auto` compiles on CUDA, where that works, unless the whole training is so short that compiling would be much of it.

    Args:
        choice: Of the recipe.
        device: Where the model is.
        minutes: Of the whole training; None: nobody knows.
        steps: Of the whole training, about; None: nobody knows.

    Raises:
        SettingsError: It is asked for where it cannot be done.
    """
    if choice == "yes" and device.type != "cuda":
        raise SettingsError(
            f"training.compile_blocks = 'yes' needs a GPU; here the device is {device.type}, where loops that are "
            "compiled already do that work; take 'auto' or 'no'"
        )
    if choice == "no":
        return "the recipe says so"
    if device.type != "cuda":
        return "loops for CPUs are compiled already"
    if choice == "auto" and minutes is not None and minutes < _WORTH_COMPILING:
        return f"in less than {_WORTH_COMPILING:.0f} minutes it may not pay; training.compile_blocks = 'yes' does it"
    if choice == "auto" and steps is not None and steps < _WORTH_COMPILING_STEPS:
        return f"for fewer than {_WORTH_COMPILING_STEPS} steps it may not pay; training.compile_blocks = 'yes' does it"
    failure = _failure_to_compile(device)
    if choice == "yes" and failure is not None:
        raise SettingsError(f"training.compile_blocks = 'yes' cannot be done: {failure}; take 'auto' or 'no'")
    return failure


def _failure_to_compile(device: torch.device) -> str | None:
    """What stands in the way of torch.compile on a GPU. Triton being there is not enough: it needs a C compiler."""
    from torch.utils._triton import has_triton

    if not has_triton():
        return "Triton is not installed (`pip install triton`)"
    try:
        torch.compile(torch.square)(torch.ones(8, device=device))
    except Exception as error:  # whatever it is, training goes on without
        return reason_of(error)
    return None


def works_on_its_own(device: torch.device) -> bool:
    """Whether the host goes on while the device computes: then figures are read late and batches made ahead."""
    return device.type == "cuda"


def keep_freed_memory() -> None:
    """Lets the C library keep what is freed, where it is glibc's, for the next step to use.

    By default glibc gives pieces of some megabytes back to the system, so that every step asks for them again, and the
    system fills each page with zeros: 18,000 page faults a step of a small model. Memory does not grow by this, since
    every step needs the same again. It holds for the whole process.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def peak_memory(device: torch.device) -> int | None:
    """Bytes that the process held at most, on a GPU of its memory; None where the system does not tell (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reason_of(error: BaseException) -> str:
    """The first line of what an error of memory says; Python's own says nothing."""
    return (str(error) or "no memory left").splitlines()[0]


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so. Of PyTorch's many are plain RuntimeErrors: the CPU's allocator's, those of CUDA itself
    and its libraries."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    phrases = ("not enough memory", "can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return any(phrase in str(error) for phrase in phrases)
