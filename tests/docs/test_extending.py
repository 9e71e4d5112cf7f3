"""The examples of docs/extending.md run as they stand, and do what the page says."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from tests.docs.test_pages import PAGES, ROOT
from unmask.data.corpus import Corpus
from unmask.data.documents import READERS
from unmask.data.settings import CorpusSettings
from unmask.data.sources import SUFFIXES
from unmask.masking.features import rows_from_ids
from unmask.model.pooling import POOLINGS

PAGE = PAGES[ROOT / "docs" / "extending.md"]


def example(heading: str) -> dict[str, Any]:
    """Runs the Python under a heading, and returns its names."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(snippet, heading, "exec"), names)
    return names


@pytest.fixture
def mine(run: unmask.Run, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run as the page names it, beside its data."""
    mine = tmp_path / "runs" / "mine"
    mine.mkdir(parents=True)
    (mine / "model").symlink_to(run.folder / "model")
    (mine / "data").symlink_to(data_folder)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("mine")
def test_add_a_pooling() -> None:
    names = example("Add a pooling")
    del POOLINGS["last"]
    model = names["model"]
    ids = [model.tokenizer.encode_prompt(text) for text in ("The king was here.", "A queen!")]
    with torch.no_grad():
        last = [model.network.encoder(torch.from_numpy(each)[None].long())[0, -1].numpy() for each in ids]
    np.testing.assert_allclose(names["vectors"], np.stack(last), atol=1e-5)


@pytest.mark.usefixtures("mine")
def test_units_and_weights_of_your_own() -> None:
    names = example("Units and weights of your own")
    masker = names["masker"]
    rows = rows_from_ids([list(range(5, 40)), list(range(50, 80))], masker.tokenizer)
    units = masker.weighed(rows).units
    begins = (units.size_T > 0).view(rows.shape)
    for row in range(2):
        words = rows.word_starts[row].nonzero()[:, 0].tolist()
        assert begins[row].nonzero()[:, 0].tolist() == words[::2]
        assert len(words) > 2
    hidden = names["masked"].labels.flatten() >= 0
    assert torch.equal(hidden, hidden[units.begin_T])
    assert 0 < hidden.sum() < rows.maskable.sum()


def test_read_another_kind_of_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = b"WARC/1.0\r\nWARC-Type: %b\r\nWARC-Target-URI: %b\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
    texts = {(b"warcinfo", b"-"): b"software: x", (b"conversion", b"http://a.b/"): b"The king.\n\nA queen.\n"}
    records = b"".join(record % (*head, len(text), text) for head, text in texts.items())
    (tmp_path / "crawl.warc.gz").write_bytes(gzip.compress(records))
    monkeypatch.chdir(tmp_path)
    example("Read another kind of file")
    assert capsys.readouterr().out == "http://a.b/ 19\n"
    corpus = Corpus(["crawl.warc.gz"], CorpusSettings(), hold_out=False)
    assert [(piece.text, held) for piece, held in corpus.pieces()] == [("The king.\n\nA queen.", False)]
    del SUFFIXES[".warc"], READERS["warc"]


@pytest.mark.usefixtures("mine")
def test_add_a_callback() -> None:
    names = example("Add a callback")
    assert names["run"].steps == len(names["callback"].seen) < 20


@pytest.mark.usefixtures("mine")
def test_an_optimizer_of_your_own() -> None:
    trainer = example("Train with an optimizer of your own")["trainer"]
    assert trainer.state.step == 5
    assert all("momentum_buffer" in state for state in trainer.state.optimizer.state.values())


@pytest.mark.usefixtures("mine")
def test_an_objective_of_your_own() -> None:
    losses = [report.objectives["word_starts"].loss for report in example("Learn an objective of your own")["reports"]]
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("mine")
def test_a_network_of_your_own() -> None:
    losses = [report.loss for report in example("Train a network of your own")["reports"]]
    assert losses[-1] < losses[0] - 0.1
