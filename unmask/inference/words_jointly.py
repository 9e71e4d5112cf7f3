"""Filling all masks of a text with words, each given those that were filled before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unmask.inference.filled import Filling, Word
from unmask.inference.masked_text import MaskedText, put_word
from unmask.inference.words import Ids, WordSearch, with_pieces


@dataclass(frozen=True)
class _Partly:
    """A text some of whose masks are filled.

    Attributes:
        input_ids: Longer than the text was, where words of several pieces stand in it.
        left: Masks that are not filled: number to place.
        words: Those that are: number to word.
    """

    input_ids: Ids
    left: dict[int, int]
    words: dict[int, Word]

    @property
    def score(self) -> float:
        """Of its words together."""
        return sum(word.score for word in self.words.values())

    def filled(self, number: int, word: Word) -> _Partly:
        """The same with one more; the masks behind it move."""
        place, grown = self.left[number], len(word.token_ids) - 1
        input_ids = with_pieces(self.input_ids, place, np.array(word.token_ids, dtype=np.int32))
        left = {other: at + grown * (at > place) for other, at in self.left.items() if other != number}
        return _Partly(input_ids, left, {**self.words, number: word})


def fill_with_words(search: WordSearch, masked: MaskedText, *, by_confidence: bool) -> tuple[Filling, ...]:
    """Fills all masks of a text with words.

    Args:
        search: What words there are, and how many fillings are kept.
        masked: The text with its masks.
        by_confidence: The mask with the best word is filled first, which gives one filling; else all are filled from
            left to right, and the best few are kept.

    Returns:
        The fillings, ordered by the sum of their words' scores.
    """
    query = masked.query
    states = [_Partly(query.input_ids, dict(enumerate(query.places.tolist())), {})]
    for turn in range(len(query.places)):
        grown = []
        for state in states:
            numbers = list(state.left) if by_confidence else [turn]
            options = [
                (n, word)
                for n in numbers
                for word in search.words_at(state.input_ids, state.left[n], spaced=bool(query.spaced[n]))
            ]
            if by_confidence:
                options = [max(options, key=lambda option: option[1].score)]
            grown += [state.filled(number, word) for number, word in options]
        states = sorted(grown, key=lambda state: -state.score)[: search.top_k]
    return tuple(_filling(search, masked, state) for state in states)


def _filling(search: WordSearch, masked: MaskedText, state: _Partly) -> Filling:
    words = [state.words[number] for number in sorted(state.words)]
    probability = math.prod(word.probability for word in words)
    text = masked.filled([put_word(search.tokenizer, word) for word in words])
    return Filling(tuple(word.text for word in words), text, probability)
