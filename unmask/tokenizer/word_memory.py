"""Words that were tokenized before, looked up instead: WordPiece without a second look at the same word.

BERT's normaliser works character by character, and its pre-tokenizer parts text at white space and takes each
punctuation mark by itself; nothing that a word becomes depends on what stands beyond these. So the tokens of a text
are those of its words, one behind another, and a word needs the tokenizers library only once. It has no such memory
for WordPiece (for BPE it has), and takes most of its time for words that it has met a thousand times.

Here text is parted at the commonest of these characters only. What remains together is left to the library, so
whatever else it does within a word is what happens.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence
from itertools import chain, islice
from threading import Lock

import numpy as np
import tokenizers
from numpy.typing import NDArray

# All of them are punctuation to BERT: ASCII's, and of Unicode's categories P.
_MARKS = re.escape(string.punctuation + "“”‘’—–…«»")
_WORDS = re.compile(rf"[^ \n{_MARKS}]+|[{_MARKS}]")
MOST_WORDS = 1 << 19
MOST_CHARS = 1 << 23
# Where more of the words than this are new, looking them up gains nothing (proteins, text without spaces).
MOST_NEW = 0.3
ENOUGH_WORDS = 10_000


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are met."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def can_remember(backend: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer is of the kind for which tokens of a text are those of its words."""
    parts = json.loads(backend.to_str())
    return (
        parts["model"]["type"] == "WordPiece"
        and parts["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and (parts["normalizer"] or {}).get("type") in (None, "BertNormalizer")
        and all(token["special"] for token in parts["added_tokens"])  # these are letters in corpus text
    )


class WordMemory:
    """Tokenizes texts by their words, of which it remembers a bounded number. Any number of threads may use it.

    Args:
        backend: The tokenizer, for which `can_remember` holds; special tokens must be encoded as text.

    Attributes:
        useful: False once a batch of text has shown that its words hardly ever come again.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.useful = True
        self._lock = Lock()  # around all that changes the tables: the library lets other threads in
        self._forget()

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._num_chars = 0
        self._ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._begins: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens of all texts, one behind another, and how many each text has."""
        words = [_WORDS.findall(text) for text in texts]
        num_words = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        with self._lock:
            try:
                lengths, begins, ids = self._look_up(words, int(num_words.sum()))
            except BaseException:  # words that are numbered and not learned would shift the tokens of all later ones
                self._forget()
                raise
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        from_begin = np.repeat(begins - ends[:-1], lengths)
        input_ids = ids[from_begin + np.arange(ends[-1])]
        last = np.cumsum(num_words)
        return input_ids, ends[last] - ends[last - num_words]

    def _look_up(
        self, words: Sequence[Sequence[str]], num_words: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """How many tokens each word of some texts has, where they begin in the table of ids, and that table."""
        known = len(self._numbers)
        each = map(self._numbers.__getitem__, chain.from_iterable(words))
        numbers = np.fromiter(each, dtype=np.int64, count=num_words)
        self._learn(list(islice(self._numbers, known, None)), num_words)
        found = self._lengths[numbers], self._begins[numbers], self._ids
        if len(self._numbers) > MOST_WORDS or self._num_chars > MOST_CHARS:
            self._forget()
        return found

    def _learn(self, words: list[str], num_met: int) -> None:
        if num_met > ENOUGH_WORDS and len(words) > MOST_NEW * num_met:
            self.useful = False
        if not words:
            return
        encodings = self.backend.encode_batch_fast(words, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        each = chain.from_iterable(encoding.ids for encoding in encodings)
        ids = np.fromiter(each, dtype=np.int32, count=int(lengths.sum()))
        self._begins = np.concatenate([self._begins, len(self._ids) + np.cumsum(lengths) - lengths])
        self._ids = np.concatenate([self._ids, ids])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._num_chars += sum(map(len, words))
