"""What a table says of a document's class, as the name of a class."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def class_name(value: Any) -> str | None:
    """The name of a class; None where the value says nothing: null, an empty text, not-a-number.

    Whole numbers may come as 1.0, which is what pandas makes of integers in a column with gaps.

    Example: ` spam ` is `spam`, 3 and 3.0 are `3`, True is `true`.

    Raises:
        ValueError: It is no text, whole number or boolean; the text says what it is.
    """
    if value is None or isinstance(value, str):
        return (value or "").strip() or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    shown = f"the number {value}" if isinstance(value, float) else type(value).__name__
    raise ValueError(f"{shown}, which is no class (a text, a whole number or a boolean)")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names of classes in the order of their numbers: whole numbers by their size, else by the alphabet.

    Example: `10`, `9` are 9, 10; `10`, `9`, `x` are 10, 9, x.
    """
    found = set(names)
    if all(name.removeprefix("-").isdecimal() for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))
