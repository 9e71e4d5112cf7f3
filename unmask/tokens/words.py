"""Where words begin, for each family of tokenizers.

Whole-word masking is wrong in most public code because it guesses words from character offsets. Here the model of
the tokenizer says it, once, when text is tokenized.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import TokenizerError


class WordStarts(Protocol):
    """Knows at which tokens words begin."""

    def of_ids(self, input_ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Whether a word begins at each token; any shape."""
        ...

    def text_of(self, token: str) -> str:
        """The text that a vocabulary entry stands for, without marks."""
        ...


class WordPieceStarts:
    """WordPiece: a word begins at every token that is not a continuation (`##ing`).

    The pre-tokenizer stands punctuation and Chinese characters apart, so each of them is a word.

    Example: `un ##mask ##ed , yes` has word starts `1 0 0 1 1`.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.prefix: str = json.loads(backend.to_str())["model"]["continuing_subword_prefix"]
        vocab = backend.get_vocab(with_added_tokens=True)
        self._starts: NDArray[np.bool_] = np.ones(max(vocab.values()) + 1, dtype=bool)
        for token, id_ in vocab.items():
            self._starts[id_] = not self._continues(token)

    def of_ids(self, input_ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Whether a word begins at each token; any shape."""
        return self._starts[input_ids]

    def text_of(self, token: str) -> str:
        """The token without its continuation mark."""
        return token[len(self.prefix) :] if self._continues(token) else token

    def _continues(self, token: str) -> bool:
        return token.startswith(self.prefix) and len(token) > len(self.prefix)


def word_starts_of(backend: tokenizers.Tokenizer) -> WordStarts:
    """Chooses how word starts are found.

    Raises:
        TokenizerError: The tokenizer is of a family without a rule here.
    """
    kind = type(backend.model).__name__
    if kind == "WordPiece":
        return WordPieceStarts(backend)
    raise TokenizerError(f"a {kind} tokenizer is not supported; supported is WordPiece (BERT's kind)")
