"""Where words begin: in characters, and in the tokens of every family."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tests.tokenizer.families import FAMILIES, SENTENCE, built, numbered, trained, wordpiece, words
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.words import Kind, kind_of, kinds_of_bytes


@pytest.mark.parametrize(
    ("characters", "kind"),
    [
        (" \n\t\u00a0\u3000", Kind.SPACE),
        ("aÉжあ가ไ", Kind.LETTER),
        ("0९½²", Kind.DIGIT),
        (".,'-_$+~—。«", Kind.PUNCTUATION),
        ("😀€→\u200b", Kind.SYMBOL),
        ("中㐀\U00020000", Kind.IDEOGRAPH),
        ("\u0301\u093f\ufe0f\u200d\u00ad\U0001f3fd", Kind.MARK),
    ],
)
def test_kinds(characters: str, kind: Kind) -> None:
    assert {kind_of(character) for character in characters} == {kind}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5))
def test_kinds_of_bytes_are_those_of_their_characters(texts: list[str]) -> None:
    utf8 = [text.encode() for text in texts]
    begins = np.concatenate([np.arange(len(part)) == 0 for part in utf8])
    kinds = kinds_of_bytes(np.frombuffer(b"".join(utf8), dtype=np.uint8), begins)
    assert kinds.tolist() == [kind_of(a) for text in texts for a in text for _ in a.encode()]


def test_a_character_that_is_cut_off_is_no_character() -> None:
    half = np.frombuffer("中".encode(), dtype=np.uint8)
    assert kinds_of_bytes(half, np.array([True, False, False])).tolist() == [Kind.IDEOGRAPH] * 3
    assert kinds_of_bytes(half, np.array([True, False, True])).tolist() == [Kind.SYMBOL] * 3


def bpe(*entries: str, **parts: object) -> Tokenizer:
    """BPE with entries of several letters that merges do not reach: only ids matter."""
    names = ("end_of_word_suffix", "continuing_subword_prefix", "byte_fallback")
    options = {name: parts.pop(name) for name in names if name in parts}
    return built(models.BPE(numbered(*entries), [], **options), **parts)


def starts(tokenizer: Tokenizer, *tokens: str) -> str:
    ids = np.array([tokenizer.backend.token_to_id(token) for token in tokens])
    return "".join(str(int(start)) for start in tokenizer.word_starts.of_ids(ids))


EXPECTED = {
    "wordpiece": "I|can|'|t|say|,|well|-|known|3rd|naïve|中|文|!|we|'|re|😀|ok|.|.|.|12|,|000|Zoë|_|x",
    "bpe": "I|can|'t|say|,||well|-|known|3|rd|naïve|中|文|!|\n|\n|we|'re|😀|ok|...|12|,|000|Zoë|_|x",
    "unigram": "I|can|'|t|say|,|well|-|known|3rd|naïve|中|文|!|we|'|re|😀|ok|...|12|,|000|Zoë|_|x",
    "char": "I| |can|'|t| |say|,| | |well|-|known| |3rd| |naïve| |中|文|!|\n|\n|we|'|re| |😀| |ok|.|.|.| "
    "|12|,|000| |Zoë|_|x",
}
EXPECTED["bpe_prefix"] = EXPECTED["bpe"]


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_those_a_person_would_write(family: str) -> None:
    """Byte-level BPE may know 中文 as one token, or hold the bytes of each: then each character is a word."""
    assert "|".join(words(trained(family), SENTENCE)).replace("中文", "中|文") == EXPECTED[family]


def test_the_fine_points_of_wordpiece() -> None:
    tokenizer = wordpiece(
        *["un", "##mask", "##ed", "it", "'", "s", "!", "-", "well", "##-", "中", "##文", "##€", "#", "##"]
    )
    assert words(tokenizer, "unmasked, it's!") == ["unmasked", "[UNK]", "it", "'", "s", "!"]
    assert words(tokenizer, "well-unmasked") == ["well", "-", "unmasked"]
    assert words(tokenizer, "un # un") == ["un", "#", "un"]
    assert starts(tokenizer, "well", "##-", "##mask", "##€", "中", "##文", "##ed") == "1110111"


@settings(max_examples=150)
@given(st.text("ab zZé19!?.-_😀\n\t—", min_size=1, max_size=40))
def test_words_of_byte_level_bpe_are_its_pre_tokenizers_pieces(text: str) -> None:
    tokenizer = trained("bpe")
    spell = tokenizer.word_starts.spelling.text_bytes
    pieces = [spell(piece).decode() for piece, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)]
    assert [word for word in words(tokenizer, text) if word.strip()] == [piece for piece in pieces if piece.strip()]


@pytest.mark.parametrize("text", ["we'll", "it's", "they've", "I'd", "rock'n'roll", "O'Reilly", "!'s", " 's", "'re"])
def test_contractions_are_cut_as_gpt2_cuts_them_though_they_are_spelled_in_bytes(text: str) -> None:
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = bpe(*sorted(letters), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    pieces = [p.replace("Ġ", "") for p, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)]
    assert words(tokenizer, text) == pieces


def test_the_fine_points_of_byte_level_bpe() -> None:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    entries = ("Ġ", "Ġthe", "a", "3", "ĠĠ", "Ċ", "ä", "¸", "Ń", "ä¸Ń", "æĸĩ", "Ìģ", "à¤", "ķ", "¿")
    tokenizer = bpe(*entries, pre_tokenizer=level)
    assert starts(tokenizer, "a", "Ġ", "3", "a") == "1101"  # a separate space belongs to the next word
    assert starts(tokenizer, "a", "Ġ", "Ġthe", "ĠĠ", "a") == "11111"
    assert starts(tokenizer, "a", "Ċ", "Ċ", "a") == "1111"
    assert starts(tokenizer, "a", "ä", "¸", "Ń", "æĸĩ", "a") == "110011"  # a, then 中 in three tokens, 文, a
    assert starts(tokenizer, "a", "ä¸Ń", "a") == "111"
    assert starts(tokenizer, "a", "Ìģ", "a") == "100"  # an accent of its own
    assert starts(tokenizer, "a", "à¤", "ķ", "à¤", "¿", "a") == "100000"  # a Hindi letter and its vowel, in halves
    assert starts(tokenizer, "a", "[SEP]", "a", "[MASK]", "a") == "11111"
    assert starts(tokenizer, "¸", "¸", "a", "ä", "a")[0] == "1"  # not UTF-8, but no error


METASPACE = ("▁", "▁the", "a", "3", ",", "'", "\n", "中", "▁of▁the", "é", "▁▁")


@pytest.mark.parametrize("split", [True, False])
def test_the_fine_points_of_metaspace(split: bool) -> None:
    tokenizer = bpe(*METASPACE, pre_tokenizer=pre_tokenizers.Metaspace(split=split))
    assert starts(tokenizer, "▁the", "a", "é", "3", ",", ",", "a") == "1000101"
    assert starts(tokenizer, "▁the", "▁", "a", "▁", ",", "▁", "▁the") == "1101011"
    assert starts(tokenizer, "▁the", "a", "'", "a", "\n", "a", "▁of▁the", "a") == "10111110"
    assert starts(tokenizer, "▁the", "中", "中", "a", "▁▁", "a", "▁", "中") == "11111110"
    assert tokenizer.text(tokenizer.backend.token_to_id("▁of▁the")) == "of the"


def test_metaspace_by_a_normaliser_with_bytes_for_unknown_letters() -> None:
    """Llama's files: no pre-tokenizer, spaces are replaced before, bytes stand for letters without an entry."""
    bytes_ = [f"<0x{b:02X}>" for b in (0xE4, 0xB8, 0xAD, 0x0A)]
    tokenizer = bpe(*METASPACE, *bytes_, normalizer=normalizers.Replace(" ", "▁"), byte_fallback=True)
    assert starts(tokenizer, "▁the", "a", *bytes_, "a") == "1010011"
    assert tokenizer.token_bytes[-4:].tolist() == [1, 1, 1, 1]


def test_unigram_keeps_an_unknown_letter_in_its_word() -> None:
    assert words(trained("unigram"), "the naЖve king") == ["the", "na[UNK]ve", "king"]
    assert words(trained("char"), "naЖve") == ["na[UNK]ve"]


def test_marks_of_other_kinds() -> None:
    ended = bpe("a", "b</w>", ",</w>", end_of_word_suffix="</w>", pre_tokenizer=pre_tokenizers.BertPreTokenizer())
    assert starts(ended, "a", "a", "b</w>", "b</w>", ",</w>", "a") == "100111"
    assert ended.token_bytes.tolist()[-3:] == [1, 1, 1]
    continued = bpe("a", "##a", "##b", continuing_subword_prefix="##")
    assert starts(continued, "a", "##a", "##b", "a") == "1001"
    for entries, expected in ((("A", "C", "-"), "1011"), (("king", "queen", "A"), "1111")):
        model = models.WordLevel(numbered(*entries), unk_token="[UNK]")
        of_words = built(model, pre_tokenizer=pre_tokenizers.Whitespace())
        assert starts(of_words, *entries, entries[0]) == expected, "characters of a word, or words"


def test_a_tokenizer_that_hides_where_words_are_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = bpe("a", "bc", pre_tokenizer=pre_tokenizers.Whitespace(), decoder=decoders.Fuse())
    assert "drops white space and marks no words, so each token counts as a word" in caplog.text
    assert starts(tokenizer, "a", "bc", "a") == "111"


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_of_tokens_add_up_to_the_text(family: str) -> None:
    tokenizer = trained(family)
    text = "the king sees Zoë, the queen.\nthe ship"
    ids = tokenizer.encode_corpus([text])[0].input_ids
    without = {"char": text, "bpe": text.replace(" ", ""), "bpe_prefix": text.replace(" ", "")}
    expected = without.get(family, "".join(text.split()))
    assert tokenizer.token_bytes[ids].sum() == len(expected.encode())
