"""JSON in every form that other tools write: read in pieces of any size, and whatever is wrong with it."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.data.corpora import texts_of
from unmask.core.errors import CorpusError
from unmask.data import json_rows as forms
from unmask.data import reading
from unmask.data.corpus import Corpus
from unmask.data.json_rows import json_rows
from unmask.data.reading import BadInput
from unmask.data.settings import CorpusSettings
from unmask.data.sources import find_sources

ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f'Row {n}: "{"é[{,}]" * n}" \\ \n🙂', "n": [n, {"m": -1.5e-3}], "e": [], "z": None, "t": True}
    for n in range(9)
]


def read(path: Path, *, skip: bool = False) -> tuple[list[dict[str, Any]], Counter[str]]:
    bad = BadInput(skip=skip)
    return [row for _, row in json_rows(path, bad)], +bad.counts


@pytest.fixture(params=[1, 7, 1 << 20])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", request.param)


LINES = "\n".join(map(json.dumps, ROWS))
ARRAY = json.dumps(ROWS)
FORMS = {
    "a.json": ARRAY,
    "raw.json": json.dumps(ROWS, ensure_ascii=False, indent=2),
    "array.jsonl": ARRAY,
    "indented.jsonl": json.dumps(ROWS, indent=1),
    "lines.json": LINES,
    "spaced.json": "\ufeff\n\n" + LINES.replace("\n", "\r\n\n") + "\n",
    "object.json": json.dumps({"version": "2", "tags": ["x"], "info": {"rows": [{}]}, "data": ROWS, "more": [[1]]}),
    "indented.json": json.dumps({"data": ROWS, "version": 2}, indent=4),
    "by_hand.json": '{"data": [\n' + ",\n".join(map(json.dumps, ROWS)) + "\n]}",
}


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FORMS[name], encoding="utf-8")
    assert read(tmp_path / name) == (ROWS, {})
    assert read(tmp_path / name, skip=True) == (ROWS, {})
    assert [path.path.name for path in find_sources([tmp_path])] == [name], "a folder takes it for rows"


NUMBER = "1" * 5000
DEEP = "[" * 5_000 + "]" * 5_000


def test_strings_are_texts(tmp_path: Path) -> None:
    for content, texts in (('["One.", "Two."]', ["One.", "Two."]), ('"One."\n"Two."\n', ["One.", "Two."]), ("[]", [])):
        (tmp_path / "a.json").write_text(content)
        assert read(tmp_path / "a.json") == ([{"text": text} for text in texts], {})


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize(
    "row",
    ["3", "[1]", "{'text': 'x'}", '{"text": "x" "y": 1}', "", f'{{"n": {NUMBER}}}', NUMBER,
     f'{{"text": "x", "n": {DEEP}}}', '{"text": "x\udcff"}', '{"text": "x\0"}'],
)  # fmt: skip
@pytest.mark.parametrize("around", [("a.json", "[", ",\n", "]"), ("a.jsonl", "", "\n", "\n")])
def test_bad_rows_are_errors_or_counted(tmp_path: Path, row: str, around: tuple[str, str, str, str]) -> None:
    """After a row of an array that is not JSON nothing more is read; other bad rows are skipped."""
    name, begin, between, end = around
    is_text = "\udcff" in row or "\0" in row
    if name == "a.jsonl" and (not row or is_text):
        return  # no row, or a line that is no text, see test_text.py
    text = begin + between.join(['{"text": "one"}', row, '{"text": "three"}']) + end
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CorpusError, match=rf"{name}: (row 2|line 2|byte)"):
        read(tmp_path / name)
    is_passed_over = is_text or name == "a.jsonl" or row in ("3", "[1]")
    reason = reading.BROKEN_LINES if is_text else forms.NOT_JSON if is_passed_over else forms.TRUNCATED
    rows = [{"text": "one"}, *([{"text": "three"}] if is_passed_over else [])]
    assert read(tmp_path / name, skip=True) == (rows, {reason: 1})


@pytest.mark.parametrize(
    ("text", "line", "count"),
    [
        ('[{"text": "one"}, {"text": "tw', 1, reading.CUT_OFF),
        ('[{"text": "one"},\n', 2, reading.CUT_OFF),
        ('[{"text": "one"}', 1, reading.CUT_OFF),
        ('[{"text": "one"} {"text"', 1, forms.TRUNCATED),
        ('[{"text": "one"}]\n[]', 2, forms.TRUNCATED),
        ('{"a":\n[{"text": "one"}],', 2, reading.CUT_OFF),
        ('{"a":\n[{"text": "one"}] "b"', 2, forms.TRUNCATED),
        ('{"a":\n[{"text": "one"}], b: 1}', 2, forms.TRUNCATED),
        ('{"a":\n[{"text": "one"}], "b": [1', 2, reading.CUT_OFF),
    ],
)
def test_damaged_files(tmp_path: Path, text: str, line: int, count: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CorpusError, match=rf"a\.json: .*line {line}.*bad_input"):
        read(tmp_path / "a.json")
    assert read(tmp_path / "a.json", skip=True) == ([{"text": "one"}], {count: 1})


@pytest.mark.parametrize("name", ["a.json", "object.json", "lines.json", "indented.jsonl"])
def test_no_damage_is_anything_but_one_clear_error(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files truncated anywhere, or with changed bytes: earlier rows are complete, and only our errors are raised."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 61)
    content, path, draws = FORMS[name].encode(), tmp_path / name, random.Random(0)
    for end in draws.sample(range(len(content) - 2), 60):
        path.write_bytes(content[:end])
        rows, counts = read(path, skip=True)
        assert rows == ROWS[: len(rows)]
        assert counts or len(rows) == len(ROWS) or name == "lines.json"
    for _ in range(200):
        changed = bytearray(content)
        for place in draws.sample(range(len(content)), 3):
            changed[place] = draws.choice(b'"\\[]{},:\0\xff1ex\n')
        path.write_bytes(bytes(changed))
        for skip in (False, True):
            with suppress(CorpusError):
                read(path, skip=skip)


def test_what_is_no_text_in_a_folder(tmp_path: Path) -> None:
    """Files of known names, and files without rows, are skipped in a folder; named alone, they are an error."""
    rows = json.dumps([{"text": f"Text {n}."} for n in range(150)])
    contents = {
        "data.json": rows, "modules.json": rows, "dataset_info.json": "{}", "one.json": '{"text": "One."}',
        "numbers.json": "[[1, 2], [3]]", "two.json": '{"a": [{}], "b": [{}]}', "words.json": "none", "empty.json": "[]",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "tokenizer.json.gz").write_bytes(gzip.compress(rows.encode()))
    assert [source.path.name for source in find_sources([tmp_path])] == ["data.json"]
    for path in (tmp_path, tmp_path / "modules.json"):
        assert len(texts_of(path)) == 150
    for name in ("one", "numbers", "words", "empty"):
        with pytest.raises(CorpusError, match=f"{name}.json"):
            Corpus([tmp_path / f"{name}.json"], CorpusSettings())
