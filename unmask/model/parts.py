"""Leaf modules. Weights are kept in float32; a matrix product runs in the type of its input.

Shape suffixes: B = rows, S = positions, D = hidden size, H = heads, K = size of a head, I = intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.model.config import Activation

# Explicit products beat PyTorch's fused attention on CPUs up to about this length (its backward pass is slow there),
# while their memory is still small.
EXPLICIT_ATTENTION_LENGTH = 256


def relu2(x: Tensor) -> Tensor:
    """The square of the rectified input. Source: So et al. 2021 (Primer), section 3."""
    return functional.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation."""
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": functional.silu,
    "relu2": relu2,
}


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
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


def dropout(x: Tensor, rate: float, *, seed: int | None) -> Tensor:
    """Sets a share of the numbers to 0 and enlarges the others, so that the expectation stays.

    What is dropped is a function of the seed and the shape (on one kind of device). No generator outlives the call,
    so that a resumed training, or a block that is computed twice, drops the same.

    Args:
        x: Any shape.
        rate: The share, in [0, 1).
        seed: Any 64-bit integer; None drops nothing.

    Source: Srivastava et al. 2014, section 10 (the enlarging while training).
    """
    if seed is None:
        return x
    generator = torch.Generator(device=x.device).manual_seed(seed)
    return x * torch.empty_like(x).bernoulli_(1.0 - rate, generator=generator).div_(1.0 - rate)


def rotary_table(position_ids_BS: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles.

    Returns:
        Two float32 tensors [B, 1, S, head_dim / 2], to be broadcast over heads.

    Source: Su et al. 2021 (RoFormer), section 3.4.2; halves are paired, as in GPT-NeoX and ModernBERT.
    """
    exponent = torch.arange(0, head_dim, 2, device=position_ids_BS.device, dtype=torch.float32) / head_dim
    angle = position_ids_BS[..., None].to(torch.float32) / theta**exponent
    angle = angle[:, None]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (x[i], x[i + K/2]) by their angles. x is [..., K]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Self-attention, with rotary positions or without."""

    def __init__(self, hidden_size: int, num_heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias, num_fused=3)
        self.out = Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor] | None, bias_B1SS: Tensor | None) -> Tensor:
        """Args:
        x_BSD: Normalised input.
        rotary: As `rotary_table` gives it, in the type of the input; None where positions are not rotary.
        bias_B1SS: 0 where a token (third axis) may attend to another (fourth), minus infinity elsewhere; None where
            all may attend to all.

        Returns:
            [B, S, D].
        """
        mixed_BHSK = attend(*self.project(x_BSD, rotary), bias_B1SS)
        return self.out(mixed_BHSK.transpose(1, 2).reshape(x_BSD.shape))

    def project(self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: each [B, H, S, K]. Arguments as for `forward`."""
        num_rows, length, hidden = x_BSD.shape
        qkv = self.qkv(x_BSD).view(num_rows, length, 3, self.num_heads, hidden // self.num_heads)
        # Taken apart at once: slices would each fill a gradient of the whole with zeros.
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        return query, key, value


def attend(query_BHSK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, bias_B1SS: Tensor | None) -> Tensor:
    """Scaled dot-product attention: [B, H, S, K]."""
    length, head_dim = query_BHSK.shape[-2:]
    if query_BHSK.is_cuda or length > EXPLICIT_ATTENTION_LENGTH:
        return functional.scaled_dot_product_attention(query_BHSK, key_BHSK, value_BHSK, attn_mask=bias_B1SS)
    scores_BHSS = (query_BHSK * head_dim**-0.5) @ key_BHSK.transpose(-1, -2)
    if bias_B1SS is not None:
        scores_BHSS = scores_BHSS.add_(bias_B1SS)
    return torch.softmax(scores_BHSS, dim=-1) @ value_BHSK


class GatedMLP(nn.Module):
    """Two projections, one of them activated, multiplied, and projected back. Source: Shazeer 2020 (GLU variants)."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, *, bias: bool = False) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.into = Linear(hidden_size, 2 * intermediate_size, bias=bias, num_fused=2)
        self.out = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        activated_BSI, gate_BSI = self.into(x_BSD).chunk(2, dim=-1)
        return self.out(self.activation(activated_BSI) * gate_BSI)


class PlainMLP(nn.Module):
    """A projection, activated, and projected back. Source: Vaswani et al. 2017, section 3.3."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, *, bias: bool = False) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.into = Linear(hidden_size, intermediate_size, bias=bias)
        self.out = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        return self.out(self.activation(self.into(x_BSD)))
