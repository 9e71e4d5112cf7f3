"""Labelled files as records: tables (CSV, TSV, JSON, Parquet, Arrow), CoNLL, CoNLL-U, SQuAD's JSON, lines of text.

Each form is read as rows with cells (`LabelledRow`), from which the task makes its records. A folder that `datasets`
wrote, or one in the hub's layout, is a table of several files, perhaps divided into parts (train, validation).
"""

from __future__ import annotations

import ast
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ConfigDict

from unmask.core.errors import CorpusError, listed, parse_json, whole_number
from unmask.core.files import file_sha256, say_once
from unmask.core.settings import Settings
from unmask.data.columns import (
    NO_LABEL,
    NOTHING,
    PAIRS,
    USUAL,
    class_name,
    columns_in,
    find_column,
    has_column,
    likeliest_text,
    likely_labels,
    names_in,
    text_in,
    text_weights,
    value_at,
    without_gaps,
)
from unmask.data.delimited import find_layout
from unmask.data.documents import read_documents
from unmask.data.json_rows import json_form, json_rows
from unmask.data.reading import LONGEST_ROW, BadInput, bare_suffix, broken_character
from unmask.data.settings import AS_FOUND, Reading
from unmask.data.sources import TABLES, InMemory, Source, Texts, find_split, paths_or_texts, readable
from unmask.data.tables import class_names, described, first_rows, rows_of
from unmask.data.treebanks import WordForm, form_of, has_word_per_line, read_sentences, word_number
from unmask.tokenizer.spans import holds_spans

log = logging.getLogger(__name__)

Form = Literal["table", "lines", "treebank", "squad"]
# Whether a table has two texts: `named`: if the user names the second; `usual`: also if the user names no text and the
# table has the columns of a pair.
Pairing = Literal["no", "named", "usual", "always"]
Part = Literal["train", "validation"]
Rows = Iterator[tuple[int, dict[str, Any]]]  # numbers, counted from 1, and cells by column
MOST_EXAMPLES = 5_000_000
MOST_CHARS = 1 << 31
_SQUAD = "SQuAD's form is data > paragraphs > context and qas > question, id, answers > text, answer_start"
_ID = "id"
ANSWER_COLUMNS = ("answer_text", "answer", "answer_start")  # instead of `answers`, in tables without lists


class Record(Protocol):
    """An example as a task reads it, such as `TextRecord`."""

    @property
    def row(self) -> int: ...  # row of the file, counted from 1; the first one of a record of several rows

    @property
    def texts(self) -> tuple[str, ...]: ...


class Columns(Settings):
    """Columns of the files, by name; or by number, counted from 0, if a file has no names. None: detected, and logged.

    `doc.text` is the field `text` within the column `doc`.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    text: str | None = None
    """Column of the text; for tags the list of words; in CoNLL files the words are in column 0, in CoNLL-U in 1."""
    second: str | None = None
    """Column of the other text of a pair."""
    label: str | None = None
    """Column of the class, number or list of tags; or several columns of 0 and 1, with commas between them. In CoNLL
    files it is the last, in CoNLL-U `upos` (or `xpos`)."""


@dataclass(frozen=True)
class Labelled:
    """The records of a file, at least one."""

    path: Path
    records: Sequence[Any]
    columns: Mapping[str, str]  # by role; empty if the form of the file fixes them
    notes: Sequence[str] = ()  # detected properties of the file, and counts of what was left out
    names: Sequence[str] | None = None  # names of classes by number, if the file has them
    places: tuple[str, ...] = ()  # names of labels that are given as lists of 0 and 1; empty if labels are names
    decimal: str | None = None  # decimal sign of numbers that are text
    # The key that joins each record with its row: `id`, if the file has ids, else `index`, the row counted from 0.
    keys: Sequence[tuple[str, Any]] = ()

    @property
    def is_paired(self) -> bool:
        return self.records[0].second is not None


def has_text(record: Record) -> bool:
    return any(text and not text.isspace() for text in record.texts)


def check_size(path: Path, num_examples: int, num_chars: int) -> None:
    """Raises a CorpusError if a file is too large to be held in memory."""
    if num_examples > MOST_EXAMPLES or num_chars > MOST_CHARS:
        most = f"{MOST_EXAMPLES:,} examples or {MOST_CHARS:,} characters"
        raise CorpusError(f"{path}: more than {most}, all of which would be in memory; give a part of the file")


@contextmanager
def place_of(name: str, examples: Texts) -> Iterator[tuple[Path, Path]]:
    """A file or folder of these examples, and the path to name in errors; rows in memory are a folder as long as the
    context is entered."""
    names = paths_or_texts(examples)
    if len(names) != 1:
        raise CorpusError(f"{name}: give one file or folder, not {len(names)}")
    (given,) = names
    called = Path(f"{name} in memory") if isinstance(given, InMemory) else Path(given)
    with readable(given.content if isinstance(given, InMemory) else given) as path:
        yield path, called


@dataclass(frozen=True)
class ExampleFiles:
    path: Path  # the path named in errors and reports
    sources: tuple[Source, ...]  # several files are one table

    @property
    def sha256(self) -> str:
        hashes = [file_sha256(source.path) for source in self.sources]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def example_files(path: Path, called: Path | None = None, *, part: Part | None = None) -> ExampleFiles:
    """The files of a path: a file; a folder that `datasets` wrote; or a folder in the hub's layout or a pattern, whose
    files are tables of one kind.

    Errors name it as `called`. A folder must have the `part`, or no parts if `part` is None.
    """
    called = called or path
    split = find_split([path], announce=False)
    if part is None and split.train != find_split([path], by_name=False, announce=False).train:
        way = f"name the folder, the file or a pattern for the files of one, such as {called}/test*"
        if called != path:  # a copy of what is in memory
            way = "give one of them, such as data['test']"
        raise CorpusError(f"{called}: this dataset has several parts, such as train and test; {way}")
    sources = split.validation if part == "validation" else split.train
    if len(sources) > 1 and not all(source.is_table and source.kind == sources[0].kind for source in sources):
        raise CorpusError(f"{called}: {len(sources)} files, which are not one table; give a single file")
    return ExampleFiles(called, tuple(sources))


def say_unread(path: Path, called: Path, files: Iterable[ExampleFiles], advice: str = "") -> None:
    """Logs, once, what a folder or dataset holds besides the files that are read."""
    if path.is_dir():
        read = {source.path.resolve() for each in files for source in each.sources}
        every = (source.path for source in find_split([path], by_name=False, announce=False).train)
        places = (each.relative_to(path) for each in every if each.resolve() not in read)
        names = dict.fromkeys(
            str(each.parent if each.suffix == ".arrow" or called != path else each) for each in places
        )
        if names:
            say_once(f"{called}: not read: {listed([*names], 5)}{advice}")


def _opened(
    files: ExampleFiles, task: Any, with_labels: bool, reading: Reading
) -> tuple[ExampleFiles, Form, WordForm | None]:
    """The files as the task reads them, their form, and, for words with tags, the layout of these."""
    source, path = files.sources[0], files.sources[0].path
    if "treebank" not in task.forms and source.kind == "conll" and source.by_suffix in TABLES:  # an ordinary table
        source = replace(source, kind=source.by_suffix)
        files = replace(files, sources=(source,))
    word_form: WordForm | None = None
    form: Form = "table"
    as_words = False  # although the suffix is that of a text or a table
    if "treebank" in task.forms and source.kind in ("text", "tsv") and len(files.sources) == 1:
        as_words = source.kind == "text" if with_labels else has_word_per_line(path, task.names, reading)
    if as_words or source.kind in ("conll", "conllu"):
        word_form, form = form_of(path, "conll" if as_words else source.by_suffix), "treebank"
    elif source.kind in ("text", "fasta", "smiles"):
        form = "lines"
    elif "squad" in task.forms and bare_suffix(path) == ".json" and json_form(path) == "object":
        form = "squad"  # a single object; arrays of objects, and objects line by line, are tables
    if form not in task.forms and form == "treebank":
        raise CorpusError(f"{files.path}: holds words with tags, which are for the task tag, not for {task.kind}")
    if form == "lines" and (with_labels or task.paired or form not in task.forms):
        lacking, suffix = "labels" if with_labels else "pairs of texts", files.path.suffix
        raise CorpusError(f"{files.path}: a {suffix} file holds no {lacking}; give CSV, TSV, JSONL or Parquet")
    return files, form, word_form


def read_labelled(
    examples: Path | ExampleFiles,
    task: Any,
    columns: Columns,
    *,
    with_labels: bool = True,
    usual: Columns | None = None,
    like: Labelled | None = None,
    separator: str | None = None,
    reading: Reading = AS_FOUND,
) -> Labelled:
    """Reads a labelled file, or the files of a folder (see `example_files`).

    Args:
        task: A `Task`, which may know that texts come in pairs; or its class.
        columns: The columns that the user named.
        with_labels: Whether labels are read.
        usual: The columns of an earlier file, used if this one has them.
        like: The training file, whose kind of labels this file has, too.
        separator: Separator of several labels in a cell; empty: a cell is one label. None: `;`, and an error if another
            character seems to separate them.
        reading: How the user says that files are read.
    """
    files = example_files(examples) if isinstance(examples, Path) else examples
    path, bad = files.path, BadInput(skip=False, way_out=None, reading=reading)
    files, form, word_form = _opened(files, task, with_labels, reading)
    source = files.sources[0]
    names: Sequence[str] | None = None
    id_at: str | None = None
    counts = Counter[str]()
    roles = task.fixed or Columns(text="text", label="label")
    if form == "table":
        how = (files, task, columns, usual or Columns(), bad, counts)
        rows, roles, names, id_at = _table_rows(*how, with_labels=with_labels)
    elif word_form is not None:
        # Columns of earlier files are a table's, since those of words are not stored.
        own = Columns() if with_labels and getattr(like or task, "columns", None) else columns
        rows = _treebank_rows(source.path, word_form, own, bad, with_labels=with_labels)
    else:
        rows = _squad_rows(source.path, bad, with_labels=with_labels) if form == "squad" else _lines(source, bad)
    if not with_labels:
        roles = roles.model_copy(update={"label": None})
    what = "question" if form == "squad" else "row"
    records, ids, places, num_chars = list[Any](), list[Any](), list[int](), 0
    first_fault: CorpusError | None = None
    num_faults = 0
    for place, (number, cells) in enumerate(rows):
        row = LabelledRow(number, f"{path}: {what} {number}", cells, roles, names, counts)
        try:
            record = task.of_row(row)
            row.check_characters(record)
        except CorpusError as error:
            first_fault, num_faults = first_fault or error, num_faults + 1
            continue
        if with_labels and not has_text(record):
            counts["rows without text: left out"] += 1
            continue
        id_ = without_gaps(cells.get(_ID))
        records.append(record)
        ids.append(id_ if isinstance(id_, str | int | float | None) else str(id_))
        places.append(number - 1 if form == "lines" else place)
        num_chars += sum(map(len, record.texts))
        check_size(path, len(records), num_chars)
    if first_fault is not None:
        others = f"; in all there are {num_faults:,} rows that cannot be read" if num_faults > 1 else ""
        raise CorpusError(f"{first_fault}{others}", options=first_fault.options) from first_fault
    if not records:
        raise CorpusError(f"{path}: there is no example in this file{f'; {_SQUAD}' if form == 'squad' else ''}")
    chosen = roles.model_dump(exclude_none=True) if form == "table" and task.fixed is None else {}
    keys = [] if with_labels else _keys(ids, places, path, id_at, is_text=source.kind in ("csv", "tsv"))
    notes = [] if word_form is None or like is not None else [f"{path}: {word_form.title}"]
    notes += [f"{path}: {count:,} {what}" for what, count in counts.items() if count]
    read = Labelled(path, records, chosen, notes, names, keys=keys)
    return task.settled(read, like, separator) if with_labels else read


def _keys(ids: list[Any], places: list[int], path: Path, id_at: str | None, *, is_text: bool) -> list[tuple[str, Any]]:
    """The keys of records (see `Labelled`), whose ids stand in a column called `id_at`, as text or as values."""
    if id_at is not None and id_at.strip().lower() not in (_ID, "_id"):
        if len({*ids}) < len(ids):
            ids = [None] * len(ids)
            log.warning("%s: column %r repeats values, so rows have an index instead of ids", path, id_at)
        elif id_at.lower() not in USUAL["id"]:
            log.warning("%s: ids are read from column %r", path, id_at)
    elif id_at is None and (None in ids or len({*ids}) < len(ids)):  # names of sequences may be missing, or repeat
        ids = [None] * len(ids)
    if is_text and all(str(whole_number(str(id_))) == id_ != "None" for id_ in ids):
        ids = [int(id_) for id_ in ids]  # numbers, as in pandas
    return [("index", place) for place in places] if set(ids) == {None} else [("id", id_) for id_ in ids]


# ----------------------------------------
# Tables, and detecting their columns of texts and labels.


def _table_rows(
    files: ExampleFiles,
    task: Any,
    named: Columns,
    usual: Columns,
    bad: BadInput,
    counts: Counter[str],
    *,
    with_labels: bool,
) -> tuple[Rows, Columns, Sequence[str] | None, str | None]:
    """The rows of all sources, which form one table; its columns; and, if it has any, names of the classes by number
    and the column of ids."""
    known = [name for columns in (named, usual, task.fixed or usual) for name in vars(columns).values() if name]
    names = None if any(vars(usual).values()) and "".join(known).replace(",", "").isdigit() else known
    sources = [replace(each, layout=find_layout(each, bad, names, task.delimiter or "")) for each in files.sources]
    if line := described(sources[0], bad, named=True, section="finetune" if with_labels else None):
        log.warning("%s: %s", files.path, line)

    def read(only: Iterable[str]) -> Rows:
        begin = number = 0
        for source in sources:
            for number, row in rows_of(source, bad, only=only):
                if is_decided and row.get("answer") in ("reject", "ignore"):
                    counts["rows were rejected or ignored by their annotator: left out"] += 1
                else:
                    yield begin + number, row
            begin, number = begin + number, 0

    look = first_rows(sources[0], bad)
    if not look:
        return iter(()), Columns(), None, None
    if task.fixed is not None:
        chosen = {
            role: find_column(look, "text", name, where=files.path)
            for role, name in named.model_dump(exclude_none=True).items()
            if with_labels or role != "label"
        }
        columns = task.fixed.model_copy(update=chosen)
    else:
        # Unless the user names others, columns of an earlier file apply if they hold text here.
        earlier = {
            role: name
            for role, name in (("text", usual.text), ("second", usual.second))
            if name and any(isinstance(value_at(row, name), str | list) for row in look)
        }
        columns = Columns(**earlier | named.model_dump(exclude_none=True))
        columns = _find_columns(look, task, columns, files.path, with_label=with_labels)
    labels = label_columns(look, columns.label) if with_labels and columns.label is not None else []
    used = [*filter(None, (columns.text, columns.second)), *labels]
    is_decided = with_labels and task.fixed is None and "answer" not in used  # by the annotator, in Prodigy
    if task.fixed is not None:
        used = [name for name in (*used, *ANSWER_COLUMNS) if has_column(look, name)]
    else:  # with spans, words may have their text in another column
        used += [*["text"] * (task.text_role == "words"), *["answer"] * is_decided]
    id_column = find_column(look, "id", where=files.path, taken=[*used, usual.label])
    rows = read([*used, *filter(None, [id_column])])
    if any(name.startswith("annotations.result") for name in labels):
        rows = _last_annotations(rows, counts)
    if id_column is not None:
        rows = ((number, row | {_ID: value_at(row, id_column)}) for number, row in rows)
    return rows, columns, labels if len(labels) > 1 else class_names(files.sources[0], columns.label), id_column


def _last_annotations(rows: Rows, counts: Counter[str]) -> Rows:
    """Tasks of Label Studio with their last annotation that was not cancelled; those without one are left out. The
    annotations of several people would otherwise be merged, and skipped texts would be texts without entities."""
    for number, row in rows:
        annotations = row.get("annotations")
        if isinstance(annotations, list):
            valid = [each for each in annotations if isinstance(each, dict) and not each.get("was_cancelled")]
            if not valid:
                counts["rows have no annotation, or only cancelled ones: left out"] += 1
                continue
            counts["rows have several annotations: the last one is used"] += len(valid) > 1
            row["annotations"] = valid[-1:]
        yield number, row


def label_columns(rows: Sequence[dict[str, Any]], named: str) -> list[str]:
    """The columns of labels that a name means: `toxic,obscene` is two, unless there is a column of this name."""
    return [named] if "," not in named or has_column(rows, named) else [part.strip() for part in named.split(",")]


def _find_columns(
    rows: Sequence[dict[str, Any]], task: Any, named: Columns, path: Path, *, with_label: bool
) -> Columns:
    """The columns of a table: as the user named them, else by usual names, else by the content of the first rows."""
    names = columns_in(rows)
    pairing: Pairing = "always" if task.paired else task.pairing
    for role, name in vars(named).items():
        if name is not None and (role != "label" or with_label):
            parts = label_columns(rows, name) if role == "label" and task.of_flags else [name]
            columns_of_role = [str(find_column(rows, "text", part, where=path)) for part in parts]
            named = named.model_copy(update={role: ",".join(columns_of_role)})
    text, second = named.text, None if pairing == "no" else named.second
    label = named.label or find_column(rows, task.label_role, where=path)
    if task.text_role == "words":  # labels may also be spans of characters, beside a text or words with spans (Prodigy)
        words = find_column(rows, "words", where=path)
        spans = [name for name in names if any(holds_spans(parsed_list(row.get(name))) for row in rows)]
        labels = [name for name in spans if name != words and named.label in (None, name)]
        if labels and (words is None or words in spans or label is None):
            label = labels[0]
            text = text or (words if words in spans else likeliest_text(rows, {label}))
    named_texts = {text, second} - {None}
    if len(named_texts) < 2 and (pairing == "always" or second or (pairing == "usual" and not text)):
        others = [name for name in _pair(rows, named_texts, label) if name not in named_texts]
        text, second = text or next(iter(others), None), second or next(reversed(others), None)
    if text is None and pairing != "always":
        taken = {label, second}
        text = find_column(rows, "words", where=path, taken=taken) if task.text_role == "words" else None
        if text is None and (task.text_role == "text" or not with_label):  # words can be predicted in raw text, too
            text = likeliest_text(rows, taken, clear=True) or find_column(rows, "text", where=path, taken=taken)
    if label is None and with_label:
        label = _find_label(rows, task, {text, second}, path)
    columns = {"text": text, "second": second, "label": label if with_label else None}
    for role in ("text", *["second"] * (pairing == "always"), *["label"] * with_label):
        if columns[role] is None:
            way_out = f" with finetune.columns.{role}=COLUMN" if with_label else ""
            what = f"cannot tell which column is the {role}: there are {listed(names_in(rows))}; name it{way_out}"
            raise CorpusError(f"{path}: {what}", options=(role,))
    return Columns(**columns)


def _find_label(rows: Sequence[dict[str, Any]], task: Any, texts: set[str | None], path: Path) -> str | None:
    """Detects the column of labels by its content: the only column beside the texts; several columns of 0 and 1; or the
    only one that may hold labels. None if no column may; a CorpusError if several may."""
    rest = [name for name in columns_in(rows) if name not in texts]
    rest = [name for name in rest if any(without_gaps(row.get(name)) not in (None, "", [], {}) for row in rows)]
    flags = [name for name in rest if task.of_flags and name.lower() not in USUAL["id"] and are_flags(rows, name)]
    if flags or task.label_role == "tags" or len(rest) == 1:
        return ",".join(flags or rest[: len(rest) == 1]) or None
    likely = likely_labels(rows, texts, of=task.labels)
    if len(likely) > 1:
        samples = listed((f"{name!r} ({listed(values, 3)})" for name, values in likely.items()), 8)
        what = f"several columns may be the label: {samples}; name the one with finetune.columns.label=COLUMN"
        raise CorpusError(f"{path}: {what}", options=("label",))
    return next(iter(likely), None)


def _pair(rows: Sequence[dict[str, Any]], named: set[str | None], label: str | None) -> Sequence[str]:
    """Two columns of texts, which include the `named` one: by usual names, else two whose names differ only in a number
    or a letter, such as `#1 String` and `#2 String`."""
    names = columns_in(rows)
    by_name = {name.lower(): name for name in names}
    pairs = [(by_name[first], by_name[second]) for first, second in PAIRS if {first, second} <= by_name.keys()]
    if not named:
        weights = text_weights(rows, {label})
        texts = [name for name in names if name in weights and not name.isdigit()]
        stem = {name: re.sub(r"\d|(?<![^\W_])[ab](?![^\W_])", "", name.lower()) for name in texts}
        pairs += [(first, second) for first, second in combinations(texts, 2) if stem[first] == stem[second]]
    return next((pair for pair in pairs if named <= {*pair}), ())


# ----------------------------------------
# Other forms.


def _lines(source: Source, bad: BadInput) -> Rows:
    blank = Counter[str]()
    for text in read_documents([source], bad, unit="line", piece_chars=LONGEST_ROW, skipped=blank):
        number = text.document + 1 + blank.total()
        if not text.last:
            raise CorpusError(f"{source.path}: text {number} is longer than {LONGEST_ROW:,} characters; cut it")
        yield number, {"text": text.text, _ID: None if isinstance(text.id, int) else text.id}


def _treebank_rows(path: Path, form: WordForm, columns: Columns, bad: BadInput, *, with_labels: bool) -> Rows:
    """The sentences of a file with one word per line; for a multiword token of CoNLL-U, its words."""
    word = form.word if columns.text is None else form.column(columns.text, path)
    tag = form.tag if columns.label is None else form.column(columns.label, path)
    for lines in read_sentences(path, form, bad):
        try:
            words = [line for line in lines or () if form.kind == "conll" or word_number(line) is not None]
            cells: dict[str, Any] = {"text": [line.cell(word) for line in words], _ID: lines[0].id if lines else None}
            if with_labels:
                cells["label"] = [line.cell(tag) for line in words]
        except ValueError as error:
            raise CorpusError(f"{path}: line {error}") from error
        if words:
            yield words[0].number, cells


def _squad_rows(path: Path, bad: BadInput, *, with_labels: bool) -> Rows:
    """The questions of a file in SQuAD's form (1.1 or 2.0), read article by article, with cells as in `datasets`.

    Source: Rajpurkar et al. 2016 and 2018 (SQuAD and SQuAD 2.0), the form of their files.
    """
    number = 1
    for _, article in json_rows(path, bad, field="data"):
        try:
            if "paragraphs" not in article:  # a row, with the cells of `datasets` already
                yield number, article
                number += 1
            for paragraph in article.get("paragraphs", ()):
                context = paragraph["context"]
                for question in paragraph["qas"]:
                    cells = {"question": question["question"], "context": context, _ID: question.get(_ID)}
                    if with_labels:
                        answers = [] if question.get("is_impossible") else question["answers"]
                        columns = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                        cells["answers"] = columns
                    yield number, cells
                    number += 1
        except (LookupError, TypeError, AttributeError) as error:
            what = f"{type(error).__name__} {error}"
            raise CorpusError(f"{path}: question {number} cannot be read ({what}); {_SQUAD}") from error


# ----------------------------------------
# Cells.

# Spellings of 0 and 1, and -1 for cells that mean neither.
_FLAGS = dict.fromkeys(("0", "0.0", "false"), 0) | dict.fromkeys(("1", "1.0", "true"), 1)
_FLAGS |= dict.fromkeys((*NO_LABEL, "-", "-1", "-1.0", "none"), -1)
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_ITEM = re.compile(rf"{_QUOTED.pattern}|[^\s\[\]]+")
_ARRAY = re.compile(r"array\((\[.*?\])(?:, dtype=\w+)?\)")


def flag_of(value: Any) -> int | None:
    """0 or 1; -1 if the cell is empty or says that the value is unknown; None for any other value."""
    return _FLAGS.get(str(value).strip().lower())


def are_flags(rows: Sequence[dict[str, Any]], column: str) -> bool:
    """Whether a column holds 0 and 1, and otherwise only missing values."""
    flags = {flag_of(value_at(row, column)) for row in rows}
    return None not in flags and flags != {-1}


def spelled(cell: str) -> Any:
    """Parses a list or object in a cell of CSV, as JSON, Python (`['a', 'b']`), numpy (`['a' 'b']`, `[0. 1.]`) or
    pandas (`{'a': array([1])}`) write it. None if it is none."""
    text = _ARRAY.sub(r"\1", cell.strip())
    if text[:1] + text[-1:] not in ("[]", "{}"):
        return None
    with suppress(ValueError):
        return parse_json(text)
    if text[0] == "[" and "," not in _QUOTED.sub("", text):
        text = f"[{', '.join(_ITEM.findall(text[1:-1]))}]"
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ast.literal_eval(text)
    return None


def list_in(cell: str) -> list[Any] | None:
    """The list in a cell of CSV; None if it is none."""
    value = spelled(cell)
    return value if isinstance(value, list) else None


def parsed_list(value: Any) -> Any:
    """The list that a text contains; any other value unchanged."""
    items = list_in(value) if isinstance(value, str) else None
    return value if items is None else items


def nearest(text: str, part: str, begin: int) -> int | None:
    """The first character of the occurrence of a part of a text that is nearest to `begin`; None if there is none."""
    places = text.rfind(part, 0, max(begin, 0) + len(part)), text.find(part, max(begin, 0))
    return min((place for place in places if place >= 0), key=lambda place: abs(place - begin), default=None)


@dataclass(frozen=True)
class LabelledRow:
    """A row of a labelled file, read by role; a CorpusError names the place of a cell that is missing or wrong."""

    number: int  # counted from 1; the line in a text file
    where: str  # file and row, for errors
    cells: dict[str, Any]  # by column
    columns: Columns  # the columns by role
    names: Sequence[str] | None = None  # names of classes by number, if the file has them, or of several label columns
    counts: Counter[str] = field(default_factory=Counter)  # notes about the file, with the number of cases

    def cell(self, role: Literal["text", "second", "label"]) -> tuple[Any, str]:
        """The value, and its location for errors."""
        column = getattr(self.columns, role)
        value = value_at(self.cells, column, NOTHING)
        if value is NOTHING and role == "label" and (parts := label_columns([self.cells], column))[1:]:
            value = [value_at(self.cells, part) for part in parts]
        if value is NOTHING:
            raise CorpusError(f"{self.where} has no column {column!r}, only {listed(self.cells)}")
        return value, f"{self.where}, column {column!r}:"

    def text(self, role: Literal["text", "second"] = "text") -> str:
        value, place = self.cell(role)
        try:
            text = text_in(value)
        except ValueError:
            text = None
        if text is None and without_gaps(value) is not None:
            raise CorpusError(f"{place} has {type(value).__name__}, not a text")
        return text or ""

    def check_characters(self, record: Any) -> None:
        """Raises a CorpusError if texts, labels or id of this row's record hold an invalid character."""
        label = getattr(record, "label", None)
        labels = label if isinstance(label, tuple | list) else [label]
        texts = (*record.texts, *map(str, labels), str(self.cells.get(_ID)))
        if broken := next(filter(None, map(broken_character, texts)), None):
            raise CorpusError(f"{self.where} holds {broken}, which is not a character; remove it")

    def class_name(self, value: Any, place: str) -> str | None:
        try:
            name = class_name(value, self.names)
        except ValueError as error:
            raise CorpusError(f"{place} has {error}") from error
        return None if name is None or name.lower() in NO_LABEL else name
