"""The words of a raw text, before any tokenizer."""

from __future__ import annotations

import re
import unicodedata

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
