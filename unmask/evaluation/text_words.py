"""The words of raw text by which models with different tokenizers compare, and which of them are hidden.

A word is a run of characters that are no white space, of at most 32; an ideograph and a kana is a word by itself. So
tokens of the usual tokenizers, which never cross white space, never cross words either.

Which words are hidden depends on a hash of the text and on the word's number in it: not on the tokenizer.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import GOLDEN, mix, mix_ints

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana and ideographs
_WORD = re.compile(rf"[{_ALONE}]|[^\s{_ALONE}]{{1,32}}")
_HALF = 1 << 63


def text_key(text: str) -> int:
    """A hash of a text, a signed 64-bit integer."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def word_spans(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the words of a text begin and end, in characters, and their UTF-8 bytes; each [num_words]."""
    found = [(match.start(), match.end(), len(match.group().encode())) for match in _WORD.finditer(text)]
    begin, end, num_bytes = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return begin, end, num_bytes


def owner_of(
    token_begin: NDArray[np.int64],
    token_end: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Which of some sorted stretches that do not overlap each token stands on.

    Args:
        token_begin, token_end: [S]: characters of the tokens.
        begin, end: [num_stretches]: characters of the stretches.

    Returns:
        [S]: the number of the first stretch with which a token shares a character, -1 where there is none; and whether
        it shares one with the next stretch too.
    """
    first = np.searchsorted(end, token_begin, side="right")
    padded = np.concatenate([begin, np.full(2, np.iinfo(np.int64).max)])
    touches = padded[first] < token_end
    crosses = touches & (padded[first + 1] < token_end)
    return np.where(touches, first, -1), crosses


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
