"""What this machine is good at."""

from __future__ import annotations

from typing import Literal

import torch


def choose_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(precision: Literal["auto", "bf16", "float32"], device: torch.device) -> torch.dtype:
    """The type of the activations.

    `auto` is bf16 on GPUs with bf16 tensor cores and on CPUs with AMX or AVX512-bf16 instructions, where products
    are several times faster than in float32; float32 elsewhere, where bf16 would be emulated.
    """
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if _cpu_multiplies_bf16() else torch.float32


def _cpu_multiplies_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
