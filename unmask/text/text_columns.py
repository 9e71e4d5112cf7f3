"""Where the text of a row stands: a column, a field within one, several columns, or the messages of a chat.

    column                      row                                                         text
    "text"                      {"text": "One."}                                            One.
    "content.text"              {"content": {"text": "One.", "url": "..."}}                 One.
    "paragraphs.text"           {"paragraphs": [{"text": "One."}, {"text": "Two."}]}        One.\\nTwo.
    ["title", "body"]           {"title": "One", "body": "Two."}                            One\\n\\nTwo.
    "messages"                  {"messages": [{"role": "user", "content": "One?"}, ...]}    One?\\n\\n...

A column that is itself called `content.text` has precedence, and one called `title,body` too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.errors import CorpusError
from unmask.text.json_rows import Row
from unmask.text.reading import BROKEN_LINES, BadInput, broken_character
from unmask.text.sources import Source, TextColumn
from unmask.text.table_rows import CHAT_NAMES, LOOK_ROWS, TEXT_NAMES, AskedColumn, rows_of
from unmask.values import listed

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
