"""Which way attention is computed."""

from __future__ import annotations

import pytest
import torch

from unmask.model.fused import choose_attention

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BF16, HALF, FULL = torch.bfloat16, torch.float16, torch.float32
AMPERE, TURING = (8, 0), (7, 5)


@pytest.mark.parametrize(
    ("device", "capability", "windows", "dtype", "head_dim", "window", "kind"),
    [
        (CPU, AMPERE, True, BF16, 64, None, "loops"),
        (CPU, AMPERE, True, FULL, 64, 64, "loops"),
        (GPU, AMPERE, True, BF16, 64, None, "varlen"),
        (GPU, AMPERE, True, HALF, 64, 64, "varlen"),
        (GPU, AMPERE, True, BF16, 256, 64, "varlen"),
        (GPU, AMPERE, True, BF16, 264, None, "bias"),  # the kernel ends at 256
        (GPU, AMPERE, True, BF16, 36, None, "bias"),  # and takes multiples of 8
        (GPU, AMPERE, True, FULL, 64, None, "bias"),  # in half precision
        (GPU, AMPERE, False, BF16, 64, None, "varlen"),  # a torch whose kernel knows no window
        (GPU, AMPERE, False, BF16, 64, 64, "bias"),
        (GPU, TURING, True, BF16, 64, None, "bias"),
    ],
)
def test_the_choice(
    device: torch.device,
    capability: tuple[int, int],
    windows: bool,
    dtype: torch.dtype,
    head_dim: int,
    window: int | None,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = (lambda query, window_size: query) if windows else lambda query: query
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_attention.__wrapped__(device, dtype, head_dim=head_dim, window=window) == kind
