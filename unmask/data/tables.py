"""Rows of tables, and what their columns say of a document: its text, class, group, id, title, annotations.

Tables are JSON (`json_rows.py`), CSV and TSV, Parquet, and the Arrow files of `datasets`. A document is a row.
"""

from __future__ import annotations

import csv
import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.core.errors import CorpusError, listed, parse_json, shortened, shown
from unmask.data.json_rows import json_rows
from unmask.data.reading import (
    BROKEN_LINES,
    CUT_OFF,
    LONGEST_ROW,
    BadInput,
    LinePart,
    Row,
    Stretch,
    broken_character,
    whole_lines,
)
from unmask.data.sources import Source, TextColumn
from unmask.data.values import (
    NOTHING,
    PARAGRAPH,
    class_name,
    group_name,
    has_column,
    id_of,
    is_chat,
    joined,
    names_in,
    paths_in,
    text_in,
    title_of,
    value_at,
)
from unmask.tokenizer.spans import read_fields, without_returns

ColumnNames = str | int | Sequence[str | int] | None  # as a user names it: a column, several, or none
_NAME_COLUMN = "corpus.column or the option column"
LOOK_ROWS = 200  # are looked at to find columns
UNREADABLE = "rows with values that cannot be read"
WITHOUT = "rows without text"
NOT_CSV = "rows that are not CSV"

# ----------------------------------------
# Names of columns by what they hold, the likeliest first. Every command finds columns by this table.

Role = Literal[
    "text", "chat", "id", "title", "label", "score", "tags", "words", "query", "answer", "negative", "match"
]  # fmt: skip
USUAL: Mapping[Role, tuple[str, ...]] = {
    "text": (
        "text", "content", "sentence", "document", "body", "abstract", "article", "review", "sequence", "tweet",
        "comment", "message", "post", "headline", "description", "utterance", "paragraph",
    ),
    "chat": ("messages", "conversations", "conversation"),
    "id": ("id", "_id"),
    "title": ("title", "headline", "heading", "subject"),
    "label": ("label", "labels", "gold_label", "class", "category", "target", "y"),
    "score": ("score", "label", "similarity_score", "value", "rating", "target", "y"),
    "tags": ("tags", "ner_tags", "pos_tags", "upos", "upos_tags", "labels"),
    "words": ("tokens", "words"),
    "query": ("query", "question", "anchor", "first", "sentence1", "text1", "text_a", "premise", "title"),
    "answer": (
        "text", "passage", "positive", "document", "answer", "second", "sentence2", "text2", "text_b", "hypothesis",
        "body",
    ),
    "negative": ("negative", "hard_negative", "negative_1"),
    "match": ("label", "score", "similarity", "similarity_score"),
}  # fmt: skip
# A header of CSV is recognised by these names, or by two names of the table above; the others may also be values.
_ALSO_VALUES = {
    "y", "first", "second", "value", "target", "class", "question", "query", "passage", "answer", "positive",
    "negative", "anchor", "premise", "similarity", "heading", "subject",
}  # fmt: skip
_USUAL_NAMES = {name for names in USUAL.values() for name in names}
_HEADER_NAMES = (_USUAL_NAMES - _ALSO_VALUES) | {
    "idx", "index", "source", "url", "date", "lang", "split", "question1", "question2", "text2",
}  # fmt: skip


def find_column(
    rows: Sequence[Row],
    role: Role,
    named: str | None = None,
    *,
    where: str | Path,
    taken: Collection[str | None] = (),
) -> str | None:
    """The column of a table with a role: the named one, else the first that has a usual name. Letters' case is ignored.

    Args:
        rows: First rows of the table.
        role: What it holds.
        named: As the user named it; a field within a column by its path.
        where: What errors call the table.
        taken: Columns that have another role.

    Returns:
        None where no column has a usual name.

    Raises:
        CorpusError: There is no column of this name.
    """
    if named is not None:
        if has_column(rows, named):
            return named
        close = difflib.get_close_matches(named, paths_in(rows), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise CorpusError(f"{where}: there is no column {named!r}; columns are {names_in(rows)}{hint}")
    by_name = {name.strip().lower(): name for row in reversed(rows) for name in reversed(row) if name not in taken}
    return next((by_name[name] for name in USUAL[role] if name in by_name), None)


def with_columns(
    sources: Iterable[Source],
    named: ColumnNames,
    bad: BadInput,
    *,
    id: str | bool = False,  # noqa: A002
    title: str | bool = False,
) -> list[Source]:
    """The sources, tables among them with the columns of their text, ids and titles; each file may have its own.

    The text of a table stands in the named columns, in one with a usual name, or in that with most text, which may be
    the messages of a chat.

    Args:
        sources: Files; of tables the first rows are looked at.
        named: A column of text, a path into one, several of these as a list or with commas between them; None: none.
        bad: As for reading.
        id, title: Those of ids and titles: a name; True: one with a usual name, if there is any; False: none.
    """
    return [_with_columns(s, named, bad, {"id": id, "title": title}) if s.is_table else s for s in sources]


def _with_columns(source: Source, named: ColumnNames, bad: BadInput, others: Mapping[Role, str | bool]) -> Source:
    taken = [name for name in (*others.values(), source.label, source.group) if isinstance(name, str)]
    rows = first_rows(source, bad, named, known=taken)
    if named is None:
        if (likely := _likely_text(rows, taken=taken)) is None:
            raise CorpusError(
                f"{source.path}: no column looks like text; columns are {names_in(rows)}; name one with {_NAME_COLUMN}"
            )
        names = [likely]
    else:
        names = [str(named)] if isinstance(named, str | int) else [str(name) for name in named]
        if len(names) == 1 and "," in names[0] and not has_column(rows, names[0]):
            names = [part.strip() for part in names[0].split(",")]
        if not names:
            raise CorpusError(f"{source.path}: no column is named in an empty list; name one, or none at all")
        for name in names:
            find_column(rows, "text", name, where=source.path)
    columns: dict[Role, str | None] = {}
    for role, other in others.items():
        usual = None if isinstance(other, bool) else other
        columns[role] = find_column(rows, role, usual, where=source.path, taken=names) if other else None
    column = names[0] if len(names) == 1 else tuple(names)
    return replace(source, column=column, id=columns["id"], title=columns["title"])


def _likely_text(rows: Sequence[Row], *, taken: Collection[str | None]) -> str | None:
    """The column with a usual name that mostly holds text, else that with the most text; None where there is none."""
    texts, chats, num_chars = [], [], Counter[str]()
    for name in dict.fromkeys(name for row in rows for name in row if name not in taken):
        values = [row[name] for row in rows if row.get(name)]
        # letters, so neither numbers nor dates
        has_letters = [isinstance(value, str) and any(map(str.isalpha, value)) for value in values]
        if 2 * sum(has_letters) >= max(len(values), 1):
            texts.append(name)
        elif name.lower() in USUAL["chat"] and 2 * sum(map(is_chat, values)) >= max(len(values), 1):
            chats.append(name)
        for value in values if name in (*texts, *chats) else ():
            with suppress(ValueError):
                num_chars[name] += len(text_in(value) or "")
    for usual in USUAL["text"]:
        if likely := [name for name in texts if name.lower() == usual]:
            return likely[0]
    return max([*texts, *chats], key=lambda name: num_chars[name], default=None)


# ----------------------------------------
# Rows, file by file


def rows_of(
    source: Source, bad: BadInput, column: ColumnNames, *, known: Iterable[str] = (), only: Iterable[str] | None = None
) -> Iterator[tuple[int, Row]]:
    """The rows of a table with their numbers, counted from 1 (lines of the file where it is a text).

    Args:
        source: A table.
        bad: What is done about what cannot be read.
        column: That of the text, where it is named.
        known: Other columns that are named: by these names, too, a header is recognised.
        only: The columns, and fields within them, that are used. No others are read of Parquet and Arrow files, since
            there may be anything in them. None: all are read, and what cannot be read of them is null.

    Raises:
        CorpusError: A row cannot be read, or a name of `only` stands for several columns; with file and row.
    """
    # The columns in which fields may be: `a.b.c` is in `a`, in `a.b`, or a column itself.
    used = None
    if only is not None:
        used = {name[:end] for name in only for end in (*(i for i, c in enumerate(name) if c == "."), len(name))}
    if source.is_json:
        return json_rows(source.path, bad, source.stretch)
    if source.kind in ("csv", "tsv"):
        names = [] if column is None else [column] if isinstance(column, str | int) else column
        # `a,b` may be a column of this name, or two
        named = [part for name in map(str, names) for part in (name, *map(str.strip, name.split(",")))]
        own = filter(None, (source.label, source.group, source.id, source.title))
        header = {name.lower() for name in (*named, *known, *own)}
        return _delimited(source.path, bad, tabs=source.kind == "tsv", header=header, used=used)
    return _columnar(source, bad, used)


def first_rows(source: Source, bad: BadInput, column: ColumnNames, known: Iterable[str] = ()) -> list[Row]:
    """The first rows of a table, by which columns are found."""
    return [row for _, row in itertools.islice(rows_of(source, bad, column, known=known), LOOK_ROWS)]


# What pyarrow raises of damaged files; of values that Python does not have; and of ones that are nested wrongly.
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError)
_NO_VALUE = (pa.ArrowException, ValueError, ArithmeticError, LookupError, TypeError)
_BATCH_ROWS, _BATCH_BYTES = 256, 1 << 24


def _columnar(source: Source, bad: BadInput, used: Collection[str] | None) -> Iterator[tuple[int, Row]]:
    """The rows of a Parquet file, or of an Arrow stream."""
    path, is_parquet = source.path, source.kind == "parquet"
    try:
        for number, batch in _parquet(path, used, source.stretch) if is_parquet else _arrow(path, used):
            names = batch.schema.names
            if used is not None and (twice := [name for name, count in Counter(names).items() if count > 1]):
                raise CorpusError(f"{path}: there are several columns {twice[0]!r}; rename all but one")
            unread: dict[int, str] = {}  # by place in the batch, values that Python does not have
            columns = []
            for name, column in zip(names, batch.columns, strict=True):
                try:
                    values = column.to_pylist()
                except _NO_VALUE:
                    values = [None] * len(column)
                    for place, scalar in enumerate(column):
                        try:
                            values[place] = scalar.as_py()
                        except _NO_VALUE as error:
                            kind = f"{shown(str(column.type))}: {_reason(error)}"
                            unread[place] = f"a value in column {name!r} that cannot be read ({kind})"
                columns.append(values)
            for place, row in enumerate(zip(*columns, strict=True), number):
                if used is not None and place - number in unread:
                    what = f"{path}: row {place} has {unread[place - number]}; mend it, or take the row out"
                    bad.report(UNREADABLE, what)
                else:
                    yield place, dict(zip(names, row, strict=True))
    except DAMAGED as error:
        kind = "a Parquet file" if is_parquet else "an Arrow stream"
        bad.report(CUT_OFF, f"{path}: damaged or not {kind}: {_reason(error)}")


def _parquet(path: Path, used: Collection[str] | None, stretch: Stretch | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches, each with the number of its first row."""
    with pq.ParquetFile(path) as file:
        names = None if used is None else [name for name in file.schema_arrow.names if name in used]
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        num_bytes = sum(max(0, group.total_byte_size) for group in groups)
        batch_rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES * file.metadata.num_rows // max(num_bytes, 1)))
        read = None if stretch is None else list(range(*stretch))
        number = 1 + sum(group.num_rows for group in groups[: 0 if stretch is None else stretch.begin])
        for batch in file.iter_batches(batch_size=batch_rows, row_groups=read, columns=names or None):
            yield number, batch
            number += batch.num_rows


def _arrow(path: Path, used: Collection[str] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """As `_parquet`. A batch is checked before it is used: it lies in memory as on the disk, and a place in it that a
    flipped bit has moved ends the process. (Of 12,000 files with a flipped bit, 170 did so unchecked and none checked.
    Parquet's decoder checks by itself.)"""
    number = 1
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        names = stream.schema.names
        places = [place for place, name in enumerate(names) if used is None or name in used]
        for batch in stream:
            checked = batch.select(places or list(range(len(names))))
            checked.validate(full=True)
            for begin in range(0, len(checked), _BATCH_ROWS):
                yield number + begin, checked.slice(begin, _BATCH_ROWS)
            number += len(checked)


def _reason(error: BaseException) -> str:
    """The first line of a library's error, in which names out of the file may stand."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return shortened("".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line))


def _delimited(
    path: Path, bad: BadInput, *, tabs: bool, header: set[str], used: Collection[str] | None
) -> Iterator[tuple[int, Row]]:
    """CSV with quotes; TSV as it is, since quotes there are mostly letters like any other.

    The first row holds names if one of them is in `header`, or if they look like names.
    """
    sure = _HEADER_NAMES | {name for name in header if not name.isdigit()}
    csv.field_size_limit(LONGEST_ROW)
    lines = (line + "\n" for line in whole_lines(path, bad))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    names: list[str] | None = None
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            end, problem = reader.line_num, str(error)
            if begin < end:  # mostly a quote within it was never closed
                is_open = "unexpected end" in problem or "field larger" in problem
                end_of_row = f"goes on to line {end}, where {problem}; a quote may be left open"
                what = f"has a quote that is not closed by line {end}" if is_open else end_of_row
                problem = f'the row that begins here {what}; close it, and write quotes within a text twice ("")'
            bad.report(NOT_CSV, f"{path}: line {begin}: {problem}")
            bad.counts[NOT_CSV] += end - begin  # all lines that a quote took in
            continue
        if cells is None:
            return
        if not cells:
            continue
        if names is None:
            stripped = [cell.strip() for cell in cells]
            lower = {cell.lower() for cell in stripped}
            is_header = bool(lower & sure) or len(lower & _USUAL_NAMES) > 1
            names = stripped if is_header else [str(n) for n in range(len(cells))]
            if twice := [name for name, count in Counter(names).items() if count > 1 and name in (used or ())]:
                raise CorpusError(f"{path}: there are several columns {twice[0]!r}; rename all but one")
            if is_header:
                continue
        if any(cell.strip() for cell in cells[len(names) :]):
            advice = "a text must hold no tab" if tabs else 'put a text with commas between quotes ("...")'
            width = f"{len(cells)} cells where the table has {len(names)} columns"
            bad.report("rows with too many cells", f"{path}: line {reader.line_num} has {width}; {advice}")
            continue
        yield reader.line_num, dict(zip(names, cells, strict=False))


# ----------------------------------------
# Rows as documents


def columns_of(column: TextColumn) -> tuple[str, ...]:
    """The columns, one or several."""
    return (column,) if isinstance(column, str) else column


def in_words(column: TextColumn) -> str:
    """As logs name it: `column 'text'`, `columns 'title' and 'body'`."""
    names = columns_of(column)
    return f"column{'s' if len(names) > 1 else ''} {' and '.join(map(repr, names))}"


def read_table(source: Source, bad: BadInput, fields: Mapping[str, str] | None = None) -> Iterator[LinePart]:
    """Yields the texts of a table, each with what the source's columns of labels, groups, ids and titles say of it.

    Args:
        source: A table with the column of its text.
        bad: What is done about rows without text.
        fields: Annotations that are read with it: column to the name of the field that holds it.
    """
    column = source.column
    assert column is not None, "the column of a table is found before it is read"
    classes = class_names(source, source.label)
    converters: dict[str, tuple[str, Callable[[Any], Any]]] = {
        role: (name, convert)
        for role, name, convert in (
            ("label", source.label, lambda value: class_name(value, classes)),
            ("group", source.group, group_name),
            ("id", source.id, id_of),
            ("title", source.title, title_of),
        )
        if name is not None
    }
    names = [*columns_of(column), *(name for name, _ in converters.values()), *(fields or {}).values()]
    for number, row in rows_of(source, bad, column, only=names):
        value = row.get(column) if isinstance(column, str) else None
        # nearly always a text, and worth being quick at
        is_text = isinstance(value, str) and broken_character(value) is None
        text = value if is_text else _text_of(source, number, row, column, bad)
        if text is None:
            continue
        if not (converters or fields) and "\r" not in text:
            yield LinePart(text, True, True)
            continue
        values: dict[str, Any] = {}
        spans, role = None, "annotations"
        try:
            for role, (name, convert) in converters.items():
                try:
                    values[role] = convert(value_at(row, name))
                except ValueError as error:
                    raise ValueError(f"has {error} in column {name!r}") from error
            role = "annotations"
            if fields is not None:
                if not isinstance(column, str) or not isinstance(value_at(row, column), str):
                    parts = f"joined of parts, in {in_words(column)}; give it as one text"
                    raise ValueError(f"has annotations of a text that is {parts}")
                spans = read_fields(row, text, fields)
        except ValueError as error:
            bad.report(f"rows whose {role} cannot be read", f"{source.row(number)} {error}")
            continue
        if "\r\n" in text:
            text, spans = text.replace("\r\n", "\n"), spans and without_returns(text, spans)
        yield LinePart(text, True, True, spans, **values)


def _text_of(source: Source, number: int, row: Row, column: TextColumn, bad: BadInput) -> str | None:
    """The text of a row; None where it has none, which `bad` counts. Of several columns each is a paragraph."""
    texts: list[str | None] = []
    for name in columns_of(column):
        if (value := value_at(row, name, NOTHING)) is NOTHING:
            continue
        try:
            text = text_in(value)
        except ValueError as error:
            bad.report(WITHOUT, f"{source.path}: column {name!r} of row {number} is {error}")
            return None
        if text is not None and (broken := broken_character(text)):
            what = f"{source.row(number)} has {broken} in column {name!r}, which is no character; take it out"
            bad.report(BROKEN_LINES, what)
            return None
        texts.append(text)
    whole = (texts[0] if isinstance(column, str) else joined(texts, PARAGRAPH)) if texts else None
    if whole is None:
        what = f"no text in {in_words(column)}"
        if not texts:
            what = f"no {in_words(column)}, only {listed(row)}; name the text's column with {_NAME_COLUMN}"
        bad.report(WITHOUT, f"{source.row(number)} has {what}")
    return whole


def class_names(source: Source, column: str | None) -> tuple[str, ...] | None:
    """The names of a column's classes, or of those in its lists, in the order of their numbers.

    `datasets` writes them into its Parquet and Arrow files, whose columns hold numbers:

        ner_tags  list<int64>   [3, 0, 4]
        metadata  huggingface   {"info": {"features": {"ner_tags": {"_type": "List", "feature": {
                                "_type": "ClassLabel", "names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}}}}}

    Returns:
        None where the file says none, or cannot be read, which reading its rows will report.
    """
    if column is None or source.kind not in ("parquet", "arrow"):
        return None
    try:
        if source.kind == "parquet":
            schema = pq.read_schema(source.path)
        else:
            with pa.memory_map(str(source.path)) as file, pa.ipc.open_stream(file) as stream:
                schema = stream.schema
        feature = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"][column]
        # Lists are `{"_type": "List", "feature": ...}`, in older versions `Sequence` or `[...]`.
        while isinstance(feature, list) or feature["_type"] in ("Sequence", "List", "LargeList"):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
    except (*DAMAGED, ValueError, LookupError, TypeError):
        return None
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None
