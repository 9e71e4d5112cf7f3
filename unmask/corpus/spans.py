"""Annotations of a text: labelled stretches of characters, by column.

    text          Anna Lee lives in New York.
    entities      (0, 8, "PER")  (18, 26, "LOC")
    chunks        (0, 8, "NP")   (18, 26, "NP")
    pos           (0, 4, "PROPN") (5, 8, "PROPN") (9, 14, "VERB") ...       a span a word
    dependencies  (0, 4, "nsubj", +2) (5, 8, "flat", -1) (9, 14, "root", 0)  a span a word, and how far off its head is

The spans of a column are sorted and do not overlap: of nested ones the outermost stay. A word may be empty (begin =
end), where several words of a treebank share the letters of one (French `du` for `de le`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

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
    kept: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        if not kept or span.begin >= kept[-1].end:
            kept.append(span)
    return tuple(kept)


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
    """Whether some words of a parse hang on each other in a circle.

    Args:
        heads: For each word the number of its head; its own for a root.
    """
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
