"""Classes of documents in the shards and in the ledger: numbered once, the same however the work is shared out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.tokenizer.settings import TokenizerSettings

LABELLED = CorpusSettings(label="mood")
MOODS = ["glad", "sad", None, "glad"]


def write_rows(path: Path, num_rows: int = 240, moods: list[str | None] = MOODS) -> Path:
    """Rows whose text tells their number."""
    rows = [{"text": f"document number {i} of them", "mood": moods[i % len(moods)]} for i in range(num_rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(path: Path, out: Path, corpus: CorpusSettings = LABELLED, **options: object) -> Manifest:
    options = {"tokenizer": TokenizerSettings(vocab_size=120), "workers": 1} | options
    return prepare([path], out, corpus=corpus, **options)  # type: ignore[arg-type]


def stores(out: Path) -> list[TokenStore]:
    manifest = load_manifest(out)
    return [TokenStore([out / file.name for file in split.files]) for split in (manifest.train, manifest.validation)]


def test_the_shards_hold_the_class_of_each_document(tmp_path: Path) -> None:
    """In both splits, over several shards; `datasets` would see the column too."""
    manifest = make(write_rows(tmp_path / "a.jsonl"), tmp_path / "out", size_bytes=900)
    assert manifest.labels == {"glad": 120, "sad": 60}
    assert manifest.unlabelled == 60
    assert len(manifest.train.files) > 3
    numbers = {"glad": 0, "sad": 1, None: -1}
    seen = 0
    for store in stores(tmp_path / "out"):
        assert store.column("label").tolist() == [numbers[MOODS[i % 4]] for i in store.column("document").tolist()]
        assert store.annotations == ()
        seen += len(store)
    assert seen == 240


def test_pieces_of_a_long_document_count_as_one(tmp_path: Path) -> None:
    rows = [{"text": "some words " * 60_000, "mood": "glad"}, {"text": "short", "mood": "sad"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = CorpusSettings(label="mood", holdout_from="end", holdout=0.3)
    manifest = make(tmp_path / "a.jsonl", tmp_path / "out", settings, size_bytes=200_000)
    assert manifest.labels == {"glad": 1, "sad": 1}
    assert manifest.unlabelled == 0
    labels = np.concatenate([store.column("label") for store in stores(tmp_path / "out")])
    assert labels.tolist().count(0) > 2
    assert labels.tolist().count(1) == 1
