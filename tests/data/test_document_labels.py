"""Classes of documents: read from every kind of table, named, numbered, carried through cuts; and what is no class."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import SMALL, write_jsonl
from unmask.core.errors import CorpusError
from unmask.data import work
from unmask.data.columns import class_name
from unmask.data.corpus import Corpus
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore


def labels_of(path: Path, label: str = "label") -> list[tuple[str, str | None]]:
    corpus = Corpus([path], CorpusSettings(label=label), hold_out=False)
    return [(piece.text, piece.label) for piece, _ in corpus.pieces()]


def test_the_column_of_classes_is_not_the_text(tmp_path: Path) -> None:
    """Though it has the most letters."""
    rows = [{"name": f"Lamp {n}", "category": "Home & Garden > Lighting > Lamps"} for n in range(5)]
    labels = labels_of(write_jsonl(tmp_path / "a.jsonl", rows), "category")
    assert labels[1] == ("Lamp 1", "Home & Garden > Lighting > Lamps")


@pytest.mark.parametrize(
    ("value", "name"),
    [(" spam ", "spam"), (3, "3"), (-1, "-1"), (3.0, "3"), (True, "true"), (False, "false"), (0, "0"), ("0", "0"),
     (None, None), ("", None), ("  ", None), (math.nan, None)],
)  # fmt: skip
def test_names_of_classes(value: object, name: str | None) -> None:
    assert class_name(value) == name


def test_numbers_have_the_names_that_datasets_wrote(tmp_path: Path) -> None:
    """-1 is no class, and a file that says no names keeps its numbers."""
    features = {"mood": {"_type": "ClassLabel", "names": ["bad", "good"]}}
    table = pa.table({"text": ["a", "b", "c", "d"], "mood": [1, 0, -1, None]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "named.parquet")
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "plain.parquet")
    folder = tmp_path / "saved"
    folder.mkdir()
    with pa.ipc.new_stream(str(folder / "data.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (folder / "dataset_info.json").write_text("{}")
    for name, labels in (("named.parquet", ["good", "bad"]), ("saved", ["good", "bad"]), ("plain.parquet", ["1", "0"])):
        none = "-1" if name == "plain.parquet" else None
        assert labels_of(tmp_path / name, "mood") == list(zip("abcd", [*labels, none, None], strict=True))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "text\n", r"corpus.label = 'y' .*a.txt"),
        ("a.csv", "text,label\none,1\n", r"a.csv: .*'y' for corpus.label; .*text, label"),
        ("a.csv", "", r"a.csv: .*'y' for corpus.label"),
        ("a.jsonl", '{"text": "one", "y": [1]}\n', r"a.jsonl: row 1 .*'y'; .*corpus.bad_input"),
        ("a.jsonl", '{"text": "one", "y": 0.5}\n', r"row 1 .*0.5"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError, match=message):
        labels_of(tmp_path / name, "y")


@pytest.mark.parametrize(("most", "text"), [(3, "such as '3'"), (9, None)])
def test_classes_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, text: str | None) -> None:
    monkeypatch.setattr(work, "MOST_CLASSES", most)
    held_out = write_jsonl(tmp_path / "a.jsonl", [{"text": f"one {n}", "y": n, "z": ""} for n in range(4)])
    corpus = CorpusSettings(label="y" if text else "z", validation=(str(held_out),), splits="ignore")
    train = write_jsonl(tmp_path / "b.jsonl", [{"text": "two", "y": 1, "z": ""}])
    with pytest.raises(CorpusError, match=text or "no row of the corpus has a value"):
        prepare([train], tmp_path / "out", corpus=corpus, tokenizer=SMALL, workers=1)


def test_pieces_of_a_long_document_count_as_one(tmp_path: Path) -> None:
    rows = [{"text": "some words " * 60_000, "mood": "glad"}, {"text": "short", "mood": "sad"}]
    write_jsonl(tmp_path / "a.jsonl", rows)
    corpus, out = CorpusSettings(label="mood", holdout_from="end", holdout=0.3), tmp_path / "out"
    manifest = prepare([tmp_path / "a.jsonl"], out, corpus=corpus, tokenizer=SMALL, workers=1, size_bytes=200_000)
    assert (manifest.labels, manifest.unlabelled) == ({"glad": 1, "sad": 1}, 0)
    files = [out / file.name for split in (manifest.train, manifest.validation) for file in split.files]
    labels = [label for file in files for label in TokenStore([file]).column("label").tolist()]
    assert (labels.count(0) > 2, labels.count(1)) == (True, 1)
