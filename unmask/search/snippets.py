"""The place in a passage that shares most with a query.

A snippet is the stretch of the passage, in whole words, that holds most letters of the query's words: each word counts
once, and long words, which are mostly rare, count more. Without a word in common it is the beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

SNIPPET_CHARS = 200
# Ideographs and kana are words one by one: no space separates them.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class Snippet:
    """A stretch of a passage, on one line.

    Attributes:
        text: Its characters, each run of white space as one space.
        marks: Begin and end of each word of the query in it, sorted.
    """

    text: str
    marks: tuple[tuple[int, int], ...]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, by which queries and documents are compared."""
    return WORD.findall(text.lower())


def find_snippet(passage: str, query: str, size: int = SNIPPET_CHARS) -> Snippet:
    """The first stretch of a passage that shares most with a query: `size` characters at most, or one longer word."""
    text = " ".join(passage.split())
    query_words = set(words_of(query))
    shared = [(m.start(), m.end(), m[0].lower()) for m in WORD.finditer(text) if m[0].lower() in query_words]
    begin = _best_begin(shared, size, len(text)) if shared else 0
    end = min(len(text), begin + size)
    # Leave out the halves of words at both ends, where there is a space near.
    if begin > 0 and not text[begin - 1].isspace() and (space := text.find(" ", begin, begin + size // 4)) >= 0:
        begin = space + 1
    if end < len(text) and not text[end].isspace() and (space := text.rfind(" ", end - size // 4, end)) > begin:
        end = space
    before, after = "… " if begin > 0 else "", " …" if end < len(text) else ""
    shift = len(before) - begin
    marks = tuple((b + shift, e + shift) for b, e, _ in shared if begin <= b and e <= end)
    return Snippet(before + text[begin:end] + after, marks)


def _best_begin(shared: list[tuple[int, int, str]], size: int, length: int) -> int:
    """Where the best stretch begins, its words in the middle of it."""
    inside: Counter[str] = Counter()
    best, place, first = -1, (0, 0), 0
    weight = 0
    for begin, end, word in shared:
        weight += len(word) * (inside[word] == 0)
        inside[word] += 1
        while end - shared[first][0] > size and shared[first][0] < begin:
            leaving = shared[first][2]
            inside[leaving] -= 1
            weight -= len(leaving) * (inside[leaving] == 0)
            first += 1
        if weight > best:
            best, place = weight, (shared[first][0], end)
    room = max(0, size - (place[1] - place[0])) // 2
    return max(0, min(place[0] - room, length - size))
