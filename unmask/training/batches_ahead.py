"""Masked batches, and the next ones made in a thread while a GPU computes a step.

    host     take 1 |  launch step 1   | take 2 |  launch step 2   | ...
    thread          [ make 2 ][ make 3 ][ make 4 ]     [ make 5 ]
    GPU                [       step 1        ][       step 2        ]

Packing and masking are a function of the place in the stream, its version, the progress and the scores, so what is made
ahead is what would be made in time; where it is not (by the clock, rows of another length may be wanted by then), it is
made anew. Loops of packing and masking hold no lock of Python's.

On CPUs batches are made in time: there is no core to spare, and the loops that the model shares out over all cores must
not run beside others of their kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from unmask.masking.masker import MaskedRows, Masker, unmasked
from unmask.masking.vocabulary_tables import Scores
from unmask.rows.rows import Rows
from unmask.rows.stream import WHOLE, Cursor, RowBatch, Share


class BatchSource(Protocol):
    """What a model is trained on; see `unmask.rows.stream.RowStream`."""

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
