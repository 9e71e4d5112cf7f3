"""One training step, in one block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from unmask.errors import DivergedError
from unmask.hashing import mix_ints
from unmask.masking.engine import MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.model.loss import predicted_positions, token_losses
from unmask.packing.rows import Rows
from unmask.training.optimizer import Optimizer


@dataclass(frozen=True)
class Observed:
    """What the predictions of a step came to.

    Attributes:
        targets_N: int64: the right ids.
        losses_N: float32: their cross-entropies.
        wrong_N: bool: whether another id was the most likely.
    """

    targets_N: Tensor
    losses_N: Tensor
    wrong_N: Tensor


@dataclass(frozen=True)
class StepResult:
    """What a step measured.

    Attributes:
        loss: Nats per predicted token, before the update.
        predicted_tokens: How many were predicted.
        gradient_norm: Before clipping.
        micro_batches: Parts that it was computed in.
        observed: What each prediction came to, where that was asked for.
    """

    loss: float
    predicted_tokens: int
    gradient_norm: float
    micro_batches: int = 1
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
    observe: bool = False,
) -> StepResult:
    """Predicts the masked tokens of a batch and updates the model.

    The loss is summed, and divided by the number of predicted tokens of the whole step (or the sum of their weights),
    however many parts it is computed in: means of parts with unequal numbers of targets must not be averaged.

    Args:
        model: On the device of the rows.
        optimizer: Its parameters' optimizer.
        rows: What the batch holds.
        masked: What the model sees and must predict.
        learning_rate_scale: Factor of the peak learning rates.
        step: Number of the step, for the error's text.
        dropout_seed: What a model with dropout drops is a function of it and the number of the part.
        micro_rows: Rows that are computed at once at most, to fit the memory; None computes all at once.
        observe: Whether the result says what each prediction came to.

    Raises:
        DivergedError: The loss or the gradient is not finite; nothing was updated.
    """
    parts = _parts(rows, masked, micro_rows or rows.shape[0])
    positions = [predicted_positions(part.labels) for _, part in parts]  # waits for a GPU, as do loss and norm below
    total = sum(_total(part, positions_N) for (_, part), positions_N in zip(parts, positions, strict=True)) or 1.0
    loss = 0.0
    observed: list[Observed] = []
    for number, ((some_rows, part), positions_N) in enumerate(zip(parts, positions, strict=True)):
        logits = model(
            part.input_ids,
            positions_N=positions_N,
            segment_ids_BS=some_rows.segment_ids,
            position_ids_BS=some_rows.position_ids,
            dropout_seed=None if dropout_seed is None else mix_ints(dropout_seed, number),
        )
        targets_N = part.labels.flatten()[positions_N]
        losses_N = token_losses(logits, targets_N)
        if observe:
            observed.append(Observed(targets_N, losses_N.detach(), logits.detach().argmax(-1) != targets_N))
        if part.loss_weights is not None:
            losses_N = losses_N * part.loss_weights.flatten()[positions_N]
        part_loss = losses_N.sum() / total
        loss += part_loss.item()
        if not math.isfinite(loss):
            optimizer.clear()
            raise DivergedError(f"the loss of step {step} is {loss}")
        part_loss.backward()
    norm = optimizer.clip()
    if not math.isfinite(norm):
        optimizer.clear()
        raise DivergedError(f"the gradient of step {step} has the norm {norm}")
    optimizer.step(learning_rate_scale)
    return StepResult(loss, sum(map(len, positions)), norm, len(parts), _joined(observed))


def _total(part: MaskedRows, positions_N: Tensor) -> float:
    """What the summed loss is divided by: the number of targets, or the sum of their weights."""
    if part.loss_weights is None:
        return len(positions_N)
    return float(part.loss_weights.flatten()[positions_N].sum())


def _joined(observed: list[Observed]) -> Observed | None:
    if not observed:
        return None
    columns = ((entry.targets_N, entry.losses_N, entry.wrong_N) for entry in observed)
    return Observed(*(torch.cat(column) for column in zip(*columns, strict=True)))


def _parts(rows: Rows, masked: MaskedRows, size: int) -> list[tuple[Rows, MaskedRows]]:
    """At most `size` rows each, about equally many."""
    num_rows = rows.shape[0]
    num_parts = math.ceil(num_rows / size)
    cuts = [number * num_rows // num_parts for number in range(num_parts + 1)]
    return [(rows.part(a, b), masked.part(a, b)) for a, b in pairwise(cuts)]
