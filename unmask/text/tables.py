"""What the columns of a table say of its documents: text, classes, groups, annotations. A document is a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.text.columnar_rows import DAMAGED
from unmask.text.json_rows import Row
from unmask.text.reading import BadInput, LinePart
from unmask.text.sources import Source, TextColumn
from unmask.text.spans import Spans, read_fields, without_returns
from unmask.text.table_rows import rows_of
from unmask.text.text_columns import columns_of, in_words, text_of, value_or_none
from unmask.values import parse_json, whole_number


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
    numbers = {name: _number(name) for name in found}
    if None not in numbers.values():
        return tuple(sorted(found, key=lambda name: (numbers[name], name)))
    return tuple(sorted(found))


def _number(name: str) -> int | None:
    """The whole number that a name is; None where it is none, or of more digits than a class has."""
    number = whole_number(name.removeprefix("-"))
    return None if number is None else -number if name.startswith("-") else number


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
        content = parse_json((_schema(source).metadata or {}).get(_KEY, b"{}"))
        return _names_of(content["info"]["features"][column])
    except (*DAMAGED, ValueError, KeyError, TypeError):
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


def read_table(
    source: Source, column: TextColumn, bad: BadInput, fields: Mapping[str, str] | None = None
) -> Iterator[LinePart]:
    """Yields the texts of a column or of several, with the classes in the source's column of labels where it names one.

    Args:
        source: A table.
        column: As `find_column` has found it.
        bad: What is done about rows without text.
        fields: Annotations that are read with it: column to the name of the field that holds it.

    Raises:
        CorpusError: The column is missing, a row cannot be read, its text is no string, its annotations are
            malformed, its label is no class, or its group no single value; with file and row.
    """
    names = class_names(source, source.label)
    others = [name for name in (source.label, source.group) if name is not None]
    used = [*columns_of(column), *others, *(fields or {}).values()]
    for number, row in rows_of(source, bad, column, nested=fields is not None, only=used):
        if (text := text_of(source, number, row, column, bad)) is not None:
            spans, label = None, None
            if source.label is not None:
                try:
                    label = class_name(value_or_none(row, source.label), names)
                except ValueError as error:
                    found = f"{source.row(number)} has {error} in column {source.label!r}"
                    bad.found("rows whose label cannot be read", found)
                    continue
            group = None
            if source.group is not None:
                try:
                    group = group_name(value_or_none(row, source.group))
                except ValueError as error:
                    found = f"{source.row(number)} has {error} in column {source.group!r}"
                    bad.found("rows whose group cannot be read", found)
                    continue
            if fields is not None:
                try:
                    spans = _spans(row, text, column, fields)
                except ValueError as error:
                    bad.found("rows whose annotations cannot be read", f"{source.row(number)} {error}")
                    continue
            if "\r\n" in text:
                text, spans = text.replace("\r\n", "\n"), spans and without_returns(text, spans)
            yield LinePart(text, True, True, spans, label, group)


def _spans(row: Row, text: str, column: TextColumn, fields: Mapping[str, str]) -> Spans:
    """The annotations of a row, whose text stands there as one, so that characters of it can be counted."""
    if not isinstance(column, str) or not isinstance(value_or_none(row, column), str):
        raise ValueError(
            f"has annotations of a text that is joined of parts, in {in_words(column)}; give it as one text"
        )
    return read_fields(row, text, fields)
