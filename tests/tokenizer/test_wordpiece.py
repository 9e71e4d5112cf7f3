from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_text
from unmask.core.errors import TokenizerError
from unmask.tokenizer.loading import as_tokenizer, load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import default_vocab_size, train_wordpiece

TEXT = make_text(200)


def test_a_vocabulary_that_cannot_hold_the_letters() -> None:
    with pytest.raises(TokenizerError, match=r"vocabulary of 64 cannot hold the letters"):
        train_wordpiece(lambda: ["".join(map(chr, range(0x4E00, 0x4E80)))], vocab_size=64)


def test_the_size_grows_with_the_corpus() -> None:
    sizes = [default_vocab_size(n) for n in (1, 10**5, 10**6, 10**7, 10**8, 10**12)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert sizes[3] == 8192
    assert sizes[-1] == 32_768
    assert all(size % 64 == 0 for size in sizes)


def test_tokenizers_that_cannot_be_used(tmp_path: Path) -> None:
    import tokenizers

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


def test_stored_truncation_and_padding_do_not_touch_the_corpus() -> None:
    backend = train_wordpiece(lambda: [TEXT], vocab_size=150)
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    tokenizer = Tokenizer(backend)
    assert len(tokenizer.encode_corpus([TEXT])[0].input_ids) > 1000
    assert len(tokenizer.encode_corpus(["The"])[0].input_ids) < 4
    assert len(tokenizer.encode_prompt("The king sees the queen in the garden.")) > 9
    assert backend.truncation is not None, "the caller's own tokenizer is left as it is"
