"""Properties of the trainers of all families, and of the tokenizers that they make."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command_line import PATIENCE
from tests.processes import Forked
from tests.tokenizer.families import FAMILIES, SENTENCE, TEXT, trained, words
from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import as_tokenizer, load_tokenizer
from unmask.tokenizer.spans import word_spans
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from unmask.tokenizer.trainers import train_bpe, train_chars, train_unigram, train_wordpiece


def print_fingerprints() -> None:
    print(*(trained(family).fingerprint for family in FAMILIES))


def test_the_same_text_gives_the_same_tokenizers_in_every_process() -> None:
    """By itself, the library numbers letters in the order of a hash map, which changes from process to process."""
    other, _ = Forked(print_fingerprints).communicate(timeout=PATIENCE)
    assert other.split() == [trained(family).fingerprint for family in FAMILIES]
    assert len(set(other.split())) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_come_first_and_are_the_only_ones_never_masked(family: str) -> None:
    tokenizer = trained(family)
    assert [tokenizer.token(i) for i in range(5)] == list(SPECIAL_TOKENS)
    assert vars(tokenizer.special) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert tokenizer.ordinary.tolist() == [False] * 5 + [True] * (tokenizer.backend.get_vocab_size() - 5)
    assert tokenizer.vocab_size <= {"bpe": 340, "bpe_prefix": 340}.get(family, 220)
    ids = tokenizer.encode_corpus(["the [MASK] and [SEP][PAD]"])[0].input_ids
    assert not set(ids.tolist()) & {0, 2, 3, 4}, "in a corpus they are letters"
    assert tokenizer.encode_prompt("the [MASK]").tolist()[-2:] == [4, 3]


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram", "char"])
def test_a_prompt_has_the_tokens_of_training_around_its_mask(family: str) -> None:
    """Otherwise a separate space token would come before the mask, which no training row has."""
    tokenizer = trained(family)
    whole = tokenizer.encode_prompt("the king, sees").tolist()
    masked = tokenizer.encode_prompt("the [MASK], sees").tolist()
    behind = whole[whole.index(tokenizer.encode_corpus(["the king,"])[0].input_ids[-1]) :]
    place = masked.index(4)
    assert masked[place + 1 :] == behind
    space = [tokenizer.backend.token_to_id(" ")] if family == "char" else []
    assert masked[1:place] == tokenizer.encode_corpus(["the"])[0].input_ids.tolist() + space


@pytest.mark.parametrize("family", ["wordpiece", "bpe"])
def test_prompts_have_their_masks_while_other_threads_read_a_corpus(family: str) -> None:
    tokenizer = Tokenizer(trained(family).backend)
    texts = [f"{TEXT} [MASK] {number}" for number in range(8)]
    prompt = tokenizer.encode_prompt("the king sees [MASK] at sea").tolist()
    assert prompt.count(tokenizer.special.mask) == 1
    readings, is_over = list[list[int]](), threading.Event()

    def read(encode: Callable[[list[str]], Any]) -> None:
        while not is_over.is_set():
            readings.append(encode(texts)[0].input_ids.tolist())

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read, each) for each in (tokenizer.encode_joined, tokenizer.encode_placed)]
        while len(readings) < 12 and not any(reader.done() for reader in readers):
            assert tokenizer.encode_prompt("the king sees [MASK] at sea").tolist() == prompt
        is_over.set()
    assert len(readings) >= 12
    assert all(ids == readings[0] for ids in readings)
    assert tokenizer.special.mask not in readings[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_loads_in_transformers(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = trained(family)
    tokenizer.save(tmp_path, max_length=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert ids == (0, 1, 2, 3, 4)
    assert theirs.model_max_length == 64
    for text in (SENTENCE, "the [MASK] sees [MASK][MASK], the king.", " the\n", ""):
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text).tolist()
    assert as_tokenizer(theirs).fingerprint == load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_byte_level_bpe_spells_every_text(text: str) -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode_corpus([text])[0].input_ids.tolist()
    assert tokenizer.decode(ids) == text
    assert tokenizer.special.unk not in ids


def test_byte_level_bpe_learns_from_parts_of_long_words() -> None:
    """A chromosome is one word, and merging its letters would take hours."""
    text = "".join(random.Random(0).choices("ACGT", k=600))
    assert max(map(len, train_bpe(lambda: [text] * 4, vocab_size=2000).get_vocab())) == 256


def test_characters_are_those_of_the_text_or_the_most_frequent() -> None:
    tokenizer = train_chars(lambda: ["ACGT ACG\n", "ACTG"])
    assert [tokenizer.id_to_token(i) for i in range(5, tokenizer.get_vocab_size())] == ["\n", " ", "A", "C", "G", "T"]
    assert sorted(train_chars(lambda: ["aaBBc"], vocab_size=7).get_vocab())[:2] == ["B", "[CLS]"]
    assert train_chars(lambda: ["aB"], lowercase=True).encode("AB").tokens == ["[CLS]", "a", "b", "[SEP]"]


@pytest.mark.parametrize(
    ("family", "train"), [("wordpiece", train_wordpiece), ("bpe", train_bpe), ("unigram", train_unigram)]
)
def test_case_is_folded_only_when_asked(family: str, train: type[tokenizers.Tokenizer]) -> None:
    folded = Tokenizer(train(lambda: TEXT.split("\n"), vocab_size=340, lowercase=True))
    for tokenizer, expected in ((trained(family), "I the Zoë"), (folded, "i the zoë")):
        assert tokenizer.decode(tokenizer.encode_corpus(["I the Zoë"])[0].input_ids.tolist()) == expected


JOINED = [
    "می\u200cخواهم کتاب\u200cهای تازه",
    "क्\u200dष र्\u200dय",
    "👨\u200d👩\u200d👧 👍🏽 ❤\ufe0f",
    "exam\u00adple co\u2060op",
]


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram", "char"])
@pytest.mark.parametrize("text", JOINED)
def test_nothing_is_cleaned_and_joiners_stay_in_their_words(family: str, text: str, tmp_path: Path) -> None:
    train = {"wordpiece": train_wordpiece, "bpe": train_bpe, "unigram": train_unigram, "char": train_chars}[family]
    tokenizer = Tokenizer(train(lambda: [text] * 50))
    assert tokenizer.decode(tokenizer.encode_corpus([text])[0].input_ids.tolist()) == text
    assert [word for word in words(tokenizer, text) if word.strip()] == text.split()
    assert [text[begin:end] for begin, end in word_spans(text)] == text.split()
    tokenizer.save(tmp_path, max_length=64)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text).tolist()


def test_characters_that_bert_cleans_are_taken_out_where_the_text_had_none() -> None:
    """So plain text keeps its tokenizer, and a stray joiner in new text does not make a word unknown."""
    tokenizer = Tokenizer(train_wordpiece(lambda: ["an example"] * 50))
    assert tokenizer.encode_corpus(["exam\u00adple\x00"])[0].input_ids.tolist() == [
        tokenizer.backend.token_to_id("example")
    ]


def test_zero_width_spaces_separate_words() -> None:
    text = "សូម\u200bស្វាគមន៍\u200bមក\u200bកាន់"
    assert words(Tokenizer(train_wordpiece(lambda: [text] * 50)), text) == text.split("\u200b")


CHINESE = "".join(map(chr, range(0x4E00, 0x4E80)))


@pytest.mark.parametrize(
    ("train", "text", "vocab_size", "message"),
    [
        (train_bpe, "a", 100, r"of 100 .* at least 325"),
        (train_unigram, CHINESE, 64, r"of 64 .* 128 letters .* 198"),
        (train_wordpiece, CHINESE, 64, "of 64 cannot hold the letters"),
        (train_chars, "", None, "empty text"),
        (train_unigram, " ", 64, "empty text"),
    ],
)
def test_texts_that_cannot_be_trained_on(
    train: type[tokenizers.Tokenizer], text: str, vocab_size: int | None, message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        train(lambda: [text] if text else [], vocab_size=vocab_size)


def test_a_text_of_many_letters_gets_room_for_them() -> None:
    """A syllabary or Chinese: the default size holds the letters, and rare ones are unknown, not an error."""
    text = " ".join(chr(0xAC00 + i % 1100) + chr(0xAC00 + i * 7 % 1100) for i in range(4000))
    tokenizer = Tokenizer(train_wordpiece(lambda: [text]))
    assert (tokenizer.encode_corpus([text])[0].input_ids == tokenizer.special.unk).mean() < 0.01
    ideographs = "".join(chr(0x4E00 + i) for i in range(900)) + " ab"  # each is a word, so none goes on within a word
    assert train_wordpiece(lambda: [ideographs]).get_vocab_size() < 1200
    rare = "a " * 200_000 + "".join(chr(0x4E00 + i) for i in range(90))
    assert train_wordpiece(lambda: [rare], vocab_size=80).get_vocab_size() <= 80


def test_stored_truncation_and_padding_do_not_touch_the_corpus() -> None:
    backend = train_wordpiece(lambda: [TEXT], vocab_size=150)
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    tokenizer = Tokenizer(backend)
    assert len(tokenizer.encode_corpus([TEXT])[0].input_ids) > 1000
    assert len(tokenizer.encode_corpus(["The"])[0].input_ids) < 4
    assert len(tokenizer.encode_prompt("The king sees the queen in the garden.")) > 9
    assert backend.truncation is not None, "the caller's own tokenizer is left as it is"
