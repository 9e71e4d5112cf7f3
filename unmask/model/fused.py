"""What stands between matrix products, on CPUs: one pass over the numbers each, with a backward pass of its own.

Tensor operations take most of a small model's time there, not products: each reads and writes megabytes, and strided
ones (heads, rotations) run at a tenth of the memory's speed. The loops are in `unmask.model.kernels`.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, H = heads, K = size of a head,
I = intermediate size; b, q, k = rows, queries and keys of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.compiled import arrays
from unmask.model.kernels import heads, norms
from unmask.model.kernels.activations import LOOPS
from unmask.model.tiles import Tile

KEPT_LENGTH = 256  # rows up to this length keep their probabilities for the backward pass
_ANYWHERE = 1 << 40


def add_and_norm(
    x: Tensor, added: Tensor | None, weight_D: Tensor, bias_D: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum of both, and its layer normalisation.

    Args:
        x, added: Any shape with D last; without `added`, the sum is `x`.
        weight_D, bias_D: float32.
        eps: Added to the variance.
    """
    total, normed = _AddAndNorm.apply(x, added, weight_D, bias_D, eps)
    return (x if added is None else total), normed


class _AddAndNorm(torch.autograd.Function):
    """See `add_and_norm`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight_D: Tensor, bias_D: Tensor | None, eps: float
    ) -> tuple[Tensor | None, Tensor]:
        x_TD = x.reshape(-1, x.shape[-1])
        none = x.new_empty(0, 0)
        added_TD = none if added is None else added.reshape(x_TD.shape)
        total_TD = none if added is None else torch.empty_like(x_TD)
        normed_TD = torch.empty_like(x_TD)
        scale_T = x.new_empty(len(x_TD), 2, dtype=torch.float32)
        given_bias_D = weight_D.new_empty(0) if bias_D is None else bias_D
        norms.norm(eps, *arrays(x_TD, added_TD, weight_D, given_bias_D, total_TD, normed_TD, scale_T))
        ctx.save_for_backward(x_TD if added is None else total_TD, weight_D, scale_T)
        ctx.adds, ctx.has_bias = added is not None, bias_D is not None
        return (None if added is None else total_TD.view(x.shape)), normed_TD.view(x.shape)

    @staticmethod
    def backward(ctx: Any, of_total: Tensor | None, of_normed: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_D, scale_T = ctx.saved_tensors
        passed_TD = x_TD.new_empty(0, 0) if of_total is None else of_total.reshape(x_TD.shape)
        result_TD = torch.empty_like(x_TD)
        sums_2CD = weight_D.new_zeros(2, norms.STRETCHES, len(weight_D))
        gradient_TD = of_normed.reshape(x_TD.shape)
        norms.norm_backward(*arrays(gradient_TD, passed_TD, x_TD, weight_D, scale_T, result_TD, sums_2CD))
        of_weight_D, of_bias_D = sums_2CD.sum(1)
        of_x = result_TD.view(of_normed.shape)
        return of_x, of_x if ctx.adds else None, of_weight_D, of_bias_D if ctx.has_bias else None, None


def activate(into: Tensor, kind: str, *, gated: bool) -> Tensor:
    """An activation; where it is gated, of the first half of `into`, times its second.

    Args:
        into: [..., I], or [..., 2 x I] where it is gated.
        kind: A name of `unmask.model.parts.ACTIVATIONS`.
        gated: See there.

    Returns:
        [..., I].
    """
    result: Tensor = _Activate.apply(into, kind, gated)
    return result


class _Activate(torch.autograd.Function):
    """See `activate`."""

    @staticmethod
    def forward(ctx: Any, into: Tensor, kind: str, gated: bool) -> Tensor:
        width = into.shape[-1] // 2 if gated else into.shape[-1]
        out = into.new_empty(*into.shape[:-1], width)
        loop, ctx.backward_loop = LOOPS[kind]
        loop(*arrays(into.reshape(-1, into.shape[-1]), out.view(-1, width)))
        ctx.save_for_backward(into)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (into,) = ctx.saved_tensors
        result = torch.empty_like(into, memory_format=torch.contiguous_format)
        lines = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (gradient, into, result))
        ctx.backward_loop(*arrays(*lines))
        return result, None, None


def attention(
    qkv_BS3HK: Tensor, rotary: tuple[Tensor, Tensor] | None, segment_ids_BS: Tensor, tiles: tuple[Tile, ...]
) -> Tensor:
    """Scaled dot-product attention of projected rows: explicit products, tile by tile.

    PyTorch's fused attention is slow on CPUs in its backward pass. Where rows are long, probabilities are computed
    again there, so memory grows with the length and not with its square.

    Args:
        qkv_BS3HK: Queries, keys and values.
        rotary: Cosines and sines [B, S, K / 2], float32; None: positions are not rotary.
        segment_ids_BS: int32: tokens attend only to tokens of the same number.
        tiles: All of the batch.

    Returns:
        [B, S, H, K].
    """
    cos, sin = rotary or (torch.empty(0, 0, 0), torch.empty(0, 0, 0))
    mixed: Tensor = _Attention.apply(qkv_BS3HK, cos, sin, segment_ids_BS, tiles)
    return mixed


class _Attention(torch.autograd.Function):
    """See `attention`."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BS3HK: Tensor, cos: Tensor, sin: Tensor, segment_ids_BS: Tensor, tiles: tuple[Tile, ...]
    ) -> Tensor:
        num_rows, length, _, num_heads, head_dim = qkv_BS3HK.shape
        heads_3BHSK = qkv_BS3HK.new_empty(3, num_rows, num_heads, length, head_dim)
        heads.split(head_dim**-0.5, *arrays(qkv_BS3HK, cos, sin, heads_3BHSK))
        mixed_BHSK = torch.empty_like(heads_3BHSK[0])
        kept = []
        for tile in tiles:
            query, key, value = tile.of(heads_3BHSK)
            p_bHqk = _probabilities(query, key, segment_ids_BS, tile)
            _product(p_bHqk, value, into=mixed_BHSK[tile.rows, :, tile.queries], add=False)
            if length <= KEPT_LENGTH and ctx.needs_input_grad[0]:
                kept.append(p_bHqk)
        ctx.save_for_backward(heads_3BHSK, cos, sin, segment_ids_BS, *kept)
        ctx.tiles = tiles
        return mixed_BHSK.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient_BSHK: Tensor) -> tuple[Tensor | None, ...]:
        heads_3BHSK, cos, sin, segment_ids_BS, *kept = ctx.saved_tensors
        _, num_rows, num_heads, length, head_dim = heads_3BHSK.shape
        tiles: tuple[Tile, ...] = ctx.tiles
        apart = all(tile.queries == tile.keys for tile in tiles)  # then every key belongs to one tile, and only then
        found_3BHSK = torch.empty_like(heads_3BHSK) if apart else torch.zeros_like(heads_3BHSK, dtype=torch.float32)
        given_BHSK = gradient_BSHK.transpose(1, 2).contiguous()
        for number, tile in enumerate(tiles):
            query, key, value = tile.of(heads_3BHSK)
            p_bHqk = kept[number] if kept else _probabilities(query, key, segment_ids_BS, tile)
            own = given_BHSK[tile.rows, :, tile.queries]
            scores_bHqk = own @ value.mT
            heads.softmax_backward(*arrays(scores_bHqk.flatten(0, 1), p_bHqk.flatten(0, 1)))
            of_query, of_key, of_value = tile.of(found_3BHSK)
            _product(scores_bHqk, key, into=of_query, add=not apart)
            _product(scores_bHqk.mT, query, into=of_key, add=not apart)
            _product(p_bHqk.mT, own, into=of_value, add=not apart)
        result_BS3HK = gradient_BSHK.new_empty(num_rows, length, 3, num_heads, head_dim)
        heads.unsplit(head_dim**-0.5, *arrays(found_3BHSK, cos, sin, result_BS3HK))
        return result_BS3HK, None, None, None, None


def _product(left: Tensor, right: Tensor, *, into: Tensor, add: bool) -> None:
    """A product of [b, H, ...] into a part of a tensor, without a copy where that is in one piece."""
    if add:
        into.add_(left @ right)
    elif into.is_contiguous():
        torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=into.flatten(0, 1))
    else:
        into.copy_(left @ right)


def _probabilities(query: Tensor, key: Tensor, segment_ids_BS: Tensor, tile: Tile) -> Tensor:
    """[b, H, q, k]."""
    scores_bHqk = query @ key.mT
    if tile.alike:
        return torch.softmax(scores_bHqk, dim=-1)
    window = _ANYWHERE if tile.window is None else tile.window
    given = arrays(scores_bHqk, segment_ids_BS[tile.rows])
    heads.softmax(tile.queries.start, tile.keys.start, window, *given)
    return scores_bHqk
