"""Text files: long lines in parts, compressed in every way, truncated, and not UTF-8; and documents of lines."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.core.errors import CorpusError
from unmask.data import reading
from unmask.data.documents import Document, split_lines
from unmask.data.reading import BadInput, LinePart, read_lines, read_text
from unmask.data.settings import DocumentUnit
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


def test_a_window_that_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3])  # a zstd frame with a window of 2**31 bytes
    path = write(tmp_path / "a.txt.zst", header + (5 << 3 | 1).to_bytes(3, "little") + b"text\n")
    with pytest.raises(CorpusError, match=r"a\.txt\.zst: .*window.*--long=31"):
        list(read_text(path, skip := BadInput(skip=True)))
    assert not skip.counts


def test_bad_input_is_passed_over_and_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    skip = BadInput(skip=True)
    path = write(tmp_path / "a.txt", b"good\n" + b"b\xe9d\nb\0d\n" + "auch gut é\n".encode())
    assert [part.text for part in read_lines(path, skip)] == ["good", "auch gut é"]
    assert skip.counts == {"lines that are not UTF-8 text": 2}


@pytest.mark.parametrize(
    ("suffix", "unpacker"),
    [(".gz", lambda: zlib.decompressobj(31)), (".bz2", bz2.BZ2Decompressor), (".xz", lzma.LZMADecompressor)],
)
@pytest.mark.parametrize("num_lines", [3_000, 100_000])
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
