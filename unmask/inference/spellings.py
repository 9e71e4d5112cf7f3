"""The two spellings of a word in vocabularies that mark the space before it: with this space, and without.

                      The king of [MASK] sees     [MASK] sees, ([MASK] sees
    byte-level BPE    ĠParis                      Paris
    Unigram           ▁Paris                      Paris, but ▁Paris where a text begins

Elsewhere (WordPiece, characters) there is one, which stands for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from unmask.tokens.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Spellings(Generic[T]):
    """Something that words of both spellings have.

    Attributes:
        spaced: That of words which carry the space before them.
        bare: That of words which do not.
    """

    spaced: T
    bare: T

    def of(self, spaced: bool | np.bool_) -> T:
        """That of one of them."""
        return self.spaced if spaced else self.bare


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens carry the space before a word, so that there are two spellings."""
    return tokenizer.word_starts.spelling.family in ("byte_level", "metaspace")


def begins_spaced(tokenizer: Tokenizer) -> bool:
    """Whether the first word of a text is spelled as if a space stood before it, where tokens mark spaces."""
    ids = map(int, np.flatnonzero(tokenizer.ordinary))
    words = (tokenizer.text(id_).strip() for id_ in ids if tokenizer.space_before(id_))
    if (word := next(filter(None, words), None)) is None:
        return False
    first = tokenizer.encode_corpus([word])[0].input_ids[:1].tolist()
    return any(tokenizer.space_before(id_) for id_ in first)
