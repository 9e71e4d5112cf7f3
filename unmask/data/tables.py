"""What the columns of a table say of its documents: text, classes, groups, annotations. A document is a row."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.core.errors import CorpusError, listed, parse_json, shortened, shown, whole_number
from unmask.data.reading import (
    BROKEN_LINES,
    CUT_OFF,
    LONGEST_ROW,
    BadInput,
    LinePart,
    Row,
    Stretch,
    broken_character,
    json_rows,
    whole_lines,
)
from unmask.data.sources import Source, TextColumn
from unmask.tokenizer.spans import Spans, read_fields, without_returns

# ----------------------------------------
# Rows of Parquet files and of the Arrow files of `datasets`, column by column, of files that may be damaged.
#
# Columns that nobody uses are not read, since there may be anything in them. A batch of an Arrow file is checked before
# it is used: it lies in memory as it lies on the disk, and a place in it that a flipped bit has moved ends the process.
# (Of 12,000 files with a flipped bit, 170 did so unchecked and none checked. Parquet's decoder checks by itself.)

# What pyarrow raises of damaged files; of values that Python does not have; and of ones that are nested wrongly.
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError)
_NO_VALUE = (pa.ArrowException, ValueError, ArithmeticError, LookupError, TypeError)
UNREADABLE = "rows with values that cannot be read"
_BATCH_ROWS, _BATCH_BYTES = 256, 1 << 24


def parquet_rows(
    path: Path,
    bad: BadInput,
    *,
    only: Collection[str] | None,
    within: Collection[str] | None,
    stretch: Stretch | None = None,
) -> Iterator[tuple[int, Row]]:
    """The rows of a Parquet file with their numbers, counted from 1.

    Args:
        path: The file.
        bad: What is done about a damaged file, and about values that cannot be read.
        only: The columns that are read; None reads all, those that cannot be read as nulls.
        within: Lists and structures that are read; None reads all.
        stretch: Which groups of rows are read; None reads all.

    Raises:
        CorpusError: The file is damaged, a value of `only` is none that Python has, or a name of `only` stands for
            several columns.
    """
    try:
        with pq.ParquetFile(path) as file:
            only = _held(file.schema_arrow, only)
            rows, num_bytes = file.metadata.num_rows, sum(_group_bytes(file))
            most = min(_BATCH_ROWS, max(1, _BATCH_BYTES * rows // max(num_bytes, 1)))
            groups = None if stretch is None else list(range(*stretch))
            batches = file.iter_batches(batch_size=most, row_groups=groups, columns=only and list(only))
            before = sum(file.metadata.row_group(number).num_rows for number in range(groups[0] if groups else 0))
            yield from _numbered(batches, path, bad, only, within, before=before)
    except DAMAGED as error:
        bad.found(CUT_OFF, f"{path}: damaged or not a Parquet file: {_reason(error)}")


def _group_bytes(file: pq.ParquetFile) -> Iterator[int]:
    """Size of each group of rows, unpacked."""
    for number in range(file.metadata.num_row_groups):
        yield max(0, file.metadata.row_group(number).total_byte_size)


def arrow_rows(
    path: Path, bad: BadInput, *, only: Collection[str] | None, within: Collection[str] | None
) -> Iterator[tuple[int, Row]]:
    """The rows of an Arrow stream; arguments, result and errors as for `parquet_rows`."""
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            only = _held(stream.schema, only)
            yield from _numbered(_whole(stream, only, within), path, bad, only, within)
    except DAMAGED as error:
        bad.found(CUT_OFF, f"{path}: damaged or not an Arrow stream: {_reason(error)}")


def _whole(
    stream: pa.RecordBatchReader, only: Collection[str] | None, within: Collection[str] | None
) -> Iterator[pa.RecordBatch]:
    """The batches, of which what is read is whole."""
    for batch in stream:
        taken = batch.select(_places(batch.schema, only, within))
        taken.validate(full=True)
        yield taken


def _held(schema: pa.Schema, only: Collection[str] | None) -> set[str] | None:
    """The columns of `only` that are there; all where there is none, so that the reader of the rows tells of it."""
    return None if only is None else {name for name in schema.names if name in only} or None


def _reason(error: BaseException) -> str:
    """The first line of what a library says, in which names out of the file may stand."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return shortened("".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line))


def _places(schema: pa.Schema, only: Collection[str] | None, within: Collection[str] | None) -> list[int]:
    """The columns that are read."""
    if only is not None:
        return [place for place, name in enumerate(schema.names) if name in only]
    return [
        place
        for place, field in enumerate(schema)
        if within is None or field.name in within or not pa.types.is_nested(field.type)
    ]


def _numbered(
    batches: Iterator[pa.RecordBatch],
    path: Path,
    bad: BadInput,
    only: Collection[str] | None,
    within: Collection[str] | None,
    *,
    before: int = 0,
) -> Iterator[tuple[int, Row]]:
    number = before
    for batch in batches:
        taken = batch.select(_places(batch.schema, only, within))
        names = taken.schema.names
        if only is not None and (twice := [name for name, count in Counter(names).items() if count > 1]):
            raise CorpusError(f"{path}: there are several columns {twice[0]!r}; rename all but one")
        unread: dict[int, str] = {}
        columns = [_values(column, name, unread) for name, column in zip(names, taken.columns, strict=True)]
        for place, values in enumerate(zip(*columns, strict=True)):
            number += 1
            if only is not None and place in unread:
                bad.found(UNREADABLE, f"{path}: row {number} has {unread[place]}; mend it, or take the row out")
            else:
                yield number, dict(zip(names, values, strict=True))


def _values(column: pa.Array, name: str, unread: dict[int, str]) -> list[Any]:
    """The values of a column; None where Python has none, which is told by the place in the batch."""
    try:
        return list(column.to_pylist())
    except _NO_VALUE:
        found = []
        for place, scalar in enumerate(column):
            try:
                found.append(scalar.as_py())
            except _NO_VALUE as error:
                found.append(None)
                unread[place] = (
                    f"a value in column {name!r} that cannot be read ({shown(str(column.type))}: {_reason(error)})"
                )
        return found


# ----------------------------------------
# Rows of tables, file by file: a row is its names with their values.
#
# Tables are JSON (`json_rows.py`), CSV and TSV, Parquet, and the Arrow files of `datasets`.

AskedColumn = str | int | Sequence[str | int] | None  # what a user names: a column, several, or none
# Names by which people call the text, the likeliest first; those of chats; and names that only a header has.
TEXT_NAMES = (
    "text", "content", "sentence", "document", "body", "abstract", "article", "review", "sequence", "tweet", "comment",
    "message", "post", "headline", "description", "utterance", "paragraph",
)  # fmt: skip
CHAT_NAMES = ("messages", "conversations", "conversation")
OTHER_NAMES = {"label", "id", "title", "idx", "index", "score", "source", "url", "date", "category", "lang", "split"}
LOOK_ROWS = 200
NOT_CSV = "rows that are not CSV"


def rows_of(
    source: Source,
    bad: BadInput,
    column: AskedColumn,
    *,
    nested: bool = False,
    known: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> Iterator[tuple[int, Row]]:
    """The rows of a table with their numbers, counted from 1 (lines of the file where it is a text).

    Args:
        source: A table.
        bad: What is done about what cannot be read.
        column: That of the text, where it is known.
        nested: Whether all lists and structures of Parquet and Arrow files are read, which takes time; else only those
            in which the text is, or where its column is not known, may be.
        known: Other columns that are known to be there: by these names, too, a header is told from a row.
        only: All columns, and fields within them, that the rows are read for, so that others do not matter; None: the
            rows are looked at, and what cannot be read in them is null.

    Raises:
        CorpusError: A row cannot be read, or a name of `only` stands for several columns; with file and row.
    """
    used = None if only is None else _holders(only)
    others = [str(name) for name in (source.label, source.group, *known) if name is not None]
    if source.kind in ("csv", "tsv"):
        asked = {name.lower() for name in (*asked_names(column), *others)}
        return _delimited(source.path, bad, tabs=source.kind == "tsv", asked=asked, used=used)
    if source.is_json:
        return json_rows(source.path, bad, source.stretch)
    text_within = CHAT_NAMES if column is None else asked_names(column)
    within = None if nested else _holders([*text_within, *others])
    if source.kind == "parquet":
        return parquet_rows(source.path, bad, only=used, within=within, stretch=source.stretch)
    return arrow_rows(source.path, bad, only=used, within=within)


def asked_names(column: AskedColumn) -> list[str]:
    """All names that a user may mean: `a,b` is a column of this name, or two."""
    if column is None:
        return []
    names = [str(column)] if isinstance(column, str | int) else [str(name) for name in column]
    return [each for name in names for each in dict.fromkeys((name, *(part.strip() for part in name.split(","))))]


def _holders(names: Iterable[str]) -> set[str]:
    """The columns in which fields may be: `a.b.c` is in `a`, in `a.b`, or a column itself."""
    return {name[:end] for name in names for end in (*(i for i, sign in enumerate(name) if sign == "."), len(name))}


def _delimited(
    path: Path, bad: BadInput, *, tabs: bool, asked: set[str], used: Collection[str] | None
) -> Iterator[tuple[int, Row]]:
    """CSV with quotes; TSV as it is, since quotes there are mostly letters like any other.

    The first row holds names if one of them is a column that was asked for, or a name that is common.
    """
    known = {*TEXT_NAMES, *OTHER_NAMES, *(name for name in asked if not name.isdigit())}
    csv.field_size_limit(LONGEST_ROW)
    lines = (line + "\n" for line in whole_lines(path, bad))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    names: list[str] | None = None
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad.found(NOT_CSV, f"{path}: {_broken_row(error, begin, reader.line_num)}")
            bad.counts[NOT_CSV] += reader.line_num - begin  # all lines that a quote took in
            continue
        if cells is None:
            return
        if not cells:
            continue
        if names is None:
            is_header = any(cell.strip().lower() in known for cell in cells)
            names = [cell.strip() for cell in cells] if is_header else [str(n) for n in range(len(cells))]
            if twice := [name for name, count in Counter(names).items() if count > 1 and name in (used or ())]:
                raise CorpusError(f"{path}: there are several columns {twice[0]!r}; rename all but one")
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


def _broken_row(error: csv.Error, begin: int, end: int) -> str:
    """What is wrong with a row: where it goes over several lines, mostly that a quote within it was never closed."""
    if begin == end:
        return f"line {end}: {error}"
    if "unexpected end" in str(error) or "field larger" in str(error):
        found = f"the row that begins here has a quote that is not closed by line {end}"
    else:
        found = f"the row that begins here goes on to line {end}, where {error}; a quote may be left open"
    return f'line {begin}: {found}; close it, and write quotes within a text twice ("")'


# ----------------------------------------
# Where the text of a row stands: a column, a field within one, several columns, or the messages of a chat.
#
#     column                      row                                                         text
#     "text"                      {"text": "One."}                                            One.
#     "content.text"              {"content": {"text": "One.", "url": "..."}}                 One.
#     "paragraphs.text"           {"paragraphs": [{"text": "One."}, {"text": "Two."}]}        One.\nTwo.
#     ["title", "body"]           {"title": "One", "body": "Two."}                            One\n\nTwo.
#     "messages"                  {"messages": [{"role": "user", "content": "One?"}, ...]}    One?\n\n...
#
# A column that is itself called `content.text` has precedence, and one called `title,body` too.

_LINE, _PARAGRAPH = "\n", "\n\n"
_SPEAKERS = (("role", "content"), ("from", "value"))  # of a message: who speaks, and what
_WITHIN = 3  # levels of fields that errors name
_MOST_NAMES = 40
WITHOUT = "rows without text"
_NOTHING = object()


def columns_of(column: TextColumn) -> tuple[str, ...]:
    """The columns, one or several."""
    return (column,) if isinstance(column, str) else column


def in_words(column: TextColumn) -> str:
    """As logs name it: `column 'text'`, `columns 'title' and 'body'`."""
    names = columns_of(column)
    return f"column{'s' if len(names) > 1 else ''} {' and '.join(map(repr, names))}"


def value_at(row: Row, name: str) -> Any:
    """The value of a column, or that of a field within, whose path has dots. Of a list on the way it is all values.

    Example: `a.b` is 1 in `{"a.b": 1}` and in `{"a": {"b": 1}}`, and [1, 2] in `{"a": [{"b": 1}, {"b": 2}]}`.

    Raises:
        KeyError: There is no such column or field.
    """
    if name in row:
        return row[name]
    for end in range(len(name) - 1, 0, -1):
        if name[end] == "." and name[:end] in row:
            try:
                return _within(row[name[:end]], name[end + 1 :])
            except KeyError:
                continue
    raise KeyError(name)


def _within(value: Any, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return value_at(value, name)
    if not isinstance(value, list):
        raise KeyError(name)
    found: list[Any] = []
    has_any = not value
    for each in value:
        if isinstance(each, dict):
            try:
                inner = value_at(each, name)
            except KeyError:
                continue
            has_any = True
            found.extend(inner if isinstance(inner, list) else [inner])
    if not has_any:
        raise KeyError(name)
    return found


def text_in(value: Any) -> str | None:
    """The text that a value is, or that its parts are together; None where it has none.

    Texts in a list are lines; those of messages paragraphs, in their order and without who speaks. Parts of a message
    (`{"type": "text", "text": "..."}`) that are no texts are left out.

    Raises:
        ValueError: It is neither a text nor such a list; the text says what it is.
    """
    if value is None or isinstance(value, str):
        return value
    if (messages := _messages(value)) is not None:
        return _joined((_content(message) for message in messages), _PARAGRAPH)
    if isinstance(value, list):
        return _joined((_part(each, "a list of") for each in value), _LINE)
    if isinstance(value, dict):
        raise ValueError(f"dict, not a text{_fields(value)}")
    raise ValueError(f"{type(value).__name__}, not a text")


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages, each with a role and a content, or with `from` and `value`."""
    return _messages(value) is not None


def _messages(value: Any) -> list[Any] | None:
    """The contents of the messages of a chat; None where a value is none."""
    for speaker, content in _SPEAKERS:
        if isinstance(value, dict):  # as columns, in which `datasets` kept lists of objects
            who, what = value.get(speaker), value.get(content)
            if isinstance(who, list) and isinstance(what, list):
                return what
        elif isinstance(value, list) and all(isinstance(each, dict) and speaker in each for each in value):
            contents = [each[content] for each in value if content in each]
            if contents:
                return contents
    return None


def _content(value: Any) -> str | None:
    """The text of a message: it may be a list of parts, or lack where a tool is called."""
    if isinstance(value, list):
        return _joined((_part(each, "a message with") for each in value), _LINE)
    return _part(value, "a message with")


def _part(value: Any, of_what: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        text = value.get("text")
        return text if isinstance(text, str) else None  # a picture, a call of a tool
    fields = _fields(value) if isinstance(value, dict) else ""
    raise ValueError(f"{of_what} {type(value).__name__}, not of texts{fields}")


def _fields(value: dict[str, Any]) -> str:
    names = ", ".join(itertools.islice(value, _MOST_NAMES))
    return f"; its fields are {names}: name the one with the text behind a dot" if names else ""


def _joined(parts: Iterable[str | None], between: str) -> str | None:
    """The parts that are not empty; None where there is none at all."""
    found = [part for part in parts if part is not None]
    return between.join(part for part in found if part and not part.isspace()) if found else None


def text_of(source: Source, number: int, row: Row, column: TextColumn, bad: BadInput) -> str | None:
    """The text of a row; None where it has none, which `bad` is told.

    Of several columns each that is not empty is a paragraph.

    Raises:
        CorpusError: The column is missing, or it holds no text; with file and row.
    """
    value = row.get(column) if isinstance(column, str) else None
    if isinstance(value, str) and broken_character(value) is None:
        return value  # nearly always, and worth being quick at
    found: list[str | None] = []
    for name in columns_of(column):
        try:
            text = text_in(value_at(row, name))
        except KeyError:
            continue
        except ValueError as error:
            bad.found(WITHOUT, f"{source.path}: column {name!r} of row {number} is {error}")
            return None
        if text is not None and (broken := broken_character(text)):
            bad.found(
                BROKEN_LINES,
                f"{source.row(number)} has {broken} in column {name!r}, which is no character; take it out",
            )
            return None
        found.append(text)
    if not found:
        bad.found(
            WITHOUT,
            f"{source.row(number)} has no {in_words(column)}, only {listed(row)}; "
            "name the text's column with --set corpus.column=NAME",
        )
        return None
    whole = found[0] if isinstance(column, str) else _joined(found, _PARAGRAPH)
    if whole is None:
        bad.found(WITHOUT, f"{source.row(number)} has no text in {in_words(column)}")
    return whole


def with_columns(sources: Iterable[Source], wanted: AskedColumn, bad: BadInput) -> list[Source]:
    """The sources, tables among them with the column in which their text stands; each file may have its own.

    Args:
        sources: The files.
        wanted: What the user named, if anything.
        bad: As for reading.

    Raises:
        CorpusError: As `find_column`.
    """
    return [replace(s, column=find_column(s, wanted, bad)) if s.is_table else s for s in sources]


def find_column(source: Source, wanted: AskedColumn, bad: BadInput, *, among: Iterable[str] = ()) -> TextColumn:
    """Chooses the text's column: by its name, else the one with most text, which the messages of a chat may be.

    Args:
        source: The table; its first rows are looked at.
        wanted: What the user named, if anything: a column, a path into one, several of these as a list or with commas
            between them.
        bad: As for reading.
        among: Names of other columns that are known to be there, so that a header is told from a row.

    Raises:
        CorpusError: It is not there, or no column holds text.
    """
    known = list(among)

    def look(*, nested: bool = False) -> list[Row]:
        return [row for _, row in itertools.islice(rows_of(source, bad, wanted, nested=nested, known=known), LOOK_ROWS)]

    rows = look()
    if wanted is None:
        if found := _guessed(source, rows):
            return found
        raise CorpusError(
            f"{source.path}: no column looks like text; columns are {names_in(look(nested=True))}; name one with "
            "--set corpus.column=NAME"
        )
    names = [str(wanted)] if isinstance(wanted, str | int) else [str(name) for name in wanted]
    if len(names) == 1 and "," in names[0] and not has_column(rows, names[0]):
        names = [part.strip() for part in names[0].split(",")]
    if not names:
        raise CorpusError(f"{source.path}: no column is named in an empty list; name one, or none at all")
    if missing := next((name for name in names if not has_column(rows, name)), None):
        raise CorpusError(f"{source.path}: there is no column {missing!r}; columns are {names_in(look(nested=True))}")
    return names[0] if len(names) == 1 else tuple(names)


def has_column(rows: Sequence[Row], name: str) -> bool:
    """Whether one of some rows has a column, or a field within one. Nulls on the way say nothing, unless all are."""
    if any(name in row for row in rows):
        return True
    found = [_value_or(row, name, _NOTHING) for row in rows]
    missing, nulls = (sum(each is what for each in found) for what in (_NOTHING, None))
    return missing + nulls < len(found) or (nulls > 0 and not missing)


def value_or_none(row: Row, name: str) -> Any:
    """As `value_at`, None where there is nothing."""
    return _value_or(row, name, None)


def _value_or(row: Row, name: str, other: Any) -> Any:
    try:
        return value_at(row, name)
    except KeyError:
        return other


def paths_in(rows: Sequence[Row]) -> list[str]:
    """The columns of some rows, structures by their fields, as they may be named."""
    return list(dict.fromkeys(name for row in rows for name in _paths(row, _WITHIN)))


def names_in(rows: Sequence[Row]) -> str:
    """The columns of some rows for an error, as `paths_in`."""
    return listed(paths_in(rows), _MOST_NAMES)


def _paths(row: Row, levels: int) -> Iterator[str]:
    for name, value in row.items():
        inner = value if isinstance(value, list) else [value]
        fields = [each for each in inner[:1] if isinstance(each, dict)]
        if not fields or levels == 1 or is_chat(value):
            yield name
        else:
            yield from (f"{name}.{path}" for path in _paths(fields[0], levels - 1))


def _guessed(source: Source, rows: Sequence[Row]) -> str | None:
    others = list(dict.fromkeys(name for row in rows for name in row if name not in (source.label, source.group)))

    def mostly(fits: Callable[[Any], bool], name: str) -> bool:
        values = [row[name] for row in rows if row.get(name)]
        return 2 * sum(map(fits, values)) >= max(len(values), 1)

    texts = [name for name in others if mostly(_has_letters, name)]
    for usual in TEXT_NAMES:
        if found := next((name for name in texts if name.lower() == usual), None):
            return found
    chats = [name for name in others if name.lower() in CHAT_NAMES and mostly(is_chat, name)]
    return max([*texts, *chats], key=lambda name: sum(_num_chars(row.get(name)) for row in rows), default=None)


def _has_letters(value: Any) -> bool:
    """Whether it is a text, so neither a number nor a date."""
    return isinstance(value, str) and any(map(str.isalpha, value))


def _num_chars(value: Any) -> int:
    try:
        return len(text_in(value) or "")
    except ValueError:
        return 0


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
