"""Classes of documents: read from every kind of table, named, numbered, carried through cuts; and what is no class."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unmask.core.errors import CorpusError
from unmask.data import corpus as labelled
from unmask.data.corpus import Corpus, check_number, ordered
from unmask.data.settings import CorpusSettings
from unmask.data.values import class_name


def labels_of(path: Path, label: str | int = "label", **settings: object) -> list[tuple[str, str | None]]:
    corpus = Corpus([path], CorpusSettings.model_validate({"label": label, **settings}), hold_out=False)
    return [(piece.text, piece.label) for piece, _ in corpus.pieces()]


def test_the_column_of_classes_is_not_the_text(tmp_path: Path) -> None:
    """Though it has the most letters."""
    rows = [{"name": f"Lamp {n}", "category": "Home & Garden > Lighting > Lamps"} for n in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = labels_of(tmp_path / "a.jsonl", "category")
    assert found[1] == ("Lamp 1", "Home & Garden > Lighting > Lamps")


@pytest.mark.parametrize(
    ("value", "name"),
    [(" spam ", "spam"), (3, "3"), (-1, "-1"), (3.0, "3"), (True, "true"), (False, "false"), (0, "0"), ("0", "0"),
     (None, None), ("", None), ("  ", None), (math.nan, None)],
)  # fmt: skip
def test_names_of_classes(value: object, name: str | None) -> None:
    assert class_name(value) == name


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_numbers_have_the_names_that_datasets_wrote(tmp_path: Path, kind: str) -> None:
    """-1 is no class, and a file that says no names keeps its numbers."""
    features = {"mood": {"_type": "ClassLabel", "names": ["bad", "good"]}}
    table = pa.table({"text": ["a", "b", "c", "d"], "mood": [1, 0, -1, None]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_stream(str(tmp_path / "data.arrow"), table.schema) as stream:
            stream.write_table(table)
        (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
        (tmp_path / "dataset_info.json").write_text("{}")
    assert labels_of(tmp_path, "mood") == [("a", "good"), ("b", "bad"), ("c", None), ("d", None)]
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "b.parquet")
    assert labels_of(tmp_path / "b.parquet", "mood") == [("a", "1"), ("b", "0"), ("c", "-1"), ("d", None)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "text\n", r"corpus.label = 'y' .*a.txt is text"),
        ("a.csv", "text,label\none,1\n", r"a.csv: .*'y' for corpus.label; columns are text, label"),
        ("a.csv", "", r"a.csv: .*'y' for corpus.label"),
        ("a.jsonl", '{"text": "one", "y": [1]}\n', r"a.jsonl: row 1 has list.* 'y'; .*corpus.bad_input"),
        ("a.jsonl", '{"text": "one", "y": 0.5}\n', r"row 1 has the number 0.5"),
        ("a.jsonl", '{"text": "one"}\n{"text": "two", "y": ""}\n', r"corpus.label = 'y'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError, match=message):
        ordered({label for _, label in labels_of(tmp_path / name, "y") if label is not None}, "y")


def test_too_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled, "MOST_CLASSES", 3)
    check_number({"0", "1", "2"}, "id", "2")
    with pytest.raises(CorpusError, match=r"corpus.label = 'id' .* such as '3'"):
        check_number({"0", "1", "2", "3"}, "id", "3")
