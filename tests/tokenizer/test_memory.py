"""Cached words give the same tokens as whole texts encoded by the tokenizers library."""

from __future__ import annotations

import itertools
import string
from unittest.mock import Mock

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tests.conftest import make_text
from tests.tokenizer.families import SENTENCE, TEXT, trained
from unmask.tokenizer import tokenizer as memory
from unmask.tokenizer.tokenizer import Tokenizer, WordMemory, with_special_tokens
from unmask.tokenizer.trainers import train_wordpiece

# Letters, every kind of space and control character, marks, accents, ideographs, special tokens, and any character.
PIECES = st.one_of(
    st.sampled_from([*SENTENCE, *string.punctuation, *" \n\t\r\x0b\x00\x1f\x7f\x85\xa0\u00ad\u200b\u200d\u2028\u3000"]),
    st.sampled_from(
        ["[MASK]", "[SEP]", "##", "the", "king", "e\u0301", "\u0301", "İ", "Σ", "ß", "中", "ﬁ", "한국", "x" * 101]
    ),
    st.sampled_from([*"“”‘’—–…«»°№¿、。", "\ufffd", "\ue000", "\U0001f468\u200d\U0001f469", "\U0010ffff"]),
    st.characters(exclude_categories=["Cs"]),
)
TEXTS = st.lists(st.lists(PIECES, max_size=40).map("".join), max_size=12)


def wordpiece(**options: bool | None) -> tokenizers.Tokenizer:
    vocab = trained("wordpiece").backend.get_vocab()
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(**options) if options else None
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return with_special_tokens(backend, mask_takes_space=False)


def can_remember(backend: tokenizers.Tokenizer) -> bool:
    return Tokenizer(backend)._memory is not None


KINDS = {
    "cased": {"lowercase": False, "strip_accents": False},
    "uncased": {"lowercase": True, "strip_accents": None},
    "as it is": {"lowercase": False, "clean_text": False, "handle_chinese_chars": False},
    "no normaliser": {},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS)
def test_remembered_words_come_to_the_same_tokens(kind: str, first: list[str], second: list[str]) -> None:
    backend = wordpiece(**KINDS[kind])
    backend.encode_special_tokens = True
    assert can_remember(backend)
    remembers = WordMemory(backend)
    for texts in (first, second, first):
        check(remembers, backend, texts)


def check(remembers: WordMemory, backend: tokenizers.Tokenizer, texts: list[str]) -> None:
    expected = [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    ids, lengths = remembers.encode(texts)
    assert lengths.tolist() == [len(each) for each in expected]
    assert ids.tolist() == list(itertools.chain.from_iterable(expected))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any cache size, and after an interrupt between two changes of the tables."""
    backend = wordpiece(lowercase=False)
    remembers = WordMemory(backend)
    for name, number in (("MOST_WORDS", 30), ("MOST_CHARS", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(memory, name, number)
            for seed in range(2):
                check(remembers, backend, make_text(20, seed=seed).split("\n\n"))
    interrupting = Mock(encode_batch_fast=Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(remembers, "backend", interrupting)
    with pytest.raises(KeyboardInterrupt):
        remembers.encode(["the philosopher remembers"])
    monkeypatch.setattr(remembers, "backend", backend)
    check(remembers, backend, ["a queen", "the queen remembers the king", "the philosopher remembers"])


def test_only_words_that_stand_alone_and_come_again_are_remembered() -> None:
    assert can_remember(train_wordpiece(lambda: [TEXT], vocab_size=220, lowercase=True))
    assert not any(can_remember(trained(family).backend) for family in ("bpe", "bpe_prefix", "unigram", "char"))
    joins = wordpiece()
    joins.add_tokens([AddedToken("the king", special=False)])  # reaches beyond a space
    spaced = wordpiece()
    spaced.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not can_remember(joins)
    assert not can_remember(spaced)
    tokenizer = Tokenizer(wordpiece(lowercase=False))
    texts = [f"{n:x}" for n in range(20_000)]
    before, after = (
        [(each.input_ids.tolist(), each.word_starts.tolist()) for each in tokenizer.encode_corpus(texts)]
        for _ in range(2)
    )
    assert not tokenizer._memory.useful
    assert before == after
