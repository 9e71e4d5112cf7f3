"""A place in a text of JSON that is read as far as it is needed, value by value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from unmask.errors import CorpusError
from unmask.text.reading import LONGEST_ROW, broken_character

_LONG_LINE = 1 << 23
AS_TEXT = "give such text as .txt"
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*+")
_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[",\[\]{}]', re.DOTALL)  # a whole string, or a sign outside of strings
_NEAR_END = 32  # characters: an error so near to the end of what was read may be one of too little


class EndsEarlyError(Exception):
    """The text ends before a value does, as far as can be told."""


class JsonCursor:
    """A place in a text that is read as far as it is needed; what lies before the place is dropped.

    Args:
        name: What errors call it, such as the file.
        chunks: The text, in pieces of any size, as `read_text` gives it.
        most: Characters that are read, about; None: all.
        way_out: What errors advise where a value is longer than 64 million characters.
    """

    def __init__(
        self, name: str | Path, chunks: Iterator[str], *, most: int | None = None, way_out: str = AS_TEXT
    ) -> None:
        self._name, self._way_out = name, way_out
        self._chunks = chunks
        self._left = most
        self.text = ""
        self.place = self.begin = 0  # `begin`: of the value that was decoded last
        self._lines = 0  # before what is held

    @property
    def line_number(self) -> int:
        """Of the place, counted from 1. It takes a look at all that is held, so it is for errors."""
        return 1 + self._lines + self.text.count("\n", 0, self.place)

    @property
    def excerpt(self) -> str:
        """What comes next, for errors."""
        return self.text[self.place : self.place + 20]

    def _read(self) -> bool:
        """Reads as much again as is held behind the place, so that no text is copied or looked at often."""
        wanted = max(1, len(self.text) - self.place)
        if wanted > LONGEST_ROW:
            raise CorpusError(f"{self._name}: a row is longer than {LONGEST_ROW:,} characters; {self._way_out}")
        found: list[str] = []
        while wanted > 0 and (self._left is None or self._left > 0) and (chunk := next(self._chunks, None)) is not None:
            found.append(chunk)
            wanted -= len(chunk)
            self._left = None if self._left is None else self._left - len(chunk)
        self._lines += self.text.count("\n", 0, self.place)
        self.text, self.place = "".join([self.text[self.place :], *found]), 0
        return bool(found)

    def peek(self, behind: int = 0) -> str:
        """The next character that is no white space; empty at the end.

        Args:
            behind: Characters that are passed over first; the place only moves where there are none.
        """
        while True:
            found = _SPACE.match(self.text, self.place + behind)
            assert found is not None, "it also fits nothing"
            if not behind:
                self.place = found.end()
            if found.end() < len(self.text):
                return self.text[found.end()]
            if not self._read():
                return ""

    def take(self, sign: str) -> bool:
        """Goes behind a sign, if it comes next."""
        if self.peek() != sign:
            return False
        self.place += 1
        return True

    def line(self) -> str | None:
        """The rest of the line, behind which the place is then; None where it is long."""
        searched = self.place
        while (end := self.text.find("\n", searched)) < 0:
            held = len(self.text) - self.place
            if held > _LONG_LINE:
                return None
            if not self._read():
                end = len(self.text)
                break
            searched = held
        line = self.text[self.place : end]
        self.place = end
        return line

    def value(self) -> Any:
        """Decodes the value that begins here, behind which the place is then; it stays where that fails.

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
                raise EndsEarlyError(told(error)) from error
            if end == len(self.text) and not isinstance(value, str | list | dict) and self._read():
                continue  # there may be more of a number
            self.begin, self.place = self.place, end
            return value

    def skip(self) -> str | None:
        """Goes behind the value that begins here without decoding it, however deep it is.

        Returns:
            What it holds that is no character (`broken_character`).

        Raises:
            EndsEarlyError: The text ends within it.
        """
        depth, broken = 0, None
        while True:
            found = _MARK.search(self.text, self.place)
            sign = None if found is None else found.group()
            ends = depth == 0 and sign in (",", "]", "}")
            end = len(self.text)
            if found is not None:
                end = found.start() if ends or sign == '"' else found.end()
            broken = broken or broken_character(self.text[self.place : end])
            self.place = end
            if sign in (None, '"'):  # all was looked at, or a string goes on behind what is held
                if not self._read():
                    raise EndsEarlyError
                continue
            depth += (sign in ("[", "{")) - (sign in ("]", "}")) if not ends else 0
            if ends or (depth == 0 and sign != ","):
                return broken


def told(error: Exception) -> str:
    """What is wrong with a value that cannot be decoded."""
    if isinstance(error, JSONDecodeError):
        return f"is not JSON: {error.msg} at {error.doc[error.pos : error.pos + 20]!r}"
    if isinstance(error, RecursionError):
        return "is JSON that is nested too deep to be read"
    return "holds a whole number of too many digits to be read"
