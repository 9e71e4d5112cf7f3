"""Leaf modules. Weights are kept in float32; a matrix product runs in the type of its input.

Shape suffixes: B = rows, S = positions, D = hidden size, I = intermediate size, H = heads, K = size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.core.hashing import DROPPED, GOLDEN, mix
from unmask.model import fused
from unmask.model.attention import AttentionPlan
from unmask.model.config import EncoderConfig


class Linear(nn.Module):
    """A matrix product.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        bias: Whether something is added to the product.
        num_fused: How many matrices of equal size are stacked in the rows: an optimizer that treats matrices as a
            whole must take them apart.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, num_fused: int = 1) -> None:
        super().__init__()
        self.num_fused = num_fused
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Norm(nn.Module):
    """Layer normalisation, with a bias or without."""

    def __init__(self, size: int, *, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.of_sum(x, None)[1]

    def of_sum(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum of both (or `x`, where there is nothing to add), and its normalisation."""
        return fused.add_and_norm(x, added, self.weight, self.bias, self.eps)


def dropout(x: Tensor, rate: float, *, seed: int | Tensor | None) -> Tensor:
    """Sets a share of the numbers to 0 and enlarges the others, so that the expectation stays.

    What is dropped is a function of the seed and the shape (on one kind of device). No generator outlives the call,
    so that a resumed training, or a block that is computed twice, drops the same.

    Args:
        x: Any shape.
        rate: The share, in [0, 1).
        seed: Any 64-bit integer; None drops nothing. As a tensor (int64, of one number, on the device of `x`) it is an
            input of a compiled block, and numbers are dropped by hashes, since compiled code has no generators.

    Source: Srivastava et al. 2014, section 10 (the enlarging while training).
    """
    if seed is None:
        return x
    if isinstance(seed, Tensor):
        counters = torch.arange(x.numel(), device=x.device) * GOLDEN + seed
        stays = (DROPPED.of(mix(counters)) >= round(rate * 2**DROPPED.size)).view(x.shape)
        return torch.where(stays, x / (1.0 - rate), 0.0)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    stays = torch.empty_like(x).bernoulli_(1.0 - rate, generator=generator)
    return x * stays * (1.0 / (1.0 - rate))  # the factor is no bf16, which would be rounded


class MLP(nn.Module):
    """A projection, activated, and projected back (Vaswani et al. 2017, section 3.3). Where it is gated there are two
    projections, one of them activated, multiplied (Shazeer 2020, GLU variants)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, inner, gated, bias = config.hidden_size, config.intermediate_size, config.parts.gated, config.parts.bias
        self.kind, self.gated = config.activation, gated
        self.into = Linear(hidden, 2 * inner if gated else inner, bias=bias, num_fused=2 if gated else 1)
        self.out = Linear(inner, hidden, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.out(fused.activate(self.into(x_BSD), self.kind, gated=self.gated))


class Attention(nn.Module):
    """Self-attention, with rotary positions or without."""

    def __init__(self, hidden_size: int, num_heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias, num_fused=3)
        self.out = Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor, plan: AttentionPlan) -> Tensor:
        """[B, S, D], normalised, to [B, S, D]; the plan is of the layer's kind."""
        return self.out(fused.attention(self.project(x_BSD), plan).reshape(x_BSD.shape))

    def project(self, x_BSD: Tensor) -> Tensor:
        """Queries, keys and values: [B, S, 3, H, K]."""
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
        self.post_norm = parts.post_norm
        self.dropout_rate = config.dropout
        self.attention_norm = (
            Norm(hidden, eps=config.norm_eps, bias=parts.bias) if parts.first_norm or not first else nn.Identity()
        )
        self.attention = Attention(hidden, config.num_heads, bias=parts.bias)
        self.mlp_norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.mlp = MLP(config)

    def forward(
        self, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds = (None, None)
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream, and what is still to be added to it: a norm does that on the way.

        Args:
            x_BSD, added_BSD: What the block before has returned.
            plan: As for `Attention`.
            seeds: Of the dropout of attention and MLP, as for `dropout`.
        """
        rate, (of_attention, of_mlp) = self.dropout_rate, seeds
        if self.post_norm:
            assert isinstance(self.attention_norm, Norm)
            mixed_BSD = dropout(self.attention(x_BSD, plan), rate, seed=of_attention)
            _, x_BSD = self.attention_norm.of_sum(x_BSD, mixed_BSD)
            return self.mlp_norm.of_sum(x_BSD, dropout(self.mlp(x_BSD), rate, seed=of_mlp))[1], None
        normed_BSD = x_BSD
        if isinstance(self.attention_norm, Norm):
            x_BSD, normed_BSD = self.attention_norm.of_sum(x_BSD, added_BSD)
        mixed_BSD = dropout(self.attention(normed_BSD, plan), rate, seed=of_attention)
        x_BSD, normed_BSD = self.mlp_norm.of_sum(x_BSD, mixed_BSD)
        return x_BSD, dropout(self.mlp(normed_BSD), rate, seed=of_mlp)


def run_block(
    block: nn.Module, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds
) -> tuple[Tensor, Tensor | None]:
    """A block as a function of itself, so that what is compiled for one layer serves all that are alike."""
    out: tuple[Tensor, Tensor | None] = block(x_BSD, added_BSD, plan, seeds)
    return out
