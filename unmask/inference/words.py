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
from unmask.errors import SettingsError, TokenizerError
from unmask.inference.filled import Word
from unmask.inference.predict import Query, likeliest, log_probabilities
from unmask.inference.spellings import Spellings, marks_spaces
from unmask.inference.word_pieces import WordPieces
from unmask.model.encoder import MaskedLM
from unmask.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]
Pieces = tuple[int, ...]
LONGEST_WORD = 32  # pieces
BEGINNINGS = 1024  # of given words, looked at together
_SIGN = "("  # behind which a word carries no space


@dataclass(frozen=True)
class GivenWords:
    """Words that a mask is restricted to, in one of their spellings: their pieces, by the number of these."""

    by_length: dict[int, NDArray[np.int64]]

    @classmethod
    def of(cls, words: Sequence[Pieces]) -> GivenWords:
        """Takes each word once, in the order in which they are given."""
        found: dict[int, dict[Pieces, None]] = {}
        for pieces in words:
            found.setdefault(len(pieces), {})[pieces] = None
        return cls({length: np.array(list(some), dtype=np.int64) for length, some in sorted(found.items())})

    @property
    def longest(self) -> int:
        """Pieces of the longest word."""
        return max(self.by_length)

    @property
    def single_A(self) -> Tensor:
        """Those of one piece: ids, int64."""
        return torch.from_numpy(self.by_length.get(1, np.zeros((0, 1), dtype=np.int64))[:, 0])


def read_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> Spellings[GivenWords]:
    """Tokenizes candidates as they stand in a text, behind a space and directly behind something else.

    Raises:
        SettingsError: There are none, one is empty or holds what is no character, or the vocabulary cannot spell it.
    """
    if isinstance(candidates, str):
        raise SettingsError("candidates are a list of words; put brackets around a single one")
    if not candidates:
        raise SettingsError("candidates: there are none; give a word at the least, or leave them out")
    for word in candidates:
        if not word.strip():
            raise SettingsError(f"candidates: {word!r} is no word")
        check_characters(word, f"candidates: {word!r}")
    spelled = _spelled(tokenizer, [word.strip() for word in candidates])
    for word, spaced, bare in zip(candidates, spelled.spaced, spelled.bare, strict=True):
        if tokenizer.special.unk in spaced or not spaced:
            raise SettingsError(f"candidates: the tokenizer has no tokens for {word!r}; leave it out")
        if (longest := max(len(spaced), len(bare))) > LONGEST_WORD:
            raise SettingsError(f"candidates: {word!r} is {longest} tokens; at most {LONGEST_WORD} can be filled in")
    return Spellings(GivenWords.of(spelled.spaced), GivenWords.of(spelled.bare))


def _spelled(tokenizer: Tokenizer, words: Sequence[str]) -> Spellings[list[Pieces]]:
    """The pieces of each word in both spellings; where the vocabulary has but one, it stands for both."""

    def pieces(texts: Sequence[str]) -> list[Pieces]:
        return [tuple(encoded.input_ids.tolist()) for encoded in tokenizer.encode_corpus(texts)]

    def is_spaced(word: Pieces) -> bool:
        return bool(word) and tokenizer.space_before(word[0])

    alone = pieces(words)
    if not marks_spaces(tokenizer):
        return Spellings(alone, alone)
    behind_space = pieces([f" {word}" for word in words])
    try:
        [sign], behind_sign = pieces([_SIGN]), pieces([_SIGN + word for word in words])
    except TokenizerError:  # it has no [UNK], and the vocabulary lacks the sign
        sign, behind_sign = (), [() for _ in words]
    spaced, bare = [], []
    for word, with_space, with_sign in zip(alone, behind_space, behind_sign, strict=True):
        spaced.append(with_space if is_spaced(with_space) else word)
        # Some tokenizers put a space before every text, so that a word by itself has one, too.
        without = word if not is_spaced(word) else with_sign[len(sign) :] if with_sign[: len(sign)] == sign else ()
        bare.append(without if without and tokenizer.special.unk not in without else spaced[-1])
    return Spellings(spaced, bare)


class WordSearch:
    """Finds words at masks of texts.

    Args:
        model, tokenizer: As for `likeliest`.
        max_pieces: Longest word, in tokens.
        given: The words that it may be, in both spellings; None: any.
        top_k: How many are kept.
    """

    def __init__(
        self,
        model: MaskedLM,
        tokenizer: Tokenizer,
        *,
        max_pieces: int,
        given: Spellings[GivenWords] | None,
        top_k: int,
    ) -> None:
        self.model, self.tokenizer, self.top_k, self.given = model, tokenizer, top_k, given
        self.max_pieces = max_pieces
        self._pieces = WordPieces.of(tokenizer)

    def words_at(self, input_ids: Ids, place: int, *, spaced: bool) -> tuple[Word, ...]:
        """The best words at a mask, with all else in the text as it is.

        Args:
            input_ids: The text.
            place: Of the mask.
            spaced: Whether words carry the space before them there.
        """
        given = None if self.given is None else self.given.of(spaced).by_length
        lengths = list(range(1, self.max_pieces + 1)) if given is None else list(given)
        found = []
        for length in lengths:
            masks = np.full(length, self.tokenizer.special.mask, dtype=np.int32)
            opened = with_pieces(input_ids, place, masks)
            if given is None:
                pieces = self._any(opened, place, length, self._pieces.of(spaced))
            else:
                pieces = self._given(opened, place, given[length])
            found += [self._word(ids, score) for ids, score in pieces]
        return tuple(sorted(found, key=lambda word: -word.score)[: self.top_k])

    def _any(self, opened: Ids, place: int, length: int, known: WordPieces) -> list[tuple[Pieces, float]]:
        """Beam search for the pieces: a word begins at the first and at none of the others."""
        beams: list[tuple[Pieces, float]] = [((), 0.0)]
        for turn in range(length):
            first_A = known.whole_A if length == 1 else known.opening_A
            allowed_A = known.further_A if turn else first_A
            if not len(allowed_A):
                return []  # a vocabulary of whole words
            asked = [_query(_put(opened, place, ids), place + turn) for ids, _ in beams]
            allowed = Spellings(allowed_A, allowed_A)
            found = likeliest(self.model, self.tokenizer, asked, top_k=self.top_k, allowed=allowed)
            rows = zip(beams, found.token_ids_NK.tolist(), found.log_probabilities_NK.tolist(), strict=True)
            grown = [
                ((*ids, token), score + value)
                for (ids, score), tokens, values in rows
                for token, value in zip(tokens, values, strict=True)
            ]
            beams = sorted(grown, key=lambda beam: -beam[1])[: self.top_k]
        return beams

    def _given(self, opened: Ids, place: int, given: NDArray[np.int64]) -> list[tuple[Pieces, float]]:
        """The log-probability of each given word [words, pieces]; words of an equal beginning share a look at it."""
        words = [tuple(word) for word in given.tolist()]
        scores = np.zeros(len(words))
        for turn in range(given.shape[1]):
            going_on: dict[Pieces, list[int]] = {}  # numbers of the words behind each beginning
            for number, word in enumerate(words):
                going_on.setdefault(word[:turn], []).append(number)
            begins = list(going_on)
            for first in range(0, len(begins), BEGINNINGS):
                part = begins[first : first + BEGINNINGS]
                asked = [_query(_put(opened, place, begin), place + turn) for begin in part]
                wanted = [np.array([words[number][turn] for number in going_on[begin]]) for begin in part]
                found = log_probabilities(self.model, self.tokenizer, asked, wanted)
                for begin, values in zip(part, found, strict=True):
                    scores[going_on[begin]] += values
        return list(zip(words, scores.tolist(), strict=True))

    def _word(self, ids: Pieces, score: float) -> Word:
        tokens = tuple(self.tokenizer.token(id_) for id_ in ids)
        text = self.tokenizer.decode(ids).strip()
        return Word(text, tokens, ids, math.exp(score), score / len(ids))


def with_pieces(input_ids: Ids, place: int, pieces: Ids) -> Ids:
    """The text with some tokens in place of one."""
    return np.concatenate([input_ids[:place], pieces, input_ids[place + 1 :]])


def _query(input_ids: Ids, place: int) -> Query:
    """What is asked about a single place, where the spelling is settled by the tokens that are allowed."""
    return Query(input_ids, np.array([place]), np.ones(1, dtype=bool))


def _put(opened: Ids, place: int, ids: Pieces) -> Ids:
    """The text with the first of a word's masks filled."""
    filled = opened.copy()
    filled[place : place + len(ids)] = ids
    return filled
