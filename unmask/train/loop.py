"""The training loop: a generator of reports. Saving, printing and evaluating are done by whoever consumes it.

What a step costs is found by making some and timing them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from unmask.core.hashing import mix_ints
from unmask.data.rows import WHOLE, Cursor, RowBatch, Rows, Share
from unmask.masking.masker import MaskedRows, Masker, unmasked
from unmask.masking.settings import rate_at
from unmask.masking.tables import Scores
from unmask.model.encoder import MaskedLM
from unmask.train.checkpoints import Budget, Model, Spent, TrainableState
from unmask.train.hardware import first_micro_tokens, keep_freed_memory, works_on_its_own
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.settings import TrainingSettings
from unmask.train.step import (
    Figures,
    HasFigures,
    StepResult,
    fewer_rows,
    recoverable,
    rows_at_once,
    training_step,
    without_compiling,
)

# ----------------------------------------
# Masked batches, and the next ones made in a thread while a GPU computes a step.
#
#     host     take 1 |  launch step 1   | take 2 |  launch step 2   | ...
#     thread          [ make 2 ][ make 3 ][ make 4 ]     [ make 5 ]
#     GPU                [       step 1        ][       step 2        ]
#
# Packing and masking are a function of the place in the stream, its version, the progress and the scores, so what is
# made
# ahead is what would be made in time; where it is not (by the clock, rows of another length may be wanted by then), it
# is
# made anew. Loops of packing and masking hold no lock of Python's.
#
# On CPUs batches are made in time: there is no core to spare, and the loops that the model shares out over all cores
# must
# not run beside others of their kind.


class BatchSource(Protocol):
    """What a model is trained on; see `unmask.data.rows.RowStream`."""

    @property
    def version(self) -> int:
        """Another one as soon as the batch at a place is another one."""

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a place, or a share of it, and the place behind it."""


@dataclass(frozen=True)
class BatchRequest:
    """What a batch is made of.

    Attributes:
        cursor: Its place in the stream.
        num_rows, length: Its shape.
        progress: Of the training, for the masking's rate.
        step, tokens: Steps made and tokens trained on before it.
        seconds: Of training, when it was wanted, or when it was known that it would be.
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

    def serves(self, wanted: BatchRequest, *, by_clock: bool) -> bool:
        """Whether a batch that this asked for is the one that is wanted. Progress by the clock never comes again."""
        made_for = replace(self, progress=wanted.progress) if by_clock else self
        return made_for == wanted and _version(self.scores) == _version(wanted.scores)


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
"""What is wanted behind a batch, as far as so many seconds of training tell; None where that is not known before its
step is made, or nothing is. What time it is when the thread gets there must not matter: other processes would make
other batches."""


class Batches:
    """Makes masked batches. As a context manager it ends its thread.

    Args:
        stream: The text. Where batches are made ahead, nothing else may take batches of it, but for when no batch is
            known that will be wanted.
        masker: Its masks; None: the model sees the text as it is.
        pad_id: Of empty rows.
        by_clock: Whether progress is time: then a batch that was made for a moment ago serves as well.
        ahead: How many batches are made in a thread before they are wanted. Then every batch is filled up with empty
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
        self._by_clock = by_clock
        self._ahead = ahead
        self._following = following
        self._thread = ThreadPoolExecutor(1, "unmask-batches") if ahead else None
        self._queue: deque[Future[_Made | None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def take(self, request: BatchRequest) -> MaskedBatch:
        """The batch that is wanted now: the one that was made for it, or a new one."""
        made = self._made_before(request) or self._make(request)
        if self._thread is not None:
            last = self._queue[-1] if self._queue else _known(made)
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
        masked = self._masked(rows, batch.epoch, request)
        made = MaskedBatch(rows, masked, batch.epoch, batch.num_tokens, batch.cursor)
        return _Made(request, made, version)

    def _masked(self, rows: Rows, epoch: int, request: BatchRequest) -> MaskedRows:
        if self.masker is None:
            return unmasked(rows)
        return self.masker(rows, epoch=epoch, progress=request.progress, scores=request.scores)


def _known(made: _Made) -> Future[_Made | None]:
    future: Future[_Made | None] = Future()
    future.set_result(made)
    return future


def _version(scores: Scores | None) -> int | None:
    return None if scores is None else scores.version


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
    processes = 1 if state.optimizer.sharding is None else group.share.world_size
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
