"""What is counted before a tokenizer is trained: letters, so that trainers get them in a fixed order, and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokenizers.normalizers import Normalizer

Texts = Callable[[], Iterable[str]]
"""Gives the texts anew at each call."""

COVERED = 0.9995


@dataclass(frozen=True)
class Letters:
    """The letters of a text.

    Attributes:
        ranked: The letters, most frequent first; among equally frequent ones the smaller code point.
        needed: How many of these make up nearly all of the text (99.95 %), so that hardly a word has others.
        num_bytes: UTF-8 bytes of the text.
    """

    ranked: tuple[str, ...]
    needed: int
    num_bytes: int


def count_letters(normalizer: Normalizer | None, texts: Iterable[str], *, spaces: bool = False) -> Letters:
    """Counts the letters of normalised text.

    Args:
        normalizer: Applied to each text.
        texts: The corpus.
        spaces: Whether white space counts as letters.
    """
    counts: Counter[str] = Counter()
    num_bytes = 0
    for text in texts:
        num_bytes += len(text.encode())
        counts.update(text if normalizer is None else normalizer.normalize_str(text))
    if not spaces:
        for letter in [letter for letter in counts if letter.isspace()]:
            del counts[letter]
    ranked = tuple(sorted(counts, key=lambda letter: (-counts[letter], letter)))
    return Letters(ranked, _num_covering(ranked, counts), num_bytes)


def _num_covering(ranked: tuple[str, ...], counts: Counter[str]) -> int:
    total, gone = counts.total(), 0
    for number, letter in enumerate(ranked):
        if gone >= COVERED * total:
            return number
        gone += counts[letter]
    return len(ranked)


def default_vocab_size(num_bytes: int) -> int:
    """A vocabulary that fits the corpus: 8,192 entries at 10 MB, growing with the power 0.45, a multiple of 64.

    A rare entry is seen too seldom to be learned: with this rule the average entry stands some hundred times in a
    megabyte of text and some thousand times in 100 MB. At least 512 and at most 32,768 entries.
    """
    size = 8192 * (num_bytes / 10e6) ** 0.45
    return min(max(round(size / 64) * 64, 512), 32_768)
