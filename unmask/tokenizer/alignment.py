"""Annotations of characters to annotations of tokens, whatever the tokenizer.

A token belongs to a span if it covers at least one of its characters that is no white space; so a byte-level ` New`
belongs to `New York`, but the space behind it does not. Tokens between the first and the last of a span belong to it
as well, and a lone mark of a space (Unigram's `▁`) goes with the word that it begins. A token that two spans share is
the first one's.

How a token's annotation is written, one unsigned integer a token, 0 where nothing was said:

    entities, chunks   2 x label + (1 where the span begins)
    pos                label
    dependencies       role << 25 | (1 if words hang on this one) << 24 | before << 12 | behind

`label` and `role` are numbers of labels, counted from 1, whose names the manifest lists. `before` and `behind` are the
tokens of the word's subtree before and behind this token, 4,095 standing for so many or more; a word whose subtree is
not contiguous has its own tokens alone. So masking finds subtrees by adding and never walks a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import DataError
from unmask.tokenizer.spans import Span, Spans

ROLE_SHIFT, HEADS_SHIFT, BEFORE_SHIFT = 25, 24, 12
FARTHEST = (1 << BEFORE_SHIFT) - 1
MOST_ROLES = 127
_FAR = np.iinfo(np.int64).max
_SPACES = np.array([c for c in range(0x3001) if chr(c).isspace()], dtype=np.uint32)


@dataclass(frozen=True)
class TokenPlaces:
    """Where the tokens of some texts stand, one text behind another.

    Attributes:
        begin, end: [num_tokens], int64: characters, counted through all texts.
        lengths: [num_texts], int64: tokens of each text.
        word_starts: [num_tokens], bool.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    lengths: NDArray[np.int64]
    word_starts: NDArray[np.bool_]


@dataclass(frozen=True)
class Aligned:
    """A column of annotation.

    Attributes:
        values: [num_tokens], int64, written as the module's docstring says.
        spans: How many spans there were.
        lost: Those of them to which no token belongs.
    """

    values: NDArray[np.int64]
    spans: int
    lost: int


def column_type(column: str, num_labels: int) -> type[np.unsignedinteger]:
    """The smallest unsigned integer that holds a column.

    Raises:
        DataError: There are more labels than fit.
    """
    if column == "dependencies":
        if num_labels > MOST_ROLES:
            raise DataError(f"{num_labels} roles of dependencies are more than {MOST_ROLES}; leave out subtypes")
        return np.uint32
    largest = num_labels if column == "pos" else 2 * num_labels + 1
    if largest > 0xFFFF:
        raise DataError(f"{num_labels:,} labels of {column} are more than can be stored; use fewer")
    return np.uint8 if largest <= 0xFF else np.uint16


class TextPlaces:
    """The characters of some texts in a line, and which tokens stand on them."""

    def __init__(self, texts: Sequence[str], places: TokenPlaces) -> None:
        joined = "".join(texts)
        self.places = places
        self.text_begin = np.cumsum([0, *map(len, texts)])
        codes = np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32)
        self._inked = ~np.isin(codes, _SPACES)

    def align(self, column: str, spans: Sequence[Spans], labels: Sequence[str]) -> Aligned:
        """Annotates the tokens with one column of the annotations of each text.

        Raises:
            DataError: A label is none of `labels`, which stand in the order of their numbers.
        """
        flat = [span for each in spans for span in each.get(column, ())]
        number_of = {label: number for number, label in enumerate(labels, 1)}
        try:
            numbers = np.fromiter((number_of[span.label] for span in flat), dtype=np.int64, count=len(flat))
        except KeyError as error:
            raise DataError(
                f"the label {error} of {column} was not announced; known are {', '.join(labels)}; prepare the text "
                "again"
            ) from error
        owner = self._owners([each.get(column, ()) for each in spans])
        # The nearest span at or before each token (0 where there is none), and at or behind it; both rise.
        before = np.maximum.accumulate(owner)
        behind = np.minimum.accumulate(np.where(owner > 0, owner, _FAR)[::-1])[::-1]
        inside = (before == behind) & (before > 0)
        own = np.where(inside, before, 0)
        begins = inside & (np.diff(own, prepend=0) != 0)
        label = np.where(inside, numbers[own - 1] if flat else 0, 0)
        if column == "pos":
            values = label
        elif column == "dependencies":
            values = np.where(inside, label << ROLE_SHIFT | self._subtrees(flat, spans, own, before, behind), 0)
        else:
            values = 2 * label + begins
        return Aligned(values, len(flat), len(flat) - int(begins.sum()))

    def _owners(self, spans: Sequence[Sequence[Span]]) -> NDArray[np.int64]:
        """For each token the number of its span, counted from 1 through all texts; 0 where it covers none."""
        of_char = np.zeros(self.text_begin[-1] + 1, dtype=np.int64)
        number = 0
        for begin, end, entries in zip(self.text_begin, self.text_begin[1:], spans, strict=False):
            for span in entries:
                number += 1
                of_char[begin + span.begin : min(begin + span.end, end)] = number
        of_char[:-1] *= self._inked
        # The first character from each one on that belongs to a span.
        nearest = np.where(of_char > 0, np.arange(len(of_char)), len(of_char))
        nearest = np.minimum.accumulate(nearest[::-1])[::-1]
        first = nearest[np.minimum(self.places.begin, len(of_char) - 1)]
        owner = np.where(first < self.places.end, of_char[np.minimum(first, len(of_char) - 1)], 0)
        if len(owner) > 1:
            # A token without ink that begins a word which goes on goes with what follows it.
            ink = np.concatenate([[0], np.cumsum(self._inked)])
            blank = ink[self.places.end] == ink[self.places.begin]
            mark = blank[:-1] & self.places.word_starts[:-1] & ~self.places.word_starts[1:] & (owner[:-1] == 0)
            owner[:-1][mark] = owner[1:][mark]
        return owner

    def _subtrees(
        self,
        words: Sequence[Span],
        spans: Sequence[Spans],
        own: NDArray[np.int64],
        before: NDArray[np.int64],
        behind: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """For each token the bits of its word's subtree."""
        if not words:
            return np.zeros_like(own)
        counts = [len(each.get("dependencies", ())) for each in spans]
        low, high, has_words = _extents(np.array([word.head for word in words], dtype=np.int64), counts)
        first = np.searchsorted(before, low + 1, side="left")
        last = np.searchsorted(behind, high + 1, side="right") - 1
        word = np.maximum(own - 1, 0)
        place = np.arange(len(own))
        to_first, to_last = (np.clip(n, 0, FARTHEST) for n in (place - first[word], last[word] - place))
        return has_words[word].astype(np.int64) << HEADS_SHIFT | to_first << BEFORE_SHIFT | to_last


def _extents(
    distance: NDArray[np.int64], counts: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The first and the last word of each word's subtree, and whether anything hangs on it.

    Where the subtree is not contiguous, both are the word itself. Every word is counted at each of the words above it,
    one level at a time; a head outside the text (which was cut) counts as none.
    """
    number = len(distance)
    word = np.arange(number)
    text = np.repeat(np.arange(len(counts)), counts)
    head = word + distance
    inside = (head >= 0) & (head < number)
    head = np.where(inside & (text[np.where(inside, head, 0)] == text), head, word)
    low, high, size = word.copy(), word.copy(), np.ones(number, dtype=np.int64)
    source = np.flatnonzero(head != word)
    target = head[source]
    while len(source):
        np.minimum.at(low, target, source)
        np.maximum.at(high, target, source)
        np.add.at(size, target, 1)
        above = head[target]
        rises = above != target
        source, target = source[rises], above[rises]
    contiguous = size == high - low + 1
    return np.where(contiguous, low, word), np.where(contiguous, high, word), size > 1


def widths_of(labels: Mapping[str, Sequence[str]]) -> dict[str, type[np.unsignedinteger]]:
    """The type of each column's values, by name; raises as `column_type`."""
    return {column: column_type(column, len(names)) for column, names in labels.items()}
