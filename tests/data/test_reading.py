"""Text files: long lines in parts, compressed in every way, truncated, and not UTF-8; documents of lines; and JSON in
every form that other tools write, read in pieces of any size."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.corpora import texts_of
from unmask.core.errors import CorpusError
from unmask.data import json_rows as forms
from unmask.data import reading
from unmask.data.corpus import Corpus
from unmask.data.documents import Document, split_lines
from unmask.data.json_rows import json_rows
from unmask.data.reading import BadInput, LinePart, read_lines, read_text
from unmask.data.settings import CorpusSettings, DocumentUnit
from unmask.data.sources import find_sources
from unmask.data.treebanks import DOCUMENT_BEGIN

STRICT = BadInput(skip=False)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_long_line_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 4)
    parts = list(read_lines(write(tmp_path / "a.txt", b"abcdefghij\nk\n"), STRICT))
    assert "".join(p.text for p in parts) == "abcdefghijk"
    assert len(parts) > 2
    assert [p.starts for p in parts] == [True, *[False] * (len(parts) - 2), True]
    assert sum(p.ends for p in parts) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\xe9bad", r"a\.txt: byte 4 .*bad_input"),
        ("b.txt", b"text\0binary", r"b\.txt: byte 4 "),
        ("c.txt", b"\xef\xbb\xbfgood\xe9bad", r"c\.txt: byte 7 "),
        ("d.txt", gzip.compress(b"text", mtime=0), r"d\.txt: byte 1 .*\.gz"),
        ("e.txt", "s\u00fc\u00df ".encode() + b"\xc3", r"e\.txt: byte 6 .*cut off"),
        *((f"d.txt.{kind}", b"not packed at all", rf"d\.txt\.{kind}: ") for kind in ("gz", "xz", "bz2", "zst")),
    ],
)
def test_bad_files_say_what_where_and_the_way_out(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_text(write(tmp_path / name, content), STRICT))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_every_compression(tmp_path: Path, suffix: str) -> None:
    content = "\ufefferste Zeile\nzweite Zeile\n".encode() + b"dritte\n" * 1000
    path = write(tmp_path / f"a.txt{suffix}", PACKERS.get(suffix, bytes)(content))
    assert "".join(read_text(path, STRICT)) == content.decode("utf-8-sig")


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 20])
def test_files_that_were_joined_keep_no_byte_order_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    path = write(tmp_path / "a.txt", "\ufeffone\r\n\ufeff\ufefftwo\nth\ufeffree\n".encode())
    assert "".join(read_text(path, STRICT)) == "one\ntwo\nth\ufeffree\n"


def test_bad_input_is_passed_over_and_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    skip = BadInput(skip=True)
    path = write(tmp_path / "a.txt", b"good\n" + b"b\xe9d\nb\0d\n" + "auch gut é\n".encode())
    assert [part.text for part in read_lines(path, skip)] == ["good", "auch gut é"]
    assert skip.counts == {"lines that are not UTF-8 text": 2}


@pytest.mark.parametrize(
    ("suffix", "unpacker", "num_lines"),
    [
        (".gz", lambda: zlib.decompressobj(31), 3000),
        (".gz", lambda: zlib.decompressobj(31), 100_000),  # several reads
        (".bz2", bz2.BZ2Decompressor, 3000),
        (".xz", lzma.LZMADecompressor, 3000),
    ],
)
def test_a_file_that_is_cut_off_is_read_up_to_that_place(
    tmp_path: Path, suffix: str, unpacker: Callable[[], Any], num_lines: int
) -> None:
    """The error names the last byte that can be decompressed; skipping the error gives the text before it."""
    rng = random.Random(0)
    content = "".join(f"line {rng.random()}\n" for _ in range(num_lines)).encode()
    packed = PACKERS[suffix](content)
    cut = packed[: -4 if suffix == ".bz2" else len(packed) // 3]
    readable = unpacker().decompress(cut)
    assert content.startswith(readable)
    assert len(readable) > 10_000
    path = write(tmp_path / f"a.txt{suffix}", cut)
    with pytest.raises(CorpusError, match=rf"byte {len(readable)}\b"):
        list(read_text(path, STRICT))
    skip = BadInput(skip=True)
    assert "".join(read_text(path, skip)).encode() == readable
    assert skip.counts["files that are truncated"] == 1


def split(text: str, unit: DocumentUnit, **kwargs: int) -> list[Document]:
    return list(split_lines([([LinePart(line, True, True) for line in text.split("\n")], unit, "blank")], **kwargs))


@pytest.mark.parametrize(
    ("unit", "text", "documents"),
    [
        ("line", "a b\n\n  \nc", ["a b", "c"]),
        ("block", "\na\nb\n\n \nc\n", ["a\nb", "c"]),
        ("file", "a\n\nb", ["a\n\nb"]),
    ],
)
def test_documents_of_lines(unit: DocumentUnit, text: str, documents: list[str]) -> None:
    pieces = split(text, unit)
    assert [(p.document, p.text) for p in pieces] == list(enumerate(documents))
    if unit == "line":
        assert pieces[1] == Document(1, 0, "c", id=4)


def test_blank_lines_may_be_kept() -> None:
    """Then documents are numbered as the lines of a file, of which the mark of a treebank's document is none."""
    lines = [DOCUMENT_BEGIN, *(LinePart(line, True, True) for line in ("a", "", " ", "b", ""))]
    skipped = Counter[str]()
    kept = list(split_lines([(lines, "line", "blank")], keeps_blank=True, skipped=skipped))
    assert [(p.document, p.id, p.text) for p in kept] == [(0, 1, "a"), (1, 2, ""), (2, 3, " "), (3, 4, "b"), (4, 5, "")]
    assert not skipped


def test_a_file_ends_a_document_and_files_may_differ_in_kind() -> None:
    files = [(["a"], "block"), (["b", "", "c"], "line"), (["d", "e"], "block"), (["f"], "file")]
    pieces = split_lines([([LinePart(line, True, True) for line in lines], unit, "blank") for lines, unit in files])  # type: ignore[misc]
    assert [(p.document, p.text) for p in pieces] == list(enumerate(["a", "b", "c", "d\ne", "f"]))


def test_a_long_document_is_cut_behind_white_space_with_byte_offsets() -> None:
    pieces = split("äää bb cc dddddddddddddddddddd e", "line", piece_chars=8)
    assert pieces[0] == Document(0, 0, "äää bb ", last=False, id=1)
    assert pieces[1].offset == len("äää bb ".encode())
    assert all(len(p.text) <= 8 for p in pieces)


@given(
    st.lists(st.text(alphabet="ab é\t", max_size=40), max_size=12),
    st.sampled_from(["line", "block", "file"]),
    st.integers(2, 30),
)
def test_no_character_of_a_document_is_lost(lines: list[str], unit: DocumentUnit, piece_chars: int) -> None:
    whole = split("\n".join(lines), unit)
    pieces = split("\n".join(lines), unit, piece_chars=piece_chars)
    for document in whole:
        mine = [p for p in pieces if p.document == document.document]
        assert "".join(p.text for p in mine).strip() == document.text.strip()
        offset = 0
        for piece in mine:
            assert piece.offset == offset
            assert len(piece.text) <= piece_chars
            offset += len(piece.text.encode())
    assert {p.document for p in pieces} == {p.document for p in whole}
    text = "".join("".join(lines).split())
    assert "".join("".join(p.text for p in pieces).split()) == text


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
        return  # no row, or a line that is no text, see above
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
        "data.json": rows, "modules.json": rows, "dataset_info.json": "{}", "one.json": '{"name": "One."}',
        "row.json": json.dumps({"authors": [{"name": "Mira"}], "Abstract": "One."}, indent=1),
        "pages.json": json.dumps({"document": "a.pdf", "pages": [{"text": "A page of text. " * 4}] * 2}, indent=1),
        "numbers.json": "[[1, 2], [3]]", "two.json": '{"a": [{}], "b": [{}]}', "words.json": "none", "empty.json": "[]",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "tokenizer.json.gz").write_bytes(gzip.compress(rows.encode()))
    assert [source.path.name for source in find_sources([tmp_path])] == ["data.json", "pages.json", "row.json"]
    for path, number in ((tmp_path, 153), (tmp_path / "modules.json", 150)):
        assert len(texts_of(path)) == number
    assert read(tmp_path / "row.json") == ([{"authors": [{"name": "Mira"}], "Abstract": "One."}], {})
    for name in ("one", "numbers", "words", "empty"):
        with pytest.raises(CorpusError, match=f"{name}.json"):
            Corpus([tmp_path / f"{name}.json"], CorpusSettings())
