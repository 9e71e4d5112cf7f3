"""One transformer block, with its norms before or behind what it adds.

Shape suffixes: B = rows, S = positions, D = hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.hashing import mix_ints
from unmask.model.config import EncoderConfig
from unmask.model.parts import Attention, GatedMLP, Norm, PlainMLP, dropout


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
        self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor] | None, bias_B1SS: Tensor | None, seed: int | None = None
    ) -> Tensor:
        """[B, S, D] to [B, S, D].

        Args:
            x_BSD: The residual stream.
            rotary, bias_B1SS: As for `Attention`.
            seed: Of the dropout; None drops nothing.
        """
        seeds = (None, None) if seed is None else (mix_ints(seed, 0), mix_ints(seed, 1))
        if self.post_norm:
            x_BSD = self.attention_norm(x_BSD + self._drop(self.attention(x_BSD, rotary, bias_B1SS), seeds[0]))
            return self.mlp_norm(x_BSD + self._drop(self.mlp(x_BSD), seeds[1]))
        x_BSD = x_BSD + self._drop(self.attention(self.attention_norm(x_BSD), rotary, bias_B1SS), seeds[0])
        return x_BSD + self._drop(self.mlp(self.mlp_norm(x_BSD)), seeds[1])

    def _drop(self, x_BSD: Tensor, seed: int | None) -> Tensor:
        return dropout(x_BSD, self.dropout_rate, seed=seed)
