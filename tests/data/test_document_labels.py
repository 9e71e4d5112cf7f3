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
from unmask.data.documents import Document
from unmask.data.settings import CorpusSettings
from unmask.data.values import class_name, in_order


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


@pytest.mark.parametrize(
    ("value", "message"),
    [([1], "list, which is no class"), ({"a": 1}, "dict, which"), (0.5, "the number 0.5, which is no class")],
)
def test_what_is_no_class(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_name(value)


def test_the_order_of_classes() -> None:
    assert in_order(["10", "9", "-1"]) == ("-1", "9", "10")
    assert in_order(["10", "9", "x"]) == ("10", "9", "x")
    assert in_order(iter(["b", "a", "b"])) == ("a", "b")


def test_csv_with_a_header_of_its_own(tmp_path: Path) -> None:
    """The header is told by the column of labels alone; quotes, and an empty cell, and a row that is too short."""
    (tmp_path / "a.csv").write_text('comment,mood\n"so, so",neutral\nfine,good\nwhat,\nshort\n')
    assert labels_of(tmp_path / "a.csv", "mood") == [
        ("so, so", "neutral"), ("fine", "good"), ("what", None), ("short", None),
    ]  # fmt: skip


def test_tsv_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("so nice\t1\nso bad\t0\n")
    assert labels_of(tmp_path / "a.tsv", 1) == [("so nice", "1"), ("so bad", "0")]
    assert [label for _, label in labels_of(tmp_path / "a.tsv", "1")] == ["1", "0"]


def test_jsonl(tmp_path: Path) -> None:
    """Numbers, booleans, null, and rows that have no such key, be it the first; `\\r\\n` makes no difference."""
    rows = [{"text": "a"}, {"text": "b\r\nb", "y": 2}, {"text": "c", "y": True}, {"text": "d", "y": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert labels_of(tmp_path / "a.jsonl", "y") == [("a", None), ("b\nb", "2"), ("c", "true"), ("d", None)]


@pytest.mark.parametrize("values", [[1, None, 0], [1.0, None, 0.0], ["1", None, "0"]])
def test_parquet(tmp_path: Path, values: list[object]) -> None:
    pq.write_table(pa.table({"text": ["a", "b", "c"], "y": values}), tmp_path / "a.parquet")
    assert labels_of(tmp_path / "a.parquet", "y") == [("a", "1"), ("b", None), ("c", "0")]


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


def test_every_piece_of_a_long_document_has_its_class(tmp_path: Path) -> None:
    """And the next document has its own, or none."""
    rows = [{"text": "word " * 200_000, "label": "long"}, {"text": "other " * 60_000}, {"text": "x", "label": "short"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = Corpus([tmp_path / "a.jsonl"], CorpusSettings(label="label", holdout_from="end", holdout=0.4))
    found = [(piece.document, piece.label) for piece, _ in corpus.pieces()]
    assert len(found) > 5
    assert set(found) == {(0, "long"), (1, None), (2, "short")}
    assert Document(0, 0, "abc", label="x").part(1, 2) == Document(0, 1, "b", False, label="x")


def test_text_beside_tables_has_no_class(tmp_path: Path) -> None:
    """And what cleaning changes keeps its own."""
    (tmp_path / "a.txt").write_text("from a text\n")
    (tmp_path / "b.csv").write_text("text,label\nfrom  a table,x\n")
    (tmp_path / "c.csv").write_text("text\nfrom another\n")
    found = labels_of(tmp_path, cleaning={"white_space": "collapse"}, documents="line")
    assert found == [("from a text", None), ("from a table", "x"), ("from another", None)]
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "d.csv").write_text("text,label\nheld,y\n")
    settings = CorpusSettings(label="label", validation=(str(tmp_path / "held"),))
    corpus = Corpus([tmp_path / "c.csv"], settings)
    assert [(piece.label, held) for piece, held in corpus.pieces()] == [(None, False), ("y", True)]


def test_without_the_setting_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,x\n")
    corpus = Corpus([tmp_path / "a.csv"], CorpusSettings(), hold_out=False)
    assert [piece.label for piece, _ in corpus.pieces()] == [None]


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


def test_bad_labels_can_be_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "y": [1]}\n{"text": "two", "y": 1}\n')
    corpus = Corpus([tmp_path / "a.jsonl"], CorpusSettings(label="y", bad_input="skip"), hold_out=False)
    assert [piece.text for piece, _ in corpus.pieces()] == ["two"]
    assert corpus.skipped == {"rows whose label cannot be read": 1}


def test_too_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled, "MOST_CLASSES", 3)
    check_number({"0", "1", "2"}, "id", "2")
    with pytest.raises(CorpusError, match=r"corpus.label = 'id' .* such as '3'"):
        check_number({"0", "1", "2", "3"}, "id", "3")
