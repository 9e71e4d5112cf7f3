"""Labelled files as records: tables (CSV, TSV, JSONL, Parquet, Arrow), CoNLL, CoNLL-U, SQuAD's JSON; lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.corpus.class_names import class_names
from unmask.corpus.compression import bare_suffix
from unmask.corpus.reading import BadInput, broken_character
from unmask.corpus.sources import Source, find_sources
from unmask.corpus.tables import LOOK_ROWS, rows_of
from unmask.corpus.text import read_lines
from unmask.errors import CorpusError
from unmask.finetuning.columns import KNOWN, find_columns
from unmask.finetuning.questions import read_question_rows, read_squad
from unmask.finetuning.settings import Columns
from unmask.finetuning.tagged import read_tagged_rows, read_treebank
from unmask.finetuning.values import class_of, number_of
from unmask.model.task_folder import TaskKind
from unmask.tasks.encoding import words_of
from unmask.tasks.records import Record, TextRecord, WordsRecord, texts_of


@dataclass(frozen=True)
class Labelled:
    """The records of a file.

    Attributes:
        path: The file.
        records: At least one.
        columns: Where they stood; None where the file has no choice of columns.
    """

    path: Path
    records: Sequence[Record]
    columns: Columns | None

    @property
    def paired(self) -> bool:
        """Whether the records are pairs of texts."""
        first = self.records[0]
        return isinstance(first, TextRecord) and first.second is not None


def read_labelled(
    path: Path, kind: TaskKind, columns: Columns, *, with_labels: bool = True, usual: Columns | None = None
) -> Labelled:
    """Reads a file.

    Args:
        path: Told by its suffix, with that of a compression behind it.
        kind: Of the task.
        columns: Those that were named.
        with_labels: Whether every record has a label; otherwise none is read.
        usual: Those of an earlier file, which serve where this one has them.

    Raises:
        CorpusError: The file is missing, empty, of a kind that the task cannot read, lacks a column, or has a row
            without text or label; with file and row.
    """
    bad = BadInput(skip=False, way_out=None)
    found: Columns | None = None
    records: Sequence[Record]
    if kind == "answer" and bare_suffix(path) == ".json":
        records = read_squad(path, with_answers=with_labels)
    else:
        [source] = _one_source(path)
        if source.kind in ("conll", "conllu"):
            _need(path, kind, "tag", "words with tags")
            records = read_treebank(source, bad, columns.label, with_tags=with_labels)
        elif source.kind in ("text", "fasta"):
            records = _lines(source, bad, kind, with_labels=with_labels)
        else:
            records, found = _table(source, bad, kind, columns, usual or Columns(), with_labels=with_labels)
    if not records:
        raise CorpusError(f"{path}: there is no example in this file")
    for record in records:
        for text in texts_of(record):
            if broken := broken_character(text):
                raise CorpusError(f"{path}: row {record.row} holds {broken}, which is no character; take it out")
    return Labelled(path, records, found)


def _one_source(path: Path) -> list[Source]:
    sources = find_sources([path])
    if len(sources) != 1 or path.is_dir():
        raise CorpusError(f"{path}: give a single file, not a folder of {len(sources)}")
    return sources


def _need(path: Path, kind: TaskKind, wanted: TaskKind, holds: str) -> None:
    if kind != wanted:
        raise CorpusError(f"{path}: this kind of file holds {holds}, for --task {wanted}; the task is {kind}")


def _lines(source: Source, bad: BadInput, kind: TaskKind, *, with_labels: bool) -> list[Record]:
    """Lines of a text, which have no labels."""
    if with_labels or kind in ("pairs", "answer"):
        what = "labels" if with_labels else "pairs" if kind == "pairs" else "questions"
        raise CorpusError(
            f"{source.path}: a {source.path.suffix} file holds no {what}; give CSV, TSV, JSONL or Parquet"
        )
    lines = [(n, part.text) for n, part in enumerate(read_lines(source.path, bad), 1) if part.text.strip()]
    if kind == "tag":
        return [WordsRecord(number, words_of(text)) for number, text in lines]
    return [TextRecord(number, text) for number, text in lines]


def _table(
    source: Source, bad: BadInput, kind: TaskKind, wanted: Columns, usual: Columns, *, with_labels: bool
) -> tuple[list[Record], Columns | None]:
    nested = kind in ("tag", "answer")
    source = replace(source, label=wanted.label)
    header = wanted.text
    first = next(rows_of(source, bad, header, nested=nested), (0, {}))[1]
    cells = [value for name, value in first.items() if name.isdigit() and isinstance(value, str)]
    known = KNOWN | _named(wanted) | _named(usual)
    if (name := next((cell.strip() for cell in cells if cell.strip().lower() in known), None)) is not None:
        header = name  # the first row of a delimited file names the columns
    rows = list(rows_of(source, bad, header, nested=nested))
    if not rows:
        return [], None
    if kind == "answer":
        return list(read_question_rows(source.path, rows, with_answers=with_labels)), None
    look = [row for _, row in islice(rows, LOOK_ROWS)]
    columns = find_columns(look, kind, _filled(wanted, usual, look), source.path, with_label=with_labels)
    names = class_names(source, columns.label)
    if kind == "tag":
        return list(read_tagged_rows(source.path, rows, columns, names)), columns
    return [_text_record(source.path, number, row, kind, columns, names) for number, row in rows], columns


def _named(columns: Columns) -> set[str]:
    return {name.lower() for name in vars(columns).values() if name is not None and not name.isdigit()}


def _filled(wanted: Columns, usual: Columns, rows: Sequence[dict[str, Any]]) -> Columns:
    """The columns that were named; where none was, those of an earlier file, if there is any text in them here."""

    def text(name: str | None) -> str | None:
        return name if any(isinstance(row.get(name or ""), str | list) for row in rows) else None

    return wanted.model_copy(
        update={
            "text": wanted.text or text(usual.text),
            "second": wanted.second or text(usual.second),
        }
    )


def _text_record(
    path: Path, number: int, row: dict[str, Any], kind: TaskKind, columns: Columns, names: Sequence[str] | None
) -> TextRecord:
    where = f"{path}: row {number}"
    texts = [_text(row, name, where) for name in (columns.text, columns.second) if name is not None]
    record = TextRecord(number, texts[0], texts[1] if len(texts) > 1 else None)
    if columns.label is None:
        return record
    if columns.label not in row:
        raise CorpusError(f"{where} has no column {columns.label!r}, only {', '.join(row)}")
    if kind == "regress":
        return replace(record, value=number_of(row[columns.label], where, columns.label))
    return replace(record, label=class_of(row[columns.label], where, columns.label, names))


def _text(row: dict[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise CorpusError(f"{where} has no column {column!r}, only {', '.join(row)}")
    if not isinstance(row[column], str):
        raise CorpusError(f"{where} has {type(row[column]).__name__} in column {column!r}, not a text")
    return str(row[column])
