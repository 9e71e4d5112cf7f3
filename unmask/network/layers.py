"""Leaf modules. Weights are kept in float32; a matrix product runs in the type of its input.

Shape suffixes: B = rows, S = positions, D = hidden size, I = intermediate size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.hashing import DROPPED, GOLDEN, mix
from unmask.network import fused
from unmask.network.config import Activation


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
        """[..., in_features] to [..., out_features]."""
        return functional.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Norm(nn.Module):
    """Layer normalisation, with a bias or without."""

    def __init__(self, size: int, *, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Any shape with `size` last."""
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
        seed: Any 64-bit integer; None drops nothing. As a tensor (int64, of one number, on the device of `x`) it is no
            part of a compiled block, which else would be compiled anew for each; then numbers are dropped by their
            hashes, for compiled code has no generators of its own.

    Source: Srivastava et al. 2014, section 10 (the enlarging while training).
    """
    if seed is None:
        return x
    if isinstance(seed, Tensor):
        counters = torch.arange(x.numel(), device=x.device) * GOLDEN + seed
        kept = (DROPPED.of(mix(counters)) >= round(rate * 2**DROPPED.size)).view(x.shape)
        return torch.where(kept, x / (1.0 - rate), 0.0)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    kept = torch.empty_like(x).bernoulli_(1.0 - rate, generator=generator)
    return x * kept * (1.0 / (1.0 - rate))  # the factor is no bf16, which would be rounded


class Activated(nn.Module):
    """An activation; where it is gated, of the first half of the input, times its second.

    Source of the gate: Shazeer 2020 (GLU variants).
    """

    def __init__(self, kind: Activation, *, gated: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        """[..., I], or [..., 2 x I] where it is gated, to [..., I]."""
        return fused.activate(x, self.kind, gated=self.gated)


class GatedMLP(nn.Module):
    """Two projections, one of them activated, multiplied, and projected back. Source: Shazeer 2020 (GLU variants)."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, *, bias: bool = False) -> None:
        super().__init__()
        self.activation = Activated(activation, gated=True)
        self.into = Linear(hidden_size, 2 * intermediate_size, bias=bias, num_fused=2)
        self.out = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        return self.out(self.activation(self.into(x_BSD)))


class PlainMLP(nn.Module):
    """A projection, activated, and projected back. Source: Vaswani et al. 2017, section 3.3."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, *, bias: bool = False) -> None:
        super().__init__()
        self.activation = Activated(activation)
        self.into = Linear(hidden_size, intermediate_size, bias=bias)
        self.out = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        return self.out(self.activation(self.into(x_BSD)))
