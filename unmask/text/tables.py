"""Rows of tables, and what their columns say of text, classes and groups. A document is a row.

Tables are JSON lines, CSV and TSV, Parquet, and the Arrow files of `datasets`.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.errors import CorpusError
from unmask.text.reading import BROKEN_LINES, BadInput, LinePart, broken_character, read_lines
from unmask.text.sources import Source
from unmask.text.spans import read_fields, without_returns


def class_name(value: Any, names: Sequence[str] | None = None) -> str | None:
    """The name of a class; None where the value says nothing: null, an empty text, not-a-number.

    Whole numbers may come as 1.0, which is what pandas makes of integers in a column with gaps.

    Args:
        value: As it stands in the table.
        names: Of the classes by number, where the table says them (`class_names`); -1 says nothing then.

    Example: ` spam ` is `spam`, 3 and 3.0 are `3`, True is `true`; with the names `ham`, `spam`, 1 is `spam`.

    Raises:
        ValueError: It is no text, whole number or boolean, or a number without a name; the text says what it is.
    """
    if value is None or isinstance(value, str):
        return (value or "").strip() or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value)) if names is None else _named(int(value), names)
    shown = f"the number {value}" if isinstance(value, float) else type(value).__name__
    raise ValueError(f"{shown}, which is no class (a text, a whole number or a boolean)")


def _named(number: int, names: Sequence[str]) -> str | None:
    if number == -1:  # what `datasets` writes where there is no label
        return None
    if not 0 <= number < len(names):
        raise ValueError(f"the number {number}, where the file names {len(names)} classes, counted from 0,")
    return names[number].strip() or None


def group_name(value: Any) -> str | None:
    """What a table says of a document's group; None where it says nothing: null, an empty text, not-a-number.

    Raises:
        ValueError: It is no single value; the text says what it is.
    """
    if value is None or isinstance(value, str):
        return (value or "").strip() or None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # what pandas makes of whole numbers in a column with gaps
    if isinstance(value, list | dict | bytes):
        raise ValueError(f"{type(value).__name__}, which names no group (a text, a number or a date does)")
    return str(value)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names of classes in the order of their numbers: whole numbers by their size, else by the alphabet.

    Example: `10`, `9` are 9, 10; `10`, `9`, `x` are 10, 9, x.
    """
    found = set(names)
    if all(name.removeprefix("-").isdecimal() for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


_KEY = b"huggingface"
_LISTS = ("Sequence", "List", "LargeList")


def class_names(source: Source, column: str | None) -> tuple[str, ...] | None:
    """The names of a column's classes, or of those in its lists, in the order of their numbers.

    `datasets` writes them into its Parquet and Arrow files, whose columns hold numbers; -1 stands where there is no
    class.

        ner_tags  list<int64>   [3, 0, 4]
        metadata  huggingface   {"info": {"features": {"ner_tags": {"_type": "List", "feature": {
                                "_type": "ClassLabel", "names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}}}}}

    Args:
        source: A table.
        column: Of the classes.

    Returns:
        None where the file says none; what cannot be read of it is told where its rows are read.
    """
    if column is None or source.kind not in ("parquet", "arrow"):
        return None
    try:
        content = json.loads((_schema(source).metadata or {}).get(_KEY, b"{}"))
        return _names_of(content["info"]["features"][column])
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
        return None


def _schema(source: Source) -> pa.Schema:
    if source.kind == "parquet":
        with pq.ParquetFile(source.path) as file:
            return file.schema_arrow
    with pa.memory_map(str(source.path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.schema


def _names_of(feature: Any) -> tuple[str, ...] | None:
    """Lists are written as `{"_type": "List", "feature": ...}`, by older versions as `Sequence` or `[...]`."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names_of(feature[0])
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") in _LISTS:
        return _names_of(feature.get("feature"))
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names) or None


Row = dict[str, Any]
LONGEST_ROW = 1 << 26
# Names by which people call the text, the likeliest first; and names that only a header has.
TEXT_NAMES = (
    "text", "content", "sentence", "document", "body", "abstract", "article", "review", "sequence", "tweet", "comment",
    "message", "post", "headline", "description", "utterance", "paragraph",
)  # fmt: skip
OTHER_NAMES = {"label", "id", "title", "idx", "index", "score", "source", "url", "date", "category", "lang", "split"}
LOOK_ROWS = 200


def read_table(
    source: Source, column: str, bad: BadInput, fields: Mapping[str, str] | None = None
) -> Iterator[LinePart]:
    """Yields the texts of a column, with the classes in the source's column of labels where it names one.

    Args:
        source: A table.
        column: Name of the column; a number, counted from 0, where the table has no names.
        bad: What is done about rows without text.
        fields: Annotations that are read with it: column to the name of the field that holds it.

    Raises:
        CorpusError: The column is missing, a row cannot be read, its text is no string, its annotations are
            malformed, its label is no class, or its group no single value; with file and row.
    """
    names = class_names(source, source.label)
    for number, row in rows_of(source, bad, column, nested=fields is not None):
        if (text := text_of(source, number, row, column, bad)) is not None:
            spans, label = None, None
            if source.label is not None:
                try:
                    label = class_name(row.get(source.label), names)
                except ValueError as error:
                    found = f"{source.path}: row {number} has {error} in column {source.label!r}"
                    bad.found("rows whose label cannot be read", found)
                    continue
            group = None
            if source.group is not None:
                try:
                    group = group_name(row.get(source.group))
                except ValueError as error:
                    found = f"{source.path}: row {number} has {error} in column {source.group!r}"
                    bad.found("rows whose group cannot be read", found)
                    continue
            if fields is not None:
                try:
                    spans = read_fields(row, text, fields)
                except ValueError as error:
                    bad.found("rows whose annotations cannot be read", f"{source.path}: row {number} {error}")
                    continue
            if "\r\n" in text:
                text, spans = text.replace("\r\n", "\n"), spans and without_returns(text, spans)
            yield LinePart(text, True, True, spans, label, group)


def text_of(source: Source, number: int, row: Row, column: str, bad: BadInput) -> str | None:
    """The text of a row; None where it has none, which `bad` is told.

    Raises:
        CorpusError: As `read_table`.
    """
    value = row.get(column)
    if column not in row:
        bad.found(
            "rows without text",
            f"{source.path}: row {number} has no column {column!r}, only {', '.join(row)}; "
            "name the text's column with --set corpus.column=NAME",
        )
    elif value is None:
        bad.found("rows without text", f"{source.path}: row {number} has no text in column {column!r}")
    elif not isinstance(value, str):
        bad.found(
            "rows without text",
            f"{source.path}: column {column!r} of row {number} is {type(value).__name__}, not a text",
        )
    elif broken := broken_character(value):
        bad.found(
            BROKEN_LINES,
            f"{source.path}: row {number} has {broken} in column {column!r}, which is no character; take it out",
        )
    else:
        return value
    return None


def with_columns(sources: Iterable[Source], wanted: str | int | None, bad: BadInput) -> list[Source]:
    """The sources, tables among them with the column in which their text stands; each file may have its own.

    Args:
        sources: The files.
        wanted: What the user named, if anything.
        bad: As for reading.

    Raises:
        CorpusError: As `find_column`.
    """
    return [replace(s, column=find_column(s, wanted, bad)) if s.is_table else s for s in sources]


def find_column(source: Source, wanted: str | int | None, bad: BadInput, *, among: Iterable[str] = ()) -> str:
    """Chooses the text's column: by its name, else the one with most text.

    Args:
        source: The table; its first rows are looked at.
        wanted: What the user named, if anything.
        bad: As for reading.
        among: Names of other columns that are known to be there, so that a header is told from a row.

    Raises:
        CorpusError: It is not there, or no column holds text.
    """
    rows = [row for _, row in itertools.islice(rows_of(source, bad, wanted, known=among), LOOK_ROWS)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if wanted is not None:
        if str(wanted) not in names:
            raise CorpusError(f"{source.path}: there is no column {str(wanted)!r}; columns are {', '.join(names)}")
        return str(wanted)
    others = [name for name in names if name not in (source.label, source.group)]
    texts = [name for name in others if _looks_like_text([row[name] for row in rows if row.get(name)])]
    if not texts:
        raise CorpusError(
            f"{source.path}: no column looks like text; columns are {', '.join(names) or 'none'}; name one with "
            "--set corpus.column=NAME"
        )
    for name in TEXT_NAMES:
        if found := next((column for column in texts if column.lower() == name), None):
            return found
    return max(texts, key=lambda name: sum(len(row[name]) for row in rows if isinstance(row.get(name), str)))


def _looks_like_text(values: Sequence[Any]) -> bool:
    """Whether at least half of the values are strings with letters, so neither numbers nor dates."""
    lettered = sum(isinstance(value, str) and any(map(str.isalpha, value)) for value in values)
    return lettered > 0 and 2 * lettered >= len(values)


def rows_of(
    source: Source, bad: BadInput, column: str | int | None, *, nested: bool = False, known: Iterable[str] = ()
) -> Iterator[tuple[int, Row]]:
    """The rows of a table with their numbers, counted from 1 (lines of the file where it is a text).

    Args:
        source: A table.
        bad: What is done about what cannot be read.
        column: That of the text, where it is known.
        nested: Whether lists and structures of Parquet and Arrow files are read, which takes time.
        known: Other columns that are known to be there: by these names, too, a header is told from a row.
    """
    if source.kind in ("csv", "tsv"):
        asked = {str(name).lower() for name in (column, source.label, source.group, *known) if name is not None}
        return _delimited(source.path, bad, tabs=source.kind == "tsv", asked=asked)
    if source.kind == "jsonl":
        return _jsonl(source.path, bad)
    return (_parquet if source.kind == "parquet" else _arrow)(source.path, bad, nested)


def _jsonl(path: Path, bad: BadInput) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(_whole_lines(path, bad), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            bad.found("rows that are not JSON", f"{path}: line {number} is not JSON: {error}")
            continue
        if isinstance(row, str):
            row = {"text": row}
        if isinstance(row, dict):
            yield number, row
        else:
            bad.found("rows that are not JSON", f"{path}: line {number} is {type(row).__name__}, not an object")


def _delimited(path: Path, bad: BadInput, *, tabs: bool, asked: set[str]) -> Iterator[tuple[int, Row]]:
    """CSV with quotes; TSV as it is, since quotes there are mostly letters like any other.

    The first row holds names if one of them is a column that was asked for, or a name that is common.
    """
    known = {*TEXT_NAMES, *OTHER_NAMES, *(name for name in asked if not name.isdigit())}
    csv.field_size_limit(LONGEST_ROW)
    lines = (line + "\n" for line in _whole_lines(path, bad))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    names: list[str] | None = None
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad.found("rows that are not CSV", f"{path}: line {reader.line_num}: {error}")
            continue
        if cells is None:
            return
        if not cells:
            continue
        if names is None:
            is_header = any(cell.strip().lower() in known for cell in cells)
            names = [cell.strip() for cell in cells] if is_header else [str(n) for n in range(len(cells))]
            if is_header:
                continue
        if any(cell.strip() for cell in cells[len(names) :]):
            bad.found(
                "rows with too many cells",
                f"{path}: line {reader.line_num} has {len(cells)} cells where the table has {len(names)} columns; "
                + ("a text must hold no tab" if tabs else 'put a text with commas between quotes ("...")'),
            )
            continue
        yield reader.line_num, dict(zip(names, cells, strict=False))


def _parquet(path: Path, bad: BadInput, nested: bool) -> Iterator[tuple[int, Row]]:
    try:
        with pq.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(batch_size=256), nested)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        bad.found("files that are cut off", f"{path}: damaged or not a Parquet file: {error}")


def _arrow(path: Path, bad: BadInput, nested: bool) -> Iterator[tuple[int, Row]]:
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            yield from _numbered(stream, nested)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        bad.found("files that are cut off", f"{path}: damaged or not an Arrow stream: {error}")


def _numbered(batches: Iterator[pa.RecordBatch], nested: bool) -> Iterator[tuple[int, Row]]:
    number = 0
    for batch in batches:
        plain = [i for i, kind in enumerate(batch.schema.types) if nested or not pa.types.is_nested(kind)]
        for row in batch.select(plain).to_pylist():
            number += 1
            yield number, row


def _whole_lines(path: Path, bad: BadInput) -> Iterator[str]:
    parts: list[str] = []
    size = 0
    for part in read_lines(path, bad):
        parts.append(part.text)
        size += len(part.text)
        if size > LONGEST_ROW:
            raise CorpusError(f"{path}: a row is longer than {LONGEST_ROW:,} characters; give such text as .txt")
        if part.ends:
            yield "".join(parts)
            parts, size = [], 0
