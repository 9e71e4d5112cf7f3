"""Training objectives: masked tokens, and others besides them.

An objective finds its targets in a batch and sums its loss over them. The step divides by the number of targets in the
whole step, so that parts of a batch add up to the result of the whole.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, N = targets, C = classes, E = texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from unmask.core.hashing import REBUILT, mix, mix_ints
from unmask.data.rows import LABEL, Rows, map_tensors
from unmask.masking.masker import MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.model.fused import IGNORED, Losses, losses_of, predicted_positions
from unmask.model.layers import BoundaryHead, DecodedRows, LabelHead, PairHead, RetroMAEHead
from unmask.train.settings import ObjectivesSettings, RetroMAESettings

_FULL = 64
_SEES, _REBUILDS = 11, 12  # give these draws other seeds than those of the masks
_LOGITS = 1 << 24  # computed at once if no gradient needs all of them


@dataclass(frozen=True)
class StepTargets:
    """The targets of an objective in a batch, or in a part of one."""

    positions_N: Tensor  # int64: positions in the flattened batch (row x S + position) that the objective reads

    def __len__(self) -> int:
        return len(self.positions_N)

    @property
    def total(self) -> float:
        """These targets' contribution to the divisor of the summed loss."""
        return len(self)


@dataclass(frozen=True)
class Targets(StepTargets):
    """Classes to predict in a batch."""

    classes_N: Tensor  # int64: the right answers
    # Positions of the tokens before and after each target's span; None if the objective does not use them.
    boundaries_N: tuple[Tensor, Tensor] | None = None
    weights_N: Tensor | None = None  # float32: the weight of each target's loss; None: all are 1

    @property
    def total(self) -> float:
        return len(self) if self.weights_N is None else float(self.weights_N.sum())

    def filled(self, num_positions: int) -> Targets:
        """These targets followed by ignored ones, up to the capacity for a part of `num_positions`. Ignored targets
        have position 1 and boundaries 0 and 0, so that their place in the span is valid."""
        missing = capacity(len(self), num_positions, self.positions_N.device) - len(self)
        filled = map_tensors(self, lambda tensor: pad(tensor, (0, missing)))
        filled.positions_N[len(self) :] = 1
        filled.classes_N[len(self) :] = IGNORED
        return filled


def capacity(count: int, num_positions: int, device: torch.device) -> int:
    """The number that token targets are filled up to, since it changes from step to step.

    On CPUs a multiple of 64: for each new shape of a product the library generates code, which takes longer than the
    product. On GPUs also a multiple of a 64th of the positions, so that steps hardly differ in size, and memory of one
    step fits the next. At a mask rate of 15 % this adds at most a tenth.
    """
    step = _FULL if device.type == "cpu" else _FULL * math.ceil(num_positions / 64 / _FULL)
    return math.ceil(count / step) * step


@dataclass(frozen=True)
class JointLoss:
    """The loss of an objective whose targets are compared with each other across the whole step, in two halves, which
    `unmask.train.step` computes separately. The objective's targets have `columns_EK`, int64: facts about each vector's
    target that the comparison needs.
    """

    # Computes the vectors of a part, [E, D], from the model, its hidden states [T, D] and the targets.
    vectors: Callable[[Any, Tensor, Any], Tensor]
    # Computes the losses from the concatenated vectors of all parts and processes, their columns, and the number of
    # targets.
    losses: Callable[[Tensor, Tensor, int], Losses]


@dataclass(frozen=True)
class Objective:
    """A training objective: which targets a batch has, and the loss at each.

    Attributes:
        name: Its name in metrics and summary.
        weight: Weight of its loss per target.
        targets: Finds the targets of a batch, on the host, so that nothing waits for a GPU to count them.
        losses: Computes the losses from the model, the hidden states [T, D] of the batch, the targets, and in training
            a seed for dropout (None in evaluations). In two halves if targets are compared with each other.
        predicted: Share of positions that the prediction head predicts, if it is not the masks'; memory forecasts use
            it.
    """

    name: str
    weight: float
    targets: Callable[[Rows, MaskedRows], StepTargets]
    losses: Callable[[Any, Tensor, Any, int | None], Losses] | JointLoss
    predicted: float = 0.0


def _masked_targets(rows: Rows, masked: MaskedRows) -> Targets:
    positions_N = predicted_positions(masked.labels)
    weights_N = None if masked.loss_weights is None else masked.loss_weights.flatten()[positions_N]
    return Targets(positions_N, masked.labels.flatten()[positions_N], weights_N=weights_N)


def token_losses(model: MaskedLM, hidden_TD: Tensor, targets: Targets, seed: int | None = None) -> Losses:
    count, filled = len(targets), targets.filled(len(hidden_TD))
    x_ND = model.head.transform(hidden_TD.index_select(0, filled.positions_N))
    losses = model.head.losses(x_ND, model.encoder.tokens, filled.classes_N, filled.weights_N, sampled=seed is not None)
    return Losses(losses.total, losses.each_N[:count], losses.wrong_N[:count])


PREDICT_MASKED = Objective("masked_tokens", 1.0, _masked_targets, token_losses)


def _classes(name: str, weight: float, logits_of: Callable[[Any, Tensor], Tensor]) -> Objective:
    """Predicts the class of each segment that has one, from the segment's first token."""

    def targets(rows: Rows, masked: MaskedRows) -> Targets:
        positions_N = predicted_positions(rows.classes[name])
        return Targets(positions_N, rows.classes[name].flatten()[positions_N])

    def losses(model: MaskedLM, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None = None) -> Losses:
        return losses_of(logits_of(model, hidden_TD.index_select(0, targets.positions_N)), targets.classes_N)

    return Objective(name, weight, targets, losses)


def _boundary_targets(rows: Rows, masked: MaskedRows) -> Targets:
    """The targets within spans; tokens masked by other strategies of a mixture have no boundaries."""
    assert masked.boundaries is not None
    in_spans_BS = torch.where(masked.boundaries.before >= 0, masked.labels, IGNORED)
    plain = _masked_targets(rows, replace(masked, labels=in_spans_BS))
    row_begin_N = plain.positions_N // rows.shape[1] * rows.shape[1]
    before_N, after_N = (
        row_begin_N + column.flatten()[plain.positions_N]
        for column in (masked.boundaries.before, masked.boundaries.behind)
    )
    return replace(plain, boundaries_N=(before_N, after_N))


def _boundary_losses(model: MaskedLM, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None = None) -> Losses:
    head, count = model.find_head(BoundaryHead), len(targets)
    if hidden_TD.device.type != "cpu":
        targets = targets.filled(len(hidden_TD))
    assert head is not None
    assert targets.boundaries_N is not None
    before_N, after_N = targets.boundaries_N
    place_N = targets.positions_N - before_N - 1
    x_ND = head(hidden_TD.index_select(0, before_N), hidden_TD.index_select(0, after_N), place_N)
    losses = model.head.losses(x_ND, model.encoder.tokens, targets.classes_N, targets.weights_N)
    return Losses(losses.total, losses.each_N[:count], losses.wrong_N[:count])


@dataclass(frozen=True)
class TextsToRebuild(StepTargets):
    """The texts of a batch, and the tokens to predict from their vectors, at `positions_N`."""

    classes_N: Tensor  # int64: the ids of these tokens
    num_texts: int
    rows: DecodedRows  # the decoder's input

    @classmethod
    def of(cls, rows: Rows, masked: MaskedRows, *, rate: float) -> TextsToRebuild:
        """The texts of rows: each segment is a text, and each of its tokens is chosen with the probability `rate`.

        The draws use the masks' random bits, so they are a function of (seed, epoch, segment, position).
        """
        assert masked.bits is not None, "a masker has masked them"
        is_text_BS = rows.segment_ids >= 0
        first_T = (is_text_BS & (rows.position_ids == 0)).flatten()
        num_texts = int(first_T.sum())
        text_BS = torch.where(is_text_BS, (first_T.cumsum(0) - 1).view(rows.shape), num_texts)
        drawn_BS = REBUILT.of(mix(masked.bits + mix_ints(_REBUILDS))) < round(rate * 2**REBUILT.size)
        positions_N = torch.nonzero((rows.maskable & drawn_BS).flatten()).squeeze(1)
        bits_BS = masked.bits + mix_ints(_SEES)
        decoded = DecodedRows(rows.input_ids, text_BS, rows.position_ids, bits_BS)
        return cls(positions_N, rows.input_ids.flatten()[positions_N], num_texts, decoded)


def _retromae(settings: RetroMAESettings) -> Objective:
    """Reconstructs texts from their vectors; see `unmask.model.layers`. It uses the whole masked-language-model head,
    like the paper's released code."""

    def losses(model: MaskedLM, hidden_TD: Tensor, texts: TextsToRebuild, dropout_seed: int | None = None) -> Losses:
        head, count = model.find_head(RetroMAEHead), len(texts)
        assert head is not None

        # The texts' vectors [E, D], means of their hidden states. Padding counts as one more text at the end.
        text_T = texts.rows.text_BS.flatten()  # empty if another process has more parts of the step
        sums_ED = hidden_TD.new_zeros(texts.num_texts + 1, hidden_TD.shape[1], dtype=torch.float32)
        sums_ED = sums_ED.index_add(0, text_T, hidden_TD[: len(text_T)].float())
        counts_E = sums_ED.new_zeros(texts.num_texts + 1).index_add(0, text_T, sums_ED.new_ones(len(text_T)))
        vectors_ED = (sums_ED / counts_E.clamp(min=1.0)[:, None])[:-1]

        filled = Targets(texts.positions_N, texts.classes_N).filled(len(hidden_TD))
        vectors_ED = vectors_ED.to(hidden_TD.dtype)
        x_ND = head(vectors_ED, model.encoder.tokens, texts.rows, filled.positions_N, rate=settings.rate)
        size = max(1, len(filled) if torch.is_grad_enabled() else _LOGITS // model.config.vocab_size)
        parts = [
            model.head.losses(model.head.transform(x_nD), model.encoder.tokens, classes_n)
            for x_nD, classes_n in zip(x_ND.split(size), filled.classes_N.split(size), strict=True)
        ]
        each_N, wrong_N = (torch.cat([getattr(part, name) for part in parts])[:count] for name in ("each_N", "wrong_N"))
        return Losses(torch.stack([part.total for part in parts]).sum(), each_N, wrong_N)

    rate = settings.prediction_rate
    return Objective("retromae", settings.weight, partial(TextsToRebuild.of, rate=rate), losses, predicted=rate)


def extra_objectives(settings: ObjectivesSettings) -> tuple[Objective, ...]:
    """The objectives besides masked tokens, by their settings. The model must have their heads."""
    objectives = []
    if (pairs := settings.pairs) is not None:
        objectives.append(_classes(pairs.kind, pairs.weight, lambda model, x_ND: model.find_head(PairHead)(x_ND)))
    if (spans := settings.span_boundary) is not None:
        objectives.append(Objective("span_boundary", spans.weight, _boundary_targets, _boundary_losses))
    if (label := settings.label) is not None:
        objectives.append(_classes(LABEL, label.weight, lambda model, x_ND: model.outputs(LabelHead.name, x_ND)))
    if settings.retromae is not None:
        objectives.append(_retromae(settings.retromae))
    return tuple(objectives)
