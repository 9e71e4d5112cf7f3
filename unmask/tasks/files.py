"""Labelled files as records: tables (CSV, TSV, JSON, Parquet, Arrow), CoNLL, CoNLL-U, lines of text.

A folder that `datasets` wrote, or one in the hub's layout, is a table of several files, or parts of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from unmask.core.errors import CorpusError, shown
from unmask.core.files import file_sha256
from unmask.data.reading import BadInput, Row, broken_character, read_lines
from unmask.data.sources import Source, find_sources, find_split
from unmask.data.tables import LOOK_ROWS, class_name, class_names, has_column, rows_of, value_or_none
from unmask.tasks.settings import Columns
from unmask.tasks.task import Labelled, Record, Task, find_columns

Part = Literal["train", "validation"]
_MISSING = {"nan", "null", "none", "n/a", "na"}
MOST_EXAMPLES = 5_000_000
MOST_CHARS = 1 << 31


class Gathered:
    """What is held of a labelled file, all of which is in memory: so much, and no more.

    Args:
        path: The file, for errors.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._examples = self._chars = 0

    def add(self, num_chars: int, *, examples: int = 1) -> None:
        """Counts an example of so many characters, or characters that several examples share.

        Raises:
            CorpusError: There are more than five million, or more than two thousand million characters.
        """
        self._examples += examples
        self._chars += num_chars
        if self._examples > MOST_EXAMPLES or self._chars > MOST_CHARS:
            raise CorpusError(
                f"{self._path}: more than {MOST_EXAMPLES:,} examples or {MOST_CHARS:,} characters, all of which would "
                "be held in memory; give a part of the file"
            )


@dataclass(frozen=True)
class ExampleFiles:
    """What examples are read from.

    Attributes:
        path: As it is called.
        files: The files, in order; those of a folder are parts of one table.
        sources: How those of a folder are read; empty for a file that was named.
    """

    path: Path
    files: tuple[Path, ...]
    sources: tuple[Source, ...] = ()

    @property
    def sha256(self) -> str:
        """Of the content."""
        found = [file_sha256(file) for file in self.files]
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def example_files(path: Path, called: Path | None = None, *, part: Part | None = None) -> ExampleFiles:
    """The files of a path.

    Args:
        path: A file; a folder that `datasets` wrote; or one in the hub's layout, whose files are tables.
        called: What it is called in errors and reports; None: as the path.
        part: Of a folder that has parts; None: it must have none.

    Raises:
        CorpusError: It is not there, or a folder of something else, or one that lacks the part.
    """
    called = called or path
    if part == "validation" and not path.is_dir():
        raise CorpusError(f"{called}: this is one file; give another for validation")
    if not path.is_dir():
        return ExampleFiles(called, (path,))
    split = find_split([path], announce=False)
    if part is None and split.validation:
        raise CorpusError(f"{called}: this folder has several parts (train and validation); name one of them")
    if part == "validation" and not split.validation:
        raise CorpusError(f"{called}: there is no part for validation in it; give one")
    sources = split.validation if part == "validation" else split.train
    if len(sources) > 1 and not all(source.is_table and source.kind == sources[0].kind for source in sources):
        raise CorpusError(f"{called}: give a single file, not a folder of {len(sources)}")
    return ExampleFiles(called, tuple(source.path for source in sources), tuple(sources))


def read_labelled(
    given: Path | ExampleFiles,
    task: type[Task] | Task,
    columns: Columns,
    *,
    with_labels: bool = True,
    usual: Columns | None = None,
) -> Labelled:
    """Reads a file.

    Args:
        given: Recognised by its suffix, before that of a compression; or a folder (see `example_files`).
        task: Its class; or a task, which may know that texts come in pairs.
        columns: Those that were named.
        with_labels: Whether every record has a label; otherwise none is read.
        usual: Those of an earlier file, which serve where this one has them.

    Raises:
        CorpusError: The file is missing, empty, of a kind that the task cannot read, lacks a column, or has a row
            without text or label; with file and row.
    """
    bad = BadInput(skip=False, way_out=None)
    found: Columns | None = None
    files = example_files(given) if isinstance(given, Path) else given
    path = files.path
    records = task.own_file(files.files[0], with_labels=with_labels)
    if records is None:
        source, *others = files.sources or find_sources(files.files)
        if source.kind in ("conll", "conllu"):
            records = task.of_treebank(source, bad, columns.label, with_labels=with_labels)
        elif source.kind in ("text", "fasta"):
            records = _lines(source, bad, task, with_labels=with_labels)
        else:
            table = _LabelledTable(path, source, others)
            records, found = _read_table(table, bad, task, columns, usual or Columns(), with_labels=with_labels)
    if not records:
        raise CorpusError(f"{path}: there is no example in this file")
    for record in records:
        for text in record.texts:
            if broken := broken_character(text):
                raise CorpusError(f"{path}: row {record.row} holds {broken}, which is no character; take it out")
    return Labelled(path, records, found)


def _lines(source: Source, bad: BadInput, task: type[Task] | Task, *, with_labels: bool) -> list[Record]:
    """Lines of a text, which have no labels."""
    if lacking := "labels" if with_labels else "pairs" if _knows_pairs(task) else task.lines_lack:
        raise CorpusError(
            f"{source.path}: a {source.path.suffix} file holds no {lacking}; give CSV, TSV, JSONL or Parquet"
        )
    gathered, records = Gathered(source.path), []
    for number, part in enumerate(read_lines(source.path, bad), 1):
        if not (part.starts and part.ends):
            raise CorpusError(f"{source.path}: line {number} is longer than a million characters; cut it")
        if part.text.strip():
            gathered.add(len(part.text))
            records.append(task.of_line(number, part.text))
    return records


class _LabelledTable(NamedTuple):
    """A table and the files that it goes on in."""

    path: Path
    source: Source
    others: Sequence[Source]

    def rows(
        self,
        bad: BadInput,
        header: str | None,
        *,
        known: Iterable[str],
        only: Iterable[str] | None = None,
    ) -> Iterator[tuple[int, Row]]:
        """Of all files, numbered on; those that are read for some columns are counted."""
        gathered, used = Gathered(self.path), None if only is None else list(only)
        begin = 0
        for source in (self.source, *self.others):
            number = 0
            for number, row in rows_of(source, bad, header, known=known, only=used):
                if used is not None:
                    gathered.add(sum(_num_chars(value_or_none(row, name)) for name in used))
                yield begin + number, row
            begin += number


def _read_table(
    table: _LabelledTable, bad: BadInput, task: type[Task] | Task, wanted: Columns, usual: Columns, *, with_labels: bool
) -> tuple[Sequence[Record], Columns | None]:
    source = replace(table.source, label=wanted.label)
    asked = {name for columns in (wanted, usual) for name in vars(columns).values() if name is not None}
    paths = {name for name in asked if "." in name}

    def read(only: Iterable[str] | None) -> Iterator[tuple[int, Row]]:
        rows = table._replace(source=source).rows(bad, wanted.text, known=asked, only=only)
        return ((number, _with_fields(row, paths)) for number, row in rows) if paths else rows

    look = [row for _, row in islice(read(None), LOOK_ROWS)]
    if not look:
        return [], None
    if task.usual is None:
        own = [name for name in task.own_columns(with_labels=with_labels) if name in look[0]]
        return task.of_rows(table.path, read(own), wanted, None, with_labels=with_labels), None
    names = replace(task.usual, pairs="always", guessed=False) if _knows_pairs(task) else task.usual
    columns = find_columns(look, names, _filled(wanted, usual, look), table.path, with_label=with_labels)
    labels = class_names(source, columns.label)
    used = [name for name in vars(columns).values() if name is not None]
    return task.of_rows(table.path, read(used), columns, labels, with_labels=with_labels), columns


def _num_chars(value: Any) -> int:
    """What a value takes in memory, about, in characters."""
    if isinstance(value, list):
        return sum(_VALUE_CHARS + (len(each) if isinstance(each, str) else 0) for each in value)
    return len(value) if isinstance(value, str) else _VALUE_CHARS


_VALUE_CHARS = 50


def _with_fields(row: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The row with fields within its columns as columns of their own, called by their paths: `content.text`."""
    return row | {path: value_or_none(row, path) for path in paths if has_column([row], path)}


def _knows_pairs(task: type[Task] | Task) -> bool:
    """Whether it is the task of a model that is given two texts."""
    return not isinstance(task, type) and task.paired


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


def class_of(value: Any, where: str, column: str, names: Sequence[str] | None = None) -> str:
    """The name of a class. What is missing or not-a-number is an error, never a class of its own.

    Args:
        value: As it stands in the table.
        where, column: File and row, and the column, for errors.
        names: Of the classes by number, where the file says them.

    Raises:
        CorpusError: There is none, it is not-a-number (also in letters), or neither a text, a whole number nor a
            boolean; or it is a number without a name.
    """
    try:
        name = class_name(value, names)
    except ValueError as error:
        raise CorpusError(f"{where} has {error} in column {column!r}") from error
    if name is None or name.lower() == "nan":
        what = "no label" if name is None and not isinstance(value, float) else "NaN"
        raise CorpusError(f"{where} has {what} in column {column!r}; give it a label, or take the row out")
    return name


def number_of(value: Any, where: str, column: str) -> float:
    """A finite number.

    Raises:
        CorpusError: It is missing, not-a-number, infinite or no number.
    """
    if value is None or (isinstance(value, str) and (not value.strip() or value.strip().lower() in _MISSING)):
        what = "NaN" if isinstance(value, str) and value.strip().lower() == "nan" else "no number"
        raise CorpusError(f"{where} has {what} in column {column!r}; give it a number, or take the row out")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise CorpusError(f"{where} has {shown(value)} in column {column!r}, which is no number") from None
    if not math.isfinite(number):
        what = "NaN" if math.isnan(number) else str(number)
        raise CorpusError(f"{where} has {what} in column {column!r}; give it a number, or take the row out")
    return number
