"""The training loop: a generator of reports. Saving, printing and evaluating are done by whoever consumes it.

What a step costs is found by making some and timing them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from unmask.hashing import mix_ints
from unmask.masking.masker import Masker
from unmask.masking.rate_schedule import rate_at
from unmask.network.encoder import MaskedLM
from unmask.rows.stream import Cursor
from unmask.training.batches_ahead import Batches, BatchRequest, BatchSource, MaskedBatch
from unmask.training.budget import Budget, Spent
from unmask.training.checkpoints import Model, TrainableState
from unmask.training.figures import Figures, HasFigures
from unmask.training.gpu_memory import first_micro_tokens
from unmask.training.hardware import keep_freed_memory, works_on_its_own
from unmask.training.objectives import PREDICT_MASKED, Objective
from unmask.training.retries import fewer_rows, recoverable, rows_at_once, without_compiling
from unmask.training.settings import TrainingSettings
from unmask.training.step import StepResult, training_step

BATCHES_AHEAD = 3  # a new window or epoch takes longer than a step of a small model
STEPS_AHEAD = 2  # of a GPU that the host may be: enough that it never waits for work, and no more memory than needed
_BEGINNING = 1e-3  # progress of the first step by the clock
_DROPOUT = 3  # sets these seeds apart from those of the masks


@dataclass(frozen=True)
class StepReport(HasFigures):
    """What one step did. The state that it leads to is already in place when the report is handed out.

    Attributes:
        step: Its number, counted from 1.
        progress: Share of the budget used up after it, in [0, 1]; 1 at the last step, or by the clock a
            little less where what was done between steps used up the rest.
        epoch: Of its rows.
        figures: Its losses and the gradient's norm, which a GPU may still be computing.
        predicted_tokens: Targets of the step.
        tokens: Tokens of text in its rows.
        learning_rate: Of the matrices.
        length: Positions of its rows.
        micro_batches: Parts that it was computed in; more than before where memory ran out.
        seconds: Training time so far, this step included.
    """

    step: int
    progress: float
    epoch: int
    figures: Figures
    predicted_tokens: int
    tokens: int
    learning_rate: float
    length: int
    micro_batches: int
    seconds: float


def train(
    state: TrainableState[Model],
    stream: BatchSource,
    masker: Masker | None,
    settings: TrainingSettings,
    *,
    objectives: Sequence[Objective] = (),
    leading: Objective = PREDICT_MASKED,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[StepReport]:
    """Trains until the budget is used up, from wherever the state is.

    Whatever the consumer does between two reports counts as training time.

    A GPU computes while the host goes on: the next batches are made in a thread, and the host is some steps ahead of
    the device at most. There a report's figures are still to come when it is handed out, and a state whose step
    diverged may be; who saves one reads the figures first (`Figures.read`), and after the last report all have been
    read.

    Each of several processes (the optimizer's group) runs this loop with its own state and takes its share of every
    batch. Their clock is that of the first.

    Args:
        state: Changed in place; consistent whenever a report is handed out.
        stream: The training text.
        masker: What is predicted; None: the model sees the text as it is.
        settings: Budget, learning rate, batch.
        objectives: What is learned beside the leading objective; model, stream and masker are made for them.
        leading: As for `training_step`.
        clock: In seconds.

    Raises:
        DivergedError: The loss or the gradient is not finite; the step has changed no weight. On a CPU the state is
            that of the step before; on a GPU up to two steps behind it were made.
        MemoryFullError: Not even one row fits into memory.
        SettingsError: Blocks cannot be compiled, which the settings ask for.
        FailedElsewhereError, GroupError: Another process has failed, has ended, or does not answer.
    """
    budget, group = Budget.of(settings), state.optimizer.group
    device = state.model.encoder.device
    ahead = works_on_its_own(device)
    if device.type == "cpu":
        keep_freed_memory()
    begin = clock() - state.seconds
    state.model.train()
    begin_with_parts(state, masker, settings, objectives)
    board, on_the_way = state.board, deque[Figures]()
    progress = budget.progress(state.spent)
    by_clock = budget.seconds is not None

    def now() -> float:
        """Seconds of training by the first process's clock."""
        return group.told([clock() - begin])[0][0]

    def following(request: BatchRequest, batch: MaskedBatch, seconds: float) -> BatchRequest | None:
        spent = Spent(request.step + 1, request.tokens + batch.num_tokens, seconds)
        waits = board is not None and board.due(spent.step)
        behind = budget.progress(spent)
        return None if waits or behind >= 1.0 else _request(state, batch.cursor, settings, behind, spent)

    with Batches(
        stream,
        masker,
        pad_id=state.model.pad_id,
        by_clock=by_clock,
        ahead=BATCHES_AHEAD if ahead else 0,
        following=following,
    ) as batches:
        num_made = 0
        while progress < 1.0:
            batch = batches.take(_request(state, state.cursor, settings, progress, state.spent))
            length = batch.rows.shape[1]
            behind = budget.progress(Spent(state.step + 1, state.tokens_seen + batch.num_tokens, state.seconds))
            # The rate is that of the step's middle, so that no step has rate 0; by the clock, where how long it takes
            # is not known, that of its beginning.
            middle = max(progress, _BEGINNING) if by_clock else (progress + behind) / 2
            scale = settings.schedule.at(middle, state.step + 0.5)
            result = _step(
                state, batch, settings, scale=scale, objectives=objectives, leading=leading, patient=num_made == 0
            )
            num_made += 1
            if board is not None and result.observed is not None:
                board.observe(result.observed)

            state.step += 1
            state.tokens_seen += batch.num_tokens
            state.cursor = batch.cursor
            if board is not None and masker is not None and board.due(state.step):
                model = state.whole_model() if board.looks_at_weights else state.model
                assert isinstance(model, MaskedLM), "scores are of models that predict masked tokens"
                num_rows = board.sample_rows(length)
                sample = stream.batch(state.cursor, num_rows, length).rows.to(device) if num_rows else None
                board.refresh(state.step, model, sample, rate=rate_at(masker.settings.rate, progress))
            on_the_way.append(result.figures)
            if len(on_the_way) > STEPS_AHEAD:
                on_the_way.popleft().read()
            state.seconds = now()
            progress = budget.progress(state.spent)
            yield StepReport(
                step=state.step,
                progress=progress,
                epoch=batch.epoch,
                figures=result.figures,
                predicted_tokens=result.predicted_tokens,
                tokens=batch.num_tokens,
                learning_rate=settings.learning_rate * scale,
                length=length,
                micro_batches=result.micro_batches,
                seconds=state.seconds,
            )
            state.seconds = now()
            progress = budget.progress(state.spent)
    for figures in on_the_way:
        figures.read()


def _request(
    state: TrainableState[Any], cursor: Cursor, settings: TrainingSettings, progress: float, spent: Spent
) -> BatchRequest:
    """The batch at a place of the stream and of the training."""
    length = settings.length_at(progress)
    scores = None if state.board is None else state.board.scores
    return BatchRequest(
        cursor,
        settings.batch_tokens // length,
        length,
        progress,
        step=spent.step,
        tokens=spent.tokens,
        seconds=spent.seconds,
        scores=scores,
        share=state.optimizer.group.share,
    )


def begin_with_parts(
    state: TrainableState[Any],
    masker: Masker | None,
    settings: TrainingSettings,
    objectives: Sequence[Objective] = (),
) -> None:
    """Sets how many positions the first steps compute at once: as many in every process; None: all.

    What memory running out has shown before stays as it is.
    """
    if state.micro_tokens is not None:
        return
    rate = 0.0 if masker is None else rate_at(masker.settings.rate, 0.0)
    rate += sum(objective.predicted for objective in objectives)
    group = state.optimizer.group
    processes = 1 if state.optimizer.sharding is None else group.share.of
    found = first_micro_tokens(state.model, settings, state.model.encoder.device, rate=rate, processes=processes)
    least = min(said for (said,) in group.told([math.inf if found is None else found], patient=True))
    state.micro_tokens = None if math.isinf(least) else int(least)


def _step(
    state: TrainableState[Any],
    batch: MaskedBatch,
    settings: TrainingSettings,
    *,
    scale: float,
    objectives: Sequence[Objective],
    leading: Objective,
    patient: bool,
) -> StepResult:
    """The step after the state's, made again where memory runs out or a block cannot be compiled."""
    micro_rows = rows_at_once(batch.rows, state.micro_tokens)
    while True:
        try:
            return training_step(
                state.model,
                state.optimizer,
                batch.rows,
                batch.masked,
                learning_rate_scale=scale,
                step=state.step + 1,
                dropout_seed=mix_ints(settings.seed, state.step + 1, _DROPOUT),
                micro_rows=micro_rows,
                objectives=objectives,
                leading=leading,
                observe=state.board is not None and state.board.needs_steps,
                patient=patient,
            )
        except Exception as error:
            failure = recoverable(error, state.model, settings)
        # Out of the handler, since the exception holds what the failed step had computed.
        state.optimizer.clear()
        if failure.of_memory:
            length = batch.rows.shape[1]
            most = max(int(said) for (said,) in state.optimizer.group.told([micro_rows]))  # shares differ by a row
            micro_rows = fewer_rows(most, length, failure.reason)
            state.micro_tokens = micro_rows * length  # of the steps to come, too
        else:
            without_compiling(state.model, failure.reason)
            patient = True


class StepCost(NamedTuple):
    """What a step costs: the median of its seconds without the first one's, and its tokens on average."""

    seconds: float
    tokens: float


def step_cost(reports: Iterable[StepReport], num_steps: int, *, within: float = math.inf) -> StepCost:
    """Makes and times so many steps of a new training, or those that begin within so many seconds; one at least."""
    last = time.monotonic()
    seconds, tokens = [], 0
    for report in islice(reports, num_steps):
        report.figures.read()  # waits for a GPU, which else would only have been told what to do
        now = time.monotonic()
        seconds.append(now - last)
        last, tokens = now, tokens + report.tokens
        if report.seconds > within:  # which all processes have alike
            break
    return StepCost(statistics.median(seconds[1:] or seconds), tokens / len(seconds))
