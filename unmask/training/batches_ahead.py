"""Masked batches, and the next one made in a thread while a GPU computes a step.

    host     ask 2 |  launch step 1   |  ask 3 |  launch step 2   | ...
    thread         [ pack and mask 2 ]         [ pack and mask 3 ]
    GPU               [       step 1        ][       step 2        ]

Packing and masking are a function of the place in the stream, the progress and the scores, so what is made ahead is
what would be made in time. Loops of the masker hold no lock of Python's.

On CPUs batches are made in time: there is no core to spare, and the loops that the model shares out over all cores must
not run beside others of their kind.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor

from unmask.masking.masker import MaskedRows, Masker, unmasked
from unmask.masking.vocabulary_tables import Scores
from unmask.rows.rows import Rows
from unmask.rows.stream import Cursor, RowBatch


class BatchSource(Protocol):
    """What a model is trained on; see `unmask.rows.stream.RowStream`."""

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None) -> RowBatch:
        """The batch at a place, and the place behind it."""


@dataclass(frozen=True)
class BatchRequest:
    """What a batch is made of.

    Attributes:
        cursor: Its place in the stream.
        num_rows, length: Its shape.
        progress: Of the training, for the masking's rate.
        scores: What masking follows; None: nothing.
    """

    cursor: Cursor
    num_rows: int
    length: int
    progress: float
    scores: Scores | None = field(default=None, compare=False)

    def serves(self, wanted: BatchRequest, *, by_clock: bool) -> bool:
        """Whether a batch that this asked for is the one that is wanted. Progress by the clock never comes again."""
        made_for = replace(self, progress=wanted.progress) if by_clock else self
        return made_for == wanted and _version(self.scores) == _version(wanted.scores)


@dataclass(frozen=True)
class MaskedBatch:
    """A batch with its masks.

    Attributes:
        rows: What it holds.
        masked: What the model sees and must predict.
        epoch: Of its rows.
        num_tokens: Tokens of text in it.
        cursor: The place behind it.
    """

    rows: Rows
    masked: MaskedRows
    epoch: int
    num_tokens: int
    cursor: Cursor


class Batches:
    """Makes masked batches. As a context manager it ends its thread.

    Args:
        stream: The text. While something is asked for, only this may use it.
        masker: Its masks; None: the model sees the text as it is.
        pad_id: Of empty rows.
        ahead: Whether what is asked for is made in a thread, and every batch filled up with empty rows to the rows that
            were asked for (an epoch's last batches have fewer), so that a GPU meets one shape.
        by_clock: Whether progress is time: then a batch that was made for a moment ago serves as well.
    """

    def __init__(self, stream: BatchSource, masker: Masker | None, *, pad_id: int, ahead: bool, by_clock: bool) -> None:
        self.stream, self.masker, self._pad_id = stream, masker, pad_id
        self._by_clock = by_clock
        self._thread = ThreadPoolExecutor(1, "unmask-batches") if ahead else None
        self._asked: tuple[BatchRequest, Future[MaskedBatch]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def ask(self, request: BatchRequest) -> None:
        """Says what will be wanted next; without a thread, nothing happens."""
        if self._thread is not None:
            self._asked = request, self._thread.submit(self._make, request)

    def take(self, request: BatchRequest) -> MaskedBatch:
        """A batch: what was asked for, if this was it, or a new one."""
        asked, self._asked = self._asked, None
        if asked is None:
            return self._make(request)
        batch = asked[1].result()
        return batch if asked[0].serves(request, by_clock=self._by_clock) else self._make(request)

    def _make(self, request: BatchRequest) -> MaskedBatch:
        batch = self.stream.batch(request.cursor, request.num_rows, request.length)
        rows = batch.rows
        if self._thread is not None:
            rows = with_empty_rows(rows, request.num_rows, pad_id=self._pad_id)
        return MaskedBatch(rows, self._masked(rows, batch.epoch, request), batch.epoch, batch.num_tokens, batch.cursor)

    def _masked(self, rows: Rows, epoch: int, request: BatchRequest) -> MaskedRows:
        if self.masker is None:
            return unmasked(rows)
        return self.masker(rows, epoch=epoch, progress=request.progress, scores=request.scores)


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
