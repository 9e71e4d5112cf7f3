"""Text of files: lines in parts, packed in every way, cut off, and not UTF-8."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from unmask.core.errors import CorpusError
from unmask.data import reading
from unmask.data.reading import BadInput, read_lines, read_text

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
    """The error names the last byte that can be unpacked, and passing over the error gives the text before it."""
    rng = random.Random(0)
    content = "".join(f"line {rng.random()}\n" for _ in range(num_lines)).encode()
    packed = PACKERS[suffix](content)
    cut = packed[: -4 if suffix == ".bz2" else len(packed) // 3]
    readable = unpacker().decompress(cut)
    assert content.startswith(readable)
    assert len(readable) > 10_000
    path = write(tmp_path / f"a.txt{suffix}", cut)
    with pytest.raises(CorpusError, match=rf"byte {len(readable)} "):
        list(read_text(path, STRICT))
    skip = BadInput(skip=True)
    assert "".join(read_text(path, skip)).encode() == readable
    assert skip.counts["files that are cut off"] == 1
