"""New words: chosen by hand-counted savings, added to each family, and everything else unchanged."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from tests.conftest import make_text
from tests.tokenizer.families import TEXT, built, numbered, trained, wordpiece, words
from unmask.core.errors import TokenizerError
from unmask.tokenizer.extension import NewWord, extend_vocabulary, respelled, unigram_scores
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer

NEW = "the allocator and the constructors of std::allocator; (constructors) allocators, the allocator's constructors\n"
SENTENCES = [*make_text(20, seed=9).split("\n\n"), NEW, "Allocators deallocate: pre-allocator naïve 中文 12,000!", ""]


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(int(id_)) for id_ in tokenizer.encode_corpus([text])[0].input_ids]


def test_by_hand() -> None:
    """abcd occurs 6 times in 4 pieces (18 saved), bcd 8 times in 3 (16), dc too rarely, ab is one piece already."""
    tokenizer = wordpiece(*["a", "b", "c", "d", "ab", "##a", "##b", "##c", "##d", ",", "the"], lowercase=True)
    texts = ["ABCD, bcd the ab"] * 6 + ["bcd ab, , the"] * 2 + ["dcd"] * 4
    # abcd is ab ##c ##d: 3 pieces, 6 x 2 = 12 saved; bcd is b ##c ##d: 8 x 2 = 16 saved.
    extension = extend_vocabulary(tokenizer, texts, 5)
    assert [(word.entry, word.count, word.saved) for word in extension.words] == [("bcd", 8, 16), ("abcd", 6, 12)]
    assert [" ".join(map(tokenizer.token, word.pieces)) for word in extension.words] == ["b ##c ##d", "ab ##c ##d"]
    assert (extension.first_id, tokenizer.vocab_size, extension.tokenizer.vocab_size) == (16, 16, 18)
    assert [extension.tokenizer.token(id_) for id_ in (16, 17)] == ["bcd", "abcd"]
    assert extension.tokens_before == 6 * (3 + 1 + 3 + 1 + 1) + 2 * (3 + 1 + 1 + 1 + 1) + 4 * 3
    assert extension.tokens_after == extension.tokens_before - 12 - 16
    assert tokens(extension.tokenizer, "Abcd bcda dcd") == ["abcd", "bcd", "##a", "d", "##c", "##d"]
    assert len(extend_vocabulary(tokenizer, texts, 1).words) == 1


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "bpe_prefix", "unigram"])
def test_new_words_are_whole_and_nothing_else_changes(family: str) -> None:
    old, extension = trained(family), extend_vocabulary(trained(family), [TEXT, NEW * 100], 12)
    new = extension.tokenizer
    entries = " ".join(word.entry for word in extension.words)
    assert len(extension.words) == 12
    assert "allocator" in entries
    assert "constructors" in entries
    pieces = {extension.first_id + number: word.pieces for number, word in enumerate(extension.words)}
    assert [new.token(id_) for id_ in range(old.vocab_size)] == [old.token(id_) for id_ in range(old.vocab_size)]
    assert new.special == old.special
    assert np.array_equal(new.ordinary[: old.vocab_size], old.ordinary)
    assert new.ordinary[old.vocab_size :].all(), "new words may be masked, and be drawn as replacements"
    for number, word in enumerate(extension.words):
        assert new.token(extension.first_id + number) == word.entry
        assert new.token_bytes[extension.first_id + number] == len(new.text(extension.first_id + number).encode())
        assert new.space_before(extension.first_id + number) == old.space_before(word.pieces[0])
    seen = 0
    for text in SENTENCES:
        before, after = old.encode_corpus([text])[0], new.encode_corpus([text])[0]
        assert words(old, text) == words(new, text) if text else True
        assert old.token_bytes[before.input_ids].sum() == new.token_bytes[after.input_ids].sum()
        seen += int((after.input_ids >= old.vocab_size).sum())
        spelled_out = [piece for id_ in after.input_ids.tolist() for piece in pieces.get(id_, (id_,))]
        if family != "wordpiece" or not any(word.entry in text for word in extension.words):
            assert spelled_out == before.input_ids.tolist(), "a new entry stands for its pieces, and nothing else moves"
    assert seen >= 4


def test_words_of_two_letters_that_are_several_bytes() -> None:
    old = trained("bpe")
    spell = old.word_starts.spelling.text_bytes
    extension = extend_vocabulary(old, [" zq là 있다 не" * 9], 5)
    assert {spell(word.entry).decode() for word in extension.words} == {"있다", "не"}


def test_unigram_entries_at_the_least_score_also_spell_longer_words() -> None:
    """`▁alloc` and `ator` have -18 together, so `▁allocator` gets the least score, -13; with `s` that beats -17."""
    scores = {"▁the": -2.0, "s": -3.0, "ators": -8.0, "▁alloc": -9.0, "ator": -9.0, "ate": -9.0, "x": -13.0}
    content = json.loads(trained("unigram").backend.to_str())
    content["model"]["vocab"] = [*([token, 0.0] for token in SPECIAL_TOKENS), *map(list, scores.items())]
    old = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
    assert tokens(old, "the allocators") == ["▁the", "▁alloc", "ators"]
    extension = extend_vocabulary(old, ["the allocator"] * 9, 5)
    assert [word.entry for word in extension.words] == ["▁allocator"]
    vocab = dict(json.loads(extension.tokenizer.backend.to_str())["model"]["vocab"])
    assert vocab["▁allocator"] == min(vocab.values()) == -13.0
    assert tokens(extension.tokenizer, "the allocator") == ["▁the", "▁allocator"]
    assert tokens(extension.tokenizer, "the allocators") == ["▁the", "▁allocator", "s"]
    assert tokens(extension.tokenizer, "the allocate") == tokens(old, "the allocate") == ["▁the", "▁alloc", "ate"]
    word = NewWord("▁thes", (5, 6), 9)
    assert unigram_scores([word], dict(enumerate(vocab.values()))) == [pytest.approx(-2 - 3 + 1e-4)], "a hair above"


def test_entries_that_make_other_words_unknown_are_left_out() -> None:
    """With `abc`, WordPiece would spell abcx as abc and x within a word, which it does not know."""
    tokenizer = wordpiece(*["a", "ab", "##b", "##c", "##cx", "d", "##d", ",", "##e"])
    assert tokens(tokenizer, "abc abcx") == ["ab", "##c", "ab", "##cx"]
    extension = extend_vocabulary(tokenizer, ["abc abcx dde"] * 9, 2)
    assert [word.entry for word in extension.words] == ["dde"], "18 tokens saved; abc would save 9 and lose abcx"
    assert tokens(extension.tokenizer, "abc abcx dde") == ["ab", "##c", "ab", "##cx", "dde"]
    extension = extend_vocabulary(tokenizer, ["abc abcx dde"] * 9, 3)
    assert [word.entry for word in extension.words] == ["dde", "abc", "abcx"], "abcx has an entry of its own"


def with_added_tokens(family: str, *tokens: str) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(trained(family).backend.to_str())
    backend.add_tokens(list(tokens))
    return Tokenizer(backend)


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "bpe_prefix"])
def test_added_tokens_stay_where_they_are(family: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Old entries, then added tokens, then new words; the library would complain about gaps. The text of added tokens
    is cut out before words are, so an entry for it would take their id, or never occur."""
    old = with_added_tokens(family, "allocator", "<namespace>")
    text = "the allocator, <namespace> constructors of\n<namespace>constructors of allocators\n" * 9
    extension = extend_vocabulary(old, [text], 12)
    entries = {word.entry.strip("\u0120") for word in extension.words}
    assert "constructors" in entries
    assert not entries & {"allocator", "allocators", "namespace"}
    assert extension.first_id == old.vocab_size == trained(family).vocab_size + 2
    assert extension.tokenizer.token(extension.first_id - 1) == "<namespace>"
    new = extension.tokenizer.encode_corpus([text])[0].input_ids
    assert new.tolist().count(extension.first_id - 2) == 18
    assert extension.tokens_before == len(old.encode_corpus([text])[0].input_ids)
    assert extension.tokens_after == len(new)
    assert set(range(extension.first_id, extension.tokenizer.vocab_size)) <= set(new.tolist()), "none is dead"
    extension.tokenizer.backend.to_str()
    assert capfd.readouterr() == ("", "")


def test_unigram_with_added_tokens_is_not_extended() -> None:
    with pytest.raises(TokenizerError, match="Unigram"):
        extend_vocabulary(with_added_tokens("unigram", "<x1>"), [NEW * 10], 4)


def changed(family: str, **parts: object) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(trained(family).backend.to_str())
    for name, part in parts.items():
        setattr(backend, name, part)
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("family", "parts", "message"),
    [
        ("char", {}, "cannot be added"),
        ("wordpiece", {"model": models.WordLevel(numbered("a", "a</w>"), unk_token="[UNK]")}, "WordLevel tokenizer"),
        ("bpe", {"pre_tokenizer": None}, "cannot be added"),
        # As Gemma's: no space is left to cut at.
        (
            "bpe",
            {"normalizer": normalizers.Replace(" ", "▁"), "pre_tokenizer": pre_tokenizers.Split(" ", "removed")},
            "cannot be added",
        ),
        ("wordpiece", {"model": models.BPE(numbered("a"), [], end_of_word_suffix="</w>")}, "cannot be added"),
        ("wordpiece", {}, "nothing to add"),
    ],
)
def test_what_cannot_be_extended_says_so(family: str, parts: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        extend_vocabulary(changed(family, **parts), [NEW], 4)


def test_another_vocabulary_by_hand() -> None:
    """Across families: `king` begins a word in both, `a` of BPE continues one, and `kinga` is spelled by two tokens."""
    old = wordpiece("a", "king", "##a", "##s", "x")
    merges = [("Ġ", "k"), ("i", "n"), ("in", "g"), ("Ġk", "ing"), ("Ġking", "a"), ("Ġking", "q")]
    entries = ["Ġ", *"kingasq", "Ġk", "in", "ing", "Ġking", "Ġkinga", "Ġkingq"]
    new = built(
        models.BPE(numbered(*entries, special=["<mask>", "<pad>", "</s>", "<s>", "<unk>"]), merges),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    pieces, unknown = respelled(old, new)
    spelled = {new.token(id_): [old.token(piece) for piece in pieces[id_]] for id_ in range(new.vocab_size)}
    assert (spelled["<mask>"], spelled["<pad>"], spelled["<s>"]) == (["[MASK]"], ["[PAD]"], ["[CLS]"])
    assert (spelled["Ġking"], spelled["a"], spelled["Ġkinga"]) == (["king"], ["##a"], ["king", "##a"])
    assert spelled["Ġkingq"] == [], "it is unknown to the old one"
    known = {"Ġking", "a", "s"}
    assert {new.token(id_) for id_ in unknown} == set(entries) - known
    assert len(pieces) == new.vocab_size


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram", "char"])
def test_a_vocabulary_replaced_by_itself_is_the_same(family: str) -> None:
    tokenizer = trained(family)
    pieces, unknown = respelled(tokenizer, tokenizer)
    assert unknown == []
    assert all(pieces[id_] == [id_] for id_ in np.flatnonzero(tokenizer.ordinary))
