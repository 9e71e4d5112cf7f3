"""What a step learns: masked tokens, and other objectives beside them.

An objective finds its targets in a batch and sums its loss over them; the step divides by the number of targets of the
whole step, so that parts of a batch add up to what the whole gives.

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
_SEES, _REBUILDS = 11, 12  # set these draws apart from those of the masks
_LOGITS = 1 << 24  # that are made at once where no gradient needs them all


@dataclass(frozen=True)
class StepTargets:
    """What an objective finds in a batch, or in a part of one."""

    positions_N: Tensor  # int64: places in the flattened batch (row x S + position) that it looks at

    def __len__(self) -> int:
        return len(self.positions_N)

    @property
    def total(self) -> float:
        """What the summed loss is divided by, as far as these targets add to it."""
        return len(self)


@dataclass(frozen=True)
class Targets(StepTargets):
    """What is to be predicted in a batch."""

    classes_N: Tensor  # int64: the right answers
    # Places of the tokens before and behind each target's span; None where the objective does not ask for them.
    boundaries_N: tuple[Tensor, Tensor] | None = None
    weights_N: Tensor | None = None  # float32: of each target's loss; None: all weigh the same

    @property
    def total(self) -> float:
        return len(self) if self.weights_N is None else float(self.weights_N.sum())

    def filled(self, num_positions: int) -> Targets:
        """With ignored targets behind them, up to the capacity for a part of so many positions. They stand at place 1,
        between 0 and 0, so that their place in a span is one that there is."""
        missing = capacity(len(self), num_positions, self.positions_N.device) - len(self)
        filled = map_tensors(self, lambda tensor: pad(tensor, (0, missing)))
        filled.positions_N[len(self) :] = 1
        filled.classes_N[len(self) :] = IGNORED
        return filled


def capacity(count: int, num_positions: int, device: torch.device) -> int:
    """The size that targets of the vocabulary are filled up to, since their number changes from step to step.

    On CPUs a multiple of 64: for each new shape of a product the library behind it makes new code, which takes longer
    than the product. On GPUs a multiple of a 64th of the positions, too, so that hardly any two steps differ and memory
    of one step fits the next. At 15 % that is a tenth more at the most.
    """
    step = _FULL if device.type == "cpu" else _FULL * math.ceil(num_positions / 64 / _FULL)
    return math.ceil(count / step) * step


@dataclass(frozen=True)
class JointLoss:
    """The loss of an objective whose targets are compared with each other across the whole step, in two halves.

    A step that is computed in parts, or by several processes, needs them apart, see `unmask.train.step`. Its targets
    have `columns_EK`, int64: what is compared of each vector's target.
    """

    # What is compared of a part, [E, D]: of the model, its hidden states [T, D], and the targets.
    vectors: Callable[[Any, Tensor, Any], Tensor]
    # Of the vectors of all parts and processes, one behind another, their columns, and how many targets.
    losses: Callable[[Tensor, Tensor, int], Losses]


@dataclass(frozen=True)
class Objective:
    """A training objective: which targets a batch has, and the loss at each.

    Attributes:
        name: Its name in metrics and summary.
        weight: Weight of its loss per target.
        targets: Finds the targets of a batch, on the host, so that nothing waits for a GPU to count them.
        losses: Computes the losses from the model, the hidden states [T, D] of the batch, the targets, and a seed of
            what the head draws, dropout or a sample of the vocabulary (None: nothing is drawn).
        joint: The same in two halves, if a target's loss depends on targets of other micro-batches.
        predicted: Share of positions that the prediction head predicts, if it is not the masks'; memory forecasts use
            it.
    """

    name: str
    weight: float
    targets: Callable[[Rows, MaskedRows], StepTargets]
    losses: Callable[[Any, Tensor, Any, int | None], Losses]
    joint: JointLoss | None = None
    predicted: float = 0.0


def _masked_targets(rows: Rows, masked: MaskedRows) -> Targets:
    positions_N = predicted_positions(masked.labels)
    weights_N = None if masked.loss_weights is None else masked.loss_weights.flatten()[positions_N]
    return Targets(positions_N, masked.labels.flatten()[positions_N], weights_N=weights_N)


def _token_losses(model: MaskedLM, hidden_TD: Tensor, targets: Targets, seed: int | None = None) -> Losses:
    count, filled = len(targets), targets.filled(len(hidden_TD))
    x_ND = model.head.transform(hidden_TD.index_select(0, filled.positions_N))
    losses = model.head.losses(x_ND, model.encoder.tokens, filled.classes_N, filled.weights_N, seed=seed)
    return Losses(losses.total, losses.each_N[:count], losses.wrong_N[:count])


PREDICT_MASKED = Objective("masked_tokens", 1.0, _masked_targets, _token_losses)


def _classes(name: str, weight: float, logits_of: Callable[[Any, Tensor], Tensor]) -> Objective:
    """The class of each segment that has one, from its first token."""

    def targets(rows: Rows, masked: MaskedRows) -> Targets:
        positions_N = predicted_positions(rows.classes[name])
        return Targets(positions_N, rows.classes[name].flatten()[positions_N])

    def losses(model: MaskedLM, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None = None) -> Losses:
        return losses_of(logits_of(model, hidden_TD.index_select(0, targets.positions_N)), targets.classes_N)

    return Objective(name, weight, targets, losses)


def _boundary_targets(rows: Rows, masked: MaskedRows) -> Targets:
    """The targets in spans; those that other strategies of a mixture masked have no boundaries."""
    assert masked.boundaries is not None
    in_spans_BS = torch.where(masked.boundaries.before >= 0, masked.labels, IGNORED)
    plain = _masked_targets(rows, replace(masked, labels=in_spans_BS))
    row_begin_N = plain.positions_N // rows.shape[1] * rows.shape[1]
    before_N, behind_N = (
        row_begin_N + column.flatten()[plain.positions_N]
        for column in (masked.boundaries.before, masked.boundaries.behind)
    )
    return replace(plain, boundaries_N=(before_N, behind_N))


def _boundary_losses(model: MaskedLM, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None = None) -> Losses:
    head, count = model.find_head(BoundaryHead), len(targets)
    if hidden_TD.device.type != "cpu":
        targets = targets.filled(len(hidden_TD))
    assert head is not None
    assert targets.boundaries_N is not None
    before_N, behind_N = targets.boundaries_N
    place_N = targets.positions_N - before_N - 1
    x_ND = head(hidden_TD.index_select(0, before_N), hidden_TD.index_select(0, behind_N), place_N)
    losses = model.head.losses(x_ND, model.encoder.tokens, targets.classes_N, targets.weights_N)
    return Losses(losses.total, losses.each_N[:count], losses.wrong_N[:count])


@dataclass(frozen=True)
class TextsToRebuild(StepTargets):
    """The texts of a batch, and which of their tokens are predicted from their vectors."""

    classes_N: Tensor  # int64: the ids of these tokens
    first_E: Tensor  # int64: places of the texts' first tokens
    rows: DecodedRows  # what the decoder knows of the texts

    @classmethod
    def of(cls, rows: Rows, masked: MaskedRows, *, rate: float) -> TextsToRebuild:
        """Those of rows: a text is a segment, and each of its tokens is chosen with a probability of `rate`.

        What is drawn is a function of what the masks are drawn by, so of (seed, epoch, segment, position).
        """
        assert masked.bits is not None, "a masker has masked them"
        is_text_BS = rows.segment_ids >= 0
        first_T = (is_text_BS & (rows.position_ids == 0)).flatten()
        first_E = torch.nonzero(first_T).squeeze(1)
        text_BS = torch.where(is_text_BS, (first_T.cumsum(0) - 1).view(rows.shape), len(first_E))
        drawn_BS = REBUILT.of(mix(masked.bits + mix_ints(_REBUILDS))) < round(rate * 2**REBUILT.size)
        positions_N = torch.nonzero((rows.maskable & drawn_BS).flatten()).squeeze(1)
        bits_BS = masked.bits + mix_ints(_SEES)
        decoded = DecodedRows(rows.input_ids, text_BS, rows.position_ids, bits_BS)
        return cls(positions_N, rows.input_ids.flatten()[positions_N], first_E, decoded)


def _retromae(settings: RetroMAESettings) -> Objective:
    """Texts from their vectors; see `unmask.model.layers`. The prediction head is that of masked tokens, all of it, as
    in the released code of the paper."""

    def losses(model: MaskedLM, hidden_TD: Tensor, texts: TextsToRebuild, dropout_seed: int | None = None) -> Losses:
        head, count, num_texts = model.find_head(RetroMAEHead), len(texts), len(texts.first_E)
        assert head is not None

        # The texts' vectors: [E, D]. A mean over tokens; padding is a text of its own behind them.
        if settings.vector == "first":
            vectors_ED = hidden_TD.index_select(0, texts.first_E).float()
        else:
            text_T = texts.rows.text_BS.flatten()  # of no position, where another process has more parts of a step
            sums_ED = hidden_TD.new_zeros(num_texts + 1, hidden_TD.shape[1], dtype=torch.float32)
            sums_ED = sums_ED.index_add(0, text_T, hidden_TD[: len(text_T)].float())
            counts_E = sums_ED.new_zeros(num_texts + 1).index_add(0, text_T, sums_ED.new_ones(len(text_T)))
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
    """The objectives beside masked tokens, by their settings. A model needs the heads for them."""
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
