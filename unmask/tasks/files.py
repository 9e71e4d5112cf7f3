"""Labelled files as records: tables (CSV, TSV, JSON, Parquet, Arrow), CoNLL, CoNLL-U, SQuAD's JSON, lines of text.

Each form is read as rows with cells (`LabelledRow`), of which the task makes its records. A folder that `datasets`
wrote, or one in the hub's layout, is a table of several files, or parts of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import CorpusError, shown, whole_number
from unmask.core.files import file_sha256
from unmask.data.json_rows import json_form, rows_of_field
from unmask.data.reading import BadInput, bare_suffix, broken_character, read_lines
from unmask.data.sources import Source, find_sources, find_split
from unmask.data.tables import LOOK_ROWS, class_names, rows_of
from unmask.data.treebanks import TaggedLine, read_sentences, word_number
from unmask.data.values import has_column, value_or_none
from unmask.tasks.columns import LabelledRow, find_columns
from unmask.tasks.settings import Columns
from unmask.tasks.task import Form, Labelled, Record, Task

Part = Literal["train", "validation"]
Rows = Iterator[tuple[int, dict[str, Any]]]  # numbers, counted from 1, and cells by column
MOST_EXAMPLES = 5_000_000
MOST_CHARS = 1 << 31
_BAD = BadInput(skip=False, way_out=None)
_CONLLU = {"upos": 3, "xpos": 4}
_SQUAD = "SQuAD's form is data > paragraphs > context and qas > question, id, answers > text, answer_start"
_ID = "id"


class Gathered:
    """Counts what is held of a file, all of which is in memory.

    Args:
        path: The file, for errors.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._examples = self._chars = 0

    def add(self, num_chars: int) -> None:
        """Counts an example of so many characters.

        Raises:
            CorpusError: There are more than five million, or more than two thousand million characters.
        """
        self._examples += 1
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
        hashes = [file_sha256(file) for file in self.files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


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
    if not os.path.isdir(path):  # which raises nothing, whatever the name is
        if part == "validation":
            raise CorpusError(f"{called}: this is one file; give another for validation")
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
    files = example_files(given) if isinstance(given, Path) else given
    path = files.path
    source, *others = files.sources or find_sources(files.files)
    form = _form_of(source, task)
    if form not in task.forms and form == "treebank":
        raise CorpusError(f"{path}: this file holds words with tags, for --task tag; the task is {task.kind}")
    pairs_needed = not isinstance(task, type) and task.paired
    if form == "lines" and (with_labels or pairs_needed or form not in task.forms):
        lacking = "labels" if with_labels else "pairs of texts"
        raise CorpusError(f"{path}: a {path.suffix} file holds no {lacking}; give CSV, TSV, JSONL or Parquet")
    names: Sequence[str] | None = None
    roles = task.fixed or Columns(text="text", label="label")
    if form == "table":
        rows, roles, names = _table_rows(path, [source, *others], task, columns, usual or Columns(), with_labels)
    elif form == "treebank":
        rows = _treebank_rows(source, columns.label, roles, with_labels=with_labels)
    else:
        rows = _squad_rows(source.path, with_labels=with_labels) if form == "squad" else _lines(source.path)
    if not with_labels:
        roles = roles.model_copy(update={"label": None})
    gathered = Gathered(path)
    records: list[Record] = []
    for number, cells in rows:
        where = f"{path}: {'question' if form == 'squad' else 'row'} {number}"
        record = task.of_row(LabelledRow(number, where, cells, roles, names))
        if broken := next(filter(None, map(broken_character, record.texts)), None):
            raise CorpusError(f"{where} holds {broken}, which is no character; take it out")
        gathered.add(sum(map(len, record.texts)))
        records.append(record)
    if not records:
        raise CorpusError(f"{path}: there is no example in this file{f'; {_SQUAD}' if form == 'squad' else ''}")
    return Labelled(path, records, roles if form == "table" and task.fixed is None else None)


def _form_of(source: Source, task: type[Task] | Task) -> Form:
    if source.kind in ("conll", "conllu"):
        return "treebank"
    if source.kind in ("text", "fasta"):
        return "lines"
    # SQuAD's file is one object; an array of objects, or an object a line, are rows.
    is_squad = "squad" in task.forms and bare_suffix(source.path) == ".json" and json_form(source.path) == "object"
    return "squad" if is_squad else "table"


def _table_rows(
    path: Path,
    sources: Sequence[Source],
    task: type[Task] | Task,
    named: Columns,
    usual: Columns,
    with_labels: bool,
) -> tuple[Rows, Columns, Sequence[str] | None]:
    """The rows of a table that goes on over all sources; its columns; and names of the classes by number, if it has
    any."""
    mentioned = [name for columns in (named, usual) for name in vars(columns).values() if name is not None]
    fields = [name for name in mentioned if "." in name]  # within columns: `content.text`

    def read(only: Iterable[str] | None) -> Rows:
        begin = 0
        for source in sources:
            number = 0
            for number, row in rows_of(source, _BAD, named.text, known=mentioned, only=only):
                yield (
                    begin + number,
                    row | {name: value_or_none(row, name) for name in fields if has_column([row], name)},
                )
            begin += number

    look = [row for _, row in islice(read(None), LOOK_ROWS)]
    if not look:
        return iter(()), Columns(), None
    if task.fixed is not None:
        used = [
            name for role, name in vars(task.fixed).items() if name is not None and (with_labels or role != "label")
        ]
        return read([name for name in (_ID, *used) if name in look[0]]), task.fixed, None
    columns = task.usual
    if not isinstance(task, type) and task.paired:
        columns = replace(columns, pairs="always", guessed=False)
    # Columns of an earlier file serve where no others are named, if they hold text here.
    holding = {
        role: name
        for role, name in (("text", usual.text), ("second", usual.second))
        if getattr(named, role) is None and any(isinstance(row.get(name or ""), str | list) for row in look)
    }
    found = find_columns(look, columns, named.model_copy(update=holding), path, with_label=with_labels)
    names = class_names(sources[0], found.label)
    return read([name for name in vars(found).values() if name is not None]), found, names


def _lines(path: Path) -> Rows:
    for number, part in enumerate(read_lines(path, _BAD), 1):
        if not (part.starts and part.ends):
            raise CorpusError(f"{path}: line {number} is longer than a million characters; cut it")
        if part.text.strip():
            yield number, {"text": part.text}


def _treebank_rows(source: Source, label: str | None, roles: Columns, *, with_labels: bool) -> Rows:
    """The sentences of a CoNLL or CoNLL-U file. Words of a multiword token are taken one by one.

    Args:
        source: The file.
        label: The tags' column: its number, counted from 0; in CoNLL-U also `upos` or `xpos`. None: the last one, or
            `upos`.
        roles: What cells are called.
        with_labels: Whether tags are read.
    """
    path, is_conllu = source.path, source.kind == "conllu"
    index = -1 if not is_conllu else _CONLLU["upos"]
    if label is not None:
        number = whole_number(label)
        if number is None and not (is_conllu and label in _CONLLU):
            ways = "upos, xpos or the column's number" if is_conllu else "its number"
            raise CorpusError(f"{path}: there is no column {shown(label)}; a column is named by {ways}, counted from 0")
        index = _CONLLU[label] if number is None else number

    def cell(line: TaggedLine, index: int) -> str:
        if index >= len(line.cells):
            raise CorpusError(f"{path}: line {line.number} has no column {index}, only {len(line.cells)} columns")
        return line.cells[index].strip()

    for lines in read_sentences(source, _BAD):
        try:
            words = [line for line in lines or () if not is_conllu or word_number(line) is not None]
        except ValueError as error:
            raise CorpusError(f"{path}: line {error}") from error
        if not words:
            continue
        cells: dict[str, Any] = {str(roles.text): [cell(line, 1 if is_conllu else 0) for line in words]}
        if with_labels:
            if bare := next((line for line in words if index == -1 and len(line.cells) < 2), None):
                raise CorpusError(f"{path}: line {bare.number} has a word without a tag")
            tags = [cell(line, index) for line in words]
            if untagged := next((line for line, tag in zip(words, tags, strict=True) if tag in ("", "_")), None):
                raise CorpusError(f"{path}: line {untagged.number} has no tag in column {index}")
            cells[str(roles.label)] = tags
        yield words[0].number, cells


def _squad_rows(path: Path, *, with_labels: bool) -> Rows:
    """The questions of a file in SQuAD's form, of version 1 or 2, read article by article, as `datasets` holds them.

    Source: Rajpurkar et al. 2016 and 2018 (SQuAD and SQuAD 2.0), the form of their files.
    """
    number = 1
    for count, article in rows_of_field(path, "data", _BAD, way_out="cut the article"):
        for paragraph in _field(article, "paragraphs", list, f"{path}: article {count}"):
            context = _field(paragraph, "context", str, f"{path}: question {number}")
            for question in _field(paragraph, "qas", list, f"{path}: question {number}"):
                where = f"{path}: question {number}"
                cells = {"question": _field(question, "question", str, where), "context": context}
                cells[_ID] = question.get(_ID)
                if with_labels:
                    missing = "is_impossible" in question and _field(question, "is_impossible", bool, where)
                    answers = [] if missing else _field(question, "answers", list, where)
                    texts = [_field(answer, "text", str, where) for answer in answers]
                    begins = [_field(answer, "answer_start", int, where) for answer in answers]
                    cells["answers"] = {"text": texts, "answer_start": begins}
                yield number, cells
                number += 1


def _field(holder: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(holder, dict) or name not in holder:
        raise CorpusError(f"{where} lacks {name!r}: {shown(holder)}; {_SQUAD}")
    value = holder[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorpusError(f"{where} has {shown(value)} as {name!r}; {_SQUAD}")
    return value
