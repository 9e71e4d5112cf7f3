"""Texts with masks: where these stand, which spelling of a word fits there, and the text with words in their places.

text      The king of [MASK] ([MASK]).
tokens    The Ġking Ġof [MASK] Ġ( [MASK] ).      of a byte-level BPE, whose [MASK] takes the space before it along
spaced                  yes       no             so words are ĠParis at the first and Paris at the second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unmask.errors import SettingsError
from unmask.text.reading import check_characters
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.word_starts import Kind, kind_of
from unmask.using.filled import Word, begins_spaced, marks_spaces
from unmask.using.likeliest import Query


class Put(NamedTuple):
    """What is put in the place of a mask.

    Attributes:
        utf8: Its text without marks, which may end within a character.
        carries_space: Whether the space before it is a part of it.
        begins_word: Whether it stands apart from a word at the mask before it, where no space is a part of any token.
    """

    utf8: bytes
    carries_space: bool = False
    begins_word: bool = False


@dataclass(frozen=True)
class MaskedText:
    """A text with one or several masks.

    Attributes:
        text: As it was given.
        query: Its tokens, and where the masks are among them.
        spans: The characters [begin, end) of each mask, without white space that its token takes along.
    """

    text: str
    query: Query
    spans: tuple[tuple[int, int], ...]

    def filled(self, words: Sequence[Put]) -> str:
        """The text with words in place of its masks. All else stays as it was given, letter for letter.

        Tokens alone do not tell that: unknown letters, case and spelled special tokens are not in them. A word brings
        its space along only where the text has none, and never to where the text begins. Vocabularies that mark the
        ends of words (`new</w>`) put none between words at neighbouring masks.
        """
        filled, done = bytearray(), 0
        for (begin, end), word in zip(self.spans, words, strict=True):
            before = self.text[done:begin]
            filled += before.encode()
            has_space = before[-1:].isspace() if before else filled[-1:].isspace()
            if filled and not has_space and (word.carries_space or (word.begins_word and not before)):
                filled += b" "
            filled += word.utf8
            done = end
        filled += self.text[done:].encode()
        return filled.decode(errors="replace")


def put_token(tokenizer: Tokenizer, token_id: int) -> Put:
    """A single token."""
    return _put(tokenizer, token_id, tokenizer.word_starts.spelling.text_bytes(tokenizer.token(token_id)))


def put_word(tokenizer: Tokenizer, word: Word) -> Put:
    """A word of one or several tokens."""
    return _put(tokenizer, word.token_ids[0], word.text.encode())


def _put(tokenizer: Tokenizer, first_id: int, utf8: bytes) -> Put:
    marked = tokenizer.space_before(first_id)
    if marks_spaces(tokenizer):
        return Put(utf8, carries_space=marked)
    kind = kind_of(tokenizer.text(first_id)[:1] or " ")
    return Put(utf8, begins_word=marked and kind in (Kind.LETTER, Kind.DIGIT))


def read_masked(tokenizer: Tokenizer, texts: Sequence[str]) -> list[MaskedText]:
    """Tokenizes texts and finds their masks.

    Args:
        tokenizer: Of the model.
        texts: Each with one or several `[MASK]` (as the tokenizer spells it).

    Raises:
        SettingsError: Something is no text, holds what is no character, or has no mask.
    """
    for text in texts:
        if not isinstance(text, str):
            raise SettingsError(f"fill takes a text or a list of texts, not {type(text).__name__}")
        check_characters(text, f"the text {text[:60]!r}")
    mask = tokenizer.token(tokenizer.special.mask)
    two_spellings = marks_spaces(tokenizer)
    first_spaced = two_spellings and begins_spaced(tokenizer)
    found = []
    for text, (input_ids, offsets) in zip(texts, tokenizer.place_prompts(texts), strict=True):
        places = np.flatnonzero(input_ids == tokenizer.special.mask)
        if len(places) == 0:
            raise SettingsError(f"there is no {mask} in the text {text!r}; put {mask} where a word is to be found")
        spans = tuple(_without_space(text, *offsets[place].tolist()) for place in places)
        spaced = np.ones(len(places), dtype=bool)
        if two_spellings:
            ends_before = [int(offsets[place - 1, 1]) if place else 0 for place in places.tolist()]
            spaced[:] = [
                _has_space(text[end:begin]) or (end == 0 and first_spaced)
                for end, (begin, _) in zip(ends_before, spans, strict=True)
            ]
        found.append(MaskedText(text, Query(input_ids, places, spaced), spans))
    return found


def _without_space(text: str, begin: int, end: int) -> tuple[int, int]:
    """A part of a text but for the white space at its ends."""
    part = text[begin:end]
    return end - len(part.lstrip()), begin + len(part.rstrip())


def _has_space(text: str) -> bool:
    return any(map(str.isspace, text))
