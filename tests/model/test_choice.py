"""Which way attention is computed."""

from __future__ import annotations

import pytest
import torch

from unmask.model.attention import Abilities, AttentionKind, abilities_of, choose_attention

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


def test_abilities_of_devices_without_cuda() -> None:
    assert abilities_of(torch.device("cpu")) == CPU
    assert abilities_of(torch.device("meta")) == OLD_GPU


@pytest.mark.parametrize(("capability", "able"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_abilities_of_cuda_devices(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], able: bool) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = abilities_of.__wrapped__(torch.device("cuda"))
    assert (found.loops, found.varlen) == (False, able)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value: None)
    assert not abilities_of.__wrapped__(torch.device("cuda")).windows, "as in versions that lack the argument"
