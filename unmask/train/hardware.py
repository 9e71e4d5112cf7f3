"""What this machine supports: device, precision, compilation, memory."""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from typing import Literal

import torch

from unmask.core.compiled import is_compiled
from unmask.core.errors import SettingsError
from unmask.masking.settings import MaskingSettings, followed_scores
from unmask.model.encoder import MaskedLM
from unmask.model.transformers import TaskConfig, TaskNetwork
from unmask.train.settings import MuonSettings, TrainingSettings

log = logging.getLogger("unmask")
_WORTH_COMPILING = 5.0  # fewest minutes of training: compiling takes up to one (not measured on a GPU yet)
_WORTH_COMPILING_STEPS = 100  # fewest steps: fewer take less than five minutes, if a step takes under three seconds
_LARGE_VOCABULARY = 4096  # smallest to be sampled: the sample is about half of it
COMPILING = "compiling loops for this machine, once; some 20 seconds"
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def choose_device() -> torch.device:
    """The GPU if there is one (NVIDIA, AMD or Apple) for which torch has code, else the CPU."""
    if torch.cuda.is_available() and _has_code():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@functools.cache
def _has_code() -> bool:
    """Whether this build of torch has kernels for the GPU; builds drop old architectures."""
    try:
        torch.zeros(1, device="cuda").add_(1)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if "no kernel image" not in reason and "invalid device function" not in reason:  # as ROCm says it
            raise
        log.warning("this build of torch has no code for the GPU (%s): using the CPU", reason)
        return False
    return True


def must_compile(device: torch.device) -> bool:
    """Whether the first step of a training compiles loops for the CPU, which takes about 20 seconds, once per user."""
    from unmask.model.loops import norm_backward  # loads numba

    return device.type == "cpu" and not is_compiled(norm_backward)


def sums_dtype(device: torch.device) -> torch.dtype:
    """The type in which losses are added up: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_dtype(precision: Literal["auto", "bf16", "float32"], device: torch.device) -> torch.dtype:
    """The type of the activations.

    `auto` is bf16 on GPUs with bf16 tensor cores and on CPUs with AMX or AVX512-bf16 instructions, where products
    are several times faster than in float32; float32 elsewhere, where bf16 would be emulated, and on Apple's GPUs,
    where it has not been measured. torch reports bf16 for every AMD GPU.
    """
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    instructions = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    is_fast = device.type == "cpu" and (instructions.get("amx_bf16") or instructions.get("avx512_bf16"))
    return torch.bfloat16 if is_fast else torch.float32


def why_not_compiled(
    choice: Literal["auto", "yes", "no"],
    device: torch.device,
    *,
    minutes: float | None = None,
    steps: int | None = None,
) -> str | None:
    """The reason why blocks are not compiled (`unmask.model.encoder`), or None if they are.

    `auto` compiles on CUDA if that works, unless compiling would be a large part of a short training.
    """
    if choice == "yes" and device.type != "cuda":
        raise SettingsError(
            f"training.compile_blocks = 'yes' needs a GPU of NVIDIA or AMD, not {device.type}; use 'auto' or 'no'"
        )
    if choice == "no":
        return "the recipe sets it"
    if device.type != "cuda":
        return "only GPUs of NVIDIA and AMD need it"
    few_minutes = minutes is not None and minutes < _WORTH_COMPILING
    if choice == "auto" and (few_minutes or (steps is not None and steps < _WORTH_COMPILING_STEPS)):
        least = f"{_WORTH_COMPILING:.0f} minutes" if few_minutes else f"{_WORTH_COMPILING_STEPS} steps"
        return f"it may not pay off in less than {least}; force it with training.compile_blocks = 'yes'"
    # Having Triton is not enough: it needs a C compiler.
    from torch.utils._triton import has_triton

    failure = None
    if not has_triton():
        failure = "Triton is not installed (`pip install triton`)"
    else:
        try:
            torch.compile(torch.square)(torch.ones(8, device=device))
        except Exception as error:  # on any error, training continues uncompiled
            failure = reason_of(error)
    if choice == "yes" and failure is not None:
        raise SettingsError(f"training.compile_blocks = 'yes' is not possible: {failure}; use 'auto' or 'no'")
    return failure


def samples_softmax(settings: TrainingSettings, masking: MaskingSettings, device: torch.device, size: int) -> bool:
    """Whether losses use a sample of a vocabulary of this size (`unmask.model.fused.sampled_classes`). `auto` samples
    on CPUs, unless masks follow the accuracy of tokens, which must be that among the whole vocabulary."""
    is_whole = settings.sampled_softmax == "no" or "accuracy" in followed_scores(masking)
    return device.type == "cpu" and size >= _LARGE_VOCABULARY and not is_whole


def works_on_its_own(device: torch.device) -> bool:
    """Whether the device computes asynchronously: then figures are read late and windows of text made ahead."""
    return device.type == "cuda"


def keep_freed_memory() -> None:
    """Makes glibc, if it is the C library, keep freed memory for the next step.

    By default glibc returns pieces of a few megabytes to the system. Every step then requests them again, and the
    system zeroes each page: 18,000 page faults a step of a small model. Memory does not grow, since every step needs
    the same amount. This holds for the whole process.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def peak_memory(device: torch.device) -> int | None:
    """Peak memory of the process in bytes, on a GPU that of the GPU; None if the system does not count it (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reason_of(error: BaseException) -> str:
    """The first line of an out-of-memory error's message; Python's own MemoryError has none."""
    return (str(error) or "no memory left").splitlines()[0]


# ----------------------------------------
# Calculates the GPU memory of a step, and from it how many positions can be computed at once.
#
# It counts the tensors that the code keeps for the backward pass, without the savings of compilation, so it is an upper
# estimate. If memory runs out nevertheless, the parts of a step get smaller (`unmask.train.step`). None of this has
# been measured on a GPU.

USED = 0.9  # usable share of a GPU's memory; torch itself and gaps between tensors take the rest
_HALF, _FLOAT = 2, 4  # bytes
_LEAST = 1024  # positions
_ON_CPU = 2 << 30  # bytes


def positions_on_cpu(config: TaskConfig, *, more_bytes: int = 0) -> int:
    """Positions that a step computes at once on a CPU: its layers keep about 2 GB for the backward pass, in float32.
    `more_bytes` of each position are kept besides."""
    of_layers = config.num_layers * (10 * config.hidden_size + 3 * config.intermediate_size) * _FLOAT
    return max(_LEAST, _ON_CPU // (of_layers + more_bytes))


def step_memory(model: MaskedLM, settings: TrainingSettings, *, positions: int, rate: float) -> int:
    """Bytes that a step in bf16 with variable-length attention takes at its peak. `positions` are computed at once, and
    the share `rate` of them is predicted."""
    config, hidden = model.config, model.config.hidden_size
    matrices = sum(p.numel() for block in model.encoder.blocks for p in block.parameters() if p.ndim == 2)
    rest = model.num_parameters - matrices
    weights = (2 * _FLOAT + _HALF) * model.num_parameters  # with their gradients and their copies in bf16
    # Momentum of Muon, both moments of AdamW.
    moments = _FLOAT * (matrices + 2 * rest if isinstance(settings.optimizer, MuonSettings) else 2 * (matrices + rest))
    # Each layer keeps for each position: inputs and outputs of both norms; queries, keys and values before, and queries
    # and keys after the rotation; attention's output; and the MLP's inner values before and after the activation.
    inner = (3 if config.parts.gated else 2) * config.intermediate_size
    layer_bytes = _HALF * ((4 + 3 + (2 if config.parts.rotary else 0) + 1) * hidden + inner) * positions
    blocks = config.num_layers * layer_bytes
    if settings.gradient_checkpointing:  # the inputs of all layers, and one layer's own tensors
        blocks = 2 * hidden * _HALF * positions * config.num_layers + layer_bytes
    # The last layers, logits and their gradients are freed before the backward pass of attention begins.
    head = int(rate * positions * (_HALF * 2 * config.vocab_size + (_FLOAT + 4 * _HALF) * hidden))
    attention = 2 * _FLOAT * hidden * positions
    return weights + moments + blocks + max(head, attention)


def fitting_positions(model: MaskedLM, settings: TrainingSettings, *, memory: int, rate: float) -> int | None:
    """Positions that can be computed at once in `memory` bytes of a GPU: the whole step, or a half, a quarter, ... of
    it; None if not even a few rows fit."""
    positions = settings.batch_tokens
    while step_memory(model, settings, positions=positions, rate=rate) > USED * memory:
        positions //= 2
        if positions < max(_LEAST, settings.sequence_length):
            return None
    return positions


def first_micro_tokens(model: object, settings: TrainingSettings, device: torch.device, *, rate: float) -> int | None:
    """Positions that the first steps compute at once; None: the whole step. Without a setting it is the number that
    fits by calculation: a GPU may run out of memory late, and a system that runs out ends the process."""
    chosen = settings.micro_batch_tokens
    if chosen is not None or device.type not in ("cpu", "cuda") or not isinstance(model, TaskNetwork):
        return chosen
    if device.type == "cpu":
        return max(settings.sequence_length, positions_on_cpu(model.config))
    if not isinstance(model, MaskedLM):
        return None
    memory = torch.cuda.get_device_properties(device).total_memory
    fits = fitting_positions(model, settings, memory=memory, rate=rate)
    return None if fits == settings.batch_tokens else fits or settings.sequence_length
