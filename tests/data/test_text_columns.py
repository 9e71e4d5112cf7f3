"""Where the text of a row is: fields within columns, lists of them, several columns, messages; and where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import texts_of, write_jsonl
from unmask.core.errors import CorpusError
from unmask.data.columns import USUAL, find_column, text_in, value_at
from unmask.data.corpus import Corpus
from unmask.data.documents import Documents
from unmask.data.settings import CorpusSettings

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


def opened(path: Path, **settings: object) -> Corpus:
    return Corpus([path], CorpusSettings.model_validate(settings), hold_out=False)


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
    assert "its text in column 'doc.main.text'" in opened(path, column="doc.main.text").plan.describe()
    names = "columns are id, doc.main.text, doc.parts.text, doc.n, lines, lang"
    with pytest.raises(CorpusError, match=rf"there is no column 'doc.main.txt'; {names}"):
        opened(path, column="doc.main.txt")
    for column in ("doc.main", "doc.n", "doc.parts"):
        with pytest.raises(CorpusError, match=f"column '{column}' of row 1"):
            texts_of(path, column=column)
    assert opened(path, label="doc.main.text", column="lines").sources[0].label == "doc.main.text"
    labelled = Corpus([path], CorpusSettings(label="doc.main.text", holdout_groups="doc.main.text", column="lines"))  # type: ignore[arg-type]
    assert [(piece.label, piece.group) for piece, _ in labelled.pieces()][1] == ("Text 1.", "Text 1.")


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
    with pytest.raises(CorpusError, match="row 6 has no text in columns 'title' and 'body'"):
        texts_of(path, column=["title", "body"])
    corpus = opened(path, column="title,body", bad_input="skip")
    assert [piece.text for piece, _ in corpus.pieces()] == ["One\n\nTwo.", "Alone.", "No title."]
    assert corpus.skipped == {"rows without text": 2}
    assert "a document is a row, its text in columns 'title' and 'body'" in corpus.plan.describe()
    path.write_text('{"title": "a", "body": "b"}\n{"text": "c"}\n')
    with pytest.raises(CorpusError, match="row 2 has no columns 'title' and 'body'"):
        texts_of(path, column=["title", "body"])
    for body, message in ((3, "'body' of row 1 is int"), ("\0", r"row 1 has U\+0000 in column 'b")):
        with pytest.raises(CorpusError, match=message):
            texts_of(written(tmp_path, [{"title": "a", "body": body}]), column=["title", "body"])
    (tmp_path / "b.tsv").write_text("one\ttwo\t3\nfour\tfive\t6\n")
    assert texts_of(tmp_path / "b.tsv", column=[0, "1"]) == ["one\n\ntwo", "four\n\nfive"]


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
        ({"story": "Long. " * 9, "messages": SAID}, None, "Long. " * 9),
    ],
)
def test_messages_beside_other_text(tmp_path: Path, row: dict[str, Any], column: str | None, text: str) -> None:
    """A column that is called a text is one; of others the longer is; and named is named."""
    for kind in WRITERS[:3]:
        assert texts_of(written(tmp_path, [row], kind), column=column) == [text]


@pytest.mark.parametrize(("name", "value"), [("chosen", SAID), ("doc.text", {"text": "Within."})])
def test_rows_in_which_no_column_is_a_text(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(CorpusError, match=f"columns are {name}, n"):
        texts_of(written(tmp_path, [{name.partition(".")[0]: value, "n": 1}], "parquet"))


def test_columns_have_roles(tmp_path: Path) -> None:
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
    with pytest.raises(CorpusError, match="empty list"):
        Documents(path, [])
