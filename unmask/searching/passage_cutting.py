"""Long documents in passages that a model takes at once.

    tokens of a document    ................................................
    passages                |..............|
                                        |..............|                      `overlap_tokens` are in both
                                                    |......................
Passages begin and end where words do, as far as there are words. A title that is a column stands before each of them,
so that a passage from the middle of a document still says what it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from unmask.searching.document_reading import DocumentPart
from unmask.searching.search_encoder import EncodingSettings
from unmask.tokenizer.alignment import TokenPlaces
from unmask.tokenizer.tokenizer import Tokenizer

_PARTS_AT_ONCE = 256
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
        rest = iter(parts)
        while some := list(islice(rest, _PARTS_AT_ONCE)):
            titles = [_title_before(part) for part in some]
            places = self.tokenizer.encode_placed([part.text for part in some])[1]
            title_tokens = self.tokenizer.encode_placed(titles)[1].lengths if any(titles) else np.zeros(len(some), int)
            ends, chars = np.cumsum(places.lengths), np.cumsum([0, *(len(part.text) for part in some)])
            for number, part in enumerate(some):
                tokens = slice(int(ends[number] - places.lengths[number]), int(ends[number]))
                length = max(self.length // 2, self.length - int(title_tokens[number]) - 1)
                for begin, end in self._windows(places, tokens, length):
                    first = int(places.begin[begin] - chars[number]) if begin > tokens.start else 0
                    last = int(places.begin[end] - chars[number]) if end < tokens.stop else len(part.text)
                    yield TextPassage(part, first, last)

    def _windows(self, places: TokenPlaces, tokens: slice, length: int) -> Iterator[tuple[int, int]]:
        """Tokens of each passage."""
        begin = tokens.start
        while tokens.stop - begin > length:
            end = self._word_start(places, begin + length, begin + length // 2)
            yield begin, end
            begin = max(begin + 1, self._word_start(places, end - self.overlap, begin + 1)) if self.overlap else end
        yield begin, tokens.stop

    @staticmethod
    def _word_start(places: TokenPlaces, place: int, least: int) -> int:
        """The last token up to `place` that begins a word; `place` itself where there is none behind `least`."""
        back = np.flatnonzero(places.word_starts[least : place + 1])
        return least + int(back[-1]) if len(back) else place


def _title_before(part: DocumentPart) -> str:
    return part.title[:_LONGEST_TITLE] if part.has_title_column and part.title else ""
