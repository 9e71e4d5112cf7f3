from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.data.lexicon_helpers import letter_ids
from tests.data.test_collocations import build, plain
from unmask.core.errors import DataError
from unmask.data.lexicon import Lexicon, WordReader, load_lexicon
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def lexicon(tokenizer: Tokenizer, tmp_path: Path) -> Lexicon:
    a, b, c, d, e = letter_ids(tokenizer, 5)
    words = [(a, b), (c,), (d, e, a), (b,), (e,)]
    return build(tokenizer, [words, words[:2], words[1:4], [(c,)], [(a,)] * 5] * 3, tmp_path)


def test_a_file_holds_all_of_it(lexicon: Lexicon, tmp_path: Path) -> None:
    lexicon.save(tmp_path / "file")
    again = load_lexicon(tmp_path / "file")
    assert len(again) == len(lexicon) > 5
    assert plain(again) == plain(lexicon)
    assert again.facts == lexicon.facts
    assert again.facts["settings"] == {"size": 10_000, "min_count": 1, "max_words": 5}
    assert again.fingerprint == lexicon.fingerprint
    assert np.array_equal(again.informativeness, lexicon.informativeness)
    assert (tmp_path / "file").read_bytes() == lexicon.to_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_hashes_are_those_of_the_text(lexicon: Lexicon, tokenizer: Tokenizer) -> None:
    """Each collocation, hashed as text by the reader of corpora, has the hash that the lexicon gives it."""
    reader, hashes = WordReader(tokenizer), lexicon.hashes()
    assert len(set(hashes.tolist())) == len(lexicon)
    assert set(lexicon.num_words.tolist()) == {2, 3, 4, 5}
    ends = np.cumsum(lexicon.lengths)
    for number, end in enumerate(ends):
        tokens = slice(end - lexicon.lengths[number], end)
        assert lexicon.ids_of(number) == lexicon.input_ids[tokens].tolist()
        words = reader.read(
            lexicon.input_ids[tokens], lexicon.word_starts[tokens], np.array([lexicon.lengths[number]], dtype=np.int64)
        )
        *_, (whole, _) = words.grams(int(lexicon.num_words[number]))
        assert whole.tolist() == [hashes[number]]


def test_files_that_are_no_lexicon(lexicon: Lexicon, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(
        DataError, match=r"file: there is no such lexicon; make it with `unmask lexicon DATA --out .*file`"
    ):
        load_lexicon(file)
    content = lexicon.to_bytes()
    other = safetensors.numpy.save({"x": np.zeros(2)})
    foreign = safetensors.numpy.save({"x": np.zeros(2)}, metadata={"facts": json.dumps({"format": "x", "version": 1})})
    for damaged in (b"", b"text", content[:-9], content[:50], other, foreign):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="file: not a lexicon, or a damaged one"):
            load_lexicon(file)
    later = safetensors.numpy.save({}, metadata={"facts": json.dumps({"format": "unmask lexicon", "version": 99})})
    file.write_bytes(later)
    with pytest.raises(DataError, match="file"):
        load_lexicon(file)
