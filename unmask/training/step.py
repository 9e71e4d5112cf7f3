"""One training step, in one block."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unmask.errors import DivergedError
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
    """

    loss: float
    predicted_tokens: int
    gradient_norm: float


def training_step(
    model: MaskedLM,
    optimizer: Optimizer,
    rows: Rows,
    masked: MaskedRows,
    *,
    learning_rate_scale: float,
    step: int,
    dropout_seed: int | None = None,
) -> StepResult:
    """Predicts the masked tokens of a batch and updates the model.

    Args:
        model: On the device of the rows.
        optimizer: Its parameters' optimizer.
        rows: What the batch holds.
        masked: What the model sees and must predict.
        learning_rate_scale: Factor of the peak learning rates.
        step: Number of the step, for the error's text.
        dropout_seed: What a model with dropout drops is a function of it.

    Raises:
        DivergedError: The loss or the gradient is not finite; nothing was updated.
    """
    positions = predicted_positions(masked.labels)  # waits for a GPU, as do the loss and the norm below
    logits = model(
        masked.input_ids,
        positions_N=positions,
        segment_ids_BS=rows.segment_ids,
        position_ids_BS=rows.position_ids,
        dropout_seed=dropout_seed,
    )
    loss_sum = summed_loss(logits, masked.labels.flatten()[positions])
    count = max(len(positions), 1)
    loss = loss_sum.item() / count
    if not math.isfinite(loss):
        raise DivergedError(f"the loss of step {step} is {loss}")
    (loss_sum / count).backward()
    norm = optimizer.clip()
    if not math.isfinite(norm):
        raise DivergedError(f"the gradient of step {step} has the norm {norm}")
    optimizer.step(learning_rate_scale)
    return StepResult(loss, len(positions), norm)
