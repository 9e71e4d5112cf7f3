"""The trainer: one loop. Pretraining, fine-tuning and embedding differ in stream, objectives and callbacks."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unmask.core.errors import DivergedError, EndedElsewhereError
from unmask.core.hashing import mix_ints
from unmask.data.rows import WHOLE, Cursor, RowBatch, Rows, Share
from unmask.masking.masker import MaskedRows, Masker, unmasked
from unmask.masking.settings import rate_at
from unmask.masking.tables import Scores
from unmask.train.callbacks import Callback, StepReport
from unmask.train.checkpoints import Spent, TrainState, progress_of
from unmask.train.distributed import ALONE, Group, check_same, synced_over
from unmask.train.hardware import first_micro_tokens, keep_freed_memory, works_on_its_own
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.optimizer import build_optimizer
from unmask.train.scores import ScoreBoard
from unmask.train.settings import TrainingSettings
from unmask.train.step import Figures, training_step

BATCHES_AHEAD = 3  # of a GPU: a new window or epoch takes longer than a step of a small model
STEPS_AHEAD = 2  # of a GPU that the host may be: enough that it never waits for work, and no more memory than needed
_BEGINNING = 1e-3  # progress of the first step by the clock
_DROPOUT = 3  # sets these seeds apart from those of the masks


class BatchSource(Protocol):
    """What a model is trained on; see `unmask.data.rows.RowStream`.

    Attributes:
        version: Another one as soon as the batch at a place is another one.
    """

    @property
    def version(self) -> int:
        """See above."""

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a place, or a share of it, and the place behind it."""


class Trainer:
    """Trains a model until its budget is used up, from wherever its state is.

    Each of several processes makes its own trainer alike and takes its share of every batch.

    Args:
        model: An `nn.Module` on its device, with an `encoder` that makes hidden states of rows, and a `pad_id`, as
            `unmask.model.encoder.Trainable` describes them.
        stream: The training text.
        settings: Budget, learning rate, batch.
        masker: What is predicted; None: the model sees the text as it is.
        objective: Whose loss is that of the step: masked tokens, a task, pairs, or one of your own.
        objectives: What is learned beside it.
        optimizer: Makes a `torch.optim.Optimizer` of the model; its learning rates are the peaks. None: as the settings
            say, see `unmask.train.optimizer.build_optimizer`.
        callbacks: Called after each step, in their order.
        board: Scores that the masking follows.
        fingerprint: Of data and recipe, which all processes must have alike.
        group: The processes that train together.
        clock: In seconds; that of rank 0 counts.

    Attributes:
        state: Changed in place; consistent whenever callbacks are called.
        first_micro_tokens: Positions that the first steps compute at once at most; None: all of a step.
        save_requested: Whether a callback asked for a checkpoint behind this step.
        error: What the training failed with.
    """

    def __init__(  # noqa: PLR0913  (what a training is made of)
        self,
        model: nn.Module,
        stream: BatchSource,
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model: Any = model
        self.stream, self.settings, self.masker = stream, settings, masker
        self.objective, self.objectives = objective, tuple(objectives)
        made = build_optimizer(model, settings) if optimizer is None else optimizer(model)
        self.state = TrainState(model, made, board=board)
        self.callbacks, self.group, self.clock = list(callbacks), group, clock
        self.first_micro_tokens: int | None = None
        self.save_requested = False
        self.error: BaseException | None = None
        self._stopped: BaseException | bool = False
        self.fingerprint = fingerprint

    def fit(self) -> None:
        """Trains to the end of the budget, or until a callback asks to stop.

        Raises:
            DivergedError: The loss or the gradient is not finite; the step has changed no weight. On a CPU the state is
                that of the step before; on a GPU up to two steps behind it were made.
            MemoryFullError: Not even one row fits into memory.
            SettingsError: Blocks cannot be compiled, which the settings ask for.
            GroupError: Another process has ended, or does not answer.
        """
        try:
            for report in self.steps():
                self.save_requested = False
                for callback in self.callbacks:
                    callback.on_step(self, report)
                if self._stopped:
                    break
            if isinstance(self._stopped, BaseException):
                raise self._stopped
        except BaseException as error:
            self.error = error
            if isinstance(error, DivergedError) and not self.group.is_main:
                raise EndedElsewhereError(f"{error}; rank 0 says what to do") from error
            raise
        finally:
            for callback in self.callbacks:
                callback.on_end(self)

    def request_save(self) -> None:
        """Asks for a checkpoint behind this step; a callback that saves must come later in their order."""
        self.save_requested = True

    def request_stop(self, error: BaseException | None = None) -> None:
        """Ends the training behind this step, with an error or without."""
        self._stopped = error or True

    def evaluated(self, result: Any) -> None:
        """Tells all callbacks of an evaluation."""
        for callback in self.callbacks:
            callback.on_evaluation(self, result)

    def steps(self) -> Iterator[StepReport]:  # noqa: PLR0915  (the loop, whole)
        """Makes the steps, one whenever the next report is asked for. What is done between two counts as training time.

        A GPU computes while the host goes on: the next batches are made in a thread, and the host is some steps ahead
        of the device at most. There a report's figures are still to come when it is handed out, and a state whose step
        diverged may be, so read the figures before a state is saved (`Figures.read`).

        Raises:
            UnmaskError: As `fit`.
        """
        state, settings, masker, board, group = self.state, self.settings, self.masker, self.state.board, self.group
        check_same(group, {"recipe, or other data,": self.fingerprint})
        device, synced = state.model.encoder.device, synced_over(self.model, group)
        ahead, by_clock = works_on_its_own(device), settings.minutes is not None
        if device.type == "cpu":
            keep_freed_memory()
        state.model.train()
        self._choose_parts(device)
        on_the_way: deque[Figures] = deque()
        begin = self.clock() - state.seconds
        progress = progress_of(settings, state.spent)

        def now() -> float:
            """Seconds of training, by rank 0's clock where they decide anything."""
            seconds = self.clock() - begin
            return group.all_gather([seconds])[0][0] if by_clock else seconds

        def following(request: BatchRequest, batch: MaskedBatch, seconds: float) -> BatchRequest | None:
            spent = Spent(request.step + 1, request.tokens + batch.num_tokens, seconds)
            waits = board is not None and board.due(spent.step)
            behind = progress_of(settings, spent)
            return None if waits or behind >= 1.0 else self._request(batch.cursor, behind, spent)

        batches = Batches(
            self.stream,
            masker,
            pad_id=state.model.pad_id,
            by_clock=by_clock,
            ahead=BATCHES_AHEAD if ahead else 0,
            following=following,
        )
        try:
            while progress < 1.0:
                batch = batches.take(self._request(state.cursor, progress, state.spent))
                length = batch.rows.shape[1]
                behind = progress_of(
                    settings, Spent(state.step + 1, state.tokens_seen + batch.num_tokens, state.seconds)
                )
                # The rate is that of the step's middle, so that no step has rate 0; by the clock, where how long it
                # takes is not known, that of its beginning.
                middle = max(progress, _BEGINNING) if by_clock else (progress + behind) / 2
                scale = settings.schedule.at(middle, state.step + 0.5)
                result = training_step(
                    state.model,
                    state.optimizer,
                    batch.rows,
                    batch.masked,
                    learning_rate_scale=scale,
                    step=state.step + 1,
                    dropout_seed=mix_ints(settings.seed, state.step + 1, _DROPOUT),
                    micro_rows=None if state.micro_tokens is None else max(1, state.micro_tokens // length),
                    objectives=self.objectives,
                    main=self.objective,
                    clip_norm=settings.clip_norm,
                    observe=board is not None and board.needs_steps,
                    must_compile=settings.compile_blocks == "yes",
                    group=group,
                    synced=synced,
                )
                if result.micro_rows is not None:  # memory ran out: the steps to come are made so, too
                    state.micro_tokens = result.micro_rows * length
                if board is not None and result.observed is not None:
                    board.observe(result.observed)

                state.step += 1
                state.tokens_seen += batch.num_tokens
                state.cursor = batch.cursor
                if board is not None and masker is not None and board.due(state.step):
                    num_rows = board.sample_rows(length)
                    sample = self.stream.batch(state.cursor, num_rows, length).rows.to(device) if num_rows else None
                    board.refresh(state.step, state.model, sample, rate=rate_at(masker.settings.rate, progress))
                on_the_way.append(result.figures)
                if len(on_the_way) > STEPS_AHEAD:
                    on_the_way.popleft().read()
                state.seconds = now()
                progress = progress_of(settings, state.spent)
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
                progress = progress_of(settings, state.spent)
            for figures in on_the_way:
                figures.read()
        finally:
            batches.close()

    def _choose_parts(self, device: torch.device) -> None:
        """How many positions the first steps compute at once: as many in every process.

        What memory running out has shown before stays as it is.
        """
        if self.state.micro_tokens is None:
            rate = 0.0 if self.masker is None else rate_at(self.masker.settings.rate, 0.0)
            rate += sum(objective.predicted for objective in self.objectives)
            fitting = first_micro_tokens(self.model, self.settings, device, rate=rate)
            least = min(fits for (fits,) in self.group.all_gather([math.inf if fitting is None else fitting]))
            self.state.micro_tokens = None if math.isinf(least) else int(least)
        self.first_micro_tokens = self.state.micro_tokens

    def _request(self, cursor: Cursor, progress: float, spent: Spent) -> BatchRequest:
        """The batch at a place of the stream and of the training."""
        length = self.settings.length_at(progress)
        return BatchRequest(
            cursor,
            self.settings.batch_tokens // length,
            length,
            progress,
            step=spent.step,
            tokens=spent.tokens,
            seconds=spent.seconds,
            scores=None if self.state.board is None else self.state.board.scores,
            share=self.group.share,
        )


# ----------------------------------------
# Masked batches, and the next ones made in a thread while a GPU computes a step.
#
#     host     take 1 |  launch step 1   | take 2 |  launch step 2   | ...
#     thread          [ make 2 ][ make 3 ][ make 4 ]     [ make 5 ]
#     GPU                [       step 1        ][       step 2        ]
#
# Packing and masking are a function of the place in the stream, its version, the progress and the scores, so what is
# made ahead is what would be made in time; where it is not (by the clock, rows of another length may be asked for by
# then), it is made anew. On CPUs batches are made in time: there is no core to spare.


@dataclass(frozen=True)
class BatchRequest:
    """What a batch is made of.

    Attributes:
        cursor: Its place in the stream.
        num_rows, length: Its shape.
        progress: Of the training, for the masking's rate.
        step, tokens: Steps made and tokens trained on before it.
        seconds: Of training, when it was asked for, or when it was known that it would be.
        scores: What masking follows; None: nothing.
        share: What this process takes of it.
    """

    cursor: Cursor
    num_rows: int
    length: int
    progress: float
    step: int = 0
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)
    scores: Scores | None = field(default=None, compare=False)
    share: Share = WHOLE

    def serves(self, other: BatchRequest, *, by_clock: bool) -> bool:
        """Whether its batch is that of another request, too. Progress by the clock never comes again."""
        made_for = replace(self, progress=other.progress) if by_clock else self
        versions = [None if each.scores is None else each.scores.version for each in (self, other)]
        return made_for == other and versions[0] == versions[1]


@dataclass(frozen=True)
class MaskedBatch:
    """A batch with its masks.

    Attributes:
        rows: What it holds, or this process's share of it: a row at least, which may be empty.
        masked: What the model sees and must predict there.
        epoch: Of its rows.
        num_tokens: Tokens of text in all of it.
        cursor: The place behind it.
    """

    rows: Rows
    masked: MaskedRows
    epoch: int
    num_tokens: int
    cursor: Cursor


class _Made(NamedTuple):
    """A batch, what it was asked for with, and the version of the stream that it was made of."""

    request: BatchRequest
    batch: MaskedBatch
    version: int


Following = Callable[[BatchRequest, MaskedBatch, float], BatchRequest | None]
"""What comes behind a batch, as far as so many seconds of training tell; None where that is not known before its step
is made, or nothing does. What time it is when the thread gets there must not matter: other processes would make other
batches."""


class Batches:
    """Makes masked batches.

    Args:
        stream: The text. Where batches are made ahead, nothing else may take batches of it, but for when no batch is
            known that will be asked for.
        masker: Its masks; None: the model sees the text as it is.
        pad_id: Of empty rows.
        by_clock: Whether progress is time: then a batch that was made for a moment ago serves as well.
        ahead: How many batches are made in a thread before they are asked for. Then every batch is filled up with empty
            rows to the rows that were asked for (an epoch's last batches have fewer), so that a GPU meets one shape.
        following: Says which.
    """

    def __init__(
        self,
        stream: BatchSource,
        masker: Masker | None,
        *,
        pad_id: int,
        by_clock: bool,
        ahead: int = 0,
        following: Following = lambda request, batch, seconds: None,
    ) -> None:
        self.stream, self.masker, self._pad_id = stream, masker, pad_id
        self._by_clock, self._ahead, self._following = by_clock, ahead, following
        self._thread = ThreadPoolExecutor(1, "unmask-batches") if ahead else None
        self._queue: deque[Future[_Made | None]] = deque()

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def take(self, request: BatchRequest) -> MaskedBatch:
        """The batch of a request: the one that was made for it, or a new one."""
        made = self._made_before(request) or self._make(request)
        if self._thread is not None:
            if self._queue:
                last = self._queue[-1]
            else:
                last = Future()
                last.set_result(made)
            while len(self._queue) < self._ahead:
                last = self._thread.submit(self._make_behind, last, request.seconds)
                self._queue.append(last)
        return made.batch

    def _made_before(self, request: BatchRequest) -> _Made | None:
        """What the thread has made for it. Where that is something else, all that was to come behind it is dropped."""
        made = self._queue.popleft().result() if self._queue else None
        is_current = made is not None and made.version == self.stream.version
        if made is not None and is_current and made.request.serves(request, by_clock=self._by_clock):
            return made
        for future in self._queue:
            future.cancel()
        wait(self._queue)
        self._queue.clear()
        return None

    def _make_behind(self, last: Future[_Made | None], seconds: float) -> _Made | None:
        before = last.result()
        request = None if before is None else self._following(before.request, before.batch, seconds)
        return None if request is None else self._make(request)

    def _make(self, request: BatchRequest) -> _Made:
        version = self.stream.version  # looked at first: if it changes meanwhile, the batch is made anew
        batch = self.stream.batch(request.cursor, request.num_rows, request.length, share=request.share)
        least = 1 if self._thread is None else request.share.most(request.num_rows)
        rows = with_empty_rows(batch.rows, least, pad_id=self._pad_id)
        if self.masker is None:
            masked = unmasked(rows)
        else:
            masked = self.masker(rows, epoch=batch.epoch, progress=request.progress, scores=request.scores)
        return _Made(request, MaskedBatch(rows, masked, batch.epoch, batch.num_tokens, batch.cursor), version)


def with_empty_rows(rows: Rows, num_rows: int, *, pad_id: int) -> Rows:
    """Rows of padding behind the others: they have no targets, and no other row sees them."""
    missing = num_rows - rows.shape[0]
    if missing <= 0:  # a stream of examples makes as many rows as these need, whatever is asked for
        return rows

    def longer(column: Tensor) -> Tensor:
        return torch.cat([column, column.new_zeros(missing, column.shape[1])])

    filled = rows.map(longer)
    filled.input_ids[-missing:] = pad_id
    for column in (filled.segment_ids, *filled.classes.values()):
        column[-missing:] = -1
    return filled


class StepCost(NamedTuple):
    """What a step costs: the median of its seconds without the first one's, and its tokens on average."""

    seconds: float
    tokens: float


def step_cost(reports: Iterable[StepReport], num_steps: int, *, within: float = math.inf) -> StepCost:
    """Makes and times so many steps of a new training, or those that begin within so many seconds; one at least."""
    last = time.monotonic()
    seconds, tokens = [], 0
    for report in islice(reports, num_steps):
        report.figures.read()  # waits for a GPU, which else would only have queued the step
        now = time.monotonic()
        seconds.append(now - last)
        last, tokens = now, tokens + report.tokens
        if report.seconds > within:
            break
    return StepCost(statistics.median(seconds[1:] or seconds), tokens / len(seconds))
