"""One training step, in one block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from unmask.errors import DivergedError
from unmask.hashing import mix_ints
from unmask.masking.engine import MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.model.loss import predicted_positions, summed_loss
from unmask.packing.rows import Rows
from unmask.training.optimizer import Optimizer


@dataclass(frozen=True)
class StepResult:
    """What a step measured.

    Attributes:
        loss: Nats per predicted token, before the update.
        predicted_tokens: How many were predicted.
        gradient_norm: Before clipping.
        micro_batches: Parts that it was computed in.
    """

    loss: float
    predicted_tokens: int
    gradient_norm: float
    micro_batches: int = 1


def training_step(
    model: MaskedLM,
    optimizer: Optimizer,
    rows: Rows,
    masked: MaskedRows,
    *,
    learning_rate_scale: float,
    step: int,
    dropout_seed: int | None = None,
    micro_rows: int | None = None,
) -> StepResult:
    """Predicts the masked tokens of a batch and updates the model.

    The loss is summed, and divided by the number of predicted tokens of the whole step, however many parts it is
    computed in: means of parts with unequal numbers of targets must not be averaged.

    Args:
        model: On the device of the rows.
        optimizer: Its parameters' optimizer.
        rows: What the batch holds.
        masked: What the model sees and must predict.
        learning_rate_scale: Factor of the peak learning rates.
        step: Number of the step, for the error's text.
        dropout_seed: What a model with dropout drops is a function of it and the number of the part.
        micro_rows: Rows that are computed at once at most, to fit the memory; None computes all at once.

    Raises:
        DivergedError: The loss or the gradient is not finite; nothing was updated.
    """
    parts = _parts(rows, masked, micro_rows or rows.shape[0])
    positions = [predicted_positions(part.labels) for _, part in parts]  # waits for a GPU, as do loss and norm below
    count = max(sum(map(len, positions)), 1)
    loss = 0.0
    for number, ((some_rows, part), positions_N) in enumerate(zip(parts, positions, strict=True)):
        logits = model(
            part.input_ids,
            positions_N=positions_N,
            segment_ids_BS=some_rows.segment_ids,
            position_ids_BS=some_rows.position_ids,
            dropout_seed=None if dropout_seed is None else mix_ints(dropout_seed, number),
        )
        loss_sum = summed_loss(logits, part.labels.flatten()[positions_N])
        loss += loss_sum.item() / count
        if not math.isfinite(loss):
            optimizer.clear()
            raise DivergedError(f"the loss of step {step} is {loss}")
        (loss_sum / count).backward()
    norm = optimizer.clip()
    if not math.isfinite(norm):
        optimizer.clear()
        raise DivergedError(f"the gradient of step {step} has the norm {norm}")
    optimizer.step(learning_rate_scale)
    return StepResult(loss, sum(map(len, positions)), norm, len(parts))


def _parts(rows: Rows, masked: MaskedRows, size: int) -> list[tuple[Rows, MaskedRows]]:
    """At most `size` rows each, about equally many."""
    num_rows = rows.shape[0]
    num_parts = math.ceil(num_rows / size)
    cuts = [number * num_rows // num_parts for number in range(num_parts + 1)]
    return [(rows.part(a, b), masked.part(a, b)) for a, b in pairwise(cuts)]
