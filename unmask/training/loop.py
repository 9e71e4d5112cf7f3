"""The training loop: a generator of reports. Saving, printing and evaluating are done by whoever consumes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from unmask.hashing import mix_ints
from unmask.masking.engine import Masker, unmasked
from unmask.masking.schedule import rate_at
from unmask.packing.stream import Batch, Cursor
from unmask.training.budget import Budget, Spent
from unmask.training.hardware import keep_freed_memory
from unmask.training.memory import step_that_fits
from unmask.training.objectives import PREDICT_MASKED, Objective
from unmask.training.settings import TrainingSettings
from unmask.training.state import TrainState
from unmask.training.step import MeanLoss, training_step

_DROPOUT = 3  # sets these seeds apart from those of the masks


class Source(Protocol):
    """What a model is trained on; see `unmask.packing.stream.RowStream`."""

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None) -> Batch:
        """The batch at a place, and the place behind it."""


@dataclass(frozen=True)
class StepReport:
    """What one step did. The state that it leads to is already in place when the report is handed out.

    Attributes:
        step: Its number, counted from 1.
        progress: Share of the budget used up behind it, in [0, 1]; 1 at the last step.
        epoch: Of its rows.
        loss: Nats per predicted token.
        predicted_tokens: Targets of the step.
        tokens: Tokens of text in its rows.
        learning_rate: Of the matrices.
        gradient_norm: Before clipping.
        length: Positions of its rows.
        micro_batches: Parts that it was computed in; more than before where memory ran out.
        seconds: Training time so far, this step included.
        objectives: The losses of other objectives than masked tokens, by name, without their weights.
    """

    step: int
    progress: float
    epoch: int
    loss: float
    predicted_tokens: int
    tokens: int
    learning_rate: float
    gradient_norm: float
    length: int
    micro_batches: int
    seconds: float
    objectives: Mapping[str, MeanLoss] = field(default_factory=dict)


def train(
    state: TrainState,
    stream: Source,
    masker: Masker | None,
    settings: TrainingSettings,
    *,
    objectives: Sequence[Objective] = (),
    leading: Objective = PREDICT_MASKED,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[StepReport]:
    """Trains until the budget is used up, from wherever the state is.

    Whatever the consumer does between two reports counts as training time.

    Args:
        state: Changed in place; consistent whenever a report is handed out.
        stream: The training text.
        masker: What is predicted; None: the model sees the text as it is.
        settings: Budget, learning rate, batch.
        objectives: What is learned beside the leading objective; model, stream and masker are made for them.
        leading: As for `training_step`.
        clock: In seconds.

    Raises:
        DivergedError: The loss or the gradient is not finite; the state is that of the step before.
        MemoryFullError: Not even one row fits into memory.
    """
    budget = Budget.of(settings)
    device = state.model.encoder.tokens.device
    if device.type == "cpu":
        keep_freed_memory()
    begin = clock() - state.seconds
    state.model.train()
    state.micro_tokens = state.micro_tokens or settings.micro_batch_tokens
    progress = budget.progress(state.spent)
    while progress < 1.0:
        length = settings.length_at(progress)
        batch = stream.batch(state.cursor, settings.batch_tokens // length, length)
        rows = batch.rows.to(device)
        board = state.board
        scores = None if board is None else board.scores
        masked = unmasked(rows) if masker is None else masker(rows, epoch=batch.epoch, progress=progress, scores=scores)
        # The rate is that of the step's middle, so that no step has rate 0.
        middle = Spent(state.step + 0.5, state.tokens_seen + batch.num_tokens / 2, state.seconds)
        scale = settings.schedule.at(budget.progress(middle), middle.step)
        step = partial(
            training_step,
            state.model,
            state.optimizer,
            rows,
            masked,
            learning_rate_scale=scale,
            step=state.step + 1,
            dropout_seed=mix_ints(settings.seed, state.step + 1, _DROPOUT),
            objectives=objectives,
            leading=leading,
            observe=board is not None and board.needs_steps,
        )
        result, state.micro_tokens = step_that_fits(step, rows, state.optimizer, micro_tokens=state.micro_tokens)

        if board is not None and result.observed is not None:
            board.observe(result.observed)

        state.step += 1
        state.tokens_seen += batch.num_tokens
        state.cursor = batch.cursor
        if board is not None and masker is not None and board.due(state.step):
            num_rows = board.sample_rows(length)
            sample = stream.batch(state.cursor, num_rows, length).rows.to(device) if num_rows else None
            board.refresh(state.step, state.model, sample, rate=rate_at(masker.settings.rate, progress))
        state.seconds = clock() - begin
        progress = budget.progress(state.spent)
        yield StepReport(
            step=state.step,
            progress=progress,
            epoch=batch.epoch,
            loss=result.loss,
            predicted_tokens=result.predicted_tokens,
            tokens=batch.num_tokens,
            learning_rate=settings.learning_rate * scale,
            gradient_norm=result.gradient_norm,
            length=length,
            micro_batches=result.micro_batches,
            seconds=state.seconds,
            objectives=result.objectives,
        )
        state.seconds = clock() - begin
        progress = budget.progress(state.spent)
