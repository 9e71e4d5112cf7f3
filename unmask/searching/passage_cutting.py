"""Long documents in passages that a model takes at once.

    tokens of a document    ................................................
    passages                |..............|
                                        |..............|                      `overlap_tokens` are in both
                                                    |......................
Passages begin and end at white space, else where words do, else anywhere. A title that is a column stands before each
of them, so that a passage from the middle of a document still says what it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.searching.document_reading import DocumentPart
from unmask.searching.search_encoder import EncodingSettings
from unmask.text.text_file import in_groups
from unmask.tokenizer.alignment import TokenPlaces
from unmask.tokenizer.tokenizer import Tokenizer

Flags = NDArray[np.bool_]
_PARTS_AT_ONCE, _CHARS_AT_ONCE = 256, 1 << 20  # places of tokens take many times the memory of the text
_LONGEST_TITLE = 300  # letters that are put before passages


@dataclass(frozen=True, slots=True)
class TextPassage:
    """A passage of a document.

    Attributes:
        part: The document, or the part of it that the passage is in.
        begin, end: Characters of the part.
    """

    part: DocumentPart
    begin: int
    end: int

    @property
    def text(self) -> str:
        """Its characters."""
        return self.part.text[self.begin : self.end]

    @property
    def embedded(self) -> str:
        """What the model sees of it, but for the prompt."""
        title = _title_before(self.part)
        return f"{title}\n{self.text}" if title else self.text


class PassageCutter:
    """Cuts documents.

    Args:
        tokenizer: Of the model.
        settings: How long passages are.
    """

    def __init__(self, tokenizer: Tokenizer, settings: EncodingSettings) -> None:
        self.tokenizer, self.overlap = tokenizer, settings.overlap_tokens
        self.length = settings.passage_tokens - len(tokenizer.encode_prompt(settings.document_prompt))

    def cut(self, parts: Iterable[DocumentPart]) -> Iterator[TextPassage]:
        """The passages of documents, in order. What the tokenizer makes no token of has one passage all the same."""
        for some in in_groups(parts, most=_PARTS_AT_ONCE, most_chars=_CHARS_AT_ONCE):
            titles = [_title_before(part) for part in some]
            places = self.tokenizer.encode_placed([part.text for part in some])[1]
            title_tokens = self.tokenizer.encode_placed(titles)[1].lengths if any(titles) else np.zeros(len(some), int)
            after_space = _after_space("".join(part.text for part in some), places)
            ends, chars = np.cumsum(places.lengths), np.cumsum([0, *(len(part.text) for part in some)])
            for number, part in enumerate(some):
                tokens = slice(int(ends[number] - places.lengths[number]), int(ends[number]))
                length = max(self.length // 2, self.length - int(title_tokens[number]) - 1)
                for begin, end in self._windows(tokens, length, (after_space, places.word_starts)):
                    first = int(places.begin[begin] - chars[number]) if begin > tokens.start else 0
                    last = int(places.begin[end] - chars[number]) if end < tokens.stop else len(part.text)
                    yield TextPassage(part, first, last)

    def _windows(self, tokens: slice, length: int, breaks: Sequence[Flags]) -> Iterator[tuple[int, int]]:
        """Tokens of each passage."""
        begin = tokens.start
        while tokens.stop - begin > length:
            end = _last_break(breaks, begin + length // 2, begin + length)
            yield begin, end
            least = begin + max(1, length // 4)  # so far it goes on in any case
            begin = _last_break(breaks, least, max(least, end - self.overlap)) if self.overlap else end
        yield begin, tokens.stop


def _after_space(text: str, places: TokenPlaces) -> Flags:
    """Whether white space stands before each token, or at its beginning, where a tokenizer counts it among its own."""
    is_space = np.array([sign.isspace() for sign in text] or [False], dtype=np.bool_)
    begin = np.minimum(places.begin, len(is_space) - 1)
    found: Flags = is_space[begin] | is_space[np.maximum(begin - 1, 0)]
    return found


def _last_break(breaks: Sequence[Flags], least: int, place: int) -> int:
    """The last token up to a place where a passage may begin: behind white space, else where a word begins, else there.

    Example: of `a b-c`, cut to four tokens, `a b-` goes to `a ` and `b-c`.
    """
    for flags in breaks:
        if len(back := np.flatnonzero(flags[least : place + 1])):
            return least + int(back[-1])
    return place


def _title_before(part: DocumentPart) -> str:
    return part.title[:_LONGEST_TITLE] if part.has_title_column and part.title else ""
