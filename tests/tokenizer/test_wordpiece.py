from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_text
from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import as_tokenizer, load_tokenizer
from unmask.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from unmask.tokenizer.trainers import default_vocab_size, train_wordpiece

TEXT = make_text(200)


def test_special_tokens_come_first_and_the_size_is_met() -> None:
    backend = train_wordpiece(lambda: [TEXT], vocab_size=150)
    assert [backend.id_to_token(i) for i in range(5)] == list(SPECIAL_TOKENS)
    assert backend.get_vocab_size() == 150


def test_only_the_special_tokens_are_special() -> None:
    tokenizer = Tokenizer(train_wordpiece(lambda: [TEXT], vocab_size=150))
    assert tokenizer.ordinary.sum() == 145
    assert not tokenizer.ordinary[:5].any()


def test_a_vocabulary_that_cannot_hold_the_letters() -> None:
    with pytest.raises(TokenizerError, match=r"vocabulary of 64 cannot hold the letters"):
        train_wordpiece(lambda: ["".join(map(chr, range(0x4E00, 0x4E80)))], vocab_size=64)


def test_case_is_folded_only_when_asked() -> None:
    kept = train_wordpiece(lambda: [TEXT], vocab_size=150).encode("The king").tokens
    folded = train_wordpiece(lambda: [TEXT], vocab_size=150, lowercase=True).encode("The king").tokens
    assert "".join(kept) != "".join(kept).lower()
    assert "".join(folded[1:-1]).replace("##", "") == "theking"


def test_the_size_grows_with_the_corpus() -> None:
    sizes = [default_vocab_size(n) for n in (1, 10**5, 10**6, 10**7, 10**8, 10**12)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert sizes[3] == 8192
    assert sizes[-1] == 32_768
    assert all(size % 64 == 0 for size in sizes)


def test_literal_special_tokens_in_corpus_text_are_text() -> None:
    """A corpus that speaks of `[MASK]` must not put mask tokens into the training data."""
    tokenizer = Tokenizer(train_wordpiece(lambda: [TEXT, "[MASK] [SEP]"], vocab_size=200))
    ids = tokenizer.encode_corpus(["the [MASK] and [SEP]"])[0].input_ids
    assert tokenizer.special.mask not in ids
    assert tokenizer.special.sep not in ids
    assert tokenizer.special.mask in tokenizer.encode_prompt("the [MASK]")


def test_what_is_saved_loads_in_transformers_with_the_right_special_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer(train_wordpiece(lambda: [TEXT], vocab_size=150))
    tokenizer.save(tmp_path, max_length=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id) == (0, 1, 2)
    assert (theirs.sep_token_id, theirs.mask_token_id) == (3, 4)
    assert theirs.model_max_length == 64
    text = "The queen loves the [MASK] in Constantinople."
    assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text).tolist()
    assert as_tokenizer(theirs).fingerprint == load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_tokenizers_that_cannot_be_used(tmp_path: Path) -> None:
    import tokenizers

    with pytest.raises(TokenizerError, match=r"there is no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(tmp_path)
    bare = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(TokenizerError, match=r"has no pad token .* add it with"):
        as_tokenizer(bare)
    with pytest.raises(TokenizerError, match="int is not a tokenizer"):
        as_tokenizer(3)


def test_a_text_of_many_letters_gets_room_for_them() -> None:
    """A syllabary or Chinese: the default size holds the letters, and rare ones are unknown, not an error."""
    text = " ".join(chr(0xAC00 + i % 1100) + chr(0xAC00 + i * 7 % 1100) for i in range(4000))
    tokenizer = Tokenizer(train_wordpiece(lambda: [text]))
    unknown = (tokenizer.encode_corpus([text])[0].input_ids == tokenizer.special.unk).mean()
    assert unknown < 0.01
    rare = "a " * 2_000_000 + "".join(chr(0x4E00 + i) for i in range(900))
    assert train_wordpiece(lambda: [rare], vocab_size=80).get_vocab_size() <= 80


def test_words_too_long_to_be_tokenized_are_not_learned_from() -> None:
    """A megabyte without a space would take the trainer hours, and WordPiece takes no word of over 100 letters."""
    text = TEXT + " " + "abcd" * 250_000
    assert train_wordpiece(lambda: [text], vocab_size=150).get_vocab_size() == 150


def test_stored_truncation_and_padding_do_not_touch_the_corpus() -> None:
    backend = train_wordpiece(lambda: [TEXT], vocab_size=150)
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    tokenizer = Tokenizer(backend)
    assert len(tokenizer.encode_corpus([TEXT])[0].input_ids) > 1000
    assert len(tokenizer.encode_corpus(["The"])[0].input_ids) < 4
    assert len(tokenizer.encode_prompt("The king sees the queen in the garden.")) > 9
    assert backend.truncation is not None, "the caller's own tokenizer is left as it is"
