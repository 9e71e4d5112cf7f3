"""What holds for the trainers of all families."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.families import FAMILIES, SENTENCE, TEXT, trained
from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import as_tokenizer, load_tokenizer
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from unmask.tokenizer.trainers import train_bpe, train_chars, train_unigram, train_wordpiece

ROOT = Path(__file__).parents[2]


def test_the_same_text_gives_the_same_tokenizers_in_every_process() -> None:
    """The library alone numbers letters in the order of a hash map, which changes from process to process."""
    code = (
        "from tests.tokenizer.families import FAMILIES, trained\n"
        "for family in FAMILIES: print(trained(family).fingerprint)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        for _ in range(2)
    ]
    here = [trained(family).fingerprint for family in FAMILIES]
    assert [run.split() for run in runs] == [here, here]
    assert len(set(here)) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_come_first_and_are_the_only_ones_never_masked(family: str) -> None:
    tokenizer = trained(family)
    assert [tokenizer.token(i) for i in range(5)] == list(SPECIAL_TOKENS)
    assert vars(tokenizer.special) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert tokenizer.ordinary.sum() == tokenizer.vocab_size - 5 == tokenizer.backend.get_vocab_size() - 5
    assert not tokenizer.ordinary[:5].any()
    assert tokenizer.vocab_size <= {"bpe": 340, "bpe_prefix": 340}.get(family, 220)


@pytest.mark.parametrize("family", FAMILIES)
def test_literal_special_tokens_in_corpus_text_are_text(family: str) -> None:
    tokenizer = trained(family)
    ids = tokenizer.encode_corpus(["the [MASK] and [SEP][PAD]"])[0].input_ids
    assert not set(ids.tolist()) & {0, 2, 3, 4}
    assert tokenizer.encode_prompt("the [MASK]").tolist()[-2:] == [4, 3]


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram", "char"])
def test_a_prompt_has_the_tokens_of_training_around_its_mask(family: str) -> None:
    """Otherwise a lone space stands before the mask, which no row in training has."""
    tokenizer = trained(family)
    whole = tokenizer.encode_prompt("the king, sees").tolist()
    masked = tokenizer.encode_prompt("the [MASK], sees").tolist()
    behind = whole[whole.index(tokenizer.encode_corpus(["the king,"])[0].input_ids[-1]) :]
    place = masked.index(4)
    assert masked[place + 1 :] == behind
    space = [tokenizer.backend.token_to_id(" ")] if family == "char" else []
    assert masked[1:place] == tokenizer.encode_corpus(["the"])[0].input_ids.tolist() + space


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


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_byte_level_bpe_spells_every_text(text: str) -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode_corpus([text])[0].input_ids.tolist()
    assert tokenizer.decode(ids) == text
    assert tokenizer.special.unk not in ids


def test_characters_are_those_of_the_text_or_the_most_frequent() -> None:
    tokenizer = train_chars(lambda: ["ACGT ACG\n", "ACTG"])
    assert [tokenizer.id_to_token(i) for i in range(5, tokenizer.get_vocab_size())] == ["\n", " ", "A", "C", "G", "T"]
    assert sorted(train_chars(lambda: ["aaBBc"], vocab_size=7).get_vocab())[:2] == ["B", "[CLS]"]
    assert train_chars(lambda: ["aB"], lowercase=True).encode("AB").tokens == ["[CLS]", "a", "b", "[SEP]"]


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram"])
def test_case_is_folded_only_when_asked(family: str) -> None:
    train: Callable[..., tokenizers.Tokenizer] = {
        "wordpiece": train_wordpiece,
        "bpe": train_bpe,
        "unigram": train_unigram,
    }[family]
    folded = Tokenizer(train(lambda: TEXT.split("\n"), vocab_size=340, lowercase=True))
    for tokenizer, expected in ((trained(family), "I the Zoë"), (folded, "i the zoë")):
        assert tokenizer.decode(tokenizer.encode_corpus(["I the Zoë"])[0].input_ids.tolist()) == expected


def test_texts_that_cannot_be_trained_on() -> None:
    with pytest.raises(TokenizerError, match=r"of 100 cannot hold the 256 bytes and 5 .* at least 325"):
        train_bpe(lambda: ["a"], vocab_size=100)
    with pytest.raises(TokenizerError, match=r"of 64 cannot hold the 128 letters that make .* 198"):
        train_unigram(lambda: ["".join(map(chr, range(0x4E00, 0x4E80)))], vocab_size=64)
    with pytest.raises(TokenizerError, match=r"no characters can be learned from an empty text; give text"):
        train_chars(lambda: [])
    with pytest.raises(TokenizerError, match=r"no pieces can be learned from an empty text; give text"):
        train_unigram(lambda: [" "], vocab_size=64)
