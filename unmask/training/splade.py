"""Sparse vectors of texts, one number for each token of the vocabulary, out of the head for masked tokens (SPLADE).

    logits of a text's positions     max      relu     log(1 + x)
    the     -1.0   0.3  -2.0         0.3      0.3      0.26        special tokens are positions, too, as in
    cat      2.0  -0.5   4.0         4.0      4.0      1.61        sentence-transformers' SpladePooling
    dog     -3.0  -1.0  -0.2        -0.2      0        0

Texts are compared by the product of their vectors. What makes vectors sparse is a second loss, an estimate of what a
search in an index of them costs (FLOPS): of each token the mean over the texts, squared, and the sum of these.

Logits of all positions are never there at once: they are made for some whole texts at a time, and again in the
backward pass. What is kept is a vector of each text.

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
from torch.utils.checkpoint import checkpoint

from unmask.network.encoder import MaskedLM
from unmask.network.loss import Losses
from unmask.training.contrast import CONTRAST, TextTargets, VectorKind, contrast_losses, heat_of
from unmask.training.objectives import JointLoss, Objective

LOGITS = 1 << 25  # that are made at once: 128 MB in float32; those of one text in any case
NUMBERS_A_TOKEN = 2.0  # that are not 0 when training begins
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
    found, begin = [], 0
    for lengths in _groups(texts.lengths, max(1, LOGITS // model.config.vocab_size)):
        end = begin + sum(lengths)
        found.append(checkpoint(_pooled, model, x_ND[begin:end], lengths, use_reentrant=False))
        begin = end
    return torch.cat(found)


def _pooled(model: MaskedLM, x_ND: Tensor, lengths: Sequence[int]) -> Tensor:
    logits_NV = model.head.decode(x_ND, model.encoder.tokens)
    # The logarithm rises, so the maximum may be taken before it.
    return torch.stack([of_text.amax(0) for of_text in logits_NV.split(list(lengths))]).float().relu().log1p()


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
