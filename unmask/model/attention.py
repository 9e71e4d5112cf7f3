"""Self-attention.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, H = heads, K = size of a head.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.model import fused
from unmask.model.attention_plan import Plan
from unmask.model.parts import Linear


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
