"""What a table says of a document's class or group, as its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any


def class_name(value: Any, names: Sequence[str] | None = None) -> str | None:
    """The name of a class; None where the value says nothing: null, an empty text, not-a-number.

    Whole numbers may come as 1.0, which is what pandas makes of integers in a column with gaps.

    Args:
        value: As it stands in the table.
        names: Of the classes by number, where the table says them (`unmask.corpus.class_names`); -1 says nothing then.

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
