from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from unmask.corpus import text
from unmask.corpus.text import read_lines, read_text
from unmask.errors import CorpusError


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_lines_of_a_plain_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\r\ntwo\n\nthrée".encode())
    assert [tuple(line) for line in read_lines(path)] == [
        ("one", True, True),
        ("two", True, True),
        ("", True, True),
        ("thrée", True, True),
    ]


def test_gzip_and_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", gzip.compress("\ufeffhello\nworld\n".encode()))
    assert [line.text for line in read_lines(path)] == ["hello", "world"]


def test_a_character_across_two_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 3)
    path = write(tmp_path / "a.txt", "aé€😀\r\nb".encode())
    assert "".join(read_text(path)) == "aé€😀\nb"


def test_a_long_line_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 4)
    parts = list(read_lines(write(tmp_path / "a.txt", b"abcdefghij\nk\n")))
    assert "".join(p.text for p in parts) == "abcdefghijk"
    assert len(parts) > 2
    assert [p.starts for p in parts] == [True, *[False] * (len(parts) - 2), True]
    assert sum(p.ends for p in parts) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\xe9bad", r"a\.txt: byte 4 \(0xe9\) is not UTF-8; .*iconv"),
        ("b.txt", b"text\0binary", r"b\.txt: byte 4 is NUL: this is not a text file"),
        ("c.txt.gz", gzip.compress(b"x" * 100_000)[:-20], r"c\.txt\.gz: damaged gzip file"),
        ("d.txt.gz", b"not gzip at all", r"d\.txt\.gz: damaged gzip file"),
        ("e.pdf", b"%PDF", r"e\.pdf: cannot read this kind of file; supported are \.txt, \.txt\.gz"),
    ],
)
def test_bad_files_say_what_where_and_the_way_out(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_text(write(tmp_path / name, content)))


def test_a_bad_byte_in_a_later_chunk_has_its_place_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 4)
    with pytest.raises(CorpusError, match="byte 10 "):
        list(read_text(write(tmp_path / "a.txt", "abcdefgé".encode() + b"x\xffyy")))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file"):
        list(read_text(tmp_path / "none.txt"))
    with pytest.raises(CorpusError, match=r"is a folder; name its text files"):
        list(read_text(tmp_path))
