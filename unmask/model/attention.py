"""Self-attention, and what it needs to know of a batch.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, H = heads, K = size of a head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import varlen

from unmask.compiled import serves
from unmask.model import fused
from unmask.model.parts import Linear
from unmask.model.sequences import Sequences
from unmask.model.tiles import Tile, tiles_of


@dataclass(frozen=True)
class Plan:
    """Who attends to whom in a layer of a kind, and where positions are rotary, at which angles.

    Attributes:
        segment_ids_BS: int32: tokens attend only to tokens of the same number.
        num_heads: How many there are.
        window: Farthest position that a token attends to; None: any.
        rotary: Cosines and sines of the rotation angles [B, S, K / 2], float32; None: positions are not rotary.
        sequences: The segments in a line, where attention is computed over them (`unmask.model.choice`); else None.
    """

    segment_ids_BS: Tensor
    num_heads: int
    window: int | None
    rotary: tuple[Tensor, Tensor] | None
    sequences: Sequences | None = None

    @functools.cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """Parts of the batch, on CPUs."""
        return tiles_of(self.segment_ids_BS, num_heads=self.num_heads, window=self.window)

    @functools.cached_property
    def bias_B1SS(self) -> Tensor:
        """float32: 0 where a token (third axis) may attend to another (fourth), minus infinity elsewhere.

        Padding attends to padding, so that no line is all minus infinity.
        """
        segment_ids_BS = self.segment_ids_BS
        allowed = segment_ids_BS[:, :, None] == segment_ids_BS[:, None, :]
        if self.window is not None:
            place = torch.arange(segment_ids_BS.shape[1], device=segment_ids_BS.device)
            allowed = allowed & ((place[:, None] - place[None, :]).abs() <= self.window)
        bias = torch.zeros(allowed.shape, device=segment_ids_BS.device)
        return bias.masked_fill_(~allowed, float("-inf"))[:, None]


def rotary_table(position_ids_BS: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, computed once for each position that a row can have.

    Args:
        position_ids_BS: int64: positions within segments, so below S.
        head_dim: K.
        theta: Base of the wave lengths.

    Returns:
        Two float32 tensors [B, S, head_dim / 2].

    Source: Su et al. 2021 (RoFormer), section 3.4.2; halves are paired, as in GPT-NeoX and ModernBERT.
    """
    device = position_ids_BS.device
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    places = torch.arange(position_ids_BS.shape[1], device=device, dtype=torch.float32)
    angle = places[:, None] / theta**exponent
    return functional.embedding(position_ids_BS, angle.cos()), functional.embedding(position_ids_BS, angle.sin())


def rotate(x_BHSK: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the pairs (x[i], x[i + K/2]) by their angles."""
    cos, sin = (table[:, None].to(x_BHSK.dtype) for table in rotary)
    return _turn(x_BHSK, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend_in_line(qkv_BS3HK: Tensor, plan: Plan) -> Tensor:
    """Attention within the segments of a batch in a line, by a kernel of GPUs (half precision only).

    Args:
        qkv_BS3HK: Queries, keys and values; bf16 or float16.
        plan: With sequences.

    Returns:
        [T, H, K].

    Source: Dao 2023 (FlashAttention-2), in `torch.nn.attention.varlen`; its backward pass computes probabilities
    again, so memory grows with the length and not with its square.
    """
    assert plan.sequences is not None
    query_THK, key_THK, value_THK = qkv_BS3HK.flatten(0, 1).unbind(1)
    if plan.rotary is not None:
        cos, sin = (table.flatten(0, 1)[:, None].to(query_THK.dtype) for table in plan.rotary)
        query_THK, key_THK = _turn(query_THK, cos, sin), _turn(key_THK, cos, sin)
    begins, longest = plan.sequences.cu_seqlens, plan.sequences.max_length
    # It reaches as far to the left as to the right; older versions of torch do not know the argument.
    window: dict[str, Any] = {} if plan.window is None else {"window_size": (plan.window, plan.window)}
    mixed_THK = varlen.varlen_attn(query_THK, key_THK, value_THK, begins, begins, longest, longest, **window)
    assert isinstance(mixed_THK, Tensor), "further results were not asked for"
    return mixed_THK


class Attention(nn.Module):
    """Self-attention, with rotary positions or without."""

    def __init__(self, hidden_size: int, num_heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias, num_fused=3)
        self.out = Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor, plan: Plan) -> Tensor:
        """[B, S, D] to [B, S, D]. Args: x_BSD: Normalised input. plan: Of the layer's kind."""
        if serves(x_BSD):
            mixed = fused.attention(self._projected(x_BSD), plan.rotary, plan.segment_ids_BS, plan.tiles)
        elif plan.sequences is not None:
            mixed = attend_in_line(self._projected(x_BSD), plan)
        else:
            query, key, value = self.project(x_BSD, plan)
            bias_B1SS = plan.bias_B1SS.to(query.dtype)
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias_B1SS).transpose(1, 2)
        return self.out(mixed.reshape(x_BSD.shape))

    def project(self, x_BSD: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: each [B, H, S, K]. Arguments as for `forward`."""
        # Taken apart at once: slices would each fill a gradient of the whole with zeros.
        query, key, value = self._projected(x_BSD).permute(2, 0, 3, 1, 4).unbind(0)
        if plan.rotary is not None:
            query, key = rotate(query, plan.rotary), rotate(key, plan.rotary)
        return query, key, value

    def _projected(self, x_BSD: Tensor) -> Tensor:
        """[B, S, 3, H, K]."""
        num_rows, length, hidden = x_BSD.shape
        return self.qkv(x_BSD).view(num_rows, length, 3, self.num_heads, hidden // self.num_heads)
