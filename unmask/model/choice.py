"""Which way attention is computed: one choice, by what the device and this version of torch offer.

loops    CPUs: compiled loops, tile by tile (`unmask.model.fused`)
varlen   GPUs: one kernel over all segments of the batch in a line, without padding and without a bias
         (`torch.nn.attention.varlen`): what is between segments, or outside of the window, is never computed
bias     elsewhere: PyTorch's fused attention with a bias [B, 1, S, S], which computes everything and then hides it
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Literal

import torch

AttentionKind = Literal["loops", "varlen", "bias"]
_LARGEST_HEAD = 256
_AMPERE = (8, 0)


@dataclass(frozen=True)
class Abilities:
    """What a device can do with the torch that is installed.

    Attributes:
        loops: Whether compiled loops serve it.
        varlen: Whether there is a kernel over sequences of unequal length.
        windows: Whether that kernel takes a sliding window; not every version of torch lets it.
    """

    loops: bool
    varlen: bool
    windows: bool


@functools.cache
def abilities_of(device: torch.device) -> Abilities:
    """Asks torch and the device, once."""
    if device.type != "cuda" or torch.version.hip is not None:
        return Abilities(loops=device.type == "cpu", varlen=False, windows=False)
    from torch.nn.attention.varlen import varlen_attn

    able = torch.cuda.get_device_capability(device) >= _AMPERE
    return Abilities(loops=False, varlen=able, windows="window_size" in inspect.signature(varlen_attn).parameters)


def choose_attention(abilities: Abilities, dtype: torch.dtype, *, head_dim: int, window: int | None) -> AttentionKind:
    """How a layer computes its attention.

    Args:
        abilities: Of the device.
        dtype: Of the activations; the kernel over sequences takes half precision only.
        head_dim: Size of a head; that kernel takes multiples of 8 up to 256.
        window: Farthest position that a token attends to; None: any.
    """
    if abilities.loops:
        return "loops"
    fits = dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= _LARGEST_HEAD
    if abilities.varlen and fits and (window is None or abilities.windows):
        return "varlen"
    return "bias"
