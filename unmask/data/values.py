"""What stands in a row: the text of a column, of a field within one or of a chat, and names of classes and groups.

    column                      row                                                         text
    "text"                      {"text": "One."}                                            One.
    "content.text"              {"content": {"text": "One.", "url": "..."}}                 One.
    "paragraphs.text"           {"paragraphs": [{"text": "One."}, {"text": "Two."}]}        One.\nTwo.
    ["title", "body"]           {"title": "One", "body": "Two."}                            One\n\nTwo.
    "messages"                  {"messages": [{"role": "user", "content": "One?"}, ...]}    One?\n\n...

A column that is itself called `content.text` has precedence, and one called `title,body` too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from unmask.core.errors import listed, shown, whole_number
from unmask.data.reading import Row, broken_character

LINE, PARAGRAPH = "\n", "\n\n"
_SPEAKERS = (("role", "content"), ("from", "value"))  # of a message: who speaks, and what
_WITHIN = 3  # levels of fields that errors name
_MOST_NAMES = 40
NOTHING: Any = object()  # where there is no value, which may be null


def value_at(row: Row, name: str, missing: Any = None) -> Any:
    """The value of a column, or that of a field within, whose path has dots; of a list on the way it is all values.
    `missing` where there is no such column or field.

    Example: `a.b` is 1 in `{"a.b": 1}` and in `{"a": {"b": 1}}`, and [1, 2] in `{"a": [{"b": 1}, {"b": 2}]}`.
    """
    if name in row:
        return row[name]
    for end in range(len(name) - 1, 0, -1):
        if name[end] != "." or name[:end] not in row:
            continue
        outer, rest = row[name[:end]], name[end + 1 :]
        if outer is None:
            return None
        value = NOTHING
        if isinstance(outer, dict):
            value = value_at(outer, rest, NOTHING)
        elif isinstance(outer, list):
            inner = [value_at(each, rest, NOTHING) for each in outer if isinstance(each, dict)]
            values = [each for each in inner if each is not NOTHING]
            flat = [part for each in values for part in (each if isinstance(each, list) else [each])]
            value = flat if values or not outer else NOTHING
        if value is not NOTHING:
            return value
    return missing


def has_column(rows: Sequence[Row], name: str) -> bool:
    """Whether one of some rows has a column, or a field within one. Nulls on the way say nothing, unless all are."""
    if any(name in row for row in rows):
        return True
    values = [value_at(row, name, NOTHING) for row in rows]
    missing, nulls = (sum(each is what for each in values) for what in (NOTHING, None))
    return missing + nulls < len(values) or (nulls > 0 and not missing)


def paths_in(rows: Sequence[Row]) -> list[str]:
    """The columns of some rows, structures by their fields, as they may be named."""

    def paths(row: Row, levels: int) -> Iterator[str]:
        for name, value in row.items():
            inner = value[:1] if isinstance(value, list) else [value]
            if not inner or not isinstance(inner[0], dict) or levels == 1 or is_chat(value):
                yield name
            else:
                yield from (f"{name}.{path}" for path in paths(inner[0], levels - 1))

    return list(dict.fromkeys(name for row in rows for name in paths(row, _WITHIN)))


def names_in(rows: Sequence[Row]) -> str:
    """The columns of some rows for an error, as `paths_in`."""
    return listed(paths_in(rows), _MOST_NAMES)


def text_in(value: Any) -> str | None:
    """The text that a value is, or that its parts are together; None where it has none.

    Texts in a list are lines; those of messages paragraphs, in their order and without who speaks. Parts of a message
    (`{"type": "text", "text": "..."}`) that are no texts are left out.

    Raises:
        ValueError: It is neither a text nor such a list; the text says what it is.
    """
    if value is None or isinstance(value, str):
        return value
    if (messages := _messages(value)) is not None:  # a content may be a list of parts, or lack where a tool is called
        part_of = "a message with"
        contents = (
            joined((_part(part, part_of) for part in each), LINE) if isinstance(each, list) else _part(each, part_of)
            for each in messages
        )
        return joined(contents, PARAGRAPH)
    if isinstance(value, list):
        return joined((_part(each, "a list of") for each in value), LINE)
    raise ValueError(f"{type(value).__name__}, not a text{_fields(value)}")


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
        elif (
            isinstance(value, list)
            and all(isinstance(each, dict) and speaker in each for each in value)
            and (contents := [each[content] for each in value if content in each])
        ):
            return contents
    return None


def _part(value: Any, of_what: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        text = value.get("text")
        return text if isinstance(text, str) else None  # a picture, a call of a tool
    raise ValueError(f"{of_what} {type(value).__name__}, not of texts{_fields(value)}")


def _fields(value: Any) -> str:
    names = ", ".join(itertools.islice(value, _MOST_NAMES)) if isinstance(value, dict) else ""
    return f"; its fields are {names}: name the one with the text behind a dot" if names else ""


def joined(parts: Iterable[str | None], between: str) -> str | None:
    """The parts that are not empty; None where there is none at all."""
    texts = [part for part in parts if part is not None]
    return between.join(text for text in texts if text and not text.isspace()) if texts else None


def class_name(value: Any, names: Sequence[str] | None = None) -> str | None:
    """The name of a class; None where the value says nothing: null, an empty text, not-a-number.

    Whole numbers may come as 1.0, which is what pandas makes of integers in a column with gaps.

    Args:
        value: As it stands in the table.
        names: Of the classes by number, where the table says them (`class_names`); -1 says nothing then, which is what
            `datasets` writes where there is no label.

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
    if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
        what = f"the number {value}" if isinstance(value, float) else type(value).__name__
        raise ValueError(f"{what}, which is no class (a text, a whole number or a boolean)")
    number = int(value)
    if names is None:
        return str(number)
    if number == -1:
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


def id_of(value: Any) -> str | int:
    """The id of a document: a text or a whole number; a ValueError where it is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{shown(value)}, which is no id (a text or a whole number)")
    if isinstance(value, str) and (broken := broken_character(value)):
        raise ValueError(f"{broken}, which is no character,")
    return value


def title_of(value: Any) -> str | None:
    """The title of a document on one line; None where there is none."""
    if not isinstance(value, str) or not value.strip():
        return None
    if broken := broken_character(value):
        raise ValueError(f"{broken}, which is no character,")
    return " ".join(value.split())


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names of classes in the order of their numbers: whole numbers by their size, else by the alphabet.

    Example: `10`, `9` are 9, 10; `10`, `9`, `x` are 10, 9, x.
    """
    numbers: dict[str, int] = {}
    for name in (distinct := set(names)):
        number = whole_number(name.removeprefix("-"))
        if number is None:
            return tuple(sorted(distinct))
        numbers[name] = -number if name.startswith("-") else number
    return tuple(sorted(distinct, key=lambda name: (numbers[name], name)))
