"""Rows of JSON, read value by value: memory is that of one row and a piece of the file, however long an array is.

    lines     {"text": "One."}                                      one row per line; a string is a text, and an array
              {"text": "Two."}                                      of strings is a text in parts
    array     [{"text": "One."}, {"text": "Two."}]                  `json.dump`, pandas' orient="records"
    object    {"version": "1", "data": [{"text": "One."}, ...]}     the one field that is a list of objects
    row       {"title": "One", "text": "One.", "authors": [...]}    an object with a text of its own, one per file

The form is recognised by the beginning of a file, in .json and .jsonl alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import CorpusError
from unmask.data.columns import USUAL
from unmask.data.reading import CUT_OFF, LONGEST_ROW, BadInput, Row, Stretch, bare_suffix, read_text, whole_lines

Form = Literal["lines", "array", "object"]
NOT_JSON = "rows that are not JSON"
TRUNCATED = "files that are JSON only up to some point"
_LOOK_BYTES = 3 << 20  # read of a file that may hold no rows
_LONG_LINE = 1 << 23
_SPACE = re.compile(r"[ \t\n\r]*+")
_TEXTS = USUAL["text"][:7]  # names of a text that makes an object a row
_NEAR_END = 32  # characters: an error this close to the end of the text in memory may only mean that more must be read
_WAYS_OUT = (
    'give rows as an array of objects ([{"text": "..."}, ...]), as written by json.dump and pandas\' '
    'to_json(orient="records"), or as one object per line'
)


class NotJsonError(Exception):
    """A text is valid JSON only up to the place that the error names."""

    at_end: bool  # whether the text only ends too early


class JsonText:
    """A text of JSON in chunks of any size, read as far as needed and dropped up to the current place. Errors call it
    `name`. If `strict`, control characters in strings are errors."""

    def __init__(self, name: str | Path, chunks: Iterator[str], *, strict: bool = True) -> None:
        self._name, self._chunks = name, chunks
        self._decoder = json.JSONDecoder(strict=strict)
        self._text = self.source = ""  # text in memory; source of the last value
        self._place = self._lines = 0  # lines: before the text in memory

    def _read(self) -> bool:
        """Reads at least as much again as is left, so that text is not copied or searched too often."""
        missing = max(1, len(self._text) - self._place)
        if missing > LONGEST_ROW:
            raise CorpusError(f"{self._name}: a row is longer than {LONGEST_ROW:,} characters; split it")
        chunks: list[str] = []
        while missing > 0 and (chunk := next(self._chunks, None)) is not None:
            chunks.append(chunk)
            missing -= len(chunk)
        self._lines += self._text.count("\n", 0, self._place)
        self._text, self._place = "".join([self._text[self._place :], *chunks]), 0
        return bool(chunks)

    def peek(self) -> str:
        """Moves to the next character that is not white space, and returns it; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._place)
            assert match is not None, "it also matches nothing"
            self._place = match.end()
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read():
                return ""

    def take(self, sign: str) -> bool:
        """Moves past a sign if it comes next; returns whether it did."""
        if self.peek() != sign:
            return False
        self._place += 1
        return True

    def failure(self, what: str, *, at_end: bool | None = None) -> NotJsonError:
        """The error that the text cannot be read further; if `at_end` is None, checks whether the text ends here."""
        at_end = not self.peek() if at_end is None else at_end
        line = 1 + self._lines + self._text.count("\n", 0, self._place)
        problem = f"the file ends unexpectedly in line {line}" if at_end else f"line {line} is not JSON"
        error = NotJsonError(f"{problem}: {what}")
        error.at_end = at_end
        return error

    def value(self, what: str) -> Any:
        """Decodes the next value, called `what` in errors."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                at_end = None
                if isinstance(error, JSONDecodeError):
                    is_open = error.msg.startswith("Unterminated string")
                    if (is_open or error.pos >= len(self._text) - _NEAR_END) and self._read():
                        continue
                    at_end = is_open or error.pos >= len(self._text.rstrip())
                raise self.failure(f"{what} {json_problem(error)}", at_end=at_end) from error
            if end == len(self._text) and not isinstance(value, str | list | dict) and self._read():
                continue  # a number may continue
            self.source, self._place = self._text[self._place : end], end
            return value

    def rows(self, field: str | None = None) -> Iterator[tuple[str, int, Any]]:
        """Yields the elements of the next array, or of all lists of objects in the next object: the list's field (empty
        for an array), the element's number in the list, from 1, and the element. If `field` is named, reads only that
        list, whatever it holds. Raises a NotJsonError if anything follows."""
        is_object, name = self.peek() == "{", ""
        self.take("{" if is_object else "[")
        is_open = not self.take("}" if is_object else "]")
        while is_open:
            if is_object:
                field_name = self.value("a field's name") if self.peek() == '"' else None
                if field_name is None or not self.take(":"):
                    raise self.failure(f"expected a field's name in quotes and a colon, not {self.peek()!r}")
                name = field_name
            has_list = not is_object or self.take("[")
            is_rows, number = not is_object or name == field, 0
            if not has_list:
                self.value(f"field {name!r}")
            elif is_object and self.take("]"):
                has_list = False
            while has_list:
                number += 1
                value = self.value(f"row {number}")
                last = value[-1] if isinstance(value, list) and len(value) == 2 else value
                is_rows |= field is None and number == 1 and isinstance(last, dict)
                if is_rows:
                    yield name, number, value
                has_list = not self.take("]")
                if has_list and not self.take(","):
                    raise self.failure(f"row {number} is followed by {self.peek()!r}, not by a comma")
            is_open = is_object and not self.take("}")
            if is_open and not self.take(","):
                raise self.failure(f"field {name!r} is followed by {self.peek()!r}, not by a comma")
        if self.peek():
            excerpt = self._text[self._place : self._place + 20]
            raise self.failure(f"{excerpt!r} follows the end of the JSON value; {_WAYS_OUT}")


def json_problem(error: Exception) -> str:
    if isinstance(error, JSONDecodeError):
        return f"is not JSON: {error.msg} at {error.doc[error.pos : error.pos + 20]!r}"
    if isinstance(error, RecursionError):
        return "is JSON that is nested too deeply"
    return "holds a whole number of too many digits to be read"


def parsed_line(line: str) -> Any:
    """Parses a line of JSON; a ValueError says what is wrong with it."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(json_problem(error)) from error


def json_form(path: Path) -> Form:
    """The form of a file's rows; `lines` if it is unclear, so that reading them reports why."""
    head = line = more = ""
    for chunk in read_text(path, BadInput(skip=True)):  # reads up to the second line of text
        head = (head + chunk).lstrip(" \t\n\r")
        line, _, more = head.partition("\n")
        if more.strip() or len(head) > _LONG_LINE:
            break
    first, more, is_lines_by_name = head[:1], more.lstrip()[:1], bare_suffix(path) != ".json"
    if first == "[" and not is_lines_by_name:
        return "array"
    if first != "[" and (first != "{" or is_lines_by_name):
        return "lines"
    # A first line that is JSON, with more after it, is a row, even a faulty one; otherwise a value takes several lines.
    other: Form = "array" if first == "[" else "object"
    if not more:
        return other
    try:
        parsed_line(line)
    except ValueError as error:
        is_json = not isinstance(error.__cause__, JSONDecodeError)  # valid but for its nesting or numbers
        return "lines" if is_json or (first == "{" == more and line.rstrip().endswith("}")) else other
    return "lines"


def holds_rows(path: Path) -> bool:
    """Whether a file begins like one with rows: lines or an array of objects or strings, or one list of objects. True
    for a file that cannot be read, so that reading it reports why."""
    bad = BadInput(skip=True)
    text = JsonText(path, read_text(path, bad, Stretch(0, _LOOK_BYTES)))
    if not (first := text.peek()):
        return bool(bad.counts)
    if text.take("["):
        return text.peek() in ("{", '"')
    if first != "{" or json_form(path) == "lines":
        return first in ("{", '"')
    if _is_row(path, bad):
        return True
    fields = set[str]()
    with suppress(NotJsonError):  # mostly, the text in memory ended
        fields.update(field for field, _, _ in text.rows())
    return len(fields) == 1


def _is_row(path: Path, look: BadInput) -> bool:
    """Whether a file is an object with a text of its own; its lists of objects, such as authors, are no rows then.

    They are if they hold over ten times as much text: {"document": "a.pdf", "pages": [{"text": "..."}, ...]}.
    """
    try:
        value = json.loads("".join(read_text(path, look, Stretch(0, _LOOK_BYTES))))
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    texts = _texts_of(value)
    lists = (field for field in value.values() if isinstance(field, list))
    others = (text for rows in lists for each in rows if isinstance(each, dict) for text in _texts_of(each))
    return bool(texts) and 10 * sum(map(len, texts)) >= sum(map(len, others))


def _texts_of(row: Row) -> list[str]:
    return [text for name, text in row.items() if name.lower() in _TEXTS and isinstance(text, str)]


def json_rows(
    path: Path,
    bad: BadInput,
    stretch: Stretch | None = None,
    *,
    field: str | None = None,
) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a file with their numbers, counted from 1: lines of the file, or elements of its array.

    Args:
        path: A file of JSON in any of these forms.
        bad: How to treat rows that cannot be read. If they are skipped, an array ends at the first that is not JSON.
        stretch: Byte range of a file of lines; the numbers then count lines in it.
        field: The file is an object, and the rows are the list in this field; without that field there are none.

    Raises:
        CorpusError: A row is not JSON, neither an object nor a string, nested too deeply or too long; the file is
            truncated; or it is an object with no list of objects, or with several. Names the file and row.
    """
    form = "lines" if stretch is not None else json_form(path)
    if field is None and form == "lines":
        return _lines(path, bad, stretch)
    if field is None and form == "object" and _is_row(path, BadInput(skip=True, reading=bad.reading)):
        return iter([(1, JsonText(path, read_text(path, bad), strict=not bad.skip).value("the object"))])
    return _streamed(path, bad, field)


def _lines(path: Path, bad: BadInput, stretch: Stretch | None) -> Iterator[tuple[int, Row]]:
    behind = f" after byte {stretch.begin:,}" if stretch is not None and stretch.begin else ""
    for number, line in enumerate(whole_lines(path, bad, stretch), 1):
        if not line.strip():
            continue
        try:
            value = parsed_line(line)
        except ValueError as error:
            way_out = "; write each object on one line, as `jq -c .` does" if line.strip() == "{" else ""
            bad.report(NOT_JSON, f"{path}: line {number}{behind} {error}{way_out}")
            continue
        if (row := _as_row(value)) is not None:
            yield number, row
        else:
            bad.report(NOT_JSON, f"{path}: line {number}{behind} is {type(value).__name__}, not an object")


def _as_row(value: Any) -> Row | None:
    """The row that a value represents: an object, a text, a list of texts, or spaCy's text with its annotations:
    `["Anna sleeps.", {"entities": [[0, 4, "PER"]]}]`. None if it is none of these."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict):
        return {"text": value[0], **value[1]}
    is_text = isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(x, str) for x in value))
    return {"text": value} if is_text else None


def _streamed(path: Path, bad: BadInput, field: str | None) -> Iterator[tuple[int, Row]]:
    text = JsonText(path, read_text(path, bad), strict=not bad.skip)
    num_cut, list_name, is_object = bad.counts[CUT_OFF], None, text.peek() == "{"
    try:
        for name, number, value in text.rows(field):
            if list_name not in (None, name):
                what = f"several fields of the object are lists of rows: {list_name}, {name}"
                raise CorpusError(f"{path}: {what}; move the one to read into a file of its own")
            list_name = name
            if bad.skip and bad.is_broken(text.source):
                continue
            if (row := _as_row(value)) is not None:
                yield number, row
            else:
                bad.report(NOT_JSON, f"{path}: row {number} is {type(value).__name__}, not an object")
    except NotJsonError as error:
        if not error.at_end or bad.counts[CUT_OFF] == num_cut:  # otherwise decompression has reported it
            bad.report(CUT_OFF if error.at_end else TRUNCATED, f"{path}: {error}")
        return
    if is_object and list_name is None and field is None:
        what = f"an object without a list of rows, and, as one row of up to {_LOOK_BYTES >> 20} MB, without a text"
        what += f" called {', '.join(_TEXTS)}"
        raise CorpusError(f"{path}: {what}; {_WAYS_OUT}")
