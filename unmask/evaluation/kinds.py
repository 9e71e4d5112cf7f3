"""The kinds of tokens by which figures are broken down.

    word_frequency   how often the token's word stands in the passages that are measured
    word_pieces      of how many tokens its word consists
    piece            whether it begins its word
    part_of_speech   where the text is annotated

Words are the tokenizer's (`unmask.tokens.words`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.evaluation.passages import Passage
from unmask.hashing import token_in_word

FREQUENCIES = (1, 2, 10, 100, 1000)  # where bands begin
FREQUENCY_NAMES = ("1", "2-9", "10-99", "100-999", "1000+")
LENGTH_NAMES = ("1", "2", "3", "4+")
PIECE_NAMES = ("first", "continuation")

Kinds = Mapping[str, NDArray[np.int64]]


def kinds_of(passages: Sequence[Passage], *, with_pos: bool) -> list[Kinds]:
    """The kinds of the tokens of each passage, as numbers of the names above; parts of speech are numbered from 0."""
    words = [_words(passage) for passage in passages]
    known, counts = np.unique(np.concatenate([hashes for hashes, _ in words]), return_counts=True)
    return [
        _kinds(passage, hashes, number, counts[np.searchsorted(known, hashes)], with_pos=with_pos)
        for passage, (hashes, number) in zip(passages, words, strict=True)
    ]


def _words(passage: Passage) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A hash of each word [num_words], and the number of each token's word [S]."""
    starts = passage.word_starts.copy()
    starts[0] = True
    begin = np.flatnonzero(starts)
    number = np.cumsum(starts) - 1
    place = np.arange(len(starts)) - begin[number]
    return np.add.reduceat(token_in_word(passage.input_ids.astype(np.int64), place), begin), number


def _kinds(
    passage: Passage,
    hashes: NDArray[np.int64],
    number: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    with_pos: bool,
) -> Kinds:
    pieces = np.bincount(number, minlength=len(hashes))
    kinds = {
        "word_frequency": (np.searchsorted(FREQUENCIES, counts, side="right") - 1)[number],
        "word_pieces": np.minimum(pieces[number], len(LENGTH_NAMES)) - 1,
        "piece": (np.diff(number, prepend=-1) == 0).astype(np.int64),
    }
    return {**kinds, "part_of_speech": passage.pos - 1} if with_pos else kinds
