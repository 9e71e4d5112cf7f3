"""The loss at predicted positions.

Shape suffixes: N = predicted positions, D = what the decoder compares with the embeddings, V = vocabulary or classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.network import fused

IGNORED = -100


@dataclass(frozen=True)
class Losses:
    """What some predictions came to.

    Attributes:
        total: The sum of the losses in nats, each times its weight; this is what is differentiated.
        each_N: float32: of each prediction, without weights and without a gradient.
        wrong_N: bool: whether something else was more likely than the right answer.
    """

    total: Tensor
    each_N: Tensor
    wrong_N: Tensor


def predicted_positions(labels: Tensor) -> Tensor:
    """Places in the flattened batch whose label is not negative: int64 [N]. Id 0 is a label like any other."""
    return torch.nonzero(labels.flatten() >= 0).squeeze(1)


def losses_of(logits_NV: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Losses:
    """Cross-entropies of a few classes, in float32. They are summed by whoever needs one number, never averaged here.

    Args:
        logits_NV: Any floating type.
        targets_N: int64: the right answers.
        weights_N: float32: of each loss; None: all weigh the same.
    """
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
        targets_N: int64; -100: the row is there to keep the shape, has no loss and passes no gradient on.
        weights_N: float32: of each loss; None: all weigh the same.
        compiled: `unmask.network.fused.losses_of_part`, compiled, which then works on all rows at once, or None.

    Returns:
        Losses; those of ignored rows are 0.
    """
    total, each_N, wrong_N = _DecoderLoss.apply(x_ND, tokens_VD, bias_V, targets_N, weights_N, compiled)
    return Losses(total, each_N, wrong_N)


class _DecoderLoss(torch.autograd.Function):
    """See `losses_of_decoder`."""

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
        fused.losses(logits_NV, bias_V, targets_N, scale_N, each_N, wrong_N, compiled=compiled)
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
