"""Which way attention is computed."""

from __future__ import annotations

import pytest
import torch

from unmask.model.attention import Abilities, AttentionKind, choose_attention

CPU = Abilities(loops=True, varlen=False, windows=False)
OLD_GPU = Abilities(loops=False, varlen=False, windows=False)
WITHOUT_WINDOWS = Abilities(loops=False, varlen=True, windows=False)
GPU = Abilities(loops=False, varlen=True, windows=True)
BF16, HALF, FULL = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("abilities", "dtype", "head_dim", "window", "kind"),
    [
        (CPU, BF16, 64, None, "loops"),
        (CPU, FULL, 64, 64, "loops"),
        (GPU, BF16, 64, None, "varlen"),
        (GPU, HALF, 64, 64, "varlen"),
        (GPU, BF16, 256, 64, "varlen"),
        (GPU, BF16, 264, None, "bias"),  # the kernel ends at 256
        (GPU, BF16, 36, None, "bias"),  # and takes multiples of 8
        (GPU, FULL, 64, None, "bias"),  # in half precision
        (WITHOUT_WINDOWS, BF16, 64, None, "varlen"),
        (WITHOUT_WINDOWS, BF16, 64, 64, "bias"),
        (OLD_GPU, BF16, 64, None, "bias"),
    ],
)
def test_the_choice(
    abilities: Abilities, dtype: torch.dtype, head_dim: int, window: int | None, kind: AttentionKind
) -> None:
    assert choose_attention(abilities, dtype, head_dim=head_dim, window=window) == kind
