"""Tokenizers that others made."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import tokenizers

from tests.tokenizer.families import words
from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import as_tokenizer, load_tokenizer
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS

ENTRIES = [*SPECIAL_TOKENS, "the", "king", "##s", "zo", "##e", "!", "中", "[unused1]"]


def write_vocab(folder: Path, entries: list[str]) -> Path:
    file = folder / "vocab.txt"
    file.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    return file


def test_a_vocab_txt_is_berts_tokenizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_vocab(tmp_path, ENTRIES)
    with caplog.at_level(logging.INFO):
        tokenizer = load_tokenizer(file)
    assert "its entries say that case is folded" in caplog.text
    assert words(tokenizer, "The Kings, Zoë!中") == ["the", "kings", "[UNK]", "zoe", "!", "中"]
    assert tokenizer.encode_prompt("the [MASK]").tolist() == [2, 5, 4, 3]
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_a_vocab_txt_is_as_transformers_reads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_vocab(tmp_path, ENTRIES)
    tokenizer = load_tokenizer(tmp_path)
    out = tmp_path / "saved"
    out.mkdir()
    tokenizer.save(out, max_length=16)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    berts = transformers.BertTokenizerFast.from_pretrained(tmp_path, do_lower_case=True)
    for text in ("The Kings, Zoë! 中 [MASK]", "kings"):
        assert theirs(text)["input_ids"] == berts(text)["input_ids"] == tokenizer.encode_prompt(text).tolist()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"do_lower_case": True}, ["uber", "中", "文"]),
        ({"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": None}, ["uber", "中", "文"]),
        ({"do_lower_case": True, "strip_accents": False}, ["über", "中", "文"]),
        ({"do_lower_case": False}, ["Über", "中", "文"]),
        ({}, ["Über", "中", "文"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Uber", "中", "文"]),
        ({"do_lower_case": True, "tokenize_chinese_chars": True}, ["uber", "中", "文"]),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, ["uber", "中文"]),
    ],
)
def test_accents_and_chinese_characters_of_a_vocab_txt(
    config: dict[str, bool | None], expected: list[str], tmp_path: Path
) -> None:
    write_vocab(tmp_path, [*SPECIAL_TOKENS, "Über", "Uber", "über", "uber", "中", "文", "中文"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert words(load_tokenizer(tmp_path), "Über 中文") == expected


def test_the_configuration_says_which_special_token_has_which_role(tmp_path: Path) -> None:
    entries = ["<pad>", "<oov>", "<begin>", "<end>", "<hidden>", "a"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({e: i for i, e in enumerate(entries)}, "<oov>"))
    backend.add_special_tokens(entries[:5])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: the tokenizer has no mask token .* add it with"):
        load_tokenizer(tmp_path)
    roles = {"unk_token": "<oov>", "cls_token": {"content": "<begin>"}, "sep_token": "<end>", "mask_token": "<hidden>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles))
    tokenizer = load_tokenizer(tmp_path)
    assert vars(tokenizer.special) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<oov>", cls_token="<begin>", sep_token="<end>", mask_token="<hidden>"
    )
    assert as_tokenizer(theirs).special == tokenizer.special


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"there is no tokenizer\.json and no vocab\.txt; give a folder"):
        load_tokenizer(tmp_path)
    file = write_vocab(tmp_path, ["a", "b", "a"])
    with pytest.raises(TokenizerError, match=r"vocab\.txt: line 3 repeats 'a' of line 1; give a vocabulary"):
        load_tokenizer(tmp_path)
    write_vocab(tmp_path, ["a", "[MASK]"])
    with pytest.raises(TokenizerError, match=r"2 entries, but none is \[PAD\] or .*; give BERT's vocabulary"):
        load_tokenizer(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"vocab\.txt: not UTF-8 .* an entry a line"):
        load_tokenizer(tmp_path)
    write_vocab(tmp_path, ENTRIES)
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: "no"}))
        with pytest.raises(TokenizerError, match=rf"tokenizer_config\.json: {name} is 'no'; give true, false or null"):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: not readable as JSON .*; mend it or take it"):
        load_tokenizer(tmp_path)
