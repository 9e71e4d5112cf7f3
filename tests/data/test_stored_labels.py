"""Classes of documents in the shards and in the ledger: numbered once, the same however the work is shared out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from unmask.core.errors import DataError
from unmask.data import passes as making
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


def test_without_the_setting_data_is_what_it_was(tmp_path: Path) -> None:
    plain = make(write_rows(tmp_path / "a.jsonl"), tmp_path / "out", CorpusSettings())
    assert plain.labels == {}
    assert plain.unlabelled == 0
    assert "label" not in plain.settings["corpus"]
    assert all(store.label is None for store in stores(tmp_path / "out"))
    content = json.loads((tmp_path / "out" / "manifest.json").read_text())
    del content["labels"], content["unlabelled"]  # as older versions wrote it
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(content))
    assert load_manifest(tmp_path / "out") == plain


def test_names_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    """Equal numbers under other names are other data; how many documents there are is not asked."""
    one = make(write_rows(tmp_path / "a.jsonl"), tmp_path / "one")
    two = make(write_rows(tmp_path / "a.jsonl", moods=["good", "worse", None, "good"]), tmp_path / "two")
    assert [file.sha256 for file in one.train.files] == [file.sha256 for file in two.train.files]
    assert one.fingerprint != two.fingerprint
    assert dataclasses.replace(one, labels={"glad": 1, "sad": 2}).fingerprint == one.fingerprint


def test_workers_make_the_same_shards(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    made = []
    for workers in (1, 2):
        tokenizer = TokenizerSettings(vocab_size=120)
        prepare([path], tmp_path / str(workers), corpus=LABELLED, tokenizer=tokenizer, workers=workers, size_bytes=2000)
        made.append([file.read_bytes() for file in sorted((tmp_path / str(workers)).rglob("*.arrow"))])
    assert made[0] == made[1]
    assert len(made[0]) > 3


@pytest.mark.parametrize("changed", [False, True])
def test_going_on_keeps_only_parts_with_the_same_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Stopped after three jobs; then a row at the end brings a class that moves the numbers of the others.

    The tokenizer is given, so that nothing else tells the parts apart.
    """
    path = write_rows(tmp_path / "a.jsonl")
    make(path, tmp_path / "before")
    given = {"tokenizer": TokenizerSettings(path=str(tmp_path / "before" / "tokenizer")), "size_bytes": 900}
    finish, done = making.finish_job, []

    def stops(job: object, *args: object, **options: object) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        finish(job, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(making, "finish_job", stops)
    with pytest.raises(KeyboardInterrupt):
        make(path, tmp_path / "out", **given)
    monkeypatch.undo()
    kept = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("train/*.arrow")}
    assert len(kept) == 3
    if changed:
        with path.open("a") as file:
            file.write(json.dumps({"text": "document number 240 of them", "mood": "bored"}) + "\n")
    notes: list[str] = []
    again = make(path, tmp_path / "out", **given, note=notes.append)
    whole = make(path, tmp_path / "whole", **given)
    assert again.fingerprint == whole.fingerprint
    assert again.labels == whole.labels
    assert list(again.labels) == (["bored", "glad", "sad"] if changed else ["glad", "sad"])
    assert "going on: 3 of the parts were done before" in notes
    now = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("train/*.arrow")}
    assert [now[name] != kept[name] for name in kept] == [changed] * 3


def test_data_is_known_by_its_columns(tmp_path: Path) -> None:
    """One column is written as before there could be several, also where it is the only one of a list."""
    path = write_rows(tmp_path / "a.jsonl")
    made = make(path, tmp_path / "one", CorpusSettings(column="text"))
    assert made.settings["corpus"]["column"] == "text"
    assert make(path, tmp_path / "one", CorpusSettings(column=("text",)), resume=True) == made
    both = make(path, tmp_path / "two", CorpusSettings(column=("text", "mood")))
    assert make(path, tmp_path / "two", CorpusSettings(column=("text", "mood")), resume=True) == both
    with pytest.raises(
        DataError, match=r"holds prepared data with corpus\.column = .*text.*mood.*, but now it is 'text'"
    ):
        make(path, tmp_path / "two", CorpusSettings(column="text"), resume=True)


def test_resume_asks_for_the_same_column(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    made = make(path, tmp_path / "out")
    assert make(path, tmp_path / "out", resume=True) == made
    with pytest.raises(
        DataError, match=r"holds prepared data with corpus\.label = .*, but now it is None; .* overwrite=True"
    ):
        make(path, tmp_path / "out", CorpusSettings(), resume=True)
