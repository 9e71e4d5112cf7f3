"""Sparse vectors of texts, one number for each token of the vocabulary, out of the head for masked tokens (SPLADE).

    logits of a text's positions     max      relu     log(1 + x)
    the     -1.0   0.3  -2.0         0.3      0.3      0.26        special tokens are positions, too, as in
    cat      2.0  -0.5   4.0         4.0      4.0      1.61        sentence-transformers' SpladePooling
    dog     -3.0  -1.0  -0.2        -0.2      0        0

Texts are compared by the product of their vectors. What makes vectors sparse is a second loss, an estimate of what a
search in an index of them costs (FLOPS): of each token the mean over the texts, squared, and the sum of these.

Logits of all positions are never there at once: they are made for some whole texts at a time. What is kept is a vector
of each text, and of which positions its numbers are.

Shape suffixes: T = positions of a batch, N = positions of texts, E = texts, V = vocabulary, D = hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unmask.network.encoder import MaskedLM
from unmask.network.loss import Losses
from unmask.training.contrast import CONTRAST, TextTargets, VectorKind, contrast_losses, heat_of
from unmask.training.objectives import JointLoss, Objective

LOGITS = 1 << 25  # that are made at once: 128 MB in float32; those of one text in any case
NUMBERS_A_TOKEN = 2.0  # that are not 0 when training begins
_PLACES = 1 << 22  # that are looked at at once for where a number comes from
RISING = 1 / 3  # share of the training in which the regulariser's weight grows


def splade_vectors(model: MaskedLM, hidden_TD: Tensor, texts: TextTargets) -> Tensor:
    """log(1 + relu(the largest logit over the positions of each text)): [E, V], float32.

    Args:
        model: With its head for masked tokens.
        hidden_TD: Hidden states of the batch.
        texts: What stands in it.

    Source: Formal et al. 2021 (SPLADE v2), section 3.1, with the maximum.
    """
    x_ND = model.head.transform(hidden_TD).index_select(0, texts.positions_N)
    if not texts.lengths:  # of empty rows: none, with a graph as any others
        return model.head.decode(x_ND, model.encoder.tokens).float()
    found: Tensor = _Pooled.apply(x_ND, model.encoder.tokens, model.head.bias, texts.lengths, torch.is_grad_enabled())
    return found


class _Pooled(torch.autograd.Function):
    """Sparse vectors of texts that stand one behind another.

    A number that is not 0 comes from one position of its text (of several equal ones the first), and all others have
    no gradient. So what is kept for the backward pass is where they come from, and sums over these places take the
    place of products with the whole vocabulary: three of four products of a step, and passes over all logits.
    """

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, tokens_VD: Tensor, bias_V: Tensor, lengths: tuple[int, ...], is_learned: bool
    ) -> Tensor:
        weights_VD = tokens_VD.to(x_ND.dtype)
        vectors, sources = [], []
        begin = first = 0
        for group in _groups(lengths, max(1, LOGITS // len(weights_VD))):
            end = begin + sum(group)
            products_NV = x_ND[begin:end] @ weights_VD.T
            most_EV = torch.stack([of_text.amax(0) for of_text in products_NV.split(list(group))])
            # A bias is one for all positions, and added in float32; and the logarithm rises: both after the maximum.
            largest_EV = most_EV.float() + bias_V
            if is_learned:
                text_Z, token_Z = torch.nonzero(largest_EV > 0, as_tuple=True)  # waits for the device, once a group
                place_Z = _places(products_NV, most_EV, group, text_Z, token_Z)
                sources.append(torch.stack([text_Z + first, token_Z, place_Z + begin]))
            vectors.append(largest_EV.relu_().log1p_())
            begin, first = end, first + len(group)
        vectors_EV = torch.cat(vectors)
        if sources:
            ctx.save_for_backward(x_ND, tokens_VD, vectors_EV, torch.cat(sources, 1))
        return vectors_EV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x_ND, tokens_VD, vectors_EV, sources = ctx.saved_tensors
        text_Z, token_Z, place_Z = sources
        # Of log(1 + x) at x > 0: 1 / (1 + x).
        gradient_Z = gradients[0][text_Z, token_Z] * torch.exp(-vectors_EV[text_Z, token_Z])
        to_x_ND = _sums(place_Z, token_Z, gradient_Z, tokens_VD, len(x_ND))
        to_tokens_VD = _sums(token_Z, place_Z, gradient_Z, x_ND, len(tokens_VD))
        to_bias_V = _sums(token_Z, place_Z, gradient_Z, x_ND.new_ones(len(x_ND), 1), len(tokens_VD))[:, 0]
        return to_x_ND.to(x_ND.dtype), to_tokens_VD.to(tokens_VD.dtype), to_bias_V, None, None


def _places(products_NV: Tensor, most_EV: Tensor, lengths: Sequence[int], text_Z: Tensor, token_Z: Tensor) -> Tensor:
    """[Z]: the first position at which each largest product stands, of texts one behind another."""
    device = products_NV.device
    length_E = torch.tensor(lengths, device=device)
    begin_E = length_E.cumsum(0) - length_E
    within_S = torch.arange(max(lengths), device=device)
    found = []
    for text_C, token_C in zip(*(each.split(_PLACES // len(within_S) + 1) for each in (text_Z, token_Z)), strict=True):
        inside_CS = within_S < length_E[text_C, None]
        place_CS = begin_E[text_C, None] + torch.where(inside_CS, within_S, 0)
        equal_CS = products_NV[place_CS, token_C[:, None]] == most_EV[text_C, token_C][:, None]
        found.append(begin_E[text_C] + (equal_CS & inside_CS).to(torch.uint8).argmax(1))
    return torch.cat(found)


def _sums(into_Z: Tensor, from_Z: Tensor, weights_Z: Tensor, rows_RD: Tensor, count: int) -> Tensor:
    """[count, D], float32: of each place the sum of what goes into it, in an order that is the same each time."""
    order_Z = torch.argsort(into_Z, stable=True)
    begins = torch.bincount(into_Z, minlength=count).cumsum(0)
    offsets = torch.cat([begins.new_zeros(1), begins[:-1]])
    return functional.embedding_bag(
        from_Z[order_Z], rows_RD.float(), offsets, mode="sum", per_sample_weights=weights_Z[order_Z]
    )


def _groups(lengths: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Texts one behind another, of so many positions together at most, or one text."""
    cuts, count = [0], 0
    for number, length in enumerate(lengths):
        if count and count + length > most:
            cuts.append(number)
            count = 0
        count += length
    yield from (lengths[a:b] for a, b in pairwise([*cuts, len(lengths)]))


SPARSE = VectorKind(splade_vectors, unit=False)


def surplus(vectors_EV: Tensor, num_tokens: int) -> float:
    """What all logits are to be less by for texts to have `NUMBERS_A_TOKEN` numbers for each of their tokens, at most.

    The loss of masked tokens does not depend on a number that is added to all logits, and so says nothing of where they
    stand: a model that has learned nothing else may have positive ones for most of the vocabulary, and with them
    products in the thousands, of which training would ruin it before it finds out.

    Args:
        vectors_EV: Of some texts, as `splade_vectors` makes them.
        num_tokens: Of these texts.
    """
    most = round(NUMBERS_A_TOKEN * num_tokens)
    numbers = vectors_EV[vectors_EV > 0]
    if len(numbers) <= most:
        return 0.0
    return math.expm1(float(numbers.kthvalue(len(numbers) - most).values))


def lower_logits(model: MaskedLM, less: float) -> None:
    """Makes all logits less by a number, which changes nothing of what the model says of masked tokens."""
    with torch.no_grad():
        model.head.bias.sub_(less)


def flops(vectors_EV: Tensor) -> Tensor:
    """The sum over the vocabulary of the squared mean over the texts.

    Source: Paria et al. 2020 (Minimizing FLOPs to Learn Efficient Sparse Representations), section 4; Formal et al.
    2021 (SPLADE v2), section 2.
    """
    return vectors_EV.mean(0).square().sum()


def rising(progress: float) -> float:
    """The share of the regulariser's weight: it grows with the square of the progress, from 0 to 1 at a third.

    Args:
        progress: Share of the training that is done.

    Source: Formal et al. 2021 (SPLADE), section 4, where it grows for the first third of the steps likewise.
    """
    return min(1.0, progress / RISING) ** 2


def splade_objective(*, temperature: float, weights: tuple[float, float], progress: Callable[[], float]) -> Objective:
    """Sparse vectors of pairs as an objective: the loss of the pairs, and `flops` of first texts and of all others.

    Args:
        temperature: As for `contrast_objective`.
        weights: Of the regulariser: of first texts, and of what they are to find.
        progress: Asked at each step for the share of the training that is done.
    """

    def of_vectors(model: MaskedLM, vectors_EV: Tensor, parts: Sequence[TextTargets]) -> Losses:
        texts = parts[0] if len(parts) == 1 else TextTargets.joined(parts)
        losses = contrast_losses(vectors_EV, texts, temperature=heat_of(model, temperature), unit=SPARSE.unit)
        order_E = torch.argsort(texts.side_E, stable=True)  # how many are first texts is known: nothing waits
        cost = sum(
            weight * flops(vectors_EV[chosen_E])
            for weight, chosen_E in zip(weights, (order_E[: texts.num_pairs], order_E[texts.num_pairs :]), strict=True)
        )
        return replace(losses, total=losses.total + texts.num_pairs * rising(progress()) * cost)

    def losses(model: MaskedLM, hidden_TD: Tensor, texts: TextTargets, dropout_seed: int | None) -> Losses:
        return of_vectors(model, splade_vectors(model, hidden_TD, texts), [texts])

    def vectors(model: Any, hidden_TD: Tensor, texts: TextTargets) -> Tensor:
        return splade_vectors(model, hidden_TD, texts)

    return Objective(CONTRAST, 1.0, TextTargets.of, losses, JointLoss(vectors, of_vectors))
