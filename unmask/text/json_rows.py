"""Rows of JSON: an object a line, an array of objects, or an object with one list of them; in bounded memory.

What other tools write is told from each other by how it begins, in .json and .jsonl alike:

    lines     {"text": "One."}\n{"text": "Two."}                        one row a line; a string is a text
    array     [{"text": "One."}, {"text": "Two."}]                      `json.dump`, pandas' orient="records"
    object    {"version": "1", "data": [{"text": "One."}, ...]}         the one field that is a list of objects

An array is read element by element: whatever its size, memory is that of one row and a piece of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal

from unmask.errors import CorpusError
from unmask.text.json_cursor import AS_TEXT, EndsEarlyError, JsonCursor, told
from unmask.text.reading import (
    BROKEN_LINES,
    CUT_OFF,
    BadInput,
    Stretch,
    bare_suffix,
    read_text,
    whole_lines,
)

Row = dict[str, Any]
Form = Literal["lines", "array", "object"]
NOT_JSON = "rows that are not JSON"
TRUNCATED = "files that are JSON only up to a place"
_LOOK_CHARS = 1 << 21
_WAYS_OUT = (
    'rows are an array of objects ([{"text": "..."}, ...]), as json.dump and pandas\' to_json(orient="records") write '
    "it, or an object a line"
)


def json_rows(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[tuple[int, Row]]:
    """The rows of a file with their numbers, counted from 1: lines of the file, or elements of its array.

    Args:
        path: A file of JSON in any of the three forms.
        bad: What is done about rows that cannot be read, and as for text files.
        stretch: Which bytes of a file of lines are read; the numbers are of the lines in it.

    Raises:
        CorpusError: A row is no JSON, no object and no string, nested too deep or too long; or the file is cut off;
            or it is an object with no list of objects, or with several. With file and row.
    """
    form: Form = "lines" if stretch is not None else json_form(path)
    if form == "lines":
        return _of_lines(path, bad, stretch)
    if form == "array":
        return _Reader(path, bad).in_array()
    _check_lists(path, lists_in(path))
    return _Reader(path, bad).in_object()


def json_form(path: Path) -> Form:
    """How a file holds its rows. What it is not whole enough to tell, reading it as lines will say."""
    text = JsonCursor(path, read_text(path, BadInput(skip=True)))
    first, is_lines_by_name = text.peek(), bare_suffix(path) != ".json"
    if first == "[" and not is_lines_by_name:
        return "array"
    if first != "[" and (first != "{" or is_lines_by_name):
        return "lines"
    other: Form = "array" if first == "[" else "object"
    if (line := text.line()) is None:
        return other
    more = text.peek()
    broken_row = first == "{" == more and line.rstrip().endswith("}")
    return "lines" if more and (_is_whole(line) or broken_row) else other


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        return True  # whatever else is wrong with it
    return True


def holds_rows(path: Path) -> bool:
    """Whether a file begins as one with rows does: lines or an array of objects or strings, or one list of objects.

    A file that cannot be read is taken for one that does, so that reading it tells what is wrong.
    """
    bad = BadInput(skip=True)
    text = JsonCursor(path, read_text(path, bad))
    first = text.peek()
    if not first:
        return bool(bad.counts)
    if first == "[":
        return text.peek(behind=1) in ("{", '"')
    if first not in ("{", '"'):
        return False
    return json_form(path) == "lines" or len(lists_in(path)) == 1


def lists_in(path: Path) -> list[str]:
    """The fields of an object that are lists of objects, as far as the first two million characters tell."""
    reader = _Reader(path, BadInput(skip=True), most=_LOOK_CHARS)
    for _ in reader.in_object(read=False):
        pass
    return reader.lists


def rows_of_field(path: Path, field: str, bad: BadInput, *, way_out: str) -> Iterator[tuple[int, Row]]:
    """The elements of the list in one field of the object that a file is; none where it has no such field.

    Args:
        path: A file of JSON.
        field: Whatever else is in the object is passed over.
        bad: As for `json_rows`.
        way_out: What errors advise where an element is too long.

    Raises:
        CorpusError: As `json_rows`.
    """
    return _Reader(path, bad, way_out=way_out).in_object(field=field)


def parsed_line(line: str) -> Any:
    """What a line of JSON says.

    Raises:
        ValueError: It is not JSON, nested too deep, or holds a number of too many digits; the text says so.
    """
    try:
        return json.loads(line)
    except JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(told(error)) from error


def _of_lines(path: Path, bad: BadInput, stretch: Stretch | None) -> Iterator[tuple[int, Row]]:
    behind = f" behind byte {stretch.begin:,}" if stretch is not None and stretch.begin else ""
    for number, line in enumerate(whole_lines(path, bad, stretch), 1):
        if not line.strip():
            continue
        try:
            value = parsed_line(line)
        except ValueError as error:
            bad.found(NOT_JSON, f"{path}: line {number}{behind} {error}")
            continue
        if (row := _as_row(value)) is not None:
            yield number, row
        else:
            bad.found(NOT_JSON, f"{path}: line {number}{behind} is {type(value).__name__}, not an object")


def _as_row(value: Any) -> Row | None:
    if isinstance(value, str):
        return {"text": value}
    return value if isinstance(value, dict) else None


class _Reader:
    """The rows of an array, or of the one list in an object.

    Attributes:
        lists: The fields of the object that are lists of objects, as far as they were met.
    """

    def __init__(self, path: Path, bad: BadInput, *, most: int | None = None, way_out: str = AS_TEXT) -> None:
        self._path, self._bad = path, bad
        self._text = JsonCursor(path, read_text(path, bad), most=most, way_out=way_out)
        self._cut_before = bad.counts[CUT_OFF]
        self._stopped = False
        self.lists: list[str] = []

    def in_array(self) -> Iterator[tuple[int, Row]]:
        """The elements of the array that the file is."""
        yield from self._elements()
        self._end()

    def in_object(self, *, read: bool = True, field: str | None = None) -> Iterator[tuple[int, Row]]:
        """The elements of the one list of objects, or of a named one; or goes past all lists, which then are met."""
        text = self._text
        names: list[str] = []
        text.take("{")
        while not self._stopped and not text.take("}"):
            if names and not text.take(","):
                self._stop(f"field {names[-1]!r} is followed by {text.peek()!r}, not by a comma")
                return
            try:
                name = text.value() if text.peek() == '"' else None
            except CorpusError:  # of the file: it is a ValueError, too
                raise
            except (ValueError, EndsEarlyError):
                name = None
            if name is None or not text.take(":"):
                self._stop(f"a field's name, between quotes, and a colon are expected, not {text.peek()!r}")
                return
            names.append(name)
            is_list = text.peek() == "[" and (name == field or text.peek(behind=1) == "{")
            if is_list and field in (None, name):
                self.lists.append(name)
            if is_list and read and field in (None, name):
                _check_lists(self._path, self.lists)
                yield from self._elements()
                continue
            try:
                text.skip()
            except EndsEarlyError:
                self._stop("it is cut off", at_end=True)
        self._end()
        if read and field is None and not self.lists and not self._stopped:
            raise CorpusError(
                f"{self._path}: an object without a list of rows (its fields are {', '.join(names[:10]) or 'none'}"
                f"{', ...' if len(names) > 10 else ''}); {_WAYS_OUT}"
            )

    def _elements(self) -> Iterator[tuple[int, Row]]:
        text, number = self._text, 0
        text.take("[")
        if text.take("]"):
            return
        while True:
            number += 1
            if (row := self._element(number)) is not None:
                yield number, row
            if self._stopped or text.take("]"):
                return
            if not text.take(","):
                self._stop(f"row {number} is followed by {text.peek()!r}, not by a comma")
                return

    def _element(self, number: int) -> Row | None:
        text, bad = self._text, self._bad
        text.peek()
        try:
            value = text.value()
        except CorpusError:  # of the file: it is a ValueError, too
            raise
        except (ValueError, RecursionError, EndsEarlyError) as error:
            self._pass_over(number, error)
            return None
        if bad.skip and bad.is_broken(text.text[text.begin : text.place]):
            return None
        if (row := _as_row(value)) is None:
            bad.found(NOT_JSON, f"{self._where(number)} is {type(value).__name__}, not an object")
        return row

    def _pass_over(self, number: int, error: Exception) -> None:
        """Goes behind an element that cannot be decoded, where bad input is passed over."""
        where, bad = self._where(number), self._bad
        what = str(error) if isinstance(error, EndsEarlyError) else told(error)
        if not bad.skip and not isinstance(error, EndsEarlyError):
            bad.found(NOT_JSON, f"{where} {what}")
        try:
            broken = self._text.skip()
        except EndsEarlyError:
            self._stop(f"row {number} has no end", at_end=True)
        else:
            bad.found(BROKEN_LINES if broken else NOT_JSON, f"{where} {what}")

    def _where(self, number: int) -> str:
        line = "" if self._bad.skip else f" (line {self._text.line_number})"  # what is passed over is only counted
        return f"{self._path}: row {number}{line}"

    def _end(self) -> None:
        if not self._stopped and self._text.peek():
            self._stop(f"{self._text.excerpt!r} follows what was the whole of it; {_WAYS_OUT}")

    def _stop(self, what: str, *, at_end: bool = False) -> None:
        """Tells of what nothing can be read behind: the end of the file, or something that is no JSON."""
        self._stopped = True
        line = self._text.line_number
        if not at_end and self._text.peek():
            self._bad.found(TRUNCATED, f"{self._path}: line {line} is not JSON: {what}")
        elif self._bad.counts[CUT_OFF] == self._cut_before:
            self._bad.found(CUT_OFF, f"{self._path}: the file ends too early, in line {line}: {what}")


def _check_lists(path: Path, lists: list[str]) -> None:
    if len(lists) > 1:
        raise CorpusError(
            f"{path}: an object in which several fields are lists of rows: {', '.join(lists)}; put the one that is to "
            "be read into a file of its own"
        )
