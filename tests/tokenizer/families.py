"""A tokenizer of each family over the same text, and its words written out."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from tests.conftest import make_text
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer, with_special_tokens
from unmask.tokenizer.trainers import train_bpe, train_chars, train_unigram, train_wordpiece

SENTENCE = "I can't say,  well-known 3rd naïve 中文!\n\nwe're 😀 ok... 12,000 Zoë_x"
TEXT = make_text(60) + "\n" + (SENTENCE + "\n") * 3
FAMILIES = ("wordpiece", "bpe", "bpe_prefix", "unigram", "char")


def numbered(*entries: str, special: Sequence[str] = SPECIAL_TOKENS) -> dict[str, int]:
    """A vocabulary of special tokens and entries."""
    return {entry: id_ for id_, entry in enumerate([*special, *entries])}


def built(model: models.Model, **parts: object) -> Tokenizer:
    """A tokenizer made by hand from a model and named parts, with the special tokens that the model has."""
    backend = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(backend, name, part)
    return Tokenizer(with_special_tokens(backend, mask_takes_space=False))


def wordpiece(*entries: str, lowercase: bool = False) -> Tokenizer:
    """By hand, with BERT's other parts."""
    return built(
        models.WordPiece(numbered(*entries), unk_token="[UNK]"),
        normalizer=normalizers.BertNormalizer(lowercase=lowercase),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
    )


@functools.cache
def trained(family: str) -> Tokenizer:
    def texts() -> list[str]:
        return TEXT.split("\n\n")

    def with_prefix_space() -> tokenizers.Tokenizer:
        """Like some tokenizers of other projects: the first word is spelled as if a space came before it."""
        backend = train_bpe(texts, vocab_size=340)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        return backend

    backend = {
        "wordpiece": lambda: train_wordpiece(texts, vocab_size=220),
        "bpe": lambda: train_bpe(texts, vocab_size=340),
        "bpe_prefix": with_prefix_space,
        "unigram": lambda: train_unigram(texts, vocab_size=220),
        "char": lambda: train_chars(texts),
    }[family]()
    return Tokenizer(backend)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, without marks."""
    encoded = tokenizer.encode_corpus([text])[0]
    spell = tokenizer.word_starts.spelling.text_bytes
    pieces = [spell(tokenizer.token(int(i))) for i in encoded.input_ids]
    starts = np.flatnonzero(encoded.word_starts)
    assert starts[0] == 0
    return [b"".join(pieces[a:b]).decode() for a, b in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def bare_characters() -> Tokenizer:
    """A tokenizer that puts nothing around a text."""
    return Tokenizer(train_chars(lambda: ["What, art thou dead?"], bare=True))
