"""Annotations of a text: labelled stretches of characters by column, and how they stand in the rows of a table.

    text          Anna Lee lives in New York.
    entities      (0, 8, "PER")  (18, 26, "LOC")
    chunks        (0, 8, "NP")   (18, 26, "NP")
    pos           (0, 4, "PROPN") (5, 8, "PROPN") (9, 14, "VERB") ...       a span a word
    dependencies  (0, 4, "nsubj", +2) (5, 8, "flat", -1) (9, 14, "root", 0)  a span a word, and how far off its head is

The spans of a column are sorted and do not overlap: of nested ones the outermost stay. A word may be empty (begin =
end), where several words of a treebank share the letters of one (French `du` for `de le`).

In a row they stand beside the text as lists, which are checked and brought into this one form.

    {"text": "Anna sleeps.", "entities": [[0, 4, "PER"]], "dependencies": [[0, 4, "nsubj", 1], [5, 11, "root", 1]]}

A span is `[start, end, label]` there or `{"start": 0, "end": 4, "label": "PER"}`; in `dependencies` the number of the
head's span in the list follows, counted from 0 (`"head"`), a root naming itself.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from unmask.core.errors import shown

Column = Literal["entities", "pos", "dependencies", "chunks"]


class Span(NamedTuple):
    """A labelled stretch of a text.

    Attributes:
        begin: First character.
        end: Character behind the last.
        label: What it is.
        head: For `dependencies`: by how many spans further on (negative: before) the word's head stands; 0 for a root.
    """

    begin: int
    end: int
    label: str
    head: int = 0


Spans = Mapping[str, tuple[Span, ...]]


def outermost(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sorts spans and leaves out those that begin within another.

    Example: (0, 15, ORG), (11, 15, LOC) leaves the first: `University of Bonn` is masked as one.
    """
    outer: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        if not outer or span.begin >= outer[-1].end:
            outer.append(span)
    return tuple(outer)


def cut_spans(spans: Spans, begin: int, end: int) -> Spans:
    """The annotations of `text[begin:end]`, counted from its first character; a span across a cut is in both parts."""
    cut: dict[str, tuple[Span, ...]] = {}
    for column, entries in spans.items():
        first = bisect_right(entries, begin, key=lambda s: s.end)
        last = max(bisect_left(entries, end, key=lambda s: s.begin), first)
        cut[column] = tuple(
            span._replace(begin=max(span.begin - begin, 0), end=min(span.end, end) - begin)
            for span in entries[first:last]
        )
    return cut


def shift_spans(spans: Spans, by: int) -> Spans:
    """The same annotations where so many characters stand before the text."""
    return {
        column: tuple(span._replace(begin=span.begin + by, end=span.end + by) for span in entries)
        for column, entries in spans.items()
    }


def join_spans(parts: Iterable[Spans]) -> Spans:
    """The annotations of several stretches of one text, in its order."""
    joined: dict[str, list[Span]] = {}
    for part in parts:
        for column, entries in part.items():
            joined.setdefault(column, []).extend(entries)
    return {column: tuple(entries) for column, entries in joined.items()}


def closed_loop(heads: list[int]) -> bool:
    """Whether words hang on each other in a circle: for each the number of its head, its own for a root."""
    free = [False] * len(heads)
    for start in range(len(heads)):
        path, word = set(), start
        while not free[word] and heads[word] != word:
            if word in path:
                return True
            path.add(word)
            word = heads[word]
        for seen in path:
            free[seen] = True
    return False


def read_fields(row: Mapping[str, Any], text: str, fields: Mapping[str, str]) -> Spans:
    """The annotations of a row's text, from the field of each column.

    Raises:
        ValueError: A field is missing or malformed; the text says which and how it must be.
    """
    annotations: dict[str, tuple[Span, ...]] = {}
    for column, field in fields.items():
        if row.get(field) is None:
            raise ValueError(f"has no {field!r}; give an empty list where there are no {column}")
        if not isinstance(row[field], list):
            raise ValueError(f"has {type(row[field]).__name__} in {field!r}, not a list of [start, end, label]")
        spans = [_span(entry, column, field, len(text)) for entry in row[field]]
        if column in ("entities", "chunks"):
            annotations[column] = outermost(spans)
            continue
        if column == "dependencies":
            if (outside := next((s.head for s in spans if not 0 <= s.head < len(spans)), None)) is not None:
                raise ValueError(
                    f"names the head {shown(outside)} in {field!r}, which has {len(spans)} words, counted from 0"
                )
            if closed_loop([span.head for span in spans]):
                raise ValueError(f"has heads in {field!r} that run in a circle")
            spans = [span._replace(head=span.head - number) for number, span in enumerate(spans)]
        for before, after in pairwise(spans):
            if after.begin < before.end:
                raise ValueError(
                    f"has {list(after[:3])} in {field!r} behind {list(before[:3])}; words are given in the order of "
                    "the text and do not overlap"
                )
        annotations[column] = tuple(spans)
    return annotations


def _span(entry: Any, column: str, field: str, num_chars: int) -> Span:
    names = ("start", "end", "label", *(("head",) if column == "dependencies" else ()))
    values = [entry.get(name) for name in names] if isinstance(entry, dict) else entry
    shape = f"[{', '.join(names)}]"
    if not isinstance(values, list) or len(values) != len(names):
        raise ValueError(f"has {shown(entry)} in {field!r}, not {shape}")
    begin, end, label, *head = values
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in (begin, end, *head)):
        raise ValueError(f"has {shown(entry)} in {field!r}, not {shape} with whole numbers")
    if not isinstance(label, str) or not label:
        raise ValueError(f"has {shown(entry)} in {field!r}, whose label is no text")
    if not 0 <= begin < end <= num_chars:
        raise ValueError(f"has {shown(entry)} in {field!r}, but its text has the characters 0 to {num_chars}")
    return Span(begin, end, label, *head)


def without_returns(text: str, spans: Spans) -> Spans:
    """The annotations counted in the text whose `\\r\\n` have become `\\n`."""

    def moved(place: int) -> int:
        return place - text.count("\r\n", 0, place)

    return {
        column: tuple(span._replace(begin=moved(span.begin), end=moved(span.end)) for span in entries)
        for column, entries in spans.items()
    }


def written_fields(spans: Spans) -> dict[str, list[list[Any]]]:
    """Annotations as `read_fields` reads them; a word whose head was cut away is a root, an empty word is left out."""
    rows: dict[str, list[list[Any]]] = {}
    for column, entries in spans.items():
        if column != "dependencies":
            rows[column] = [[span.begin, span.end, span.label] for span in entries if span.begin < span.end]
            continue
        place: dict[int, int] = {}
        for number, span in enumerate(entries):
            if span.begin < span.end:
                place[number] = len(place)
        rows[column] = [
            [*entries[number][:3], place.get(number + entries[number].head, own)] for number, own in place.items()
        ]
    return rows


# The words of a raw text, before any tokenizer.

_RUN = re.compile(r"\w+|[^\w\s]")  # Python's \w has no marks
_JOINERS = "\u200c\u200d"  # within Persian and Indian words, and within emoji


def is_mark(character: str) -> bool:
    """Whether it is an accent or vowel sign that combines with the character before it, or joins two."""
    return unicodedata.category(character)[0] == "M" or character in _JOINERS


def word_spans(text: str) -> list[tuple[int, int]]:
    """The words of a text, [begin, end) in characters: runs of letters and digits with the marks on them, and every
    other sign for itself.

    Example: `Anna's` has three, and Hindi words, whose vowels are marks, are whole.
    """
    spans: list[tuple[int, int]] = []
    in_word = False
    for match in _RUN.finditer(text):
        begin, end = match.span()
        joins = bool(spans) and spans[-1][1] == begin
        is_run = text[begin].isalnum() or text[begin] == "_"
        if joins and (is_mark(text[begin]) or (in_word and is_run)):
            spans[-1] = spans[-1][0], end
        else:
            spans.append((begin, end))
            in_word = is_run
    return spans
