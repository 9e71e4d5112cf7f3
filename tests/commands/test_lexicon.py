"""From prepared text to a lexicon to a run that masks by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unmask
from tests.conftest import SMALL
from unmask.commands.masking_tables import make_lexicon
from unmask.commands.run_data import open_prepared
from unmask.core.results import Reporter
from unmask.data.lexicon import LexiconSettings, load_lexicon
from unmask.tokenizer.loading import load_tokenizer


@pytest.fixture(scope="module")
def lexicon_file(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lexicons") / "new" / "mine.lexicon"
    make_lexicon(open_prepared(data_folder), out, LexiconSettings(size=50), Reporter())
    assert [path.name for path in out.parent.iterdir()] == ["mine.lexicon"]
    return out


def test_collocations_of_the_small_language(lexicon_file: Path, data_folder: Path) -> None:
    lexicon = load_lexicon(lexicon_file)
    tokenizer = load_tokenizer(data_folder / "tokenizer")
    texts = [tokenizer.decode(lexicon.ids_of(number)) for number in range(len(lexicon))]
    assert len(texts) == 50
    assert {"in Constantinople", "under the bridge", "at sea"} <= set(texts)
    assert "the" not in texts


def test_pretrain_makes_its_own_lexicon_once(
    data_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="unmask")
    options = {"out": tmp_path / "run", "settings": (*SMALL, "checkpoint.every_steps=1")}
    run = unmask.pretrain([data_folder], strategy="pmi", steps=2, **options)  # type: ignore[arg-type]
    lexicon = tmp_path / "run" / "lexicon.safetensors"
    assert len(load_lexicon(lexicon)) > 10
    written = lexicon.stat().st_mtime_ns
    run.folder.joinpath("summary.json").unlink()  # as if it had been stopped
    unmask.pretrain(out=tmp_path / "run", resume=True)
    assert "going on from step 2" in caplog.text
    assert lexicon.stat().st_mtime_ns == written
    unmask.pretrain([data_folder], strategy="random", steps=1, overwrite=True, **options)  # type: ignore[arg-type]
    assert not lexicon.exists(), "the lexicon goes with its run"


def test_tables_for_a_masker(lexicon_file: Path, data_folder: Path) -> None:
    tokenizer = load_tokenizer(data_folder / "tokenizer")
    tables = unmask.lexicon_tables(lexicon_file, data_folder / "tokenizer")
    masker = unmask.Masker.from_tokenizer(tokenizer, strategy="pmi", rate=0.4, replacement=(1, 0, 0), tables=tables)
    (text,) = tokenizer.encode_corpus(["The king follows the cat in Constantinople."])
    place = tokenizer.encode_corpus(["The king follows the cat"])[0].input_ids
    tail = slice(1 + len(place), 1 + len(text.input_ids) - 1)  # in Constantinople, without the stop
    hits = torch.stack([masker([[2, *text.input_ids.tolist(), 3]], epoch=e).labels[0, tail] >= 0 for e in range(60)])
    assert (hits.all(1) | ~hits.any(1)).all(), "masked together or not at all"
    assert hits.any()
    assert not hits.all()
