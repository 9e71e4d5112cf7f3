"""One transformer block: self-attention and MLP, with norms before or behind what they add.

Shape suffixes: B = rows, S = positions, D = hidden size, H = heads, K = size of a head.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.network import fused
from unmask.network.attention_plan import AttentionPlan
from unmask.network.config import EncoderConfig
from unmask.network.layers import GatedMLP, Linear, Norm, PlainMLP, dropout


class Attention(nn.Module):
    """Self-attention, with rotary positions or without."""

    def __init__(self, hidden_size: int, num_heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias, num_fused=3)
        self.out = Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor, plan: AttentionPlan) -> Tensor:
        """[B, S, D] to [B, S, D]. Args: x_BSD: Normalised input. plan: Of the layer's kind."""
        return self.out(fused.attention(self._projected(x_BSD), plan).reshape(x_BSD.shape))

    def project(self, x_BSD: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: each [B, H, S, K]. Arguments as for `forward`."""
        return fused.heads_of(self._projected(x_BSD), plan)

    def _projected(self, x_BSD: Tensor) -> Tensor:
        """[B, S, 3, H, K]."""
        num_rows, length, hidden = x_BSD.shape
        return self.qkv(x_BSD).view(num_rows, length, 3, self.num_heads, hidden // self.num_heads)


Seeds = tuple[int | Tensor | None, int | Tensor | None]


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream.

    Pre-norm: `x + part(norm(x))`. Post-norm: `norm(x + part(x))`.
    """

    def __init__(self, config: EncoderConfig, *, first: bool) -> None:
        super().__init__()
        parts, hidden = config.parts, config.hidden_size
        mlp = GatedMLP if parts.gated else PlainMLP
        self.post_norm = parts.post_norm
        self.dropout_rate = config.dropout
        self.attention_norm = (
            Norm(hidden, eps=config.norm_eps, bias=parts.bias) if parts.first_norm or not first else nn.Identity()
        )
        self.attention = Attention(hidden, config.num_heads, bias=parts.bias)
        self.mlp_norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.mlp = mlp(hidden, config.intermediate_size, config.activation, bias=parts.bias)

    def forward(
        self, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds = (None, None)
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream, and what is still to be added to it: a norm does that on the way.

        Args:
            x_BSD, added_BSD: What the block before has returned.
            plan: As for `Attention`.
            seeds: Of the dropout of attention and MLP, as for `dropout`.
        """
        if self.post_norm:
            assert isinstance(self.attention_norm, Norm)
            _, x_BSD = self.attention_norm.of_sum(x_BSD, self._drop(self.attention(x_BSD, plan), seeds[0]))
            return self.mlp_norm.of_sum(x_BSD, self._drop(self.mlp(x_BSD), seeds[1]))[1], None
        normed_BSD = x_BSD
        if isinstance(self.attention_norm, Norm):
            x_BSD, normed_BSD = self.attention_norm.of_sum(x_BSD, added_BSD)
        mixed_BSD = self._drop(self.attention(normed_BSD, plan), seeds[0])
        x_BSD, normed_BSD = self.mlp_norm.of_sum(x_BSD, mixed_BSD)
        return x_BSD, self._drop(self.mlp(normed_BSD), seeds[1])

    def _drop(self, x_BSD: Tensor, seed: int | Tensor | None) -> Tensor:
        return dropout(x_BSD, self.dropout_rate, seed=seed)


def run_block(
    block: nn.Module, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds
) -> tuple[Tensor, Tensor | None]:
    """A block as a function of itself, so that what is compiled for one layer serves all that are alike."""
    out: tuple[Tensor, Tensor | None] = block(x_BSD, added_BSD, plan, seeds)
    return out
