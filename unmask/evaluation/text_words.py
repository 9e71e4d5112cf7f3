"""The words of raw text by which models with different tokenizers compare, and which of them are hidden.

A word is a run of characters that are no white space, of at most 32. Ideographs and kana, which are written without
spaces, are words of their own, up to a sign, a letter or 16 characters. The usual tokenizers never cross white space
and seldom a sign, so few of their tokens stand on two words: where a long run was cut.

    text        The cat, 東京タワーへ。
    words       The   cat,   東京タワーへ   。

A single ideograph would be too small: tokens of a large vocabulary stand on two or three of them, and a model with such
a vocabulary would see less than one that spells each.

Which words are hidden depends on a hash of the text and on the word's number in it: not on the tokenizer.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import GOLDEN, mix, mix_ints

# Ideographs with the marks that repeat them, and kana of either width.
_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]{{1,16}}|[^\s{_UNSPACED}]{{1,32}}")
_HALF = 1 << 63


def text_key(text: str) -> int:
    """A hash of a text, a signed 64-bit integer."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def word_spans(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the words of a text begin and end, in characters, and their UTF-8 bytes; each [num_words]."""
    found = [(match.start(), match.end(), len(match.group().encode())) for match in _WORD.finditer(text)]
    begin, end, num_bytes = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return begin, end, num_bytes


def touched(
    token_begin: NDArray[np.int64],
    token_end: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of some sorted stretches that do not overlap each token stands on.

    Args:
        token_begin, token_end: [S]: characters of the tokens.
        begin, end: [num_stretches]: characters of the stretches.

    Returns:
        [S] and [S]: the number of the first stretch with which a token shares a character, and the number behind the
        last; equal where there is none.
    """
    first = np.searchsorted(end, token_begin, side="right")
    return first, np.maximum(first, np.searchsorted(begin, token_end, side="left"))


@dataclass(frozen=True)
class Standing:
    """On which words the tokens of a text stand: a line for each token and each word of which it shows something.

        text     a a a a b b      words    aaaa bb          token   0    1    1    2
        tokens   --- ----- -               (0)  (1)         word    0    0    1    1
                                                            share   1   2/3  1/3   1

    Attributes:
        token: [N], int64.
        word: [N], int64.
        share: [N], float64: how much of the token is the word's, by UTF-8 bytes; those of a token add up to 1.
    """

    token: NDArray[np.int64]
    word: NDArray[np.int64]
    share: NDArray[np.float64]

    @property
    def num_crossing(self) -> int:
        """How many tokens stand on several words."""
        return int((np.bincount(self.token) > 1).sum())

    def share_in(self, chosen: NDArray[np.bool_], num_tokens: int) -> NDArray[np.float64]:
        """How much of each token is in some of the words.

        Args:
            chosen: [num_words]: which words.
            num_tokens: Of the text.

        Returns:
            [num_tokens]: 0 for tokens that show nothing of the words, exactly 1 for those on a single one of them.
        """
        inside = chosen[self.word]
        found = np.bincount(self.token[inside], weights=self.share[inside], minlength=num_tokens)
        return found.astype(np.float64)


def standing_of(
    text: str,
    token_begin: NDArray[np.int64],
    token_end: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Standing:
    """On which words of a text its tokens stand.

    Args:
        text: The text.
        token_begin, token_end: [S]: characters of its tokens.
        begin, end: [num_words]: characters of its words, as `word_spans` gives them.
    """
    first, stop = touched(token_begin, token_end, begin, end)
    number = stop - first
    token = np.repeat(np.arange(len(first)), number)
    word = first[token] + np.arange(len(token)) - (np.cumsum(number) - number)[token]
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    low, high = np.maximum(token_begin[token], begin[word]), np.minimum(token_end[token], end[word])
    shared = bytes_before[high] - bytes_before[low]
    whole = np.bincount(token, weights=shared, minlength=len(first))[token]
    # A token without a character of its own, within a word, is the word's.
    share = np.divide(shared, whole, out=np.ones(len(token)), where=whole > 0)
    return Standing(token, word, share)


def uniform(key: int, size: int, *more: int) -> NDArray[np.float64]:
    """[size]: numbers in [0, 1) that depend on the key, the place and further integers alone."""
    bits = mix(np.arange(size, dtype=np.int64) * np.int64(GOLDEN) + np.int64(mix_ints(key, *more)))
    return (bits.astype(np.float64) + _HALF) / (2.0 * _HALF) % 1.0  # rounding may make a 1 of the largest


def hidden(draws: NDArray[np.float64], rate: float, number: int, num_masks: int) -> NDArray[np.bool_]:
    """Which of some units a mask hides.

    The masks are turned against each other by equal parts of 1, so that as long as rate x masks is at most 1 none of
    the units is hidden twice, and more masks tell as much more as they can. What is hidden at a low rate is hidden at
    higher ones too.

    Args:
        draws: Of the units, in [0, 1).
        rate: Expected share that is hidden.
        number: Of the mask, from 0.
        num_masks: How many there are.
    """
    return (draws + number / num_masks) % 1.0 < rate
