"""Tokens to words: what n-grams of words are made of, in whole arrays.

A collocation is made of words: letters, numbers, ideographs. Inside of it may stand what joins words in writing
(apostrophes and hyphens, where the tokenizer makes them words of their own, and white space, where that is a word);
no other sign, no unknown token, and no end of a document. So `don ' t` and `mother - in - law` are collocations
of BERT's tokenizer, and `, and` is none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import longer, mix, token_in_word
from unmask.tokenizer.tokenizer import Tokenizer

_JOINERS = frozenset("'’-\u2010\u2011")
_BROKEN = "\ufffd"  # of a character that several tokens make together


class Role(IntEnum):
    """What a word is to a collocation."""

    BARRIER = 0
    JOINER = 1
    WORD = 2


@dataclass(frozen=True)
class TokenWords:
    """The words of some documents that are not barriers, one behind another. W = number of words.

    Attributes:
        hashes: [W], int64: of the word's tokens.
        runs: [W], int64: words of the same number have nothing between them.
        whole: [W], bool: words proper; false for what joins.
        begins: [W], int64: the word's first token among those of the documents.
        lengths: [W], int64: number of its tokens.
        num_words: All words of the documents, barriers included.
    """

    hashes: NDArray[np.int64]
    runs: NDArray[np.int64]
    whole: NDArray[np.bool_]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_words: int

    def grams(self, most: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """The n-grams that begin at each word, for n = 1 to `most`.

        Yields:
            Hashes, and whether nothing stands between the words; [W - n + 1] each.
        """
        hashes, mixed = self.hashes, mix(self.hashes)
        yield hashes, np.ones(len(hashes), dtype=bool)
        for n in range(2, most + 1):
            hashes = longer(hashes[:-1], mixed[n - 1 :])
            yield hashes, self.runs[: len(hashes)] == self.runs[n - 1 :]


class WordReader:
    """Finds the words in arrays of tokens.

    Args:
        tokenizer: Whose tokens they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.roles: NDArray[np.int8] = np.full(tokenizer.vocab_size, Role.BARRIER, dtype=np.int8)
        for id_ in np.flatnonzero(tokenizer.ordinary):
            self.roles[id_] = role_of(tokenizer.text(int(id_)))
        self.ordinary = tokenizer.ordinary

    def read(
        self, input_ids: NDArray[np.integer[Any]], word_starts: NDArray[Any], lengths: NDArray[np.int64]
    ) -> TokenWords:
        """Finds the words of some documents, or pieces of documents, one behind another.

        Args:
            input_ids: [num_tokens].
            word_starts: [num_tokens].
            lengths: [num_documents]: how many of the tokens each has.
        """
        if not len(input_ids):
            none = np.zeros(0, dtype=np.int64)
            return TokenWords(none, none, np.zeros(0, dtype=bool), none, none, 0)
        ids = np.asarray(input_ids, dtype=np.int64)
        first = np.zeros(len(ids) + 1, dtype=bool)
        first[np.cumsum(lengths) - lengths] = True  # an empty document's begin is the next one's
        starts = word_starts.astype(bool) | first[:-1]
        begins = np.flatnonzero(starts)
        sizes = np.diff(np.append(begins, len(ids)))
        hashes = hashes_of_words(ids, begins)
        role = np.maximum.reduceat(self.roles[ids], begins)
        role[~np.logical_and.reduceat(self.ordinary[ids], begins)] = Role.BARRIER
        # A run of words ends before a document and at a barrier.
        kept = role != Role.BARRIER
        runs = np.cumsum(first[:-1][begins] | ~kept)[kept]
        return TokenWords(hashes[kept], runs, role[kept] == Role.WORD, begins[kept], sizes[kept], len(begins))


def hashes_of_words(input_ids: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hashes words by their tokens.

    Args:
        input_ids: [num_tokens], of which the first begins a word.
        begins: [num_words]: the first token of each.

    Returns:
        [num_words], int64.
    """
    if not len(begins):
        return np.zeros(0, dtype=np.int64)
    place = np.arange(len(input_ids)) - np.repeat(begins, np.diff(np.append(begins, len(input_ids))))
    return np.add.reduceat(token_in_word(input_ids, place), begins)


def role_of(text: str) -> Role:
    """What a word of this text is to a collocation."""
    if any(letter.isalnum() or letter == _BROKEN or unicodedata.category(letter)[0] == "M" for letter in text):
        return Role.WORD
    return Role.JOINER if all(letter.isspace() or letter in _JOINERS for letter in text) else Role.BARRIER
