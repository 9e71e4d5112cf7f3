"""What masks are drawn by beside a text: a lexicon, embeddings of words, losses of parts of speech."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend

import unmask
from tests.conftest import SMALL
from tests.data.tagged import tagged_jsonl
from unmask.commands.masking_tables import make_lexicon, word_embeddings
from unmask.commands.run_data import open_prepared
from unmask.core.results import Reporter
from unmask.data.lexicon import LexiconSettings, load_lexicon
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.checkpoints import list_checkpoints


@pytest.fixture(scope="module")
def lexicon_file(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lexicons") / "new" / "mine.lexicon"
    make_lexicon(open_prepared(data_folder), out, LexiconSettings(size=50), Reporter())
    assert [path.name for path in out.parent.iterdir()] == ["mine.lexicon"]
    return out


def test_pretrain_makes_its_own_lexicon_once(data_folder: Path, tmp_path: Path) -> None:
    options = {"out": tmp_path / "run", "settings": (*SMALL, "checkpoint.every_steps=1")}
    run = unmask.pretrain([data_folder], strategy="pmi", steps=2, **options)  # type: ignore[arg-type]
    lexicon = tmp_path / "run" / "lexicon.safetensors"
    assert len(load_lexicon(lexicon)) > 10
    written = lexicon.stat().st_mtime_ns
    run.folder.joinpath("summary.json").unlink()  # as if it had been stopped
    unmask.pretrain(out=tmp_path / "run", resume=True)
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


@pytest.fixture
def encoder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """With our own tokenizer, so that every token is one piece."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.enable_padding(length=16)  # as files of sentence encoders have it
    backend.enable_truncation(1)
    backend.save(str(folder / "tokenizer.json"))
    table = torch.randn(tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    save_file(
        {"embeddings.word_embeddings.weight": table, "pooler.weight": torch.zeros(2, 2)}, folder / "model.safetensors"
    )
    return folder


def test_tokens_get_the_mean_of_their_pieces(encoder: Path, tokenizer: Tokenizer) -> None:
    """Angles between centred embeddings stay, whatever their directions."""
    table = torch.randn(tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    ids = torch.from_numpy(tokenizer.ordinary).nonzero().flatten()
    pieces = [tokenizer.backend.encode(tokenizer.text(int(id_)), add_special_tokens=False).ids for id_ in ids]
    assert any(len(own) == 1 for own in pieces)
    expected = torch.stack([table[own].mean(0) for own in pieces])
    expected = expected - expected.mean(0)
    vectors = word_embeddings(encoder, tokenizer)
    assert vectors.shape == (tokenizer.vocab_size, 8)
    torch.testing.assert_close(vectors[ids] @ vectors[ids].T, expected @ expected.T, rtol=1e-3, atol=1e-3)
    assert (vectors[[tokenizer.special.mask, tokenizer.special.pad]] == 0).all()


def test_the_syntax_strategy_with_losses_of_parts_of_speech(tmp_path: Path) -> None:
    settings = (
        *SMALL, "training.batch_tokens=256", "masking.weights.kind=pos_loss", "masking.refresh_steps=2",
        "checkpoint.every_steps=1", "checkpoint.keep=10", 'annotation.columns=["pos", "dependencies"]',
    )  # fmt: skip
    text = tagged_jsonl(tmp_path / "a.jsonl")
    run = unmask.pretrain([text], out=tmp_path / "run", steps=5, vocab_size=150, strategy="syntax", settings=settings)
    scores = [load_file(path / "scores.safetensors") for path in list_checkpoints(run.folder / "checkpoints")]
    losses = scores[-1]["scores.pos_loss"]
    assert losses.shape == (5,), "no tag, DET, NOUN, PROPN, VERB"
    assert losses.min() > 1.0
    assert not torch.equal(losses, scores[1]["scores.pos_loss"])
