"""One training step, in one block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from unmask.errors import DivergedError
from unmask.hashing import mix_ints
from unmask.masking.engine import MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.packing.rows import Rows
from unmask.training.objectives import PREDICT_MASKED, Objective
from unmask.training.optimizer import Optimizer


@dataclass(frozen=True)
class MeanLoss:
    """A loss in nats per target, and the number of targets."""

    loss: float
    count: int


@dataclass(frozen=True)
class Observed:
    """What the predictions of a step came to.

    Attributes:
        targets_N: int64: the right ids.
        losses_N: float32: their cross-entropies.
        wrong_N: bool: whether another id was the most likely.
        pos_N: int64: numbers of their parts of speech, 0 for none; None where the rows do not have them.
    """

    targets_N: Tensor
    losses_N: Tensor
    wrong_N: Tensor
    pos_N: Tensor | None = None


@dataclass(frozen=True)
class StepResult:
    """What a step measured.

    Attributes:
        loss: Nats per predicted token, before the update.
        predicted_tokens: How many were predicted.
        gradient_norm: Before clipping.
        micro_batches: Parts that it was computed in.
        objectives: The losses of the other objectives, by name, without their weights.
        observed: What each prediction came to, where that was asked for.
    """

    loss: float
    predicted_tokens: int
    gradient_norm: float
    micro_batches: int = 1
    objectives: Mapping[str, MeanLoss] = field(default_factory=dict)
    observed: Observed | None = None


def training_step(  # noqa: PLR0913  (what a step is made of)
    model: MaskedLM,
    optimizer: Optimizer,
    rows: Rows,
    masked: MaskedRows,
    *,
    learning_rate_scale: float,
    step: int,
    dropout_seed: int | None = None,
    micro_rows: int | None = None,
    objectives: Sequence[Objective] = (),
    leading: Objective = PREDICT_MASKED,
    observe: bool = False,
) -> StepResult:
    """Predicts the masked tokens of a batch, and what else is asked for, and updates the model.

    Each loss is summed, and divided by the number of its targets in the whole step (or the sum of their weights),
    however many parts it is computed in: means of parts with unequal numbers of targets must not be averaged. What is
    minimised is the loss per predicted token plus that of each other objective, times its weight.

    Args:
        model: On the device of the rows.
        optimizer: Its parameters' optimizer.
        rows: What the batch holds.
        masked: What the model sees and must predict.
        learning_rate_scale: Factor of the peak learning rates.
        step: Number of the step, for the error's text.
        dropout_seed: What a model with dropout drops is a function of it and the number of the part.
        micro_rows: Rows that are computed at once at most, to fit the memory; None computes all at once.
        objectives: What is learned beside the leading objective.
        leading: Whose loss is that of the step: masked tokens, or a task that a model is fine-tuned for.
        observe: Whether the result says what each prediction came to.

    Raises:
        DivergedError: The loss or the gradient is not finite; nothing was updated.
    """
    parts = _parts(rows, masked, micro_rows or rows.shape[0])
    learned = (leading, *objectives)
    targets = [
        [each.targets(*part) for each in learned] for part in parts
    ]  # waits for a GPU, as do loss and norm below
    counts = [sum(map(len, of_parts)) for of_parts in zip(*targets, strict=True)]
    totals = [sum(each.total for each in of_parts) or 1.0 for of_parts in zip(*targets, strict=True)]
    observed: list[Observed] = []
    losses = [0.0] * len(learned)
    for number, ((some_rows, part), of_part) in enumerate(zip(parts, targets, strict=True)):
        hidden_BSD = model.encoder(
            part.input_ids,
            segment_ids_BS=some_rows.segment_ids,
            position_ids_BS=some_rows.position_ids,
            token_type_ids_BS=some_rows.token_type_ids,
            dropout_seed=None if dropout_seed is None else mix_ints(dropout_seed, number),
        )
        loss = torch.zeros((), device=hidden_BSD.device)
        for index, (objective, target) in enumerate(zip(learned, of_part, strict=True)):
            found = objective.losses(model, hidden_BSD.flatten(0, 1), target)
            if observe and objective is PREDICT_MASKED:
                pos_N = _pos_of(some_rows, target.positions_N)
                observed.append(Observed(target.classes_N, found.each_N, found.wrong_N, pos_N))
            mean = found.total / totals[index]
            losses[index] += mean.item()
            loss = loss + objective.weight * mean
        if not all(map(math.isfinite, losses)):
            optimizer.clear()
            raise DivergedError(f"the loss of step {step} is {_shown(learned, losses)}")
        loss.backward()
    norm = optimizer.clip()
    if not math.isfinite(norm):
        optimizer.clear()
        raise DivergedError(f"the gradient of step {step} has the norm {norm}")
    optimizer.step(learning_rate_scale)
    means = {each.name: MeanLoss(loss, count) for each, loss, count in zip(learned, losses, counts, strict=True)}
    first = means.pop(leading.name)
    return StepResult(first.loss, first.count, norm, len(parts), means, _joined(observed))


def _joined(observed: list[Observed]) -> Observed | None:
    if not observed:
        return None
    pos = [entry.pos_N for entry in observed if entry.pos_N is not None]  # all parts have them, or none does
    return Observed(
        targets_N=torch.cat([entry.targets_N for entry in observed]),
        losses_N=torch.cat([entry.losses_N for entry in observed]),
        wrong_N=torch.cat([entry.wrong_N for entry in observed]),
        pos_N=torch.cat(pos) if pos else None,
    )


def _pos_of(rows: Rows, positions_N: Tensor) -> Tensor | None:
    pos_BS = rows.annotations.get("pos")
    return None if pos_BS is None else pos_BS.flatten()[positions_N]


def _shown(learned: Sequence[Objective], losses: Sequence[float]) -> str:
    """The loss, and where there are several, whose each is."""
    if len(learned) == 1:
        return str(losses[0])
    return ", ".join(f"{loss} ({each.name})" for each, loss in zip(learned, losses, strict=True))


def _parts(rows: Rows, masked: MaskedRows, size: int) -> list[tuple[Rows, MaskedRows]]:
    """At most `size` rows each, about equally many."""
    num_rows = rows.shape[0]
    num_parts = math.ceil(num_rows / size)
    cuts = [number * num_rows // num_parts for number in range(num_parts + 1)]
    return [(rows.part(a, b), masked.part(a, b)) for a, b in pairwise(cuts)]
