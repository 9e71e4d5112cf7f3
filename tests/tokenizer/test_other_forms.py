"""Tokenizers without a tokenizer.json: ids are those of transformers' own."""

from __future__ import annotations

import json
import pickle
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import load_tokenizer

transformers = pytest.importorskip("transformers")

RESIDUES = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
OTHERS = [*"xyz acgt<>é日", "\n", "\t", "\x1c", "\xa0", "<mask", "mask>", "[MASK]", "null_1", "  "]
SPECIAL = ["<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>"]
CODONS = [*SPECIAL, *map("".join, product("ACGT", repeat=3)), *"ATCGN"]


def write(folder: Path, kind: str, entries: list[str], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(entries), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **config}))
    return folder


@pytest.mark.parametrize(
    ("entries", "config"),
    [
        (RESIDUES, {}),
        (RESIDUES, {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}}),
        (CODONS, {"eos_token": None}),
    ],
)
def test_esm_gives_the_same_ids(entries: list[str], config: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path, "EsmTokenizer", entries, **config)
    ours, theirs = load_tokenizer(folder), transformers.EsmTokenizer.from_pretrained(folder)
    rng, choices = random.Random(0), [*entries, *OTHERS, *OTHERS]
    texts = ["", "MKTAYIAKQR", "mktAyi", *("".join(rng.choices(choices, k=rng.randrange(1, 25))) for _ in range(600))]
    for text, found in zip(texts, ours.encode_prompts(texts), strict=True):
        assert found.tolist() == theirs(text)["input_ids"], repr(text)
    again = pickle.loads(pickle.dumps(ours))
    assert vars(again.special) == vars(ours.special)
    ends = [] if "eos_token" in config else [theirs.eos_token_id]
    assert ours.special.around == [theirs.cls_token_id, *ends]


def test_esm_in_a_corpus(tmp_path: Path) -> None:
    """Special tokens are letters there, a protein is a word, and residues alone are drawn."""
    tokenizer = load_tokenizer(write(tmp_path, "EsmTokenizer", RESIDUES))
    encoded, second = tokenizer.encode_corpus(["MK<mask>L <null_1>", "MKL"])
    assert [tokenizer.token(id_) for id_ in encoded.input_ids.tolist()] == [
        "M",
        "K",
        *["<unk>"] * 2,
        "L",
        *["<unk>"] * 2,
    ]
    assert second.word_starts.tolist() == [True, False, False]
    drawn = {tokenizer.token(id_) for id_ in tokenizer.ordinary.nonzero()[0].tolist()}
    assert drawn == {entry for entry in RESIDUES if len(entry) == 1}
    assert tokenizer.token_bytes[RESIDUES.index("A")] == 1


def test_esm_without_its_special_tokens(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"vocab\.txt: 31 entries, but none is <cls> or <mask>; give ESM's vocab"):
        load_tokenizer(write(tmp_path / "a", "EsmTokenizer", RESIDUES[1:-1]))
    with pytest.raises(TokenizerError, match=r"line 34 repeats 'A' of line 6"):
        load_tokenizer(write(tmp_path / "b", "EsmTokenizer", [*RESIDUES, "A"]))


def test_other_files_are_converted_as_transformers_does(tmp_path: Path) -> None:
    entries = ["<s>", "<pad>", "</s>", "[UNK]", *["the", "cat", "sat"], "##s", ".", "<mask>"]
    mpnet = write(tmp_path / "mpnet", "MPNetTokenizer", entries)
    roberta = tmp_path / "roberta"
    roberta.mkdir()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *"abcdeĠ", "ab", "Ġc", "<mask>"]
    (roberta / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    (roberta / "merges.txt").write_text("#version: 0.2\na b\nĠ c\n")
    (roberta / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    for folder, text in ((mpnet, "The cats <mask> sat."), (roberta, "ab c<mask> de")):
        expected = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        assert load_tokenizer(folder).encode_prompt(text).tolist() == expected
        assert 3 not in expected, "all is known"


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    """A vocab.txt that another class reads is not BERT's, though it may have BERT's special tokens."""
    folder = write(tmp_path, "BertJapaneseTokenizer", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    with pytest.raises(
        TokenizerError, match="transformers runs BertJapaneseTokenizer in Python only and has no fast form"
    ):
        load_tokenizer(folder)
    write(tmp_path, "BertTokenizer", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    assert load_tokenizer(folder).encode_prompt("a").tolist() == [2, 5, 3]
    write(tmp_path, "NoTokenizer", ["a"])
    with pytest.raises(TokenizerError, match="no tokenizer that transformers reads"):
        load_tokenizer(folder)
