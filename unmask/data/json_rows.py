"""Rows of JSON, read value by value: whatever the size of an array, memory is that of one row and a piece of the file.

    lines     {"text": "One."}                                      one row a line; a string is a text
              {"text": "Two."}
    array     [{"text": "One."}, {"text": "Two."}]                  `json.dump`, pandas' orient="records"
    object    {"version": "1", "data": [{"text": "One."}, ...]}     the one field that is a list of objects

Forms are recognised by how a file begins, in .json and .jsonl alike.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import CorpusError
from unmask.data.reading import (
    BROKEN_LINES,
    CUT_OFF,
    LONGEST_ROW,
    BadInput,
    Row,
    Stretch,
    bare_suffix,
    broken_character,
    read_text,
    whole_lines,
)

Form = Literal["lines", "array", "object"]
NOT_JSON = "rows that are not JSON"
TRUNCATED = "files that are JSON only up to a place"
AS_TEXT = "give such text as .txt"
_LOOK_CHARS = 1 << 21
_LONG_LINE = 1 << 23
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*+")
_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[",\[\]{}]', re.DOTALL)  # a whole string, or a sign outside of strings
_NEAR_END = 32  # characters: an error so near to the end of what was read may only mean that more must be read
_WAYS_OUT = (
    'rows are an array of objects ([{"text": "..."}, ...]), as json.dump and pandas\' to_json(orient="records") write '
    "it, or an object a line"
)


class EndsEarlyError(Exception):
    """The text ends before a value does, as far as can be said."""


class JsonCursor:
    """A place in a text of JSON that is read as far as it is needed; what lies before the place is dropped.

    Args:
        name: What errors call the text, such as the file.
        chunks: The text, in pieces of any size, as `read_text` gives it.
        most: Characters that are read, about; None: all.
        way_out: What errors advise where a value is longer than 64 million characters.
    """

    def __init__(
        self, name: str | Path, chunks: Iterator[str], *, most: int | None = None, way_out: str = AS_TEXT
    ) -> None:
        self._name, self._way_out, self._chunks, self._left = name, way_out, chunks, most
        self.text = ""
        self.place = self.begin = 0  # `begin`: of the value that was decoded last
        self._lines = 0  # before what is in memory

    @property
    def line_number(self) -> int:
        """Of the place, counted from 1."""
        return 1 + self._lines + self.text.count("\n", 0, self.place)

    @property
    def excerpt(self) -> str:
        """What comes next, for errors."""
        return self.text[self.place : self.place + 20]

    def _read(self) -> bool:
        """Reads as much again as there is behind the place, so that no text is copied or searched often."""
        missing = max(1, len(self.text) - self.place)
        if missing > LONGEST_ROW:
            raise CorpusError(f"{self._name}: a row is longer than {LONGEST_ROW:,} characters; {self._way_out}")
        chunks: list[str] = []
        while missing > 0 and (self._left is None or self._left > 0):
            if (chunk := next(self._chunks, None)) is None:
                break
            chunks.append(chunk)
            missing -= len(chunk)
            self._left = None if self._left is None else self._left - len(chunk)
        self._lines += self.text.count("\n", 0, self.place)
        self.text, self.place = "".join([self.text[self.place :], *chunks]), 0
        return bool(chunks)

    def peek(self, behind: int = 0) -> str:
        """The next character that is no white space, empty at the end. The place only moves where `behind`, the
        characters that are passed over first, is 0."""
        while True:
            match = _SPACE.match(self.text, self.place + behind)
            assert match is not None, "it also matches nothing"
            if not behind:
                self.place = match.end()
            if match.end() < len(self.text):
                return self.text[match.end()]
            if not self._read():
                return ""

    def take(self, sign: str) -> bool:
        """Moves behind a sign, if it comes next."""
        if self.peek() != sign:
            return False
        self.place += 1
        return True

    def line(self) -> str | None:
        """Moves behind the rest of the line and returns it; None where it is very long."""
        searched = self.place
        while (end := self.text.find("\n", searched)) < 0:
            num_chars = len(self.text) - self.place
            if num_chars > _LONG_LINE:
                return None
            if not self._read():
                end = len(self.text)
                break
            searched = num_chars
        line, self.place = self.text[self.place : end], end
        return line

    def value(self) -> Any:
        """Decodes the value that begins here and moves behind it; the place stays where that fails.

        Raises:
            JSONDecodeError: It is not JSON.
            ValueError: A number has too many digits.
            RecursionError: It is nested too deep.
            EndsEarlyError: The text ends where more is expected.
        """
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.place)
            except JSONDecodeError as error:
                if error.pos < len(self.text) - _NEAR_END and not error.msg.startswith("Unterminated string"):
                    raise
                if self._read():
                    continue
                raise EndsEarlyError(json_problem(error)) from error
            if end == len(self.text) and not isinstance(value, str | list | dict) and self._read():
                continue  # there may be more of a number
            self.begin, self.place = self.place, end
            return value

    def skip(self) -> str | None:
        """Moves behind the value that begins here without decoding it, however deep it is.

        Returns:
            What it holds that is no character (`broken_character`).

        Raises:
            EndsEarlyError: The text ends within it.
        """
        depth, broken = 0, None
        while True:
            match = _MARK.search(self.text, self.place)
            sign = None if match is None else match.group()
            ends = depth == 0 and sign in (",", "]", "}")
            end = len(self.text)
            if match is not None:
                end = match.start() if ends or sign == '"' else match.end()
            broken = broken or broken_character(self.text[self.place : end])
            self.place = end
            if sign in (None, '"'):  # all was searched, or a string goes on behind what was read
                if not self._read():
                    raise EndsEarlyError
                continue
            depth += (sign in ("[", "{")) - (sign in ("]", "}")) if not ends else 0
            if ends or (depth == 0 and sign != ","):
                return broken


def json_problem(error: Exception) -> str:
    """What is wrong with a value that cannot be decoded."""
    if isinstance(error, JSONDecodeError):
        return f"is not JSON: {error.msg} at {error.doc[error.pos : error.pos + 20]!r}"
    if isinstance(error, RecursionError):
        return "is JSON that is nested too deep to be read"
    return "holds a whole number of too many digits to be read"


def parsed_line(line: str) -> Any:
    """The value of a line of JSON.

    Raises:
        ValueError: It is not JSON, nested too deep, or holds a number of too many digits; the text says so.
    """
    try:
        return json.loads(line)
    except JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(json_problem(error)) from error


def json_form(path: Path) -> Form:
    """How a file holds its rows. What is not whole enough to say, reading it as lines will report."""
    text = JsonCursor(path, read_text(path, BadInput(skip=True)))
    first, is_lines_by_name = text.peek(), bare_suffix(path) != ".json"
    if first == "[" and not is_lines_by_name:
        return "array"
    if first != "[" and (first != "{" or is_lines_by_name):
        return "lines"
    other: Form = "array" if first == "[" else "object"
    if (line := text.line()) is None or not (more := text.peek()):
        return other
    try:
        parsed_line(line)
    except ValueError as error:
        is_json = not isinstance(error.__cause__, JSONDecodeError)  # whatever else is wrong with it
        return "lines" if is_json or (first == "{" == more and line.rstrip().endswith("}")) else other
    return "lines"


def holds_rows(path: Path) -> bool:
    """Whether a file begins as one with rows does: lines or an array of objects or strings, or one list of objects.

    True for a file that cannot be read, so that reading it says what is wrong.
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
    return json_form(path) == "lines" or len(_lists_in(path)) == 1


def _lists_in(path: Path) -> list[str]:
    """The fields of an object that are lists of objects, as far as the first two million characters say."""
    reader = _JsonReader(path, BadInput(skip=True), most=_LOOK_CHARS)
    for _ in reader.in_object(read=False):
        pass
    return reader.lists


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
        return _json_lines(path, bad, stretch)
    if form == "array":
        return _JsonReader(path, bad).in_array()
    _check_lists(path, _lists_in(path))
    return _JsonReader(path, bad).in_object()


def rows_of_field(path: Path, field: str, bad: BadInput, *, way_out: str) -> Iterator[tuple[int, Row]]:
    """The elements of the list in one field of the object that a file is; none where it has no such field.

    `way_out` is what errors advise where an element is too long; errors as for `json_rows`.
    """
    return _JsonReader(path, bad, way_out=way_out).in_object(field=field)


def _json_lines(path: Path, bad: BadInput, stretch: Stretch | None) -> Iterator[tuple[int, Row]]:
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


def _check_lists(path: Path, lists: list[str]) -> None:
    if len(lists) > 1:
        raise CorpusError(
            f"{path}: an object in which several fields are lists of rows: {', '.join(lists)}; put the one that is to "
            "be read into a file of its own"
        )


class _JsonReader:
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
        """The elements of the one list of objects, or of a named one. Without `read` all lists are only noted."""
        text = self._text
        names: list[str] = []
        text.take("{")
        while not self._stopped and not text.take("}"):
            if names and not text.take(","):
                return self._stop(f"field {names[-1]!r} is followed by {text.peek()!r}, not by a comma")
            try:
                name = text.value() if text.peek() == '"' else None
            except CorpusError:  # of the file: it is a ValueError, too
                raise
            except (ValueError, EndsEarlyError):
                name = None
            if name is None or not text.take(":"):
                return self._stop(f"a field's name, between quotes, and a colon are expected, not {text.peek()!r}")
            names.append(name)
            is_list = text.peek() == "[" and (name == field or text.peek(behind=1) == "{")
            if is_list and field in (None, name):
                self.lists.append(name)
                if read:
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
        text = self._text
        text.take("[")
        if text.take("]"):
            return
        for number in itertools.count(1):
            if (row := self._element(number)) is not None:
                yield number, row
            if self._stopped or text.take("]"):
                return
            if not text.take(","):
                return self._stop(f"row {number} is followed by {text.peek()!r}, not by a comma")

    def _element(self, number: int) -> Row | None:
        """Decodes a row; where bad input is skipped, moves behind one that cannot be decoded."""
        text, bad = self._text, self._bad
        text.peek()
        try:
            value = text.value()
        except CorpusError:  # of the file: it is a ValueError, too
            raise
        except (ValueError, RecursionError, EndsEarlyError) as error:
            reason = str(error) if isinstance(error, EndsEarlyError) else json_problem(error)
            if not bad.skip and not isinstance(error, EndsEarlyError):
                bad.found(NOT_JSON, f"{self._where(number)} {reason}")
            where = self._where(number)
            try:
                broken = text.skip()
            except EndsEarlyError:
                self._stop(f"row {number} has no end", at_end=True)
            else:
                bad.found(BROKEN_LINES if broken else NOT_JSON, f"{where} {reason}")
            return None
        if bad.skip and bad.is_broken(text.text[text.begin : text.place]):
            return None
        if (row := _as_row(value)) is None:
            bad.found(NOT_JSON, f"{self._where(number)} is {type(value).__name__}, not an object")
        return row

    def _where(self, number: int) -> str:
        line = "" if self._bad.skip else f" (line {self._text.line_number})"  # what is skipped is only counted
        return f"{self._path}: row {number}{line}"

    def _end(self) -> None:
        if not self._stopped and self._text.peek():
            self._stop(f"{self._text.excerpt!r} follows what was the whole of it; {_WAYS_OUT}")

    def _stop(self, what: str, *, at_end: bool = False) -> None:
        """Reports that nothing behind this place can be read: the file ends, or goes on with something else."""
        self._stopped = True
        line = self._text.line_number
        if not at_end and self._text.peek():
            self._bad.found(TRUNCATED, f"{self._path}: line {line} is not JSON: {what}")
        elif self._bad.counts[CUT_OFF] == self._cut_before:
            self._bad.found(CUT_OFF, f"{self._path}: the file ends too early, in line {line}: {what}")
