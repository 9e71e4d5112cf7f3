"""Labelled files as records: tables (CSV, TSV, JSON, Parquet, Arrow), CoNLL, CoNLL-U, SQuAD's JSON, lines of text.

Each form is read as rows with cells (`LabelledRow`), of which the task makes its records. A folder that `datasets`
wrote, or one in the hub's layout, is a table of several files, or parts of them.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from unmask.core.errors import CorpusError, listed, parse_json, shown, whole_number
from unmask.core.files import file_sha256
from unmask.data.columns import Role, class_name, find_column, has_column, text_in, value_at
from unmask.data.json_rows import json_form, json_rows
from unmask.data.reading import BadInput, bare_suffix, broken_character, read_lines
from unmask.data.sources import Source, find_sources, find_split
from unmask.data.tables import LOOK_ROWS, class_names, rows_of
from unmask.data.treebanks import TaggedLine, read_sentences, word_number
from unmask.tasks.settings import Columns
from unmask.tokenizer.spans import word_spans

Form = Literal["table", "lines", "treebank", "squad"]
Part = Literal["train", "validation"]
Rows = Iterator[tuple[int, dict[str, Any]]]  # numbers, counted from 1, and cells by column
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("first", "second"),
    ("question", "sentence"),
    ("query", "passage"),
)
SEPARATOR = ";"  # between several labels in a cell
MOST_EXAMPLES = 5_000_000
MOST_CHARS = 1 << 31
_BAD = BadInput(skip=False, way_out=None)
_CONLLU = {"upos": 3, "xpos": 4}
_SQUAD = "SQuAD's form is data > paragraphs > context and qas > question, id, answers > text, answer_start"
_ID = "id"


class Record(Protocol):
    """An example, as a task reads it: `TextRecord`, `WordsRecord` or `QuestionRecord`."""

    @property
    def row(self) -> int:
        """Row of the file, counted from 1; of several rows the first."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All its texts."""


@dataclass(frozen=True)
class Labelled:
    """The records of a file, at least one; and their columns by role, none where a file has no choice of them."""

    path: Path
    records: Sequence[Any]
    columns: Mapping[str, str]

    @property
    def is_paired(self) -> bool:
        """Whether its records are pairs of texts."""
        return self.records[0].second is not None


def check_size(path: Path, num_examples: int, num_chars: int) -> None:
    """Raises a `CorpusError` where what is held of a file is more than memory is made for."""
    if num_examples > MOST_EXAMPLES or num_chars > MOST_CHARS:
        raise CorpusError(
            f"{path}: more than {MOST_EXAMPLES:,} examples or {MOST_CHARS:,} characters, all of which would be held in "
            "memory; give a part of the file"
        )


@dataclass(frozen=True)
class ExampleFiles:
    """What examples are read from: a path as it is called, and its files in order; those of a folder are parts of one
    table."""

    path: Path
    sources: tuple[Source, ...]

    @property
    def sha256(self) -> str:
        """Of the content."""
        hashes = [file_sha256(source.path) for source in self.sources]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def example_files(path: Path, called: Path | None = None, *, part: Part | None = None) -> ExampleFiles:
    """The files of a path: a file; a folder that `datasets` wrote; or one in the hub's layout, whose files are tables.

    Errors and reports name it as `called`. A folder has the `part`; where that is None, it must have no parts.

    Raises:
        CorpusError: It is not there, or a folder of something else, or one that lacks the part.
    """
    called = called or path
    if not os.path.isdir(path):  # which raises nothing, whatever the name is
        if part == "validation":
            raise CorpusError(f"{called}: this is one file; give another for validation")
        return ExampleFiles(called, tuple(find_sources((path,))))
    split = find_split([path], announce=False)
    if part is None and split.validation:
        raise CorpusError(f"{called}: this folder has several parts (train and validation); name one of them")
    if part == "validation" and not split.validation:
        raise CorpusError(f"{called}: there is no part for validation in it; give one")
    sources = split.validation if part == "validation" else split.train
    if len(sources) > 1 and not all(source.is_table and source.kind == sources[0].kind for source in sources):
        raise CorpusError(f"{called}: give a single file, not a folder of {len(sources)}")
    return ExampleFiles(called, tuple(sources))


def read_labelled(
    examples: Path | ExampleFiles,
    task: Any,
    columns: Columns,
    *,
    with_labels: bool = True,
    usual: Columns | None = None,
) -> Labelled:
    """Reads a file, whose form its suffix says, before that of a compression; or a folder (see `example_files`).

    Args:
        examples: What is read.
        task: A `Task`, which may know that texts come in pairs; or its class.
        columns: Those that were named.
        with_labels: Whether every record has a label; otherwise none is read.
        usual: Those of an earlier file, which serve where this one has them.

    Raises:
        CorpusError: The file is missing, empty, of a kind that the task cannot read, lacks a column, or has a row
            without text or label; with file and row.
    """
    files = example_files(examples) if isinstance(examples, Path) else examples
    path = files.path
    source, *others = files.sources
    form: Form = "table"
    if source.kind in ("conll", "conllu"):
        form = "treebank"
    elif source.kind in ("text", "fasta"):
        form = "lines"
    elif "squad" in task.forms and bare_suffix(source.path) == ".json" and json_form(source.path) == "object":
        form = "squad"  # one object; an array of objects, or an object a line, are rows
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
        rows = _treebank_rows(source, columns.label, with_labels=with_labels)
    else:
        rows = _squad_rows(source.path, with_labels=with_labels) if form == "squad" else _lines(source.path)
    if not with_labels:
        roles = roles.model_copy(update={"label": None})
    records: list[Record] = []
    num_chars = 0
    for number, cells in rows:
        where = f"{path}: {'question' if form == 'squad' else 'row'} {number}"
        record = task.of_row(LabelledRow(number, where, cells, roles, names))
        if broken := next(filter(None, map(broken_character, record.texts)), None):
            raise CorpusError(f"{where} holds {broken}, which is no character; take it out")
        records.append(record)
        num_chars += sum(map(len, record.texts))
        check_size(path, len(records), num_chars)
    if not records:
        raise CorpusError(f"{path}: there is no example in this file{f'; {_SQUAD}' if form == 'squad' else ''}")
    chosen = roles.model_dump(exclude_none=True) if form == "table" and task.fixed is None else {}
    return Labelled(path, records, chosen)


# ----------------------------------------
# Tables, and which of their columns hold texts and labels.


@dataclass(frozen=True)
class UsualColumns:
    """What the columns of a task are usually called."""

    labels: Role  # role of the column of labels in `unmask.data.columns.USUAL`
    texts: Role = "text"  # role of the column of texts
    # Whether there are two texts: `no`; `named`, where the second is named; `usual`, also where the columns of a pair
    # are there and no text is named; `always`.
    pairs: Literal["no", "named", "usual", "always"] = "no"


def _table_rows(
    path: Path,
    sources: Sequence[Source],
    task: Any,
    named: Columns,
    usual: Columns,
    with_labels: bool,
) -> tuple[Rows, Columns, Sequence[str] | None]:
    """The rows of a table that goes on over all sources; its columns; names of the classes by number, if it has any."""
    mentioned = [name for columns in (named, usual) for name in vars(columns).values() if name is not None]
    fields = [name for name in mentioned if "." in name]  # within columns: `content.text`

    def read(only: Iterable[str] | None) -> Rows:
        begin = 0
        for source in sources:
            number = 0
            for number, row in rows_of(source, _BAD, named.text, known=mentioned, only=only):
                inner = {name: value_at(row, name) for name in fields if has_column([row], name)}
                yield begin + number, row | inner
            begin += number

    look = [row for _, row in islice(read(None), LOOK_ROWS)]
    if not look:
        return iter(()), Columns(), None
    if task.fixed is not None:
        used = [name for role, name in vars(task.fixed).items() if with_labels or role != "label"]
        return read([name for name in (_ID, *used) if name in look[0]]), task.fixed, None
    kinds = task.usual
    if not isinstance(task, type) and task.paired:
        kinds = replace(kinds, pairs="always")
    # Columns of an earlier file serve where no others are named, if they hold text here.
    holding = {
        role: name
        for role, name in (("text", usual.text), ("second", usual.second))
        if getattr(named, role) is None and any(isinstance(row.get(name or ""), str | list) for row in look)
    }
    columns = _find_columns(look, kinds, named.model_copy(update=holding), path, with_label=with_labels)
    names = class_names(sources[0], columns.label)
    return read([name for name in vars(columns).values() if name is not None]), columns, names


def _find_columns(
    rows: Sequence[dict[str, Any]], usual: UsualColumns, named: Columns, path: Path, *, with_label: bool
) -> Columns:
    """The columns of a table: as named, else by usual names, else by what stands in its first rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    by_name = {name.lower(): name for name in names}
    for role, name in vars(named).items():
        if name is not None and (role != "label" or with_label):
            find_column(rows, "text", name, where=path)
    label = named.label or find_column(rows, usual.labels, where=path)
    text, second = named.text, None
    if usual.pairs == "always" or (usual.pairs != "no" and named.second) or (usual.pairs == "usual" and not named.text):
        if named.text is not None or named.second is not None:  # the other one of the pair that one belongs to
            pair = next((pair for pair in PAIRS if {named.text, named.second} & set(pair)), ())
            other = next((name for name in pair if name in names and name not in {named.text, named.second}), None)
            text, second = named.text or other, named.second or other
        else:
            pairs = (pair for pair in PAIRS if pair[0] in by_name and pair[1] in by_name)
            text, second = next(((by_name[first], by_name[other]) for first, other in pairs), (None, None))
    if text is None and usual.pairs != "always":
        taken = {label, named.second}
        text = find_column(rows, usual.texts, where=path, taken=taken)
        # The longest, if it is twice as long as any other: of a table without names. Words are never guessed.
        if text is None and usual.texts == "text":
            sizes = {
                name: sum(len(row[name]) for row in rows if isinstance(row.get(name), str))
                for name in names
                if name not in taken
            }
            ranked = sorted(sizes, key=lambda name: -sizes[name])
            if ranked and sizes[ranked[0]] and all(sizes[ranked[0]] >= 2 * sizes[name] for name in ranked[1:2]):
                text = ranked[0]
        second = None if usual.pairs == "no" else named.second
    if label is None and with_label and len(rest := [name for name in names if name not in {text, second}]) == 1:
        label = rest[0]
    needed = {
        "text": text,
        **({"second": second} if usual.pairs == "always" else {}),
        **({"label": label} if with_label else {}),
    }
    if missing := [role for role, name in needed.items() if name is None]:
        raise CorpusError(
            f"{path}: the column for --{missing[0]} is not found among {listed(names)}; name it with "
            f"--{missing[0]} COLUMN"
        )
    return Columns(text=text, second=second, label=label if with_label else None)


# ----------------------------------------
# Other forms.


def _lines(path: Path) -> Rows:
    for number, part in enumerate(read_lines(path, _BAD), 1):
        if not (part.starts and part.ends):
            raise CorpusError(f"{path}: line {number} is longer than a million characters; cut it")
        if part.text.strip():
            yield number, {"text": part.text}


def _treebank_rows(source: Source, label: str | None, *, with_labels: bool) -> Rows:
    """The sentences of a CoNLL or CoNLL-U file. Words of a multiword token are taken one by one.

    The tags' column is named by its number, counted from 0; in CoNLL-U also as `upos` or `xpos`. None: the last one, or
    `upos`.
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
        cells: dict[str, Any] = {"text": [cell(line, 1 if is_conllu else 0) for line in words]}
        if with_labels:
            if bare := next((line for line in words if index == -1 and len(line.cells) < 2), None):
                raise CorpusError(f"{path}: line {bare.number} has a word without a tag")
            cells["label"] = [cell(line, index) for line in words]
            for line, tag in zip(words, cells["label"], strict=True):
                if tag in ("", "_"):
                    raise CorpusError(f"{path}: line {line.number} has no tag in column {index}")
        yield words[0].number, cells


def _squad_rows(path: Path, *, with_labels: bool) -> Rows:
    """The questions of a file in SQuAD's form, of version 1 or 2, read article by article, as `datasets` holds them.

    Source: Rajpurkar et al. 2016 and 2018 (SQuAD and SQuAD 2.0), the form of their files.
    """

    def field(holder: Any, name: str, kind: type, where: str) -> Any:
        if not isinstance(holder, dict) or name not in holder:
            raise CorpusError(f"{where} lacks {name!r}: {shown(holder)}; {_SQUAD}")
        value = holder[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CorpusError(f"{where} has {shown(value)} as {name!r}; {_SQUAD}")
        return value

    number = 1
    for count, article in json_rows(path, _BAD, field="data", way_out="cut the article"):
        for paragraph in field(article, "paragraphs", list, f"{path}: article {count}"):
            context = field(paragraph, "context", str, f"{path}: question {number}")
            for question in field(paragraph, "qas", list, f"{path}: question {number}"):
                where = f"{path}: question {number}"
                cells = {"question": field(question, "question", str, where), "context": context}
                cells[_ID] = question.get(_ID)
                if with_labels:
                    has_none = "is_impossible" in question and field(question, "is_impossible", bool, where)
                    answers = [] if has_none else field(question, "answers", list, where)
                    texts = [field(answer, "text", str, where) for answer in answers]
                    begins = [field(answer, "answer_start", int, where) for answer in answers]
                    cells["answers"] = {"text": texts, "answer_start": begins}
                yield number, cells
                number += 1


# ----------------------------------------
# Cells.


@dataclass(frozen=True)
class LabelledRow:
    """A row of a labelled file, read by role.

    All methods raise `CorpusError` with file, row and column where a cell is missing or of another kind. A label that
    is missing or not-a-number is an error, never a class of its own.
    """

    number: int  # counted from 1; of a text file, its line
    where: str  # file and row, for errors
    cells: Mapping[str, Any]  # by column
    columns: Columns  # which column has which role
    names: Sequence[str] | None = None  # of the classes by number, where the file says them

    def text(self, role: Literal["text", "second"] = "text") -> str:
        value, place = self._cell(role)
        try:
            text = text_in(value)
        except ValueError:
            text = None
        if text is None:
            raise CorpusError(f"{place} has {type(value).__name__}, not a text")
        return text

    def words(self) -> tuple[str, ...]:
        """A list of words; where no tags are needed, also a text, which is split."""
        value, place = self._cell("text")
        if isinstance(value, str) and self.columns.label is None:
            return words_of(value)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise CorpusError(f"{place} has {shown(value)}, not a list of words")
        if not value:
            raise CorpusError(f"{place} has no words")
        return tuple(value)

    def class_name(self) -> str:
        return self._class(*self._cell("label"))

    def class_names(self) -> tuple[str, ...]:
        """Any number of classes: a list, or in a text a JSON list, or names with `;` between them."""
        value, place = self._cell("label")
        if isinstance(value, str) and value.strip().startswith("["):
            try:
                value = list(parse_json(value.strip()))
            except ValueError as error:
                what = f"{value.strip()[:40]!r}, which begins like a JSON list and is none"
                raise CorpusError(f"{place} has {what}") from error
        elif isinstance(value, str):
            value = [part.strip() for part in value.split(SEPARATOR) if part.strip()]
        elif value is None:
            value = []
        return tuple(self._class(each, place) for each in (value if isinstance(value, list | tuple) else [value]))

    def tags(self, num_words: int) -> tuple[str, ...]:
        value, place = self._cell("label")
        if not isinstance(value, list):
            raise CorpusError(f"{place} has {type(value).__name__}, not a list")
        if len(value) != num_words:
            raise CorpusError(f"{place} has {len(value)} tags for {num_words} words")
        return tuple(self._class(tag, place) for tag in value)

    def value(self) -> float:
        value, place = self._cell("label")
        text = value.strip().lower() if isinstance(value, str) else value
        if text in (None, "", "null", "none", "n/a", "na"):
            raise CorpusError(f"{place} has no number; give it one, or take the row out")
        try:
            number = float(text)
        except (TypeError, ValueError, OverflowError):
            raise CorpusError(f"{place} has {shown(value)}, which is no number") from None
        if not math.isfinite(number):
            what = "NaN" if math.isnan(number) else str(number)
            raise CorpusError(f"{place} has {what}; give it a number, or take the row out")
        return number

    def _cell(self, role: Literal["text", "second", "label"]) -> tuple[Any, str]:
        """The value, and where it stands."""
        column = getattr(self.columns, role)
        if column not in self.cells:
            raise CorpusError(f"{self.where} has no column {column!r}, only {listed(self.cells)}")
        return self.cells[column], f"{self.where}, column {column!r}:"

    def _class(self, value: Any, place: str) -> str:
        try:
            name = class_name(value, self.names)
        except ValueError as error:
            raise CorpusError(f"{place} has {error}") from error
        if name is None or name.lower() == "nan":
            what = "no label" if name is None and not isinstance(value, float) else "NaN"
            raise CorpusError(f"{place} has {what}; give it a label, or take the row out")
        return name


def words_of(text: str) -> tuple[str, ...]:
    """The words of a raw text: runs of letters and digits with the marks on them, and signs one by one."""
    return tuple(text[begin:end] for begin, end in word_spans(text))
