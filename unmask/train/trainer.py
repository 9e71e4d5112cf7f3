"""The trainer: one loop. Pretraining, fine-tuning and embedding differ in stream, objectives and callbacks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn

from unmask.core.errors import DivergedError, EndedElsewhereError, SettingsError
from unmask.data.rows import RowBatch, Rows, RowStream
from unmask.masking.masker import MaskedRows, Masker, unmasked
from unmask.masking.settings import rate_range
from unmask.model.encoder import MaskedLM, has_compiled_blocks
from unmask.train.callbacks import Callback, StepReport
from unmask.train.distributed import ALONE, OF_RUN, Group, check_same, synced_over
from unmask.train.hardware import first_micro_tokens, keep_freed_memory, must_compile, works_on_its_own
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.optimizer import build_optimizer
from unmask.train.scores import SAMPLE_POSITIONS, ScoreBoard
from unmask.train.settings import TrainingSettings
from unmask.train.step import Figures, TrainState, training_step

STEPS_AHEAD = 2  # steps that the host may queue on a GPU: enough to keep it busy, without needless memory
_ROW_STEPS = 8  # oversized compiled steps are filled up to a multiple of an eighth of the usual rows
_BEGINNING = 1e-3  # progress of the first step, with a budget in minutes


class Trainer:
    """Trains a model from its current state until the budget is used up.

    With several processes, each makes the same trainer and takes its share of every batch.

    Args:
        model: An `nn.Module` on its device, with an `encoder` that computes hidden states of rows, and a `pad_id`; see
            `unmask.model.encoder.Trainable`.
        stream: The training text: an `unmask.data.rows.RowStream`, or another object with its `batch` method.
        settings: Budget, learning rate, batch size. The model trains as it is: `unmask.train.checkpoints.place_model`
            applies `precision`, `compile_blocks` and `gradient_checkpointing` to it; `sampled_softmax` has no effect.
        masker: Masks the batches; None: the model sees the text unmasked, for objectives without masks.
        objective: The main objective: masked tokens, a task, pairs, or your own.
        objectives: Further objectives, learned at the same time.
        optimizer: Builds a `torch.optim.Optimizer` for the model; its learning rates are the peaks. None: the optimizer
            of the settings, see `unmask.train.optimizer.build_optimizer`.
        callbacks: Called after each step, in this order.
        board: Scores that the masking follows.
        fingerprint: Fingerprint of data and recipe, which must be equal in all processes.
        group: The processes that train together.

    Attributes:
        state: Changed in place; consistent whenever callbacks are called.
        clock: Time in seconds; rank 0's is used.
        save_requested: Whether a callback has requested a checkpoint after this step.
        error: The exception that ended the training.

    Raises:
        SettingsError: Masked tokens are to be predicted, but there is no masker; objectives share a name; or the rows
            of a `RowStream` are not as long as `settings.sequence_length`.
    """

    def __init__(  # noqa: PLR0913  (the parts of a training)
        self,
        model: nn.Module,
        stream: Any,
        settings: TrainingSettings,
        *,
        masker: Masker | None = None,
        objective: Objective = PREDICT_MASKED,
        objectives: Sequence[Objective] = (),
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
        callbacks: Sequence[Callback] = (),
        board: ScoreBoard | None = None,
        fingerprint: str = "",
        group: Group = ALONE,
    ) -> None:
        self.model: Any = model
        self.stream, self.settings, self.masker = stream, settings, masker
        self.objective, self.objectives = objective, tuple(objectives)
        if masker is None and any(each.targets is PREDICT_MASKED.targets for each in (objective, *self.objectives)):
            raise SettingsError("masked tokens are to be predicted, but nothing is masked; give a masker")
        names = [each.name for each in (objective, *self.objectives)]
        if len(set(names)) < len(names):
            raise SettingsError(f"each objective needs a name of its own, not {', '.join(names)}")
        if isinstance(stream, RowStream) and stream.length != settings.sequence_length:
            raise SettingsError(
                f"the stream's rows have length {stream.length}, but sequence_length is {settings.sequence_length}; "
                "give both the same"
            )
        built = build_optimizer(model, settings) if optimizer is None else optimizer(model)
        self.state = TrainState(model, built, board=board)
        self.callbacks, self.group = list(callbacks), group
        self.clock: Callable[[], float] = time.monotonic
        self._unread: deque[StepReport] = deque()  # reports whose figures the callbacks have not seen yet
        self._begin = 0.0  # the time by `clock` at which the seconds of training are 0
        self.save_requested = False
        self.error: BaseException | None = None
        self._stopped: BaseException | bool = False
        self.fingerprint = fingerprint

    def fit(self) -> None:
        """Trains until the budget is used up or a stop is requested; makes no step if one was requested before.

        Raises:
            DivergedError: The loss or the gradient is not finite; that step changed no weights. On a CPU the state is
                that before the step; on a GPU up to two more steps may have been made.
            MemoryFullError: Not even one row fits into memory.
            SettingsError: The settings require compiled blocks, but they cannot be compiled.
            GroupError: Another process has ended or does not answer, or torch failed in this one.
        """
        self.error = None
        try:
            for report in () if self._stopped else self.steps():
                self.save_requested = False
                self._unread.append(report)
                self.read_figures(wait=False)
                for callback in self.callbacks:
                    callback.on_step(self, report)
                if self._stopped:
                    break
            self.read_figures()
            if isinstance(self._stopped, BaseException):
                raise self._stopped
        except BaseException as error:
            self.error = error
            if isinstance(error, DivergedError) and not self.group.is_main:
                raise EndedElsewhereError(f"{error}; see rank 0 for what to do") from error
            raise
        finally:
            with ExitStack() as ends:  # each is called, in the order of the list, whatever others raise
                for callback in reversed(self.callbacks):
                    ends.callback(callback.on_end, self)

    def request_save(self) -> None:
        """Requests a checkpoint after this step; the callback that saves must come later in the list."""
        self.save_requested = True

    def request_stop(self, error: BaseException | None = None) -> None:
        """Ends the training after this step, optionally with an error."""
        self._stopped = error or True

    def evaluated(self, result: Any) -> None:
        """Passes an evaluation to all callbacks, after the figures of all earlier steps."""
        self.read_figures()
        for callback in self.callbacks:
            callback.on_evaluation(self, result)

    def read_figures(self, *, wait: bool = True) -> None:
        """Passes figures of steps to all callbacks, in the order of steps: those available now, or all if `wait`.

        Raises a DivergedError if a figure is not finite.
        """
        while self._unread and (wait or self._unread[0].figures.arrived):
            report = self._unread.popleft()
            report.figures.read()
            for callback in self.callbacks:
                callback.on_figures(self, report)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While entered, time is not training time, unless the budget is in minutes."""
        self.read_figures()  # a GPU may still be training
        begin = self.clock()
        yield
        if self.settings.minutes is None:
            self._begin += self.clock() - begin

    def steps(self) -> Iterator[StepReport]:
        """Yields a report after each step; only `fit` calls callbacks. Time between two reports counts as training
        time, except for a first step in which loops or blocks are compiled, and for evaluations unless the budget is in
        minutes (`evaluating`).

        On a GPU, the host runs a few steps ahead of the device, and makes batches meanwhile. A report's figures may
        then still be pending, and the step may have diverged: read the figures before saving a state (`Figures.read`).
        Raises the errors of `fit`.
        """
        state, settings, masker, group, board = self.state, self.settings, self.masker, self.group, self.state.board
        check_same(group, {OF_RUN: self.fingerprint})
        device, learned = self.model.encoder.device, (self.objective, *self.objectives)
        by_clock = settings.minutes is not None
        if device.type == "cpu":
            keep_freed_memory()
        self.model.train()

        # Positions that the first steps compute at once: equal in all processes. A limit found by running out of memory
        # before a resume stays, unless the settings are lower now.
        if not state.ran_out or (settings.micro_batch_tokens or math.inf) < (state.micro_tokens or 0):
            rate = 0.0 if masker is None else rate_range(masker.settings.rate)[1]
            rate += sum(objective.predicted for objective in self.objectives)
            fitting = first_micro_tokens(self.model, settings, device, rate=rate)
            least = min(fits for (fits,) in group.all_gather([math.inf if fitting is None else fitting]))
            state.micro_tokens = None if math.isinf(least) else int(least)

        synced = synced_over(self.model, group)
        pending: deque[Figures] = deque()
        self._begin, compiles = self.clock() - state.seconds, isinstance(self.model, MaskedLM) and must_compile(device)
        compiles = any(each for (each,) in group.all_gather([float(compiles or has_compiled_blocks(self.model))]))

        def now() -> float:
            """Seconds of training, by rank 0's clock if the budget is in minutes."""
            seconds = self.clock() - self._begin
            return group.all_gather([seconds])[0][0] if by_clock else seconds

        while (progress := state.progress(settings)) < 1.0:
            batch, rows, masked = self._next_batch(progress)
            # The learning rate is taken at the middle of the step, so that no step has rate 0. With a budget in
            # minutes, the step's duration is not known, and the rate is taken at its beginning.
            after = settings.progress(state.step + 1, state.tokens_seen + batch.num_tokens, state.seconds)
            middle = max(progress, _BEGINNING) if by_clock else (progress + after) / 2
            scale = settings.schedule.at(middle)
            figures = training_step(
                state,
                settings,
                rows,
                masked,
                objectives=learned,
                learning_rate_scale=scale,
                group=group,
                synced=synced,
            )
            state.tokens_seen += batch.num_tokens
            state.cursor = batch.cursor
            if board is not None and masker is not None and state.step % board.every_steps == 0:
                sample = None
                if "attention" in board.names:
                    num_rows = max(1, SAMPLE_POSITIONS // rows.shape[1])
                    sample = self.stream.batch(state.cursor, num_rows, rows.shape[1]).rows.to(device)
                board.refresh(state.step, self.model, sample)
            pending.append(figures)
            if len(pending) > STEPS_AHEAD:
                pending.popleft().read()
            if compiles:  # the first step compiled loops or blocks, which does not count against the budget
                self._begin, compiles = self.clock() - state.seconds, False
            state.seconds = now()
            yield StepReport(
                step=state.step,
                progress=state.progress(settings),
                epoch=batch.epoch,
                figures=figures,
                tokens=batch.num_tokens,
                predicted_tokens=figures.predicted_tokens,
                micro_batches=figures.micro_batches,
                learning_rate=settings.learning_rate * scale,
                length=rows.shape[1],
                seconds=state.seconds,
            )
            state.seconds = now()
        for figures in pending:
            figures.read()

    def _next_batch(self, progress: float) -> tuple[RowBatch, Rows, MaskedRows]:
        """The next step's batch, and this process's share of its rows: at least one, which may be empty; with masks.

        On a GPU the share is filled up with empty rows (an epoch's last batches have fewer), so that the device sees a
        single shape. Pairs may need more rows; for compiled blocks, that number is rounded up.
        """
        length, share = self.settings.length_at(progress), self.group.share
        num_rows = self.settings.batch_tokens // length
        batch: RowBatch = self.stream.batch(self.state.cursor, num_rows, length, share=share)
        filled = 1
        if works_on_its_own(self.model.encoder.device):
            filled = -(-num_rows // share.world_size)  # the largest share of a process
            if has_compiled_blocks(self.model) and (num_made := batch.rows.shape[0]) > filled:
                step = max(1, filled // _ROW_STEPS)
                filled = -(-num_made // step) * step
        rows = with_empty_rows(batch.rows, filled, self.model.pad_id)
        if self.masker is None:
            return batch, rows, unmasked(rows)
        scores = None if self.state.board is None else self.state.board.scores
        return batch, rows, self.masker(rows, epoch=batch.epoch, progress=progress, scores=scores)


def timed_steps(trainer: Trainer, num_steps: int) -> Iterator[tuple[float, int]]:
    """Makes `num_steps` steps; yields the seconds of each until the device is done, and its tokens."""
    last = time.monotonic()
    for report in islice(trainer.steps(), num_steps):
        report.figures.read()  # waits for the GPU, which may only have queued the step
        now = time.monotonic()
        yield now - last, report.tokens
        last = now


def with_empty_rows(rows: Rows, num_rows: int, pad_id: int) -> Rows:
    """Appends rows of padding. They have no targets, and no other row sees them."""
    missing = num_rows - rows.shape[0]
    if missing <= 0:  # a stream of examples returns as many rows as they need, whatever is requested
        return rows

    filled = rows.map(lambda column: torch.cat([column, column.new_zeros(missing, column.shape[1])]))
    filled.input_ids[-missing:] = pad_id
    for column in (filled.segment_ids, *filled.classes.values()):
        column[-missing:] = math.nan if column.is_floating_point() else -1  # no target
    return filled
