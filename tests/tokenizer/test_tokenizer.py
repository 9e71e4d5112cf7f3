"""Text that tokenizers do not know: counted in letters, or an error without `[UNK]`; known text is neither. Cached
words give the same tokens as whole texts encoded by the tokenizers library."""

from __future__ import annotations

import functools
import itertools
import logging
import string
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tests.conftest import make_text
from tests.tokenizer.families import SENTENCE, TEXT, bare_characters, built, numbered, trained, wordpiece
from unmask.core.errors import TokenizerError
from unmask.core.files import say_once
from unmask.tokenizer import tokenizer as memory
from unmask.tokenizer.tokenizer import BARE_TOKENS, Tokenizer, UnknownText, WordMemory, with_special_tokens
from unmask.tokenizer.trainers import train_wordpiece

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
bare = functools.partial(numbered, special=BARE_TOKENS)


def byte_level(letters: list[str], *, add_prefix_space: bool = False) -> Tokenizer:
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    model = models.BPE(bare(*letters), [])
    return built(model, pre_tokenizer=cutter, normalizer=normalizers.NFC(), decoder=decoders.ByteLevel())


def of_bytes(entries: list[str]) -> Tokenizer:
    """One that falls back on bytes, as Llama's do, with `▁` for spaces."""
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    model = models.BPE(bare("a", "▁", *entries), [], byte_fallback=True)
    return built(model, normalizer=normalizers.Replace(" ", "▁"), decoder=decoder)


@pytest.mark.parametrize("tokenizer", [byte_level(ALPHABET), of_bytes(BYTES)], ids=["byte level", "fallback"])
def test_bytes_spell_everything(tokenizer: Tokenizer) -> None:
    for text in (SENTENCE, "[MASK] e\u0301 é\0\t\u2028 a", ""):
        ids = tokenizer.encode_corpus([text])[0].input_ids.tolist()
        assert tokenizer.encode_placed([text])[0].input_ids.tolist() == ids
        assert tokenizer.special.mask not in ids
        assert tokenizer.decode(ids) == tokenizer.backend.normalizer.normalize_str(text).replace("▁", " ")
    prompt = tokenizer.encode_prompt("naïve [MASK] 中文").tolist()
    assert prompt.count(tokenizer.special.mask) == 1
    tokenizer.check_known([SENTENCE])


ENDS = models.BPE(bare("a", "b</w>"), [], end_of_word_suffix="</w>")
NO_C3 = [letter for letter in ALPHABET if letter != "Ã"]  # without the first byte of `é` and `ü`


@pytest.mark.parametrize(
    ("tokenizer", "text", "num_tokens", "unknown"),
    [
        (byte_level(NO_C3), "a a 中", 7, "éü"),
        (byte_level(NO_C3, add_prefix_space=True), "a a 中", 8, "éü"),
        (of_bytes([entry for entry in BYTES if entry != "<0xC3>"]), "a a 中", 7, "éü"),
        (bare_characters(), "What, dead?", 11, "x"),
        (built(models.BPE(bare("a", "b", "▁"), []), pre_tokenizer=pre_tokenizers.Metaspace()), "a ba", 5, "c"),
        (built(models.BPE(bare("a", "b"), []), pre_tokenizer=pre_tokenizers.Whitespace()), "a ba\n", 3, "c"),
        (built(models.BPE(numbered("a", "b"), [])), "aba", 3, "c"),  # [UNK] that the model does not name
        (built(ENDS, pre_tokenizer=pre_tokenizers.WhitespaceSplit()), "ab aab", 5, "c"),
        (built(models.Unigram([(entry, -1.0) for entry in bare("a", "b", "ab")])), "abab", 2, "c"),
    ],
)
def test_what_cannot_be_spelled_is_named(tokenizer: Tokenizer, text: str, num_tokens: int, unknown: str) -> None:
    """The pre-tokenizer's form of a space is looked up, and the form of a letter at the end of a word."""
    assert len(tokenizer.encode_corpus([text])[0].input_ids) == num_tokens
    for call in (tokenizer.encode_corpus, tokenizer.encode_joined, tokenizer.encode_placed, tokenizer.encode_prompts):
        for _ in range(2):  # unknown text stays unknown the second time
            with pytest.raises(TokenizerError, match=f"'{unknown[0]}'"):
                call(["a", f"a{unknown}"])


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel(bare("the", "king")),
        models.WordPiece(bare("the", "k", "##ing"), continuing_subword_prefix="##", unk_token="[UNK]"),
    ],
    ids=["words", "WordPiece"],
)
def test_words_that_are_not_known(model: models.Model) -> None:
    """Their letters need no entries; if a whole word has none, the library's error becomes ours."""
    tokenizer = built(model, pre_tokenizer=pre_tokenizers.BertPreTokenizer())
    expected = tokenizer.encode_corpus(["the king", "king"])[0].input_ids.tolist()
    for call in (tokenizer.encode_corpus, tokenizer.encode_placed, tokenizer.encode_prompts):
        with pytest.raises(TokenizerError, match=r"\[UNK\]"):
            call(["the queen"])
    assert tokenizer.encode_corpus(["the king"])[0].input_ids.tolist() == expected


LETTERS = ["the \u0416\u0416king\n", "na\u0416ve \u03a9mega", "", "the king"]
BLOBS = ["the kings, the queen\n", f"the {'k' * 101} \x07 king", "", "queen"]
BLOB = f"{'k' * 24}... (101)"


@pytest.mark.parametrize(
    ("tokenizer", "texts", "expected"),
    [
        # 3 + 5 + 1 + 3 + 5, 3 + 101 + 4, and 5 letters; queen twice, and a word of more than 100 letters
        (wordpiece("the", "king", "##s", ",", "k", "##k"), BLOBS, UnknownText(130, 111, (BLOB, "queen"))),
        (trained("unigram"), LETTERS, UnknownText(26, 4, ("\u0416", "\u03a9"))),
        (trained("char"), LETTERS, UnknownText(26, 4, ("\u0416", "\u03a9"))),
        (trained("bpe"), LETTERS, UnknownText(26, 0)),
    ],
    ids=["wordpiece", "unigram", "char", "bpe"],
)
def test_unknown_text_is_counted_in_letters(
    tokenizer: Tokenizer,
    texts: list[str],
    expected: UnknownText,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "_watched", UnknownText())  # other tests have the same tokenizer
    say_once.cache_clear()
    for _ in range(2):  # also words that were encoded before
        assert tokenizer.encode_joined(texts)[0].unknown == expected
        assert tokenizer.encode_placed(texts)[0].unknown == expected
    prompts = tokenizer.encode_prompts(texts)
    assert tokenizer.unknown_in(texts, np.concatenate(prompts), np.array(list(map(len, prompts)))) == expected
    with caplog.at_level(logging.WARNING):
        for each in (tokenizer, tokenizer, Tokenizer(tokenizer.backend, tokenizer.special_names)):
            each.encode_corpus(texts)
    assert len(caplog.records) == (expected.unknown > 0), "it is said once"
    assert not expected.unknown or f"{expected.share:.1%}" in caplog.text


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


def bert(**options: bool | None) -> tokenizers.Tokenizer:
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
@settings(max_examples=40)
@given(TEXTS, TEXTS)
def test_remembered_words_come_to_the_same_tokens(kind: str, first: list[str], second: list[str]) -> None:
    backend = bert(**KINDS[kind])
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
    backend = bert(lowercase=False)
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
    joins = bert()
    joins.add_tokens([AddedToken("the king", special=False)])  # reaches beyond a space
    spaced = bert()
    spaced.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not can_remember(joins)
    assert not can_remember(spaced)
    tokenizer = Tokenizer(bert(lowercase=False))
    texts = [f"{n:x}" for n in range(20_000)]
    before, after = (
        [(each.input_ids.tolist(), each.word_starts.tolist()) for each in tokenizer.encode_corpus(texts)]
        for _ in range(2)
    )
    assert not tokenizer._memory.useful
    assert before == after
