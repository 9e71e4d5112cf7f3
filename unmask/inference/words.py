"""Words of several tokens at a mask: as many masks as a word has pieces are put in its place.

    The [MASK] sleeps.    ->    The [MASK] [MASK] sleeps.    ->    mount ##ain       for words of two pieces

Pieces are found from left to right. A word's probability shrinks with each piece, and nothing tells the model's opinion
of how many there are; so words of unequal numbers of pieces are compared by the mean of the pieces' log-probabilities.
That is a convention of ours, not a probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.corpus.reading import check_characters
from unmask.errors import SettingsError
from unmask.inference.filled import Word
from unmask.inference.predict import Query, likeliest, log_probabilities
from unmask.inference.word_pieces import WordPieces, spells_spaces
from unmask.model.encoder import MaskedLM
from unmask.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]
LONGEST_WORD = 32  # pieces
BEGINNINGS = 1024  # of given words, looked at together


@dataclass(frozen=True)
class GivenWords:
    """Words that a mask is restricted to: their pieces, by the number of these."""

    by_length: dict[int, NDArray[np.int64]]

    @property
    def single_A(self) -> Tensor:
        """Those of one piece: ids, int64."""
        return torch.from_numpy(self.by_length.get(1, np.zeros((0, 1), dtype=np.int64))[:, 0])


def read_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> GivenWords:
    """Tokenizes candidates as they stand behind a space.

    Raises:
        SettingsError: There are none, one is empty or holds what is no character, or the vocabulary cannot spell it.
    """
    if isinstance(candidates, str):
        raise SettingsError("candidates are a list of words; put brackets around a single one")
    if not candidates:
        raise SettingsError("candidates: there are none; give a word at the least, or leave them out")
    found: dict[int, dict[tuple[int, ...], None]] = {}
    for word in candidates:
        if not word.strip():
            raise SettingsError(f"candidates: {word!r} is no word")
        check_characters(word, f"candidates: {word!r}")
        pieces = tuple(tokenizer.encode_corpus([_as_in_text(tokenizer, word.strip())])[0].input_ids.tolist())
        if tokenizer.special.unk in pieces or not pieces:
            raise SettingsError(f"candidates: the tokenizer has no tokens for {word!r}; leave it out")
        if len(pieces) > LONGEST_WORD:
            raise SettingsError(
                f"candidates: {word!r} is {len(pieces)} tokens; at most {LONGEST_WORD} can be filled in"
            )
        found.setdefault(len(pieces), {})[pieces] = None
    return GivenWords({length: np.array(list(words), dtype=np.int64) for length, words in sorted(found.items())})


def _as_in_text(tokenizer: Tokenizer, word: str) -> str:
    """With a space before it, where tokens carry the space before a word.

    Where spaces are tokens of their own, they are no part of a word; and the vocabulary (of proteins) may have none.
    """
    if spells_spaces(tokenizer):
        return word
    ids = tokenizer.encode_corpus([" " + word])[0].input_ids
    return " " + word if len(ids) and tokenizer.space_before(int(ids[0])) else word


class WordSearch:
    """Finds words at masks of texts.

    Args:
        model, tokenizer: As for `likeliest`.
        max_pieces: Longest word, in tokens.
        given: The words it may be; None: any.
        top_k: How many are kept.
    """

    def __init__(
        self, model: MaskedLM, tokenizer: Tokenizer, *, max_pieces: int, given: GivenWords | None, top_k: int
    ) -> None:
        self.model, self.tokenizer, self.top_k, self.given = model, tokenizer, top_k, given
        self.lengths = list(range(1, max_pieces + 1)) if given is None else list(given.by_length)
        self._pieces = WordPieces.of(tokenizer)

    def words_at(self, input_ids: Ids, place: int) -> tuple[Word, ...]:
        """The best words at a mask, with all else in the text as it is."""
        found = []
        for length in self.lengths:
            masks = np.full(length, self.tokenizer.special.mask, dtype=np.int32)
            opened = with_pieces(input_ids, place, masks)
            pieces = self._any(opened, place, length) if self.given is None else self._given(opened, place, length)
            found += [self._word(ids, score) for ids, score in pieces]
        return tuple(sorted(found, key=lambda word: -word.score)[: self.top_k])

    def _any(self, opened: Ids, place: int, length: int) -> list[tuple[tuple[int, ...], float]]:
        """Beam search for the pieces: a word begins at the first and at none of the others."""
        beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for turn in range(length):
            first_A = self._pieces.whole_A if length == 1 else self._pieces.opening_A
            allowed_A = self._pieces.further_A if turn else first_A
            if not len(allowed_A):
                return []  # a vocabulary of whole words
            asked = [Query(_put(opened, place, ids), np.array([place + turn])) for ids, _ in beams]
            found = likeliest(self.model, self.tokenizer, asked, top_k=self.top_k, allowed_A=allowed_A)
            rows = zip(beams, found.token_ids_NK.tolist(), found.log_probabilities_NK.tolist(), strict=True)
            grown = [
                ((*ids, token), score + value)
                for (ids, score), tokens, values in rows
                for token, value in zip(tokens, values, strict=True)
            ]
            beams = sorted(grown, key=lambda beam: -beam[1])[: self.top_k]
        return beams

    def _given(self, opened: Ids, place: int, length: int) -> list[tuple[tuple[int, ...], float]]:
        """The log-probability of each given word of so many pieces; words of an equal beginning share a look at it."""
        assert self.given is not None
        words = [tuple(word) for word in self.given.by_length[length].tolist()]
        scores = np.zeros(len(words))
        for turn in range(length):
            going_on: dict[tuple[int, ...], list[int]] = {}  # numbers of the words behind each beginning
            for number, word in enumerate(words):
                going_on.setdefault(word[:turn], []).append(number)
            begins = list(going_on)
            for first in range(0, len(begins), BEGINNINGS):
                part = begins[first : first + BEGINNINGS]
                asked = [Query(_put(opened, place, begin), np.array([place + turn])) for begin in part]
                wanted = [np.array([words[number][turn] for number in going_on[begin]]) for begin in part]
                found = log_probabilities(self.model, self.tokenizer, asked, wanted)
                for begin, values in zip(part, found, strict=True):
                    scores[going_on[begin]] += values
        return list(zip(words, scores.tolist(), strict=True))

    def _word(self, ids: tuple[int, ...], score: float) -> Word:
        tokens = tuple(self.tokenizer.token(id_) for id_ in ids)
        text = self.tokenizer.decode(ids).strip()
        return Word(text, tokens, ids, math.exp(score), score / len(ids))


def with_pieces(input_ids: Ids, place: int, pieces: Ids) -> Ids:
    """The text with some tokens in place of one."""
    return np.concatenate([input_ids[:place], pieces, input_ids[place + 1 :]])


def _put(opened: Ids, place: int, ids: tuple[int, ...]) -> Ids:
    """The text with the first of a word's masks filled."""
    filled = opened.copy()
    filled[place : place + len(ids)] = ids
    return filled
