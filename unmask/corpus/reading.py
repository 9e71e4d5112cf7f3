"""What every reader gives, and what is done about input that cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from unmask.corpus.spans import Spans
from unmask.errors import CorpusError, SettingsError

# Bytes that are not UTF-8 arrive as lone surrogates where they are not an error at once.
_BROKEN = re.compile("[\ud800-\udfff\0]")
BROKEN_LINES = "lines that are not UTF-8 text"


class LinePart(NamedTuple):
    """A line of a text file or a row of a table, or a part of a long one.

    Attributes:
        text: The characters, without the line's end.
        starts: Whether the line begins here.
        ends: Whether the line ends here.
        spans: Annotations that came with the text; only whole lines have them.
        label: Class of the row; None where it has none.
        group: What the row shares with those that stay on its side; None where it says nothing.
    """

    text: str
    starts: bool
    ends: bool
    spans: Spans | None = None
    label: str | None = None
    group: str | None = None


_WAY_OUT = '--set corpus.bad_input="skip" passes over what cannot be read'


class BadInput:
    """Raises, or counts what is passed over.

    Args:
        skip: Whether bad input is passed over.
        way_out: What errors advise beside; None where there is no such setting.

    Attributes:
        skip: Whether bad input is passed over.
        counts: What was passed over: reason to number.
    """

    def __init__(self, *, skip: bool, way_out: str | None = _WAY_OUT) -> None:
        self.skip = skip
        self._way_out = way_out
        self.counts: Counter[str] = Counter()

    def found(self, reason: str, message: str) -> None:
        """Counts bad input.

        Raises:
            CorpusError: It is not to be passed over.
        """
        if not self.skip:
            raise CorpusError(message if self._way_out is None else f"{message}; {self._way_out}")
        self.counts[reason] += 1

    def is_broken(self, text: str) -> bool:
        """Whether a text holds bytes that were not UTF-8, or NULs; they are counted."""
        broken = self.skip and broken_character(text) is not None
        self.counts[BROKEN_LINES] += broken
        return broken


def broken_character(text: str) -> str | None:
    """What a text holds that is no character: a NUL, or half of a pair of surrogates, which JSON can spell."""
    found = _BROKEN.search(text)
    return None if found is None else f"U+{ord(found.group()):04X}"


def check_characters(text: str, name: str) -> None:
    """Refuses a text that no tokenizer takes, such as one of a command line in another encoding.

    Args:
        text: One that was handed over.
        name: What the error calls it.

    Raises:
        SettingsError: It holds something that is no character.
    """
    if broken := broken_character(text):
        raise SettingsError(
            f"{name} holds {broken}, which is no character; take it out, or read the text in its own encoding"
        )
