"""What attention needs to know of a batch.

Shape suffixes: B = rows, S = positions, K = size of a head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
