"""Entities by a list of phrases: wherever one stands in the text between word boundaries, the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from unmask.corpus.spans import Span, Spans
from unmask.corpus.words import word_spans
from unmask.errors import DataError

DEFAULT_LABEL = "TERM"

Phrases = tuple[tuple[str, str], ...]


def read_gazetteer(file: Path) -> Phrases:
    """Reads phrases and their labels.

    Args:
        file: UTF-8; a phrase a line, perhaps a tab and a label. Empty lines are passed over.

    Raises:
        DataError: It cannot be read, holds no phrase, or gives a phrase two labels; with the line.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the gazetteer cannot be read as UTF-8 text: {error}") from error
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        phrase, _, label = (part.strip() for part in line.partition("\t"))
        if not phrase:
            continue
        label = label or DEFAULT_LABEL
        if labels.setdefault(phrase, label) != label:
            raise DataError(f"{file}: line {number}: {phrase!r} stood before with the label {labels[phrase]!r}")
    if not labels:
        raise DataError(f"{file}: the gazetteer holds no phrases; give one a line")
    return tuple(sorted(labels.items()))


class Gazetteer:
    """Finds the phrases in texts, by their words: runs of letters and digits, and every other sign for itself.

    Letters' case counts; how much white space stands between words does not.

    Example: with `New York` and `New York City`, `in New York City` has one entity, and `New Yorker` none.
    """

    def __init__(self, phrases: Phrases) -> None:
        """Args: phrases: With their labels."""
        self._labels = {_words(phrase, word_spans(phrase)): label for phrase, label in phrases}
        self._lengths: dict[str, list[int]] = {}  # of the phrases that begin with a word, the longest first
        for words in self._labels:
            self._lengths.setdefault(words[0], []).append(len(words))
        self._lengths = {word: sorted(set(lengths), reverse=True) for word, lengths in self._lengths.items()}

    def annotate(self, texts: Sequence[str]) -> Iterator[Spans]:
        """The entities of each text."""
        for text in texts:
            yield {"entities": self.find(text)}

    def find(self, text: str) -> tuple[Span, ...]:
        """The entities of a text; they do not overlap."""
        spans = word_spans(text)
        words = _words(text, spans)
        found, place = [], 0
        while place < len(words):
            length = self._longest(words, place)
            if length:
                label = self._labels[words[place : place + length]]
                found.append(Span(spans[place][0], spans[place + length - 1][1], label))
            place += length or 1
        return tuple(found)

    def _longest(self, words: tuple[str, ...], place: int) -> int:
        for length in self._lengths.get(words[place], ()):
            if words[place : place + length] in self._labels:
                return length
        return 0


def _words(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(text[begin:end] for begin, end in spans)
