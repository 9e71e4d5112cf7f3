"""Texts with masks: where these stand, and which spelling of a word fits there.

text      The king of [MASK] ([MASK]).
tokens    The Ġking Ġof [MASK] Ġ( [MASK] ).      of a byte-level BPE, whose [MASK] takes the space before it along
spaced                  yes       no             so words are ĠParis at the first and Paris at the second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.reading import check_characters
from unmask.errors import SettingsError
from unmask.inference.predict import Query
from unmask.inference.spellings import begins_spaced, marks_spaces
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class MaskedText:
    """A text with one or several masks.

    Attributes:
        text: As it was given.
        query: Its tokens, and where the masks are among them.
    """

    text: str
    query: Query


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
        spaced = np.ones(len(places), dtype=bool)
        if two_spellings:
            for number, place in enumerate(places.tolist()):
                spaced[number] = _is_spaced(text, offsets, place, first_spaced=first_spaced)
        found.append(MaskedText(text, Query(input_ids, places, spaced)))
    return found


def _is_spaced(text: str, offsets: NDArray[np.int64], place: int, *, first_spaced: bool) -> bool:
    """Whether the word at a mask carries the space before it: one stands there, and no other token is made of it.

    Args:
        text: The text.
        offsets: [S, 2]: the characters [begin, end) of each token.
        place: Of the mask.
        first_spaced: Whether words at the beginning of a text carry one, too.
    """
    begin, _ = span_of(text, offsets[place])
    end_before = int(offsets[place - 1, 1]) if place else 0
    return any(map(str.isspace, text[end_before:begin])) or (end_before == 0 and first_spaced)


def span_of(text: str, offsets: NDArray[np.int64]) -> tuple[int, int]:
    """The characters [begin, end) of a mask, without white space that its token takes along."""
    begin, end = offsets.tolist()
    taken = text[begin:end]
    return end - len(taken.lstrip()), begin + len(taken.rstrip())
