"""Letters of a corpus, counted before training, so that trainers get them in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import tokenizers

Texts = Callable[[], Iterable[str]]
"""Gives the texts anew at each call."""

MAX_LETTERS = 1000


def frequent_letters(
    tokenizer: tokenizers.Tokenizer, texts: Iterable[str], *, limit: int | None = MAX_LETTERS, spaces: bool = False
) -> list[str]:
    """The most frequent characters of normalised text, in the order of their code points.

    Args:
        tokenizer: Whose normaliser is applied, where it has one.
        texts: The corpus.
        limit: At most this many; ties go to the smaller code point. None takes all.
        spaces: Whether white space counts as letters.
    """
    counts: Counter[str] = Counter()
    normalizer = tokenizer.normalizer
    for text in texts:
        counts.update(text if normalizer is None else normalizer.normalize_str(text))
    ranked = sorted((letter for letter in counts if spaces or not letter.isspace()), key=lambda a: (-counts[a], a))
    return sorted(ranked[:limit])
