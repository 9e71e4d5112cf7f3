"""Contrastive learning: makes the vectors of texts that form a pair more alike than those of other texts.

    pairs                  (a, b)  (c, d)  (e, f)
    scores      a . b   a . d   a . f       each row and each column is a choice among the texts of the batch,
                c . b   c . d   c . f       with the right one on the diagonal
                e . b   e . d   e . f

A text is a segment of a row, special tokens included. Texts that may also be right are left out of the choice: those
of pairs from the same document (or its near-duplicates), equal texts, and right answers to an equal query anywhere in
the step. The user's wrong answers to a text stay in its choice however alike they are to the right one, unless they
equal a right answer.

Shape suffixes: B = rows, S = positions, T = B x S in a line, N = tokens of texts, E = texts, P = pairs, C = P and the
user's wrong answers, D = hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unmask.core.hashing import GOLDEN
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.model.fused import Losses
from unmask.model.pooling import pool
from unmask.train.objectives import JointLoss, Objective, StepTargets

CONTRAST = "contrast"
FIRST, SECOND, WRONG = 0, 1, 2  # sides: first and second text of a pair, and a wrong answer to the first
# Columns of `Rows.classes` that describe each segment's text, at the segment's first position.
PAIR, SIDE, DOCUMENT, TEXT = "pair", "side", "document", "text"


@dataclass(frozen=True)
class TextTargets(StepTargets):
    """The texts of a batch; `positions_N` are the positions of their tokens, and `len` is the number of pairs."""

    # int64 [E, 4], for each text: its pair's number in the whole step; `FIRST`, `SECOND` or `WRONG`; its document; and
    # a hash of its content. Texts of one document are not wrong answers to each other, unless labelled so; nor are
    # texts with equal hashes.
    columns_EK: Tensor
    num_pairs: int  # pairs whose first text is here
    lengths: tuple[int, ...] = ()  # tokens of each text, on the host

    @classmethod
    def of(cls, rows: Rows, masked: MaskedRows | None = None) -> TextTargets:
        segment_T = rows.segment_ids.flatten()
        positions_N = torch.nonzero(segment_T >= 0).squeeze(1)
        begins_T = (rows.position_ids.flatten() == 0) & (segment_T >= 0)
        text_N = begins_T[positions_N].long().cumsum(0) - 1
        columns_EK = torch.stack([rows.classes[name].flatten()[begins_T] for name in (PAIR, SIDE, DOCUMENT, TEXT)], 1)
        num_pairs = int((columns_EK[:, 1] == FIRST).sum())
        return cls(positions_N, columns_EK, num_pairs, tuple(torch.bincount(text_N).tolist()))

    @classmethod
    def joined(cls, parts: Sequence[TextTargets]) -> TextTargets:
        """The pairs of several parts, without positions of tokens."""
        return cls(parts[0].positions_N[:0], torch.cat([part.columns_EK for part in parts]), sum(map(len, parts)))

    @property
    def order_E(self) -> Tensor:
        """int64: first texts in the order of their pairs, then second ones, then wrong answers."""
        return torch.argsort(self.columns_EK[:, 1] * len(self.columns_EK) + self.columns_EK[:, 0], stable=True)

    def __len__(self) -> int:
        return self.num_pairs


@dataclass(frozen=True)
class VectorKind:
    """How texts become vectors."""

    # Computes vectors [E, D], float32, from the model, the hidden states [N, D] of the texts' tokens, one text after
    # another, and the number of tokens of each text.
    of_tokens: Callable[[Any, Tensor, Sequence[int]], Tensor]
    unit: bool  # whether vectors are normalised to length 1 before they are compared

    def vectors(self, model: Any, hidden_TD: Tensor, texts: TextTargets) -> Tensor:
        return self.of_tokens(model, hidden_TD.index_select(0, texts.positions_N), texts.lengths)

    def ready(self, vectors_ED: Tensor) -> Tensor:
        """Vectors whose products are their similarities."""
        return functional.normalize(vectors_ED, dim=1) if self.unit else vectors_ED


def dense(pooling: str = "mean") -> VectorKind:
    """Vectors pooled from the hidden states of a text's tokens, by a name in `unmask.model.pooling.POOLINGS`."""
    return VectorKind(lambda model, hidden_ND, lengths: pool(hidden_ND, lengths, pooling), unit=True)


def compared(texts: TextTargets) -> tuple[Tensor, Tensor, Tensor]:
    """The texts that are compared in a step. Nothing waits for the device, since their numbers are known.

    Returns first_P and other_C, int64: the indices of first texts, in the order of pairs, and those of second texts
    followed by wrong answers; and barred_PC, bool: which of the others are left out of a first text's choice.
    """
    pair_E, _, document_E, hash_E = texts.columns_EK.unbind(1)
    count, order_E = texts.num_pairs, texts.order_E
    first_P, other_C = order_E[:count], order_E[count:]
    one_P, hash_C = hash_E[first_P], hash_E[other_C]
    is_own_PC = pair_E[first_P][:, None] == pair_E[other_C]
    is_near_PC = document_E[first_P][:, None] == document_E[other_C]
    # Hash each query with its right answer. A combination that is a pair anywhere in the step is right.
    right_P = torch.sort(one_P * GOLDEN + hash_C[:count]).values
    both_PC = one_P[:, None] * GOLDEN + hash_C
    place_PC = torch.searchsorted(right_P, both_PC).clamp(max=count - 1)
    is_right_PC = right_P[place_PC] == both_PC
    barred_PC = (is_near_PC & ~is_own_PC) | is_right_PC | (one_P[:, None] == hash_C)
    barred_PC[:, :count].fill_diagonal_(False)
    return first_P, other_C, barred_PC


def contrast_losses(
    vectors_ED: Tensor,
    texts: TextTargets,
    *,
    temperature: float,
    dimensions: Sequence[int] = (),
    unit: bool = True,
) -> Losses:
    """The loss of each pair: half that of choosing its second text by its first, half that of choosing its first by its
    second.

    `vectors_ED` has all texts of a step, not normalised; `unit` divides each by its length. Similarities are divided by
    the temperature. `dimensions` are sizes of truncated vectors that should work as well as the whole ones: the loss is
    the mean over these sizes and the full size.

    Source: van den Oord et al. 2018 (InfoNCE); symmetric as in Radford et al. 2021 (CLIP), section 2.3; truncated
    vectors: Kusupati et al. 2022 (Matryoshka), section 3. Their sum is a mean here, so that the weights of other losses
    keep their meaning.
    """
    first_P, other_C, barred_PC = compared(texts)
    count = texts.num_pairs
    right_P = torch.arange(count, device=vectors_ED.device)
    sizes = sorted({*dimensions, vectors_ED.shape[1]})
    each_P = vectors_ED.new_zeros(count)
    for size in sizes:
        one_PD, other_CD = vectors_ED[first_P, :size], vectors_ED[other_C, :size]
        if unit:
            one_PD, other_CD = functional.normalize(one_PD, dim=1), functional.normalize(other_CD, dim=1)
        scores_PC = one_PD @ other_CD.T / temperature
        forth_PC = scores_PC.masked_fill(barred_PC, -torch.inf)
        # The other direction bars the same pairs of texts; wrong answers make no choice themselves.
        back_PP = scores_PC[:, :count].T.masked_fill(barred_PC[:, :count].T, -torch.inf)
        each_P = each_P + functional.cross_entropy(forth_PC, right_P, reduction="none") / (2 * len(sizes))
        each_P = each_P + functional.cross_entropy(back_PP, right_P, reduction="none") / (2 * len(sizes))
    wrong_P = forth_PC.detach().argmax(1) != right_P
    return Losses(each_P.sum(), each_P.detach(), wrong_P)


# ----------------------------------------
# Sparse vectors of texts, a number for each token of the vocabulary, from the masked-language-model head (SPLADE).
#
#     logits of a text's positions     max      relu     log(1 + x)
#     the     -1.0   0.3  -2.0         0.3      0.3      0.26        special tokens are positions, too, as in
#     cat      2.0  -0.5   4.0         4.0      4.0      1.61        sentence-transformers' SpladePooling
#     dog     -3.0  -1.0  -0.2        -0.2      0        0
#
# Texts are compared by the product of their vectors. A second loss makes vectors sparse. It estimates the cost of a
# search in an index of them (FLOPS): the mean over texts for each token, squared, summed over tokens.
#
# The logits of all positions never exist at once: they are computed for a few whole texts at a time. Kept are each
# text's vector, and the positions that its numbers come from.
#
# Shape suffixes: T = positions of a batch, N = positions of texts, E = texts, V = vocabulary, D = hidden size,
# Z = numbers that are not 0, of all texts.

LOGITS = 1 << 25  # computed at once: 128 MB in float32; more if a single text has more
NUMBERS_A_TOKEN = 2.0  # most non-zero numbers for each token of a text when training begins
_PLACES = 1 << 22  # positions searched at once for the source of numbers
RISING = 1 / 3  # share of the training in which the regulariser's weight grows


def splade_vectors(model: MaskedLM, hidden_ND: Tensor, lengths: Sequence[int]) -> Tensor:
    """log(1 + relu(the largest logit over the positions of each text)): [E, V], float32. Hidden states are those of the
    texts' tokens, one text after another. Source: Formal et al. 2021 (SPLADE v2), section 3.1, with the maximum."""
    x_ND = model.head.transform(hidden_ND)
    if not lengths:  # rows are empty: no vectors, but a graph for the gradients
        return model.head.decode(x_ND, model.encoder.tokens).float()
    return _Pooled.apply(x_ND, model.encoder.tokens, model.head.bias, lengths, torch.is_grad_enabled())


class _Pooled(torch.autograd.Function):
    """Sparse vectors of texts that follow one another.

    A number that is not 0 comes from one position of its text (the first of equal ones); other positions have no
    gradient. So the backward pass only needs these positions: sums over them replace products with the whole
    vocabulary, which are three of a step's four, and passes over all logits.
    """

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, tokens_VD: Tensor, bias_V: Tensor, lengths: Sequence[int], is_learned: bool
    ) -> Tensor:
        weights_VD = tokens_VD.to(x_ND.dtype)
        vectors, sources = [], []
        begin = first = 0
        # Groups of texts with about `most` positions together, or a single text
        most = max(1, LOGITS // len(weights_VD))
        ends = zip(lengths, accumulate(lengths), strict=True)
        for _, texts in groupby(ends, key=lambda text: (text[1] - 1) // most):
            group = [length for length, _ in texts]
            end = begin + sum(group)
            products_NV = x_ND[begin:end] @ weights_VD.T
            most_EV = torch.stack([of_text.amax(0) for of_text in products_NV.split(group)])
            # Bias and logarithm do not change which position is largest, so both come after the maximum, in float32.
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
        # The derivative of log(1 + x) at x > 0 is 1 / (1 + x).
        gradient_Z = gradients[0][text_Z, token_Z] * torch.exp(-vectors_EV[text_Z, token_Z])
        to_x_ND = _sums(place_Z, token_Z, gradient_Z, tokens_VD, len(x_ND))
        to_tokens_VD = _sums(token_Z, place_Z, gradient_Z, x_ND, len(tokens_VD))
        to_bias_V = _sums(token_Z, place_Z, gradient_Z, x_ND.new_ones(len(x_ND), 1), len(tokens_VD))[:, 0]
        return to_x_ND.to(x_ND.dtype), to_tokens_VD.to(tokens_VD.dtype), to_bias_V, None, None


def _places(products_NV: Tensor, most_EV: Tensor, lengths: Sequence[int], text_Z: Tensor, token_Z: Tensor) -> Tensor:
    """[Z]: the first position that has each largest product, in texts that follow one another."""
    device = products_NV.device
    length_E = torch.tensor(lengths, device=device)
    begin_E = length_E.cumsum(0) - length_E
    within_S = torch.arange(max(lengths), device=device)
    places = []
    for text_C, token_C in zip(*(each.split(_PLACES // len(within_S) + 1) for each in (text_Z, token_Z)), strict=True):
        inside_CS = within_S < length_E[text_C, None]
        place_CS = begin_E[text_C, None] + torch.where(inside_CS, within_S, 0)
        equal_CS = products_NV[place_CS, token_C[:, None]] == most_EV[text_C, token_C][:, None]
        places.append(begin_E[text_C] + (equal_CS & inside_CS).to(torch.uint8).argmax(1))
    return torch.cat(places)


def _sums(into_Z: Tensor, from_Z: Tensor, weights_Z: Tensor, rows_RD: Tensor, count: int) -> Tensor:
    """[count, D], float32: for each index, the weighted sum of the rows that go into it, always in the same order."""
    order_Z = torch.argsort(into_Z, stable=True)
    begins = torch.bincount(into_Z, minlength=count).cumsum(0)
    offsets = torch.cat([begins.new_zeros(1), begins[:-1]])
    return functional.embedding_bag(
        from_Z[order_Z], rows_RD.float(), offsets, mode="sum", per_sample_weights=weights_Z[order_Z]
    )


SPARSE = VectorKind(splade_vectors, unit=False)  # as wide as the vocabulary, compared by their product


def surplus(vectors_EV: Tensor, num_tokens: int) -> float:
    """The constant to subtract from all logits so that texts have at most `NUMBERS_A_TOKEN` non-zero numbers for each
    of their tokens. `vectors_EV` are vectors of sample texts, with `num_tokens` tokens in all.

    The masked-token loss does not change if a constant is added to all logits. So a pretrained model may have positive
    logits for most of the vocabulary, and products in the thousands, which would ruin the training.
    """
    most = round(NUMBERS_A_TOKEN * num_tokens)
    numbers = vectors_EV[vectors_EV > 0]
    if len(numbers) <= most:
        return 0.0
    return math.expm1(float(numbers.kthvalue(len(numbers) - most).values))


# ----------------------------------------


def pair_objective(
    kind: VectorKind,
    *,
    temperature: float,
    dimensions: Sequence[int] = (),
    sparse_weights: tuple[float, float] | None = None,
    progress: Callable[[], float] = lambda: 1.0,
) -> Objective:
    """The contrastive objective over pairs of texts; its loss needs the vectors of all parts of a step together.

    `sparse_weights` are the FLOPS regulariser's weights for first texts, and for second texts and wrong answers. They
    rise with the training's progress, which `progress` returns at each step.

    Source: Paria et al. 2020 (Minimizing FLOPs to Learn Efficient Sparse Representations), section 4; Formal et al.
    2021 (SPLADE v2), section 2; the growth: Formal et al. 2021 (SPLADE), section 4.
    """

    def of_all(vectors_ED: Tensor, columns_EK: Tensor, num_pairs: int) -> Losses:
        texts = TextTargets(columns_EK.new_zeros(0), columns_EK, num_pairs)
        losses = contrast_losses(vectors_ED, texts, temperature=temperature, dimensions=dimensions, unit=kind.unit)
        if sparse_weights is None:
            return losses
        # The mean over texts for each token, squared, summed over tokens. The weight grows with the square of the
        # progress, from 0 to 1 at a third.
        sorted_ED = vectors_ED[texts.order_E]  # the number of first texts is known, so nothing waits for the device
        both = zip(sparse_weights, (sorted_ED[: texts.num_pairs], sorted_ED[texts.num_pairs :]), strict=True)
        cost: Any = sum(weight * side_ED.mean(0).square().sum() for weight, side_ED in both)
        rising = min(1.0, progress() / RISING) ** 2
        return replace(losses, total=losses.total + texts.num_pairs * rising * cost)

    return Objective(CONTRAST, 1.0, TextTargets.of, JointLoss(kind.vectors, of_all))
