"""Classes of documents in the shards and in the ledger: numbered once, the same however the work is shared out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from unmask.core.errors import DataError
from unmask.core.results import Progress
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
        assert store.label is not None
        assert store.label.tolist() == [numbers[MOODS[i % 4]] for i in store.document.tolist()]
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
    labels = np.concatenate([store.label for store in stores(tmp_path / "out")])  # type: ignore[misc]
    assert labels.tolist().count(0) > 2
    assert labels.tolist().count(1) == 1


def test_names_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    """Equal numbers under other names are other data; how many documents there are is not asked."""
    one = make(write_rows(tmp_path / "a.jsonl"), tmp_path / "one")
    two = make(write_rows(tmp_path / "a.jsonl", moods=["good", "worse", None, "good"]), tmp_path / "two")
    assert [file.sha256 for file in one.train.files] == [file.sha256 for file in two.train.files]
    assert one.fingerprint != two.fingerprint
    assert dataclasses.replace(one, labels={"glad": 1, "sad": 2}).fingerprint == one.fingerprint


@pytest.mark.parametrize("changed", [False, True])
def test_going_on_keeps_only_tasks_with_the_same_classes(tmp_path: Path, changed: bool) -> None:
    """Stopped after some tasks; then a further file brings a class that moves the numbers of the others.

    The tokenizer is given, so that nothing else tells the tasks apart.
    """
    (tmp_path / "text").mkdir()
    path = write_rows(tmp_path / "text" / "a.jsonl")
    make(path, tmp_path / "before")
    given = {"tokenizer": TokenizerSettings(path=str(tmp_path / "before" / "tokenizer")), "task_bytes": 3000}

    def stop(progress: Progress) -> None:
        if progress.what == "tokenizing" and progress.done > 3000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "text", tmp_path / "out", **given, notify=stop)
    done = len(list((tmp_path / "out" / "parts").glob("shards-*")))
    assert done > 1
    kept = {n: (tmp_path / "out" / "train" / f"{n:05d}-00000.arrow").stat().st_mtime_ns for n in range(done)}
    if changed:
        (tmp_path / "text" / "b.jsonl").write_text(json.dumps({"text": "document number 240", "mood": "bored"}) + "\n")
    again = make(tmp_path / "text", tmp_path / "out", **given)
    whole = make(tmp_path / "text", tmp_path / "whole", **given)
    assert again == whole
    assert list(again.labels) == (["bored", "glad", "sad"] if changed else ["glad", "sad"])
    now = {n: (tmp_path / "out" / "train" / f"{n:05d}-00000.arrow").stat().st_mtime_ns for n in range(done)}
    assert [now[n] != kept[n] for n in kept] == [changed] * done


def test_data_is_known_by_its_columns(tmp_path: Path) -> None:
    """One column is written as before there could be several, also where it is the only one of a list."""
    path = write_rows(tmp_path / "a.jsonl")
    made = make(path, tmp_path / "one", CorpusSettings(column="text"))
    assert made.settings["corpus"]["column"] == "text"
    assert make(path, tmp_path / "one", CorpusSettings(column=("text",)), resume=True) == made
    both = make(path, tmp_path / "two", CorpusSettings(column=("text", "mood")))
    assert make(path, tmp_path / "two", CorpusSettings(column=("text", "mood")), resume=True) == both
    with pytest.raises(DataError, match=r"corpus\.column"):
        make(path, tmp_path / "two", CorpusSettings(column="text"), resume=True)


def test_resume_asks_for_the_same_column(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    made = make(path, tmp_path / "out")
    assert make(path, tmp_path / "out", resume=True) == made
    with pytest.raises(DataError, match=r"holds prepared data with corpus\.label = .*, but now it is None"):
        make(path, tmp_path / "out", CorpusSettings(), resume=True)
