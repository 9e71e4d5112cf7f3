"""Words of several tokens at masks: at one, or at all of a text together.

As many masks as a word has pieces are put in its place:

    The [MASK] sleeps.    ->    The [MASK] [MASK] sleeps.    ->    mount ##ain       for words of two pieces

Pieces are found from left to right. A word's probability shrinks with each piece, and nothing tells the model's opinion
of how many there are; so words of unequal numbers of pieces are compared by the mean of the pieces' log-probabilities.
That is a convention of ours, not a probability.

Shape suffixes: A = ids, N = places, K = how many are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import SettingsError, TokenizerError
from unmask.runner import Predictor
from unmask.text.reading import check_characters
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.word_starts import Kind, edge_kinds
from unmask.using.filled import Filling, Word, WordSpellings, marks_spaces
from unmask.using.likeliest import Query, likeliest, log_probabilities
from unmask.using.masked_text import MaskedText, put_word


@dataclass(frozen=True)
class WordPieces:
    """Ids by the place that they may have in a word; all int64.

    Which tokens a word of several begins with, and which go on with it, for any family of tokenizers:

        WordPiece                        king, mount      ##ain
        byte-level BPE                   Ġking, Ġmount    ain
            without a space before it    king, mount      ain
        characters                       any letter       any letter

    Attributes:
        whole_A: A word may begin with them.
        opening_A: Those among them behind which a word may go on.
        further_A: They go on with a word.
    """

    whole_A: Tensor
    opening_A: Tensor
    further_A: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordSpellings[WordPieces]:
        """Asks the tokenizer's word starts what they say behind a letter, and before one."""
        ids = np.flatnonzero(tokenizer.ordinary)
        letter = _letter(tokenizer, ids)
        if letter is None:
            whole = cls(torch.from_numpy(ids), torch.from_numpy(ids[:0]), torch.from_numpy(ids[:0]))
            return WordSpellings(whole, whole)
        goes_on = ~tokenizer.starts(np.stack([np.full_like(ids, letter), ids], axis=1))[:, 1]
        opens = np.ones_like(goes_on)
        if (further := _letter(tokenizer, ids[goes_on])) is not None:
            opens = ~tokenizer.starts(np.stack([ids, np.full_like(ids, further)], axis=1))[:, 1]

        def beginning(begins: NDArray[np.bool_]) -> WordPieces:
            return cls(*(torch.from_numpy(ids[chosen]) for chosen in (begins, begins & opens, goes_on)))

        spaced = beginning(np.ones_like(goes_on) if _spells_spaces(tokenizer) else ~goes_on)
        if not marks_spaces(tokenizer):
            return WordSpellings(spaced, spaced)
        return WordSpellings(spaced, beginning(np.array([not tokenizer.space_before(id_) for id_ in ids.tolist()])))


def _letter(tokenizer: Tokenizer, ids: NDArray[np.int64]) -> int | None:
    """The first of some ids whose text begins and ends with a letter, of any script that has words of several."""
    letters = (Kind.LETTER, Kind.LETTER)
    texts = ((id_, tokenizer.text(id_)) for id_ in ids.tolist())
    return next((id_ for id_, text in texts if text and edge_kinds(text) == letters), None)


def _spells_spaces(tokenizer: Tokenizer) -> bool:
    """Whether spaces are tokens of their own, so that nothing marks where a word begins."""
    return tokenizer.word_starts.spelling.family == "plain"


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


def read_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> WordSpellings[GivenWords]:
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
    return WordSpellings(GivenWords.of(spelled.spaced), GivenWords.of(spelled.bare))


def _spelled(tokenizer: Tokenizer, words: Sequence[str]) -> WordSpellings[list[Pieces]]:
    """The pieces of each word in both spellings; where the vocabulary has but one, it stands for both."""

    def pieces(texts: Sequence[str]) -> list[Pieces]:
        return [tuple(encoded.input_ids.tolist()) for encoded in tokenizer.encode_corpus(texts)]

    def is_spaced(word: Pieces) -> bool:
        return bool(word) and tokenizer.space_before(word[0])

    alone = pieces(words)
    if not marks_spaces(tokenizer):
        return WordSpellings(alone, alone)
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
    return WordSpellings(spaced, bare)


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
        model: Predictor,
        tokenizer: Tokenizer,
        *,
        max_pieces: int,
        given: WordSpellings[GivenWords] | None,
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
            allowed = WordSpellings(allowed_A, allowed_A)
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
    """Fills all masks of a text with words, each given those that were filled before it.

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
