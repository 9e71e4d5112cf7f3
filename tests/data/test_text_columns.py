"""Detecting the text and the class of a row: fields, lists, several columns, messages; and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import SMALL, left_of, prepare, texts_of, write_jsonl
from unmask.core.errors import CorpusError
from unmask.data import work
from unmask.data.columns import USUAL, class_name, fact_of, find_column, text_in, value_at
from unmask.data.corpus import Corpus
from unmask.data.documents import Documents
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore

WRITERS = ("jsonl", "json", "parquet", "arrow")


def written(folder: Path, rows: list[dict[str, Any]], kind: str = "jsonl") -> Path:
    path = folder / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "arrow":
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_list(rows).save_to_disk(folder / "set")
        return folder / "set"
    elif kind == "json":
        path.write_text(json.dumps(rows))
    else:
        write_jsonl(path, rows)
    return path


@pytest.mark.parametrize("kind", WRITERS)
def test_fields_within_columns(tmp_path: Path, kind: str) -> None:
    rows = [
        {"id": n, "doc": {"main": {"text": f"Text {n}."}, "parts": [{"text": f"One {n}."}, {"text": None}], "n": [1]},
         "lines": [f"A {n}", None, "", f"B {n}"], "lang": "en"}
        for n in range(3)
    ]  # fmt: skip
    path = written(tmp_path, rows, kind)
    assert texts_of(path, column="doc.main.text") == ["Text 0.", "Text 1.", "Text 2."]
    assert texts_of(path, column="doc.parts.text") == ["One 0.", "One 1.", "One 2."]
    assert texts_of(path, column=["doc.main.text", "lines"])[1] == "Text 1.\n\nA 1\nB 1"
    with pytest.raises(CorpusError, match=r"doc\.main\.txt.*doc\.main\.text"):
        texts_of(path, column="doc.main.txt")
    for column in ("doc.main", "doc.n", "doc.parts"):
        with pytest.raises(CorpusError, match=f"column '{column}' of row 1"):
            texts_of(path, column=column)
    labelled = Corpus([path], CorpusSettings(label="doc.main.text", holdout_groups="doc.main.text", column="lines"))  # type: ignore[arg-type]
    assert [(piece.label, piece.group) for piece, _ in labelled.pieces()][1] == ("Text 1.", "Text 1.")


@pytest.mark.parametrize(
    ("name", "values", "is_id"),
    [
        *[(name, ["a", "b"], True) for name in ("CompoundID", "tweet_id", "Review ID", "Ärzte-ID", "pageId", "x.id")],
        *[(name, ["a", "b"], False) for name in ("paid", "valid", "PMID", "ids", "id_type", "Madrid", "GRID")],
        ("tweet_id", [7, 8], True), ("tweet_id", [7, 7], False), ("tweet_id", [7, None], False),
        ("tweet_id", ["7", ""], False), ("tweet_id", [7.0, 8.0], False), ("tweet_id", ["7.0", "8.5"], False),
        ("tweet_id", [True, False], False), ("tweet_id", [["a"], ["b"]], False),
    ],
)  # fmt: skip
def test_other_names_of_ids(name: str, values: list[Any], is_id: bool) -> None:
    rows = [{name: value, "text": f"Text {n}."} for n, value in enumerate(values)]
    assert find_column(rows, "id", where="t") == (name if is_id else None)
    assert find_column(rows, "id", where="t", taken=[name]) is None
    assert find_column([row | {"doc_id": n} for n, row in enumerate(rows)], "id", where="t") == "doc_id"


def test_values_by_hand() -> None:
    row = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}, "c.d": 4}, "l": [{"x": [5, 6]}, {"y": 7}, {"x": None}, 8], "n": None}
    assert [value_at(row, name) for name in ("a.b", "a.c.d", "l.x", "n.b")] == [1, 4, [5, 6, None], None]
    missing = object()
    assert all(value_at(row, name, missing) is missing for name in ("b", "a.e", "l.z", "a.b.c", "a.", ".a"))


def test_several_columns(tmp_path: Path) -> None:
    rows = [
        {"title": "One", "body": "Two."}, {"title": "", "body": "Alone."}, {"title": None, "body": " "},
        {"body": "No title."}, {"title": "", "body": ""}, {"title": None, "body": None}, {},
    ]  # fmt: skip
    path = written(tmp_path, rows)
    with pytest.raises(CorpusError, match="row 7 has no columns 'title' and 'body'"):
        texts_of(path, column=["title", "body"])
    assert left_of(path, column="title,body") == (["One\n\nTwo.", "Alone.", "No title."], {"rows without text": 4})
    path.write_text('{"title": "a", "body": "b"}\n{"text": "c"}\n')
    with pytest.raises(CorpusError, match="row 2 has no columns 'title' and 'body'"):
        texts_of(path, column=["title", "body"])
    for body, message in ((3, "'body' of row 1 is int"), ("\0", r"row 1 has U\+0000 in column 'b")):
        with pytest.raises(CorpusError, match=message):
            texts_of(written(tmp_path, [{"title": "a", "body": body}]), column=["title", "body"])


SAID = [{"role": "user", "content": "Who is there?"}, {"role": "assistant", "content": "The king."}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (SAID, "Who is there?\n\nThe king."),
        ([{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "So.", "weight": 1}], "Hi.\n\nSo."),
        ({"role": ["user", "assistant"], "content": ["Hi.", "So."]}, "Hi.\n\nSo."),  # lists of older datasets
        ([{"role": "user", "content": [{"type": "text", "text": "A."}, {"type": "image_url", "image_url": {"url": "x"}},
          {"type": "text", "text": "B."}, "C."]}, *SAID[1:]], "A.\nB.\nC.\n\nThe king."),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}, {"role": "tool"}, *SAID[1:]], "The king."),
        ([{"role": "system", "content": " "}, *SAID], "Who is there?\n\nThe king."),
        ([{"role": "system", "content": None}], None),
        ([], None),
        ([None], None),
        (["a", "b"], "a\nb"),
        ("text", "text"),
    ],
)  # fmt: skip
def test_texts_of_values(value: object, text: str | None) -> None:
    assert text_in(value) == text


@pytest.mark.parametrize(
    ("row", "column", "text"),
    [
        ({"text": "T.", "messages": SAID}, None, "T."),
        ({"text": "T.", "messages": SAID}, "messages", "Who is there?\n\nThe king."),
        ({"text": "T.", "messages": SAID}, "messages.content", "Who is there?\nThe king."),
        ({"text": "T.", "chosen": SAID[1:]}, "chosen", "The king."),
        ({"conversations": SAID, "id": 1}, None, "Who is there?\n\nThe king."),
        ({"prompt": "Who is there?", "messages": SAID}, None, "Who is there?\n\nThe king."),
        ({"messages": SAID, "meta": {"raw": "Within. " * 99}}, None, "Who is there?\n\nThe king."),
        ({"story": "Long. " * 9, "messages": SAID}, None, "Long. " * 9),
    ],
)
def test_messages_beside_other_text(tmp_path: Path, row: dict[str, Any], column: str | None, text: str) -> None:
    """A column with a usual name is the text; otherwise the longest one; a column that the user names always is."""
    for kind in WRITERS[:3]:
        assert texts_of(written(tmp_path, [row], kind), column=column) == [text]


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("chosen", SAID, 1),
        ("doc.text", {"text": "Within."}, 1),
        ("_source.text", {"text": "Within. " * 9}, "news"),
        ("paragraphs.context", [{"context": "Within. " * 9}], "The sea"),
    ],
)
def test_rows_in_which_no_column_is_a_text(tmp_path: Path, name: str, value: object, other: object) -> None:
    with pytest.raises(CorpusError, match=f"columns are {name}, n"):
        texts_of(written(tmp_path, [{name.partition(".")[0]: value, "n": other}], "parquet"))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_every_type_of_texts_in_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["One sea.", "Two séas."]
    pq.write_table(pa.table({"text": pa.array(texts, kind)}), tmp_path / "a.parquet")
    assert texts_of(tmp_path / "a.parquet") == texts


def test_bytes_that_are_no_text_are_one_bad_row(tmp_path: Path) -> None:
    texts = [b"One sea.", b"\xff", b"Two seas."]
    pq.write_table(pa.table({"text": pa.array(texts, pa.binary())}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="row 2"):
        texts_of(tmp_path / "a.parquet")


def test_columns_have_roles() -> None:
    rows = [{"Title": "T.", "vector": [0.5] * 9, "_id": 3, "doc": {"text": "D."}, "gold_label": "x"}]
    columns = {role: find_column(rows, role, where="t") for role in USUAL}
    assert {role: name for role, name in columns.items() if name is not None} == {
        "id": "_id", "title": "Title", "label": "gold_label", "query": "Title"
    }  # fmt: skip
    assert find_column(rows, "title", where="t", taken=["Title"]) is None
    assert find_column(rows, "title", "doc.text", where="t") == "doc.text"
    with pytest.raises(CorpusError, match=r"'doc.txt'; .*'doc.text'"):
        find_column(rows, "text", "doc.txt", where="t")


def test_documents_of_a_table(tmp_path: Path) -> None:
    rows = [{"meta": {"id": f"n{n}"}, "doc": {"text": f"Text {n}."}, "title": f"T{n}"} for n in range(3)]
    path = written(tmp_path, rows, "json")
    assert [(d.id, d.title, d.text) for d in Documents(path, "doc.text", id_column="meta.id")] == [
        (f"n{n}", f"T{n}", f"Text {n}.") for n in range(3)
    ]
    assert next(iter(Documents(path, ["title", "doc.text"]))).text == "T0\n\nText 0."
    with pytest.raises(CorpusError, match="'meta.no'; columns are meta.id, doc.text, title"):
        Documents(path, "title", id_column="meta.no")
    with pytest.raises(CorpusError, match="list of columns"):
        Documents(path, [])


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
     ("3.0", "3"), ("-1.0", "-1"), ("1.5", "1.5"), (1.5, "1.5"), ("v3.0", "v3.0"), ("True", "true"), ("FALSE", "false"),
     (None, None), ("", None), ("  ", None), (math.nan, None)],
)  # fmt: skip
def test_names_of_classes(value: object, name: str | None) -> None:
    """Groups have the same ones, whatever kind of file they are in; ids stay as they are."""
    assert class_name(value) == fact_of("group", value) == name
    assert not isinstance(value, str) or fact_of("id", value) == value


def test_ids_in_a_column_with_gaps() -> None:
    """There pandas turns whole numbers into floats."""
    assert repr(fact_of("id", 3.0)) == "3"
    for value in (2.5, math.nan, None, True):
        with pytest.raises(ValueError, match="not an id"):
            fact_of("id", value)


def test_numbers_have_the_names_that_datasets_wrote(tmp_path: Path) -> None:
    """-1 is not a class, and a file without class names keeps the numbers."""
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
    with pytest.raises(ValueError, match="0.5"):
        class_name(0.5, ("bad", "good"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "text\n", r"corpus.label = 'y' .*a.txt"),
        ("a.csv", "text,label\none,1\n", r"a.csv: .*'y' for corpus.label; .*text, label"),
        ("a.jsonl", '{"text": "one", "y": [1]}\n', r"a.jsonl: row 1 .*'y'; .*corpus.bad_input"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError, match=message):
        labels_of(tmp_path / name, "y")


def test_a_column_of_files_without_columns(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('{"said": "one"}\n')
    with pytest.raises(CorpusError, match=r"corpus\.column = 'said' .*a\.log is text.* \.jsonl"):
        texts_of(tmp_path / "a.log", column="said")
    for name in ("column", "id_column", "title_column"):
        with pytest.raises(CorpusError, match=rf"^{name} = 'said' .*a\.log"):
            Documents(tmp_path / "a.log", **{name: "said"})  # type: ignore[arg-type]
    (tmp_path / "a.jsonl").write_text('{"said": "two"}\n')
    assert texts_of(tmp_path, column="said") == ["two", '{"said": "one"}'], "a table among them has it"


@pytest.mark.parametrize(("most", "text"), [(3, "such as '3'"), (9, None)])
def test_classes_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, text: str | None) -> None:
    monkeypatch.setattr(work, "MOST_CLASSES", most)
    held_out = write_jsonl(tmp_path / "a.jsonl", [{"text": f"one {n}", "y": n, "z": ""} for n in range(4)])
    corpus = CorpusSettings(label="y" if text else "z", validation=(str(held_out),), splits="ignore")
    train = write_jsonl(tmp_path / "b.jsonl", [{"text": "two", "y": 1, "z": ""}])
    with pytest.raises(CorpusError, match=text or "no row has a value"):
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
