"""Replacements, on a CPU, for functions of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.model import encoder, fused


def reference_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Computes `varlen_attn` sequence by sequence, with the whole matrix of probabilities."""
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert cu_seq_q.dtype == torch.int32
    out = []
    for begin, end in torch.stack([cu_seq_q[:-1], cu_seq_q[1:]], 1).tolist():
        assert end - begin <= max_q == max_k
        q, k, v = (x[begin:end].transpose(0, 1).double() for x in (query, key, value))
        scores = q @ k.mT * query.shape[-1] ** -0.5
        place = torch.arange(end - begin)
        distance = place[None, :] - place[:, None]
        left, right = window_size
        if left >= 0:
            scores = scores.masked_fill(distance < -left, float("-inf"))
        if right >= 0:
            scores = scores.masked_fill(distance > right, float("-inf"))
        out.append((scores.softmax(-1) @ v).transpose(0, 1).to(query.dtype))
    return torch.cat(out)


def tensor_operations(patch: pytest.MonkeyPatch) -> None:
    """No compiled loops."""
    patch.setattr(fused, "serves", lambda tensor: False)


def attend_in_line(patch: pytest.MonkeyPatch, varlen: Any = reference_varlen) -> None:
    """Attention over sequences in a line, in any precision."""
    tensor_operations(patch)
    patch.setattr(encoder, "choose_attention", lambda *given, **named: "varlen")
    patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
