"""What a cell says as a class or a number. What is missing or not-a-number is an error, never a class of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unmask.corpus.labels import class_name
from unmask.errors import CorpusError

_MISSING = {"nan", "null", "none", "n/a", "na"}


def class_of(value: Any, where: str, column: str, names: Sequence[str] | None = None) -> str:
    """The name of a class.

    Args:
        value: As it stands in the table.
        where, column: File and row, and the column, for errors.
        names: Of the classes by number, where the file says them.

    Raises:
        CorpusError: There is none, it is not-a-number (also in letters), or neither a text, a whole number nor a
            boolean; or it is a number without a name.
    """
    try:
        name = class_name(value, names)
    except ValueError as error:
        raise CorpusError(f"{where} has {error} in column {column!r}") from error
    if name is None or name.lower() == "nan":
        shown = "no label" if name is None and not isinstance(value, float) else "NaN"
        raise CorpusError(f"{where} has {shown} in column {column!r}; give it a label, or take the row out")
    return name


def number_of(value: Any, where: str, column: str) -> float:
    """A finite number.

    Raises:
        CorpusError: It is missing, not-a-number, infinite or no number.
    """
    if value is None or (isinstance(value, str) and (not value.strip() or value.strip().lower() in _MISSING)):
        shown = "NaN" if isinstance(value, str) and value.strip().lower() == "nan" else "no number"
        raise CorpusError(f"{where} has {shown} in column {column!r}; give it a number, or take the row out")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise CorpusError(f"{where} has {value!r} in column {column!r}, which is no number") from None
    if not math.isfinite(number):
        shown = "NaN" if math.isnan(number) else str(number)
        raise CorpusError(f"{where} has {shown} in column {column!r}; give it a number, or take the row out")
    return number
