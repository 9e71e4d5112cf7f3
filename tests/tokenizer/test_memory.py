"""Words that are remembered come to the same tokens as whole texts that the tokenizers library is given."""

from __future__ import annotations

import itertools
import string

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tests.conftest import make_text
from tests.tokenizer.families import SENTENCE, TEXT, trained
from unmask.tokenizer import tokenizer as memory
from unmask.tokenizer.tokenizer import Tokenizer, WordMemory, can_remember, with_special_tokens
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


KINDS = {
    "cased": {"lowercase": False, "strip_accents": False},
    "uncased": {"lowercase": True, "strip_accents": None},
    "as it is": {"lowercase": False, "clean_text": False, "handle_chinese_chars": False},
    "no normaliser": {},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS)
def test_remembered_words_come_to_the_same_tokens(kind: str, first: list[str], second: list[str]) -> None:
    backend = wordpiece(**KINDS[kind])
    backend.encode_special_tokens = True
    assert can_remember(backend)
    remembers = WordMemory(backend)
    for texts in (first, second, first):
        expected = [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
        ids, lengths = remembers.encode(texts)
        assert lengths.tolist() == [len(each) for each in expected]
        assert ids.tolist() == list(itertools.chain.from_iterable(expected))


def test_a_trained_tokenizer_remembers_and_others_do_not() -> None:
    assert can_remember(trained("wordpiece").backend)
    assert can_remember(train_wordpiece(lambda: [TEXT], vocab_size=220, lowercase=True))
    assert not any(can_remember(trained(family).backend) for family in ("bpe", "bpe_prefix", "unigram", "char"))
    joins = wordpiece()
    joins.add_tokens([AddedToken("the king", special=False)])  # reaches beyond a space
    assert not can_remember(joins)
    for cutter in (pre_tokenizers.Whitespace(), None):
        backend = wordpiece()
        backend.pre_tokenizer = cutter
        assert not can_remember(backend)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_WORDS", 30)
    backend = wordpiece(lowercase=False)
    remembers = WordMemory(backend)
    for seed in range(4):
        texts = make_text(20, seed=seed).split("\n\n")
        expected = [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
        ids, _ = remembers.encode(texts)
        assert ids.tolist() == list(itertools.chain.from_iterable(expected))
        assert len(remembers._numbers) == len(remembers._lengths) == 0
    monkeypatch.setattr(memory, "MOST_WORDS", 10**6)
    remembers.encode(["the king sees"])
    assert len(remembers._numbers) == 3
    monkeypatch.setattr(memory, "MOST_CHARS", 5)
    remembers.encode(["the queen"])
    assert len(remembers._numbers) == 0


def test_text_whose_words_do_not_come_again_is_left_to_the_library() -> None:
    tokenizer = Tokenizer(wordpiece(lowercase=False))
    assert tokenizer._memory is not None
    texts = [f"{n:x}" for n in range(20_000)]
    before = tokenizer.encode_corpus(texts)
    assert not tokenizer._memory.useful
    after = tokenizer.encode_corpus(texts)
    assert [e.input_ids.tolist() for e in before] == [e.input_ids.tolist() for e in after]
    assert [e.word_starts.tolist() for e in before] == [e.word_starts.tolist() for e in after]
    busy = Tokenizer(wordpiece(lowercase=False))
    busy.encode_corpus([make_text(600)])
    assert busy._memory is not None
    assert busy._memory.useful


class Interrupting:
    def encode_batch_fast(self, words: list[str], add_special_tokens: bool) -> None:
        raise KeyboardInterrupt


def test_words_that_were_not_learned_are_forgotten() -> None:
    """An interrupt between two changes of the tables must not shift the tokens of later words."""
    backend = wordpiece(lowercase=False)
    remembers = WordMemory(backend)
    remembers.backend = Interrupting()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        remembers.encode(["the king sees"])
    remembers.backend = backend
    for text in ("a queen", "the queen sees the king", "the king sees"):
        assert remembers.encode([text])[0].tolist() == backend.encode(text, add_special_tokens=False).ids
