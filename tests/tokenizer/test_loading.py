"""Tokenizers of other projects: ids equal those of transformers."""

from __future__ import annotations

import json
import pickle
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.tokenizer.families import TEXT, trained, words
from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import as_tokenizer, load_for_new_model, load_tokenizer
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer

transformers = pytest.importorskip("transformers")

ENTRIES = [*SPECIAL_TOKENS, "the", "king", "##s", "zo", "##e", "!", "中", "[unused1]"]
OLDER = '{"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}'  # as transformers wrote it until 2021


def write(folder: Path, entries: list[str], kind: str | None = None, **config: Any) -> Path:
    """A folder with a vocab.txt, and a tokenizer_config.json unless it is empty."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(entries), encoding="utf-8")
    if kind is not None:
        config["tokenizer_class"] = kind
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_vocab_txt_is_berts_tokenizer(tmp_path: Path) -> None:
    write(tmp_path, ENTRIES)
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert words(tokenizer, "The Kings, Zoë!中") == ["the", "kings", "[UNK]", "zoe", "!", "中"]
    assert tokenizer.encode_prompt("the [MASK]").tolist() == [2, 5, 4, 3]
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path, do_lower_case=True)
    for text in ("The Kings, Zoë! 中 [MASK]", "kings"):
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text).tolist()


@pytest.mark.parametrize(
    ("lines", "expected", "vocab_size"),
    [
        (["the", "", "", "king", "a"], {"the": 5, "king": 8, "a": 9}, 10),
        (["the", "", "king", "", ""], {"the": 5, "king": 7}, 8),
        (["", "[unused5]", "the", "king"], {"the": 7, "king": 8}, 9),
        (["the", "king", "the", "a"], {"the": 7, "king": 6, "a": 8}, 9),
    ],
    ids=["between", "behind", "a name that is taken", "an entry twice"],
)
def test_ids_of_a_vocab_txt_are_the_numbers_of_its_lines(
    lines: list[str], expected: dict[str, int], vocab_size: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows of the model without an entry are never masked or drawn; blank lines after the last entry are not rows."""
    folder = write(tmp_path, [*SPECIAL_TOKENS, *lines], do_lower_case=True)
    (folder / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + (folder / "vocab.txt").read_bytes().replace(b"\n", b"\r\n"))
    ours = load_tokenizer(folder)
    assert ours.vocab_size == vocab_size
    assert {ours.token(id_): id_ for id_ in ours.ordinary.nonzero()[0].tolist()} == expected
    assert capfd.readouterr().err == "", "the library complains of holes"
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *lines]), encoding="utf-8")
    theirs = transformers.BertTokenizerFast.from_pretrained(folder)
    text = "the king a the queen"
    assert ours.encode_prompt(text).tolist() == theirs(text)["input_ids"]


@pytest.mark.parametrize("is_older", [False, True])
def test_tokens_that_files_beside_a_vocab_txt_add(is_older: bool, tmp_path: Path) -> None:
    first = len(ENTRIES)
    flags = {"lstrip": False, "rstrip": False, "single_word": False}
    decoder = {
        str(first): {"content": "<url>", "special": True, "normalized": False, **flags},
        str(first + 1): {"content": "Cool-Token", "special": False, "normalized": True, **flags},
        "1": {"content": "[UNK]", "special": True, "normalized": False, **flags},
    }
    write(tmp_path, ENTRIES, "BertTokenizer", **({} if is_older else {"added_tokens_decoder": decoder}))
    if is_older:
        (tmp_path / "added_tokens.json").write_text(json.dumps({"Cool-Token": first + 1, "<url>": first}))
        (tmp_path / "special_tokens_map.json").write_text('{"additional_special_tokens": ["<url>"]}')
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path, do_lower_case=True)
    for text in ("the <url>kings", "cool-token zoe[MASK]", "Cool-Tokens the", *([] if is_older else ["<URL>"])):
        assert ours.encode_prompt(text).tolist() == theirs(text)["input_ids"], text
    assert ours.encode_corpus(["the <url>"])[0].input_ids.tolist() == [5, first]
    assert ours.ordinary[first:].tolist() == [False, True]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<far>": first + 7}))
    with pytest.raises(TokenizerError, match="<far>"):
        load_tokenizer(tmp_path)


ADDED = ["<url>", "[E1]", "<user>", "Cool-Token", "king of"]


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram", "char"])
def test_added_tokens_are_themselves_in_a_corpus(family: str, tmp_path: Path) -> None:
    """Only the tokens of the five roles are letters there; special ones are never masked, and never drawn."""
    backend = tokenizers.Tokenizer.from_str(trained(family).backend.to_str())
    backend.add_special_tokens(ADDED[:2])
    backend.add_tokens(ADDED[2:])
    Tokenizer(backend).save(tmp_path, max_length=64)
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert set(ADDED) & set(theirs.all_special_tokens) == set(ADDED[:2])
    rng, choices = random.Random(3), [*ADDED, "the king", " ", "sees", "Zoë!", "中", "url", "<", "e1]", ", ", "\n"]
    texts = ["the king <url> sees<user>", *("".join(rng.choices(choices, k=rng.randrange(30))) for _ in range(200))]
    placed, places = ours.encode_placed(texts)
    for text, encoded in zip(texts, ours.encode_corpus(texts), strict=True):
        assert encoded.input_ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
    assert placed.input_ids.tolist() == ours.encode_joined(texts)[0].input_ids.tolist()
    assert places.lengths.tolist() == [len(each.input_ids) for each in ours.encode_corpus(texts)]
    first = ours.vocab_size - len(ADDED)
    assert {first + n for n in range(len(ADDED))} <= set(placed.input_ids.tolist()), "all of them are met"
    assert ours.ordinary[first:].tolist() == [False, False, True, True, True]
    around = ours.encode_corpus(["[CLS] <url>[MASK]"])[0].input_ids.tolist()
    assert (around.count(first), set(around) & {0, 2, 3, 4}) == (1, set())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": None}, ["uber", "中", "文"]),
        ({"do_lower_case": True, "strip_accents": False}, ["über", "中", "文"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Uber", "中", "文"]),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, ["uber", "中文"]),
    ],
)
def test_accents_and_chinese_characters_of_a_vocab_txt(
    config: dict[str, bool | None], expected: list[str], tmp_path: Path
) -> None:
    write(tmp_path, [*SPECIAL_TOKENS, "Über", "Uber", "über", "uber", "中", "文", "中文"], **config)
    assert words(load_tokenizer(tmp_path), "Über 中文") == expected


@pytest.mark.parametrize("kind", ["DistilBertTokenizer", "PreTrainedTokenizerFast"])
def test_the_configuration_beside_a_tokenizer_json_decides_about_case(kind: str, tmp_path: Path) -> None:
    """For BERT's classes, as in transformers."""
    write(tmp_path, [*SPECIAL_TOKENS, "Über", "Uber", "über", "uber", "中", "文", "中文"], do_lower_case=False)
    load_tokenizer(tmp_path).backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").unlink()
    seen, text = set[str](), "Über 中文"
    for lower, strip, parts in product((True, False), (True, False, None), (True, False)):
        flags = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": parts}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **flags}))
        ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert ours.encode_prompt(text).tolist() == theirs(text)["input_ids"], flags
        seen.add(" ".join(words(ours, text)))
    assert len(seen) == (1 if kind == "PreTrainedTokenizerFast" else 8)


@pytest.mark.parametrize("text", ["हिन्दी में", "が か", "tiếng việt", "한국 사람"])
def test_a_vocab_txt_without_capitals_keeps_the_accents_of_its_entries(text: str, tmp_path: Path) -> None:
    write(tmp_path, [*SPECIAL_TOKENS, *text.split()])
    assert words(load_tokenizer(tmp_path), text) == text.split()


def test_the_configuration_says_which_special_token_has_which_role(tmp_path: Path) -> None:
    entries = ["<pad>", "<oov>", "<begin>", "<end>", "<hidden>", "a"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({e: i for i, e in enumerate(entries)}, "<oov>"))
    backend.add_special_tokens(entries[:5])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: .* mask"):
        load_tokenizer(tmp_path)
    roles = {"unk_token": "<oov>", "cls_token": {"content": "<begin>"}, "sep_token": "<end>", "mask_token": "<hidden>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles))
    tokenizer = load_tokenizer(tmp_path)
    assert vars(tokenizer.special) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<oov>", cls_token="<begin>", sep_token="<end>", mask_token="<hidden>"
    )
    assert as_tokenizer(theirs).special == tokenizer.special


RESIDUES = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
OTHERS = [*"xyz acgt<>é日", "\n", "\t", "\x1c", "\xa0", "<mask", "mask>", "[MASK]", "null_1", "  "]
SPECIAL = ["<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>"]
CODONS = [*SPECIAL, *map("".join, product("ACGT", repeat=3)), *"ATCGN"]


@pytest.mark.parametrize(
    ("entries", "config"),
    [
        (RESIDUES, {}),
        (RESIDUES, {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}}),
        (CODONS, {"eos_token": None}),
    ],
)
def test_esm_gives_the_same_ids(entries: list[str], config: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path, entries, "EsmTokenizer", **config)
    ours, theirs = load_tokenizer(folder), transformers.EsmTokenizer.from_pretrained(folder)
    rng, choices = random.Random(0), [*entries, *OTHERS, *OTHERS]
    texts = ["", "MKTAYIAKQR", "mktAyi", *("".join(rng.choices(choices, k=rng.randrange(1, 25))) for _ in range(600))]
    for text, ids in zip(texts, ours.encode_prompts(texts), strict=True):
        assert ids.tolist() == theirs(text)["input_ids"], repr(text)
    assert vars(pickle.loads(pickle.dumps(ours)).special) == vars(ours.special)
    ends = [] if "eos_token" in config else [theirs.eos_token_id]
    assert ours.special.around == [theirs.cls_token_id, *ends]


def test_esm_in_a_corpus(tmp_path: Path) -> None:
    """The special tokens of roles are letters there, a protein is a word, and residues alone are drawn."""
    tokenizer = load_tokenizer(write(tmp_path, RESIDUES, "EsmTokenizer"))
    first, second = tokenizer.encode_corpus(["MK<mask>L <null_1>", "MKL"])
    tokens = " ".join(tokenizer.token(id_) for id_ in first.input_ids.tolist())
    assert tokens == "M K <unk> <unk> L <null_1>"
    assert second.word_starts.tolist() == [True, False, False]
    drawn = {tokenizer.token(id_) for id_ in tokenizer.ordinary.nonzero()[0].tolist()}
    assert drawn == {entry for entry in RESIDUES if len(entry) == 1}
    assert tokenizer.token_bytes[RESIDUES.index("A")] == 1


def test_other_files_are_converted_as_transformers_does(tmp_path: Path) -> None:
    entries = ["<s>", "<pad>", "</s>", "[UNK]", *["the", "cat", "sat"], "##s", ".", "<mask>"]
    mpnet = write(tmp_path / "mpnet", entries, "MPNetTokenizer")
    roberta = tmp_path / "roberta"
    roberta.mkdir()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *"abcdeĠ", "ab", "Ġc", "<mask>"]
    (roberta / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    (roberta / "merges.txt").write_text("#version: 0.2\na b\nĠ c\n")
    (roberta / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    nameless = write(tmp_path / "nameless", entries)
    (nameless / "config.json").write_text('{"model_type": "mpnet"}')
    masked = "The cats <mask> sat."
    for folder, text in ((mpnet, masked), (nameless, masked), (roberta, "ab c<mask> de")):
        expected = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        assert load_tokenizer(folder).encode_prompt(text).tolist() == expected
        assert 3 not in expected, "all is known"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"no tokenizer\.json and no vocab\.txt"),
        ({"tokenizer.json": "{}"}, r"tokenizer\.json: not a tokenizer"),
        ({"vocab.txt": "a\n[MASK]"}, r"vocab\.txt: 2 entries, .*\[PAD\]"),
        ({"vocab.txt": b"\xff\xfe"}, r"vocab\.txt: not UTF-8"),
        ({"do_lower_case": "no"}, r"tokenizer_config\.json: do_lower_case is 'no'"),
        ({"tokenizer_config.json": "{"}, r"tokenizer_config\.json: .*JSON"),
        ({"tokenizer_class": "EsmTokenizer"}, r"vocab\.txt: 13 entries, .*<cls>"),
        # A vocab.txt for another class is not BERT's, though it may have BERT's special tokens.
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer exists in Python only"),
        ({"vocab.txt": "\n".join(ENTRIES), "config.json": OLDER}, "BertJapaneseTokenizer exists in Python only"),
        ({"tokenizer_class": "NoTokenizer"}, "no tokenizer that transformers reads"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    """Files, or keys of the configuration beside a valid vocab.txt."""
    config = {name: value for name, value in files.items() if "." not in name}
    if config or "tokenizer_config.json" in files:
        write(tmp_path, ENTRIES, **config)
    for name in files.keys() - config.keys():
        content = files[name]
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


def trained_elsewhere(kind: str) -> tokenizers.Tokenizer:
    """As tutorials train one: with special tokens, but without a template that puts them around texts."""
    if kind == "wordpiece":
        plain = tokenizers.BertWordPieceTokenizer()
        plain.train_from_iterator([TEXT], vocab_size=200, show_progress=False)
    else:
        plain = tokenizers.ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        plain.train_from_iterator([TEXT], vocab_size=340, special_tokens=special, show_progress=False)
    return plain


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_new_model_has_special_tokens_around_its_texts(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training puts them there. The tokenizer of a model that exists stays as it is."""
    file = tmp_path / "tokenizer.json"
    trained_elsewhere(kind).save(str(file))
    content = file.read_bytes()
    plain, ready = load_tokenizer(file), load_for_new_model(str(file))
    special, mask = ready.special, ready.special_names["mask"]
    assert special == plain.special
    assert plain.encode_prompt("").tolist() == []
    king, dog = (plain.encode_corpus([text])[0].input_ids.tolist() for text in ("the king", " dog"))
    expected = [special.cls, *king, special.mask, *dog, special.sep]
    assert ready.encode_prompt(f"the king {mask} dog").tolist() == expected
    assert ready.backend.encode("the king", "the king").type_ids == [0] * (2 + len(king)) + [1] * (1 + len(king))
    assert [line for line in caplog.messages if str(file) in line], "it is said"
    ready.save(tmp_path, max_length=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(f"the king {mask} dog")["input_ids"] == expected
    assert load_for_new_model(str(tmp_path)).fingerprint == ready.fingerprint, "nothing is left to do"
    file.write_bytes(content)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert load_for_new_model(str(tmp_path)).fingerprint == plain.fingerprint
