"""Self-attention, and what it needs to know of a batch.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, H = heads, K = size of a head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

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


class Attention(nn.Module):
    """Self-attention, with rotary positions or without."""

    def __init__(self, hidden_size: int, num_heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias, num_fused=3)
        self.out = Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor, plan: Plan) -> Tensor:
        """[B, S, D] to [B, S, D]. Args: x_BSD: Normalised input. plan: Of the layer's kind."""
        return self.out(fused.attention(self._projected(x_BSD), plan).reshape(x_BSD.shape))

    def project(self, x_BSD: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: each [B, H, S, K]. Arguments as for `forward`."""
        return fused.heads_of(self._projected(x_BSD), plan)

    def _projected(self, x_BSD: Tensor) -> Tensor:
        """[B, S, 3, H, K]."""
        num_rows, length, hidden = x_BSD.shape
        return self.qkv(x_BSD).view(num_rows, length, 3, self.num_heads, hidden // self.num_heads)
