"""The place in a passage that shares most with a query.

A snippet is a stretch of the passage, whole words, in which the letters of the query's words that it has are most: each
word counts once, and long words, which are rare ones mostly, for more. Where passage and query share no word, which
models find all the same, it is the beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

SNIPPET_CHARS = 200
# Ideographs and kana, whose words no space tells apart, one by one.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class Snippet:
    """Some of a passage, on one line.

    Attributes:
        text: The characters, with every stretch of white space as a space.
        marks: Where words of the query stand in it: begin and end, sorted.
    """

    text: str
    marks: tuple[tuple[int, int], ...]


def words_of(text: str) -> list[str]:
    """The words of a text in small letters, as queries and documents are compared by them."""
    return WORD.findall(text.lower())


def find_snippet(passage: str, query: str, size: int = SNIPPET_CHARS) -> Snippet:
    """The stretch of a passage that shares most with a query; the first of several.

    Args:
        passage: Any text.
        query: Its words, of any case, are looked for.
        size: Characters at most, unless a single word is longer.
    """
    text = " ".join(passage.split())
    wanted = set(words_of(query))
    found = [(m.start(), m.end(), m[0].lower()) for m in WORD.finditer(text) if m[0].lower() in wanted]
    begin = _best_begin(found, size, len(text)) if found else 0
    begin, end = _whole_words(text, begin, size)
    before, after = "… " if begin > 0 else "", " …" if end < len(text) else ""
    shift = len(before) - begin
    marks = tuple((b + shift, e + shift) for b, e, _ in found if begin <= b and e <= end)
    return Snippet(before + text[begin:end] + after, marks)


def _best_begin(found: list[tuple[int, int, str]], size: int, length: int) -> int:
    """Where the best stretch begins, its words in the middle of it."""
    inside: Counter[str] = Counter()
    best, place, first = -1, (0, 0), 0
    weight = 0
    for begin, end, word in found:
        weight += len(word) * (inside[word] == 0)
        inside[word] += 1
        while end - found[first][0] > size and found[first][0] < begin:
            leaving = found[first][2]
            inside[leaving] -= 1
            weight -= len(leaving) * (inside[leaving] == 0)
            first += 1
        if weight > best:
            best, place = weight, (found[first][0], end)
    room = max(0, size - (place[1] - place[0])) // 2
    return max(0, min(place[0] - room, length - size))


def _whole_words(text: str, begin: int, size: int) -> tuple[int, int]:
    """The stretch without the halves of words at its ends, where it has spaces."""
    end = min(len(text), begin + size)
    if begin > 0 and not text[begin - 1].isspace() and (space := text.find(" ", begin, begin + size // 4)) >= 0:
        begin = space + 1
    if end < len(text) and not text[end].isspace() and (space := text.rfind(" ", end - size // 4, end)) > begin:
        end = space
    return begin, end
