"""Rows of tables as documents: JSON (`json_rows.py`), CSV and TSV (`delimited.py`), Parquet, and the Arrow files of
`datasets`.

file  ──first rows──▶ columns (columns.py) ──rows──▶ texts, each with class, group, id, title and annotations
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.core.errors import CorpusError, listed, parse_json, shortened, shown
from unmask.data.columns import (
    NOTHING,
    PARAGRAPH,
    USUAL,
    ColumnNames,
    Fact,
    fact_of,
    find_column,
    has_column,
    joined,
    named_column,
    names_in,
    text_columns,
    text_in,
    value_at,
)
from unmask.data.delimited import USUAL_DELIMITER, delimited_rows, find_layout
from unmask.data.json_rows import json_rows
from unmask.data.reading import BROKEN_LINES, CUT_OFF, BadInput, LinePart, Row, broken_character
from unmask.data.settings import CorpusSettings
from unmask.data.sources import TABLES, Source, TextColumn
from unmask.data.treebanks import doc_rows
from unmask.tokenizer.spans import read_fields, without_returns

log = logging.getLogger(__name__)

LOOK_ROWS = 200  # rows in which columns are found
UNREADABLE = "rows with values that cannot be read"
WITHOUT = "rows without text"


class TableColumns(NamedTuple):
    text: tuple[str, ...]
    id: str | None = None
    title: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (*self.text, self.id, self.title) if name is not None]

    def are_in(self, rows: Sequence[Row]) -> bool:
        """Whether a table has the columns of texts and ids; titles may be missing beside ids."""
        return all(has_column(rows, name) for name in (*self.text, self.id or self.title) if name is not None)


def with_columns(
    sources: Sequence[Source],
    text: ColumnNames,
    bad: BadInput,
    *,
    id: str | bool = False,  # noqa: A002
    title: str | bool = False,
    label: str | None = None,
    group: str | None = None,
    usual: Sequence[TableColumns] = (),
) -> list[Source]:
    """The sources, with the columns of tables, found in the first rows of each file. Unusual layouts of CSV and TSV are
    announced.

    Tables with the same columns are read in the same way, that of the first. A table without rows gets no column.

    Args:
        text: A column of text, a path into one, several of these as a list or separated by commas; None finds it.
        id, title: The column of ids or titles; True: one with a usual name, if there is any; False: none.
        label: The column of classes, which at least one file must have.
        group: The column of groups, which all files must have.
        usual: Columns of earlier tables, used for tables that have those of texts and ids if no text column is named:
            those of the earlier table with most columns there.
    """
    # If a column is named, a file of tagged words is read as a table.
    are_tables = TABLES if text is not None else ()
    sources = [replace(each, kind=each.by_suffix) if each.by_suffix in are_tables else each for each in sources]
    named: dict[str, ColumnNames | bool] = {"corpus.holdout_groups": group}
    if not any(source.is_table for source in sources):
        named |= {"corpus.label": label, bad.setting("column"): text, "id_column": id, "title_column": title}
    _check_named(sources, named)
    named_others = [name for name in (id, title, label, group) if isinstance(name, str)]
    ready: list[Source] = []
    # A command without a setting for bad input has none for these either.
    section = "corpus" if isinstance(bad.reading, CorpusSettings) and bad.way_out is not None else None
    announced: dict[str, list[str]] = {}  # files by announcement
    alike: dict[frozenset[str], TableColumns] = {}  # by all columns of a table
    no_label = ""  # error for the first file without a column of classes
    for each in sources:
        if not each.is_table:
            ready.append(each)
            continue
        path, layout = each.path, find_layout(each, bad, [*named_in(text), *named_others])
        source = replace(each, layout=layout)
        rows = first_rows(source, bad)
        if not rows:  # Spark and dask write such files beside others
            announced.setdefault("contains no rows", []).append(path.name)
            ready.append(source)
            continue
        names = names_in(rows)
        columns = f"columns are {listed(names)}"
        taken = [named_column(rows, name) or name for name in named_others]
        label_at, group_at = (None if name is None else named_column(rows, name) for name in (label, group))
        if group is not None and group_at is None:
            raise CorpusError(f"{path}: there is no column {group!r} for corpus.holdout_groups; {columns}")
        label_at = label_at or (label if source.is_json else None)  # JSON may have it in later rows
        if label is not None and label_at is None and not no_label:
            no_label = f"{path}: there is no column {label!r} for corpus.label; {columns}"
        known = None
        if text is None:
            earlier = [each for each in usual if each.are_in(rows)]
            likest = max(earlier, key=lambda each: sum(has_column(rows, name) for name in each.names), default=None)
            known = alike.get(frozenset(names)) or likest
        at = _table_columns(path, rows, text, id, title, taken=taken, known=known)
        if not at.text:
            raise CorpusError(
                no_label or f"{path}: no column is clearly the text; {columns}; name it with {bad.setting('column')}"
            )
        alike.setdefault(frozenset(names), at)
        column = at.text[0] if len(at.text) == 1 else at.text
        ready.append(replace(source, column=column, label=label_at, group=group_at, id=at.id, title=at.title))
        if line := described(ready[-1], bad, named=text is not None, section=section):
            announced.setdefault(line, []).append(path.name)
    if not any(source.column or not source.is_table for source in ready):
        raise CorpusError(f"{ready[0].path}: contains no rows")
    for line, files in announced.items():
        log.warning("%s: %s", listed(files, 3), line)
    if no_label and not any(source.label for source in ready):
        raise CorpusError(no_label)
    return ready


def _check_named(sources: Sequence[Source], named: Mapping[str, ColumnNames | bool]) -> None:
    """Checks that all files are tables if columns are named."""
    no_tables = [source for source in sources if not source.is_table]
    for role, name in named.items() if no_tables else ():
        if not isinstance(name, bool | None):
            raise CorpusError(
                f"{role} = {name!r} names a column, but {no_tables[0].path} is {no_tables[0].kind}, which has none; "
                "give a table (CSV, TSV, Parquet, JSON; name JSON lines .jsonl), or leave this out",
                options=(role,),
            )


def _table_columns(
    where: Path,
    rows: Sequence[Row],
    text: ColumnNames,
    id: str | bool,  # noqa: A002
    title: str | bool,
    *,
    taken: Sequence[str],
    known: TableColumns | None,
) -> TableColumns:
    """As `with_columns`; `known` columns have precedence over detected ones, but not over named ones."""
    names = known.text if known else tuple(text_columns(rows, text, where=where, taken=taken))

    def column_of(role: Literal["id", "title"], choice: str | bool) -> str | None:
        if known and choice is True:
            name = known.id if role == "id" else known.title
            if name is None or has_column(rows, name):
                return name
        named = choice if isinstance(choice, str) else None
        return find_column(rows, role, named, where=where, taken=names) if choice else None

    return TableColumns(names, column_of("id", id), column_of("title", title))


def described(source: Source, bad: BadInput, *, named: bool, section: str | None) -> str | None:
    """The layout of a CSV or TSV file, and how to override it; None if it is usual or set."""
    layout = source.layout
    if layout is None:
        return None
    usual = named or (isinstance(source.column, str) and source.column.lower() in USUAL["text"])
    is_set = bad.reading.delimiter is not None and bad.reading.header != "auto"
    if (is_set or (layout.has_header and layout.delimiter == USUAL_DELIMITER[source.kind])) and usual:
        return None
    text = f", text in {in_words(source.column)}" if source.column else ""
    header = "a header" if layout.has_header else "no header (columns are numbered from 0)"
    settings = ("header", "delimiter", *(["column"] if source.column else []))
    ways = f" (override with {', '.join(f'{section}.{name}' for name in settings)})" if section else ""
    return f"{header}, delimiter {layout.delimiter!r}{text}{ways}"


# ----------------------------------------
# Rows, file by file


def named_in(column: ColumnNames) -> list[str]:
    """The columns that a user may mean: `a,b` may be one column or two."""
    names = [] if column is None else [column] if isinstance(column, str | int) else column
    return [part for name in map(str, names) for part in (name, *map(str.strip, name.split(",")))]


def rows_of(source: Source, bad: BadInput, *, only: Iterable[str] | None = None) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a table with their numbers, counted from 1 (line numbers in text files).

    `only` names the columns, and fields within them, that are used. Other columns of Parquet and Arrow files are not
    read and may hold anything. None: all are read, and values that cannot be read are null.
    """
    # Columns that may contain the fields: `a.b.c` is in `a`, in `a.b`, or a column itself.
    used = None
    if only is not None:
        used = {name[:end] for name in only for end in (*(i for i, c in enumerate(name) if c == "."), len(name))}
    if source.kind == "spacy":
        return doc_rows(source.path)
    if source.is_json:
        return json_rows(source.path, bad, source.stretch)
    if source.layout is not None:
        return delimited_rows(source.path, source.layout, bad, used)
    return _columnar(source, bad, used)


def first_rows(source: Source, bad: BadInput) -> list[Row]:
    """The first rows of a table, in which columns are found; bad rows are an error only if there are no others."""
    look = BadInput(skip=True, reading=bad.reading)
    rows = [row for _, row in itertools.islice(rows_of(source, look), LOOK_ROWS)]
    return rows or [row for _, row in itertools.islice(rows_of(source, bad), LOOK_ROWS)]


# Exceptions of pyarrow for damaged files, and for values that Python lacks or that are nested wrongly.
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError)
_NO_VALUE = (pa.ArrowException, ValueError, ArithmeticError, LookupError, TypeError)
_BATCH_ROWS, _BATCH_BYTES = 256, 1 << 24


def _columnar(source: Source, bad: BadInput, used: Collection[str] | None) -> Iterator[tuple[int, Row]]:
    path = source.path
    try:
        for number, batch in _batches(source, used):
            names = batch.schema.names
            if used is not None and (twice := [name for name, count in Counter(names).items() if count > 1]):
                raise CorpusError(f"{path}: several columns are called {twice[0]!r}; rename all but one")
            unread: dict[int, str] = {}  # values that Python lacks, by place in the batch
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
                            unread[place] = f"column {name!r} ({shown(str(column.type))}: {shortened(str(error))})"
                if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
                    values = list(map(_as_text, values))
                columns.append(values)
            for place, row in enumerate(zip(*columns, strict=True), number):
                if used is not None and place - number in unread:
                    what = f"row {place} has a value that cannot be read in {unread[place - number]}"
                    bad.report(UNREADABLE, f"{path}: {what}; fix or remove the row")
                else:
                    yield place, dict(zip(names, row, strict=True))
    except DAMAGED as error:
        kind = "a Parquet file" if source.kind == "parquet" else "an Arrow stream"
        bad.report(CUT_OFF, f"{path}: damaged or not {kind}: {shortened(str(error) or type(error).__name__)}")


def _as_text(value: bytes | None) -> bytes | str | None:
    """Bytes as text if they are UTF-8: Impala and Hive write texts without their type."""
    with suppress(UnicodeDecodeError):
        return None if value is None else value.decode()
    return value


def _batches(source: Source, used: Collection[str] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of rows, each with the number of its first row."""
    number = 1
    if source.kind == "parquet":
        with pq.ParquetFile(source.path) as file:
            names = None if used is None else [name for name in file.schema_arrow.names if name in used]
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            num_bytes = sum(max(0, group.total_byte_size) for group in groups)
            batch_rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES * file.metadata.num_rows // max(num_bytes, 1)))
            begin, end = source.stretch or (0, len(groups))
            number += sum(group.num_rows for group in groups[:begin])
            read = list(range(begin, end))
            for batch in file.iter_batches(batch_size=batch_rows, row_groups=read, columns=names or None):
                yield number, batch
                number += batch.num_rows
        return
    # A batch of Arrow is validated before use. It is mapped from the disk, and an offset changed by a flipped bit kills
    # the process (170 of 12,000 such files did; validated, none). Parquet's decoder checks by itself.
    with pa.memory_map(str(source.path)) as file, pa.ipc.open_stream(file) as stream:
        names = stream.schema.names
        places = [place for place, name in enumerate(names) if used is None or name in used]
        for batch in stream:
            checked = batch.select(places or list(range(len(names))))
            checked.validate(full=True)
            for begin in range(0, len(checked), _BATCH_ROWS):
                yield number + begin, checked.slice(begin, _BATCH_ROWS)
            number += len(checked)


# ----------------------------------------
# Rows as documents


def columns_of(column: TextColumn) -> tuple[str, ...]:
    return (column,) if isinstance(column, str) else column


def in_words(column: TextColumn) -> str:
    """A column for logs: `column 'text'`, `columns 'title' and 'body'`."""
    names = columns_of(column)
    return f"column{'s' if len(names) > 1 else ''} {' and '.join(map(repr, names))}"


def read_table(source: Source, bad: BadInput, fields: Mapping[str, str] | None) -> Iterator[LinePart]:
    """Yields the texts of a table, each with its label, group, id and title, if the source has columns of these, and
    with the annotations of `fields`: column to the name of its field."""
    column = source.column
    if column is None:  # a table without rows
        return
    facts: tuple[tuple[Fact, str | None], ...] = (
        ("label", source.label), ("group", source.group), ("id", source.id), ("title", source.title)
    )  # fmt: skip
    column_of = {role: name for role, name in facts if name is not None}
    classes = class_names(source, source.label)
    names = [*columns_of(column), *column_of.values(), *(fields or {}).values()]
    # Rows of a stretch of lines are counted from its beginning.
    begin = source.stretch.begin if source.is_json and source.stretch is not None else 0
    behind = f" after byte {begin:,}" if begin else ""
    for number, row in rows_of(source, bad, only=names):
        value = row.get(column) if isinstance(column, str) else None
        # The fast path: nearly always a text
        is_text = isinstance(value, str) and broken_character(value) is None
        text = value if is_text else _text_of(source.path, f"row {number}{behind}", row, column, bad)
        if text is None:
            continue
        if not (column_of or fields) and "\r" not in text:
            yield LinePart(text, True, True)
            continue
        values: dict[str, Any] = {}
        spans, what = None, "annotations"
        try:
            for role, name in column_of.items():
                try:
                    values[role] = fact_of(role, value_at(row, name), classes)
                except ValueError as error:
                    what = role
                    raise ValueError(f"has {error} in column {name!r}") from error
            if fields is not None and text:
                if not isinstance(column, str) or not isinstance(value_at(row, column), str):
                    raise ValueError(f"has annotations, but its text is split over {in_words(column)}; give it as one")
                spans = read_fields(row, text, fields)
        except ValueError as error:
            bad.report(f"rows whose {what} cannot be read", f"{source.path}: row {number}{behind} {error}")
            continue
        if "\r\n" in text:
            text, spans = text.replace("\r\n", "\n"), spans and without_returns(text, spans)
        yield LinePart(text, True, True, spans, **values)


def _text_of(path: Path, where: str, row: Row, column: TextColumn, bad: BadInput) -> str | None:
    """The text of a row, with several columns as paragraphs, empty if they are. If they cannot be read, reports that
    and returns None."""
    texts: list[str | None] = []
    for name in columns_of(column):
        if (value := value_at(row, name, NOTHING)) is NOTHING:
            continue
        try:
            text = text_in(value)
        except ValueError as error:
            bad.report(WITHOUT, f"{path}: column {name!r} of {where} is {error}")
            return None
        if text is not None and (broken := broken_character(text)):
            what = f"{path}: {where} has {broken} in column {name!r}, which is not a character; remove it"
            bad.report(BROKEN_LINES, what)
            return None
        texts.append(text)
    if not texts:
        what = f"no {in_words(column)}, only {listed(row)}; set {bad.setting('column')} to the text's column"
        bad.report(WITHOUT, f"{path}: {where} has {what}")
        return None
    return (texts[0] if isinstance(column, str) else joined(texts, PARAGRAPH)) or ""


def class_names(source: Source, column: str | None) -> tuple[str, ...] | None:
    """The names of a column's classes by number, which `datasets` writes into Parquet and Arrow files; None: no
    classes.

    ner_tags  list<int64>   [3, 0, 4]
    metadata  huggingface   {"info": {"features": {"ner_tags": {"_type": "List", "feature": {
                            "_type": "ClassLabel", "names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}}}}}
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
    except (*DAMAGED, ValueError, LookupError, TypeError):  # reading the rows reports a damaged file
        return None
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None
