"""What stands between matrix products: on CPUs one pass over the numbers each, elsewhere tensor operations.

Each function chooses by its input, so that no module has to. On CPUs tensor operations take most of a small model's
time, not products: each reads and writes megabytes, and strided ones (heads, rotations) run at a tenth of the memory's
speed. There, loops do the same (`unmask.model.loops`), with backward passes of their own.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, H = heads, K = size of a head,
I = intermediate size, N = predicted positions, V = vocabulary; b, q, k = rows, queries and keys of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.core.compiled import arrays, serves, use_threads_of_torch
from unmask.model.attention import AttentionPlan, Tile
from unmask.model.config import Activation

KEPT_LENGTH = 256  # rows up to this length keep their probabilities for the backward pass
_ANYWHERE = 1 << 40
SMALL = 1 << 20  # numbers of a tensor
# Logits in float32 that are worked on at once: on CPUs they stay in the processor's cache; on GPUs they take no more
# than a gigabyte with all that is made of them, and kernels are long enough to be worth their launch.
_CHUNK, _GPU_CHUNK = 1 << 19, 1 << 26


def by_loops(x: Tensor) -> bool:
    """Whether loops do what is to be done with a tensor, forwards and backwards.

    Where there is no backward pass and little to compute, they do not: loading them takes a second.
    """
    return serves(x) and (torch.is_grad_enabled() or x.numel() >= SMALL)


def loops() -> Any:
    """The compiled loops, with their threads."""
    from unmask.model import loops as module  # loads numba

    use_threads_of_torch()
    return module


def add_and_norm(
    x: Tensor, added: Tensor | None, weight_D: Tensor, bias_D: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum of both (without `added`, it is `x`), of any shape with D last, and its layer normalisation."""
    if not by_loops(x):
        total = x if added is None else x + added
        bias = None if bias_D is None else bias_D.to(x.dtype)
        return total, functional.layer_norm(total, weight_D.shape, weight_D.to(x.dtype), bias, eps)
    total, normed = _AddAndNorm.apply(x, added, weight_D, bias_D, eps)
    return (x if added is None else total), normed


class _AddAndNorm(torch.autograd.Function):
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
        own_weight_D = weight_D.detach()
        own_bias_D = weight_D.new_empty(0) if bias_D is None else bias_D.detach()
        loops().norm(eps, *arrays(x_TD, added_TD, own_weight_D, own_bias_D, total_TD, normed_TD, scale_T))
        ctx.save_for_backward(x_TD if added is None else total_TD, own_weight_D, scale_T)
        ctx.adds, ctx.has_bias = added is not None, bias_D is not None
        return (None if added is None else total_TD.view(x.shape)), normed_TD.view(x.shape)

    @staticmethod
    def backward(ctx: Any, of_total: Tensor | None, of_normed: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_D, scale_T = ctx.saved_tensors
        passed_TD = x_TD.new_empty(0, 0) if of_total is None else of_total.reshape(x_TD.shape)
        result_TD = torch.empty_like(x_TD)
        sums_2CD = weight_D.new_zeros(2, loops().STRETCHES, len(weight_D))
        gradient_TD = of_normed.reshape(x_TD.shape)
        loops().norm_backward(*arrays(gradient_TD, passed_TD, x_TD, weight_D, scale_T, result_TD, sums_2CD))
        of_weight_D, of_bias_D = sums_2CD.sum(1)
        of_x = result_TD.view(of_normed.shape)
        return of_x, of_x if ctx.adds else None, of_weight_D, of_bias_D if ctx.has_bias else None, None


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu2": lambda x: functional.relu(x).square(),  # So et al. 2021 (Primer), section 3; it has no loop
}


def activate(into: Tensor, kind: Activation, *, gated: bool) -> Tensor:
    """An activation [..., I] of [..., I]; where it is gated, of the first half of [..., 2 x I], times its second."""
    if by_loops(into) and kind in loops().LOOPS:
        result: Tensor = _Activate.apply(into, kind, gated)
        return result
    if not gated:
        return ACTIVATIONS[kind](into)
    activated, gate = into.chunk(2, dim=-1)
    return ACTIVATIONS[kind](activated) * gate


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, into: Tensor, kind: str, gated: bool) -> Tensor:
        width = into.shape[-1] // 2 if gated else into.shape[-1]
        out = into.new_empty(*into.shape[:-1], width)
        loop, ctx.backward_loop = loops().LOOPS[kind]
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


def attention(qkv_BS3HK: Tensor, plan: AttentionPlan) -> Tensor:
    """Scaled dot-product attention [B, S, H, K], or [T, H, K], of queries, keys and values.

    PyTorch's fused attention is slow on CPUs in its backward pass; there, it is explicit products, tile by tile. Where
    rows are long, probabilities are computed again in the backward pass, so memory grows with the length and not with
    its square.
    """
    if by_loops(qkv_BS3HK):
        cos, sin = plan.rotary or (torch.empty(0, 0, 0), torch.empty(0, 0, 0))
        mixed: Tensor = _Attention.apply(qkv_BS3HK, cos, sin, plan.segment_ids_BS, plan.tiles)
        return mixed
    if plan.sequences is not None:
        return attend_in_line(qkv_BS3HK, plan)
    query, key, value = heads_of(qkv_BS3HK, plan)
    bias_B1SS = plan.bias_B1SS.to(query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias_B1SS).transpose(1, 2)


def heads_of(qkv_BS3HK: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, turned where positions are rotary, and values: each [B, H, S, K]."""
    # Taken apart at once: slices would each fill a gradient of the whole with zeros.
    query, key, value = qkv_BS3HK.permute(2, 0, 3, 1, 4).unbind(0)
    if plan.rotary is not None:
        cos, sin = (table[:, None].to(query.dtype) for table in plan.rotary)
        query, key = _turn(query, cos, sin), _turn(key, cos, sin)
    return query, key, value


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (x[i], x[i + K/2]) by their angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend_in_line(qkv_BS3HK: Tensor, plan: AttentionPlan) -> Tensor:
    """Attention [T, H, K] within the segments of a batch in a line, by a kernel of GPUs (bf16 or float16 only).

    Source: Dao 2023 (FlashAttention-2), in `torch.nn.attention.varlen`; its backward pass computes probabilities
    again, so memory grows with the length and not with its square.
    """
    from torch.nn.attention import varlen  # imports torch.compile, which takes longer than torch itself

    assert plan.sequences is not None
    query_THK, key_THK, value_THK = qkv_BS3HK.flatten(0, 1).unbind(1)
    if plan.rotary is not None:
        cos, sin = (table.flatten(0, 1)[:, None].to(query_THK.dtype) for table in plan.rotary)
        query_THK, key_THK = _turn(query_THK, cos, sin), _turn(key_THK, cos, sin)
    begins, longest = plan.sequences.cu_seqlens, plan.sequences.max_length
    # It reaches as far to the left as to the right; older versions of torch do not know the argument.
    window: dict[str, Any] = {} if plan.window is None else {"window_size": (plan.window, plan.window)}
    mixed_THK = varlen.varlen_attn(query_THK, key_THK, value_THK, begins, begins, longest, longest, **window)
    assert isinstance(mixed_THK, Tensor), "no further results"
    return mixed_THK


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_BS3HK: Tensor, cos: Tensor, sin: Tensor, segment_ids_BS: Tensor, tiles: tuple[Tile, ...]
    ) -> Tensor:
        num_rows, length, _, num_heads, head_dim = qkv_BS3HK.shape
        heads_3BHSK = qkv_BS3HK.new_empty(3, num_rows, num_heads, length, head_dim)
        loops().split(head_dim**-0.5, *arrays(qkv_BS3HK, cos, sin, heads_3BHSK))
        mixed_BHSK = torch.empty_like(heads_3BHSK[0])
        probabilities = []
        for tile in tiles:
            query, key, value = tile.of(heads_3BHSK)
            p_bHqk = _probabilities(query, key, segment_ids_BS, tile)
            _product(p_bHqk, value, into=mixed_BHSK[tile.rows, :, tile.queries], add=False)
            if length <= KEPT_LENGTH and ctx.needs_input_grad[0]:
                probabilities.append(p_bHqk)
        ctx.save_for_backward(heads_3BHSK, cos, sin, segment_ids_BS, *probabilities)
        ctx.tiles = tiles
        return mixed_BHSK.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient_BSHK: Tensor) -> tuple[Tensor | None, ...]:
        heads_3BHSK, cos, sin, segment_ids_BS, *probabilities = ctx.saved_tensors
        _, num_rows, num_heads, length, head_dim = heads_3BHSK.shape
        tiles: tuple[Tile, ...] = ctx.tiles
        apart = all(tile.queries == tile.keys for tile in tiles)  # then every key belongs to one tile, and only then
        of_heads_3BHSK = torch.empty_like(heads_3BHSK) if apart else torch.zeros_like(heads_3BHSK, dtype=torch.float32)
        gradient_BHSK = gradient_BSHK.transpose(1, 2).contiguous()
        for number, tile in enumerate(tiles):
            query, key, value = tile.of(heads_3BHSK)
            p_bHqk = probabilities[number] if probabilities else _probabilities(query, key, segment_ids_BS, tile)
            own = gradient_BHSK[tile.rows, :, tile.queries]
            scores_bHqk = own @ value.mT
            loops().softmax_backward(*arrays(scores_bHqk.flatten(0, 1), p_bHqk.flatten(0, 1)))
            of_query, of_key, of_value = tile.of(of_heads_3BHSK)
            _product(scores_bHqk, key, into=of_query, add=not apart)
            _product(scores_bHqk.mT, query, into=of_key, add=not apart)
            _product(p_bHqk.mT, own, into=of_value, add=not apart)
        result_BS3HK = gradient_BSHK.new_empty(num_rows, length, 3, num_heads, head_dim)
        loops().unsplit(head_dim**-0.5, *arrays(of_heads_3BHSK, cos, sin, result_BS3HK))
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
    numbers = arrays(scores_bHqk, segment_ids_BS[tile.rows])
    loops().softmax(tile.queries.start, tile.keys.start, window, *numbers)
    return scores_bHqk


def losses_of_part(
    bias_V: Tensor, logits_NV: Tensor, targets_N: Tensor, scale_N: Tensor, each_N: Tensor, wrong_N: Tensor
) -> None:
    """What the loop does on CPUs, of some rows, written so that it compiles to few kernels.

    The gradient is written over the logits; the losses, and whether something else was more likely, into `each_N` and
    `wrong_N`. `scale_N` is the weight of each loss, 0 where the target is ignored.
    """
    p_NV, scale_N1, targets_N1 = logits_NV + bias_V, scale_N[:, None], targets_N.clamp(min=0)[:, None]
    largest_N1 = p_NV.amax(1, keepdim=True)
    right_N1 = p_NV.gather(1, targets_N1)
    p_NV = (p_NV - largest_N1).exp()
    sum_N1 = p_NV.sum(1, keepdim=True)
    each_N.copy_((sum_N1.log() + largest_N1 - right_N1)[:, 0] * (targets_N >= 0))
    wrong_N.copy_((right_N1 < largest_N1)[:, 0] & (targets_N >= 0))
    # The right answer by comparison and not by scatter, which would stand in the way of fusing all this.
    is_right_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == targets_N1
    logits_NV.copy_(p_NV * (scale_N1 / sum_N1) - is_right_NV * scale_N1)


# ----------------------------------------
# The loss at predicted positions: D = what the decoder compares with the embeddings, V = vocabulary or classes

IGNORED = -100


@dataclass(frozen=True)
class Losses:
    """The losses of some predictions."""

    total: Tensor  # the sum of the losses in nats, each times its weight; this is what is differentiated
    each_N: Tensor  # float32: of each prediction, without weights and without a gradient
    wrong_N: Tensor  # bool: whether something else was more likely than the right answer


def predicted_positions(labels: Tensor) -> Tensor:
    """Places in the flattened batch whose label is not negative: int64 [N]. Id 0 is a label like any other."""
    return torch.nonzero(labels.flatten() >= 0).squeeze(1)


def losses_of(logits_NV: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Losses:
    """Cross-entropies of a few classes, in float32, each times its weight. They are summed where one number is needed,
    never averaged here. Targets are int64."""
    each_N = functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
    right_N1 = logits_NV.detach().gather(1, targets_N[:, None])
    total = (each_N if weights_N is None else each_N * weights_N).sum()
    return Losses(total, each_N.detach(), (logits_NV.detach() > right_N1).any(1))


def losses_of_decoder(
    x_ND: Tensor,
    tokens_VD: Tensor,
    bias_V: Tensor,
    targets_N: Tensor,
    weights_N: Tensor | None = None,
    *,
    compiled: Callable[..., Any] | None = None,
) -> Losses:
    """Cross-entropies of a decoder over the vocabulary, without ever holding its logits in float32.

    A gradient of logits is softmax less one, so it is written over the logits while these are read for the loss, some
    rows at a time; a vocabulary's worth of float32 numbers for each target, several times over, would cost more time
    than the products do.

    Args:
        x_ND: What the decoder compares with the embeddings.
        tokens_VD: The embeddings, in the type of `x_ND`.
        bias_V: float32.
        targets_N: int64; -100: the row is there to keep the shape, has a loss of 0 and passes no gradient on.
        weights_N: float32: of each loss; None: all weigh the same.
        compiled: `losses_of_part`, compiled, which then works on all rows at once, or None.
    """
    total, each_N, wrong_N = _DecoderLoss.apply(x_ND, tokens_VD, bias_V, targets_N, weights_N, compiled)
    return Losses(total, each_N, wrong_N)


class _DecoderLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        tokens_VD: Tensor,
        bias_V: Tensor,
        targets_N: Tensor,
        weights_N: Tensor | None,
        compiled: Callable[..., Any] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits_NV = x_ND @ tokens_VD.T  # the bias is added below: on CPUs a product copies it out over its result first
        scale_N = (targets_N >= 0).float()
        if weights_N is not None:
            scale_N = scale_N * weights_N
        each_N = torch.empty(len(x_ND), dtype=torch.float32, device=x_ND.device)
        wrong_N = torch.empty(len(x_ND), dtype=torch.bool, device=x_ND.device)
        of_rows = (logits_NV, targets_N, scale_N, each_N, wrong_N)
        if serves(logits_NV):
            loops().losses(*arrays(logits_NV, bias_V, targets_N, scale_N, each_N, wrong_N))
        elif compiled is not None:
            compiled(bias_V, *of_rows)
        else:
            chunk = _CHUNK if logits_NV.device.type == "cpu" else _GPU_CHUNK
            num = max(1, chunk // logits_NV.shape[1])
            for part in zip(*(each.split(num) for each in of_rows), strict=True):
                losses_of_part(bias_V, *part)
        ctx.save_for_backward(x_ND, tokens_VD, logits_NV)  # by now the gradient of the logits
        ctx.mark_non_differentiable(each_N, wrong_N)
        return (each_N if weights_N is None else each_N * weights_N).sum(), each_N, wrong_N

    @staticmethod
    def backward(ctx: Any, factor: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, tokens_VD, gradient_NV = ctx.saved_tensors
        of_x = (gradient_NV @ tokens_VD).mul_(factor)
        of_tokens = (gradient_NV.T @ x_ND).mul_(factor)
        of_bias = (gradient_NV.new_ones(1, len(x_ND)) @ gradient_NV)[0].float().mul_(factor)  # a sum, in one pass
        return of_x, of_tokens, of_bias, None, None, None
