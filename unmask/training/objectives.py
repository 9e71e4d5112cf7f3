"""What a step learns: masked tokens, and whatever is asked for beside them.

An objective finds its targets in a batch and sums its loss over them; the step divides by the number of targets of the
whole step, so that parts of a batch add up to what the whole gives.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, N = targets, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.masking.engine import IGNORED, MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.model.loss import predicted_positions
from unmask.packing.rows import Rows
from unmask.packing.stream import LABEL
from unmask.training.objective_settings import ObjectivesSettings

MASKED_TOKENS = "masked_tokens"


@dataclass(frozen=True)
class Targets:
    """What is to be predicted in a batch.

    Attributes:
        positions_N: int64: places in the flattened batch (row x S + position) that it is predicted for.
        classes_N: int64: the right answers.
        boundaries_N: Places in the flattened batch of the tokens before and behind each target's span; None where the
            objective does not ask for them.
        weights_N: float32: of each target's loss; None: all weigh the same.
    """

    positions_N: Tensor
    classes_N: Tensor
    boundaries_N: tuple[Tensor, Tensor] | None = None
    weights_N: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions_N)

    @property
    def total(self) -> float:
        """What the summed loss is divided by: the number of targets, or the sum of their weights."""
        return len(self) if self.weights_N is None else float(self.weights_N.sum())


@dataclass(frozen=True)
class Objective:
    """Something that a model learns.

    Attributes:
        name: As metrics and summary call it.
        weight: Of its loss per target.
        targets: Finds them in a batch; waits for a GPU, since their number is not known before.
        logits: [N, C] of the targets, of the hidden states [T, D] of the batch.
    """

    name: str
    weight: float
    targets: Callable[[Rows, MaskedRows], Targets]
    logits: Callable[[MaskedLM, Tensor, Targets], Tensor]


def _masked_targets(rows: Rows, masked: MaskedRows) -> Targets:
    positions_N = predicted_positions(masked.labels)
    weights_N = None if masked.loss_weights is None else masked.loss_weights.flatten()[positions_N]
    return Targets(positions_N, masked.labels.flatten()[positions_N], weights_N=weights_N)


def _token_logits(model: MaskedLM, hidden_TD: Tensor, targets: Targets) -> Tensor:
    return model.predict(hidden_TD, targets.positions_N)


def _pair_logits(model: MaskedLM, hidden_TD: Tensor, targets: Targets) -> Tensor:
    assert model.pair_head is not None
    return model.pair_head(hidden_TD.index_select(0, targets.positions_N))


def _class_targets(name: str) -> Callable[[Rows, MaskedRows], Targets]:
    """Targets of the segments whose class is known, at their first tokens."""

    def find(rows: Rows, masked: MaskedRows) -> Targets:
        positions_N = predicted_positions(rows.classes[name])
        return Targets(positions_N, rows.classes[name].flatten()[positions_N])

    return find


def _label_logits(model: MaskedLM, hidden_TD: Tensor, targets: Targets) -> Tensor:
    return model.classify(hidden_TD.index_select(0, targets.positions_N))


def _boundary_targets(rows: Rows, masked: MaskedRows) -> Targets:
    """The targets in spans; those that other strategies of a mixture masked have no boundaries."""
    assert masked.boundaries is not None
    in_spans_BS = torch.where(masked.boundaries.before >= 0, masked.labels, IGNORED)
    plain = _masked_targets(rows, replace(masked, labels=in_spans_BS))
    positions_N = plain.positions_N
    length = rows.shape[1]
    row_begin_N = positions_N // length * length
    before_N, behind_N = (
        row_begin_N + column.flatten()[positions_N] for column in (masked.boundaries.before, masked.boundaries.behind)
    )
    return replace(plain, boundaries_N=(before_N, behind_N))


def _boundary_logits(model: MaskedLM, hidden_TD: Tensor, targets: Targets) -> Tensor:
    assert model.boundary_head is not None
    assert targets.boundaries_N is not None
    before_N, behind_N = targets.boundaries_N
    place_N = targets.positions_N - before_N - 1
    x_ND = model.boundary_head(hidden_TD.index_select(0, before_N), hidden_TD.index_select(0, behind_N), place_N)
    return model.head.decode(x_ND, model.encoder.tokens)


PREDICT_MASKED = Objective(MASKED_TOKENS, 1.0, _masked_targets, _token_logits)


def extra_objectives(settings: ObjectivesSettings) -> tuple[Objective, ...]:
    """The objectives beside masked tokens, by their settings. A model needs the heads for them."""
    found = []
    if settings.pairs is not None:
        kind = settings.pairs.kind
        found.append(Objective(kind, settings.pairs.weight, _class_targets(kind), _pair_logits))
    if settings.span_boundary is not None:
        weight = settings.span_boundary.weight
        found.append(Objective("span_boundary", weight, _boundary_targets, _boundary_logits))
    if settings.label is not None:
        found.append(Objective(LABEL, settings.label.weight, _class_targets(LABEL), _label_logits))
    return tuple(found)
