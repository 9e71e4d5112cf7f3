"""Records as token ids: the tokenizer's own template around them, cut to the model's length, and never in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.corpus.words import word_spans
from unmask.errors import CorpusError, ModelError, SettingsError
from unmask.model.task_network import TaskConfig
from unmask.tasks.records import QuestionRecord
from unmask.tokens.tokenizer import Tokenizer

LEAST_WINDOW = 16  # tokens of the text that stand beside a question


class InputEncoder:
    """A tokenizer that puts special tokens around its texts and cuts them.

    Special tokens in a text are what they are called, as in transformers: a folder that is used there must see what it
    was trained on.

    Args:
        tokenizer: The model's.
        config: Of the model.
        max_length: Longest input; None: the model's.

    Raises:
        SettingsError: The model is shorter than the length.
    """

    def __init__(self, tokenizer: Tokenizer, config: TaskConfig, *, max_length: int | None = None) -> None:
        longest = config.max_position_embeddings
        if max_length is not None and max_length > longest:
            raise SettingsError(f"finetune.max_length {max_length} is more than the model's {longest} positions")
        self.tokenizer = tokenizer
        self.max_length = max_length or longest
        self.with_types = config.num_types > 1
        self._whole = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self._cut = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self._cut.enable_truncation(self.max_length, strategy="longest_first")

    def texts(self, firsts: Sequence[str], seconds: Sequence[str] | None) -> list[tokenizers.Encoding]:
        """Texts, or pairs of them, whose ends are cut where they are too long: `overflowing` is not empty there.

        Raises:
            ModelError: The tokenizer cannot tell the texts of a pair apart.
            TokenizerError: It does not know a character.
        """
        if seconds is None:
            self.check_known(firsts)
            return list(self._cut.encode_batch(list(firsts)))
        self._check_pairs()
        self.check_known([*firsts, *seconds])
        return list(self._cut.encode_batch(list(zip(firsts, seconds, strict=True))))

    def sentences(self, words: Sequence[Sequence[str]]) -> list[list[tuple[int, tokenizers.Encoding]]]:
        """Sentences, with a space between words; those that are too long are halved between words until they fit.

        Returns:
            For each sentence its parts: the number of the part's first word, and its tokens.
        """
        for sentence in words:
            self.check_known(sentence)
        whole = self._whole.encode_batch([" ".join(sentence) for sentence in words])
        return [self._halved(sentence, 0, encoding) for sentence, encoding in zip(words, whole, strict=True)]

    def _halved(
        self, words: Sequence[str], first: int, encoding: tokenizers.Encoding
    ) -> list[tuple[int, tokenizers.Encoding]]:
        if len(encoding) <= self.max_length:
            return [(first, encoding)]
        if len(words) == 1:
            return [(first, self._cut.encode(words[0]))]  # only the first piece of a word is tagged
        middle = len(words) // 2
        halves = (words[:middle], first), (words[middle:], first + middle)
        return [
            part for half, begin in halves for part in self._halved(half, begin, self._whole.encode(" ".join(half)))
        ]

    def questions(self, records: Sequence[QuestionRecord], *, stride: int) -> list[list[tokenizers.Encoding]]:
        """Questions with their texts, in windows that overlap where the text is too long.

        Args:
            records: The questions.
            stride: Tokens that neighbouring windows share, as far as the question leaves room.

        Returns:
            For each question its windows.

        Raises:
            CorpusError: A question leaves no room for its text.
            ModelError, TokenizerError: As for `texts`.
        """
        self._check_pairs()
        self.check_known([text for record in records for text in (record.question, record.context)])
        overhead = self._whole.num_special_tokens_to_add(True)
        lengths = [len(e) for e in self._whole.encode_batch([r.question for r in records], add_special_tokens=False)]
        found = []
        for record, length in zip(records, lengths, strict=True):
            room = self.max_length - length - overhead
            if room < LEAST_WINDOW:
                raise CorpusError(
                    f"question {record.id!r} has {length} tokens, which leaves {max(room, 0)} of the model's "
                    f"{self.max_length} positions for its text; at least {LEAST_WINDOW} are needed: shorten it"
                )
            self._whole.enable_truncation(self.max_length, stride=min(stride, room // 2), strategy="only_second")
            encoding = self._whole.encode(record.question, record.context)
            self._whole.no_truncation()
            found.append([encoding, *encoding.overflowing])
        return found

    def type_ids(self, encoding: tokenizers.Encoding) -> NDArray[np.int64] | None:
        """Token types, where the model has several."""
        return np.array(encoding.type_ids, dtype=np.int64) if self.with_types else None

    def check_known(self, texts: Sequence[str]) -> None:
        """Where the tokenizer has no `[UNK]`.

        Raises:
            TokenizerError: It does not know a character.
        """
        if self.tokenizer.special.unk is None:
            self.tokenizer.check_known("".join(set("".join(texts))))

    def _check_pairs(self) -> None:
        if self.tokenizer.special.sep is None or self._whole.num_special_tokens_to_add(True) < 2:
            raise ModelError(
                "the tokenizer puts nothing between the texts of a pair; pairs and questions need a model whose "
                "tokenizer has [SEP]"
            )


def first_pieces(words: Sequence[str], encoding: tokenizers.Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first token of each word of a text that was joined with spaces.

    Returns:
        Positions in the encoding, and the words' numbers; words without a token of their own (of characters that the
        tokenizer leaves out, or behind where the text was cut) have none.

    Example: `un ##mask it` for the words `unmask`, `it`, with [CLS] before them: positions 1, 3.
    """
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    positions = np.flatnonzero(~special & (offsets[:, 1] > offsets[:, 0]))
    ends = offsets[positions, 1]
    sizes = np.array([len(word) for word in words], dtype=np.int64)
    word_ends = np.cumsum(sizes + 1) - 1
    word_begins = word_ends - sizes
    place = np.searchsorted(ends, word_begins, side="right")  # the first token that ends behind the word's begin
    inside = place < len(positions)
    inside[inside] &= offsets[positions[place[inside]], 0] < word_ends[inside]
    numbers = np.flatnonzero(inside)
    found: NDArray[np.int64] = positions[place[numbers]]
    return found, numbers.astype(np.int64)


def words_of(text: str) -> tuple[str, ...]:
    """The words of a raw text: runs of letters and digits with the marks on them, and signs one by one."""
    return tuple(text[begin:end] for begin, end in word_spans(text))


def ids_of(encoding: Any) -> NDArray[np.int64]:
    """The token ids of an encoding."""
    return np.array(encoding.ids, dtype=np.int64)
