from __future__ import annotations

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from unmask.tokens.special import SPECIAL_TOKENS
from unmask.tokens.tokenizer import Tokenizer


def wordpiece(*entries: str) -> Tokenizer:
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *entries])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return Tokenizer(backend)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    encoded = tokenizer.encode_corpus([text])[0]
    pieces = [tokenizer.word_starts.text_of(tokenizer.token(int(i))) for i in encoded.input_ids]
    starts = np.flatnonzero(encoded.word_starts)
    assert starts[0] == 0
    return ["".join(pieces[a:b]) for a, b in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def test_words_are_those_a_person_would_write() -> None:
    tokenizer = wordpiece("un", "##mask", "##ed", "un", "it", "'", "s", "!", "-", "well", "##-", "中", "文")
    assert words(tokenizer, "unmasked, it's!") == ["unmasked", "[UNK]", "it", "'", "s", "!"]
    assert words(tokenizer, "well-unmasked") == ["well", "-", "unmasked"]
    assert words(tokenizer, "中文") == ["中", "文"]


def test_a_token_that_is_only_the_mark_begins_a_word() -> None:
    tokenizer = wordpiece("#", "##", "###", "a")
    assert words(tokenizer, "a # a") == ["a", "#", "a"]


def test_bytes_of_tokens() -> None:
    tokenizer = wordpiece("né", "##né", "a")
    assert tokenizer.token_bytes.tolist() == [0, 0, 0, 0, 0, 3, 3, 1]
