"""What tasks of whole texts share: how a text, or a pair, is read, encoded, told from, and found in a batch.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, N = texts, C = outputs, L = tokens of a
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.errors import CorpusError
from unmask.folders.layout_names import Pooling
from unmask.folders.task_folder import TaskHead, TaskNetwork
from unmask.rows.rows import Rows
from unmask.tasks.examples import EncodedInput, Example, InputEncoder, ids_of
from unmask.tasks.settings import Columns
from unmask.tasks.task import Labelled, Record, Task
from unmask.text.text_columns import text_in
from unmask.values import listed

TARGET = "target"
_FIRST = np.zeros(1, dtype=np.int64)
Targets = Mapping[str, NDArray[np.int64] | NDArray[np.float32]]


@dataclass(frozen=True)
class TextRecord:
    """A text, or a pair of texts, with what is right of it.

    Attributes:
        row: Row of the file, counted from 1.
        first: The text.
        second: The other text of a pair.
        label: Class; None where it is not known.
        value: Number of a regression; None where it is not known.
        labels: Of any number of classes; None where they are not known.
    """

    row: int
    first: str
    second: str | None = None
    label: str | None = None
    value: float | None = None
    labels: tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it gives to be read."""
        return self.first, self.second or ""


class TextTask(Task, Protocol):
    """A task of whole texts.

    Attributes:
        pooling: What a text is told from.
        columns: Where the training file had what: `text`, `second`, `label`, each with a column's name.
    """

    head: ClassVar[str] = "label_head"
    architecture: ClassVar[str] = "SequenceClassification"
    pipeline: ClassVar[str] = "text-classification"
    of_texts: ClassVar[bool] = True
    pooling: Pooling
    columns: Mapping[str, str]

    @classmethod
    def labelled(
        cls, record: TextRecord, value: Any, where: str, column: str, names: Sequence[str] | None
    ) -> TextRecord:
        """The record with what a cell says is right.

        Raises:
            CorpusError: The cell says nothing, or no such thing.
        """

    def targets_of(self, record: TextRecord) -> Targets:
        """What is right, by name, each an entry."""

    @classmethod
    def of_line(cls, number: int, text: str) -> Record:
        """See `Task`."""
        return TextRecord(number, text)

    @classmethod
    def of_rows(
        cls,
        path: Path,
        rows: Iterable[tuple[int, dict[str, Any]]],
        columns: Columns,
        names: Sequence[str] | None,
        *,
        with_labels: bool,
    ) -> Sequence[Record]:
        """See `Task`."""
        records = []
        for number, row in rows:
            where = f"{path}: row {number}"
            texts = [_text(row, name, where) for name in (columns.text, columns.second) if name is not None]
            record = TextRecord(number, texts[0], texts[1] if len(texts) > 1 else None)
            if columns.label is not None:
                if columns.label not in row:
                    raise CorpusError(f"{where} has no column {columns.label!r}, only {listed(row)}")
                record = cls.labelled(record, row[columns.label], where, columns.label, names)
            records.append(record)
        return records

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """See `Task`: pairs are not compared with single texts."""
        if (paired := is_paired(held_out)) != self.paired:
            pairs, texts = (held_out.path, train) if paired else (train, held_out.path)
            raise CorpusError(
                f"{pairs} holds pairs of texts, but {texts} single ones; name the columns with --text, --second"
            )
        return None

    def content(self) -> dict[str, Any]:
        """See `Task`."""
        return {"columns": dict(self.columns)}

    @property
    def task_head(self) -> TaskHead:
        """See `Task`."""
        own = {"kind": self.kind, "paired": self.paired, "max_length": self.max_length, **self.content()}
        return TaskHead(self.head, self.architecture, self.names, self.problem_type, self.pooling, own)

    def record(self, number: int, given: Any) -> Record | None:
        """See `Task`."""
        if self.paired:
            is_pair = isinstance(given, list | tuple) and len(given) == 2
            return TextRecord(number, *given) if is_pair and all(isinstance(text, str) for text in given) else None
        return TextRecord(number, given) if isinstance(given, str) else None

    @property
    def takes(self) -> str:
        """See `Task`."""
        return "(text, text)" if self.paired else "a text"

    def encode(self, records: Sequence[TextRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """See `Task`."""
        seconds = [record.second or "" for record in records] if self.paired else None
        encodings = encoder.texts([record.first for record in records], seconds)
        found = zip(records, encodings, strict=True)
        if nothing := next((record for record, encoding in found if not encoding.ids), None):
            raise CorpusError(f"row {nothing.row}: the text is empty, and the tokenizer puts no [CLS] before it")
        examples = [
            Example(
                record=number,
                input_ids=ids_of(encoding),
                type_ids=encoder.type_ids(encoding),
                places=_FIRST if self.pooling == "first" else np.arange(len(encoding.ids)),
                items=_FIRST,
                targets=self.targets_of(records[number]) if with_targets else {},
            )
            for number, encoding in enumerate(encodings)
        ]
        return EncodedInput(examples, truncated=sum(bool(encoding.overflowing) for encoding in encodings))

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `Task`."""
        return model.outputs(self.head, _means(hidden_ND, sizes) if self.pooling == "mean" else hidden_ND)

    def places(self, rows: Rows, first_N: Tensor) -> Tensor:
        """What texts are told from: their first tokens, or all of them, [N, L], -1 where one is shorter than others."""
        return first_N if self.pooling == "first" else tokens_of(rows, first_N)

    def logits_at(self, model: TaskNetwork, hidden_TD: Tensor, places: Tensor, dropout_seed: int | None) -> Tensor:
        """Logits [N, C] of texts while a model learns, told from what `places` gives."""
        if places.ndim == 1:
            return model.outputs(self.head, hidden_TD.index_select(0, places), dropout_seed=dropout_seed)
        held_NL1 = (places >= 0)[..., None]
        sum_ND = (hidden_TD[places.clamp(min=0)].float() * held_NL1).sum(1)
        mean_ND = (sum_ND / held_NL1.sum(1)).to(hidden_TD.dtype)
        return model.outputs(self.head, mean_ND, dropout_seed=dropout_seed)


def is_paired(file: Labelled) -> bool:
    """Whether the records of a file are pairs of texts."""
    return file.records[0].second is not None


def with_columns(train: Labelled) -> dict[str, str]:
    """Where a training file had what."""
    return {} if train.columns is None else train.columns.model_dump(exclude_none=True)


def tokens_of(rows: Rows, first_N: Tensor) -> Tensor:
    """The places of all tokens of the examples that begin there: [N, L], -1 where one is shorter than others."""
    row_B1 = torch.arange(len(rows.segment_ids), device=first_N.device)[:, None] * rows.segment_ids.shape[1]
    key_T = torch.where(rows.segment_ids >= 0, row_B1 + rows.segment_ids, -1).flatten()
    tokens = [torch.nonzero(key_T == key_T[first]).squeeze(1) for first in first_N]
    return pad_sequence(tokens, batch_first=True, padding_value=-1) if tokens else first_N[:, None]


def _means(hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean of each example's hidden states: [examples, D]."""
    lengths = torch.tensor(sizes, device=hidden_ND.device)
    return torch.segment_reduce(hidden_ND.float(), "mean", lengths=lengths).to(hidden_ND.dtype)


def _text(row: dict[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise CorpusError(f"{where} has no column {column!r}, only {listed(row)}")
    try:
        text = text_in(row[column])
    except ValueError:
        text = None
    if text is None:
        raise CorpusError(f"{where} has {type(row[column]).__name__} in column {column!r}, not a text")
    return text
