"""Text files to decoded lines, in bounded memory.

A line may be longer than memory, so it arrives in parts. Bytes are decoded strictly: a file that is not UTF-8 is an
error with its byte, never a replacement character in somebody's vocabulary.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from unmask.errors import CorpusError

CHUNK_BYTES = 1 << 20
SUFFIXES = (".txt", ".txt.gz")


class LinePart(NamedTuple):
    """A line of a text file, or a part of a long one.

    Attributes:
        text: The characters, without the line's end.
        starts: Whether the line begins here.
        ends: Whether the line ends here.
    """

    text: str
    starts: bool
    ends: bool


def check_source(path: Path) -> None:
    """Raises `CorpusError` unless `path` is a file of a kind that can be read."""
    if path.is_dir():
        raise CorpusError(f"{path} is a folder; name its text files instead, for example {path}/*.txt")
    if not path.exists():
        raise CorpusError(f"{path}: no such file")
    if not path.name.endswith(SUFFIXES):
        raise CorpusError(f"{path}: cannot read this kind of file; supported are {', '.join(SUFFIXES)}")


def read_text(path: Path) -> Iterator[str]:
    """Decodes a UTF-8 text file (plain or gzip) piece by piece; a byte-order mark is dropped, line ends become `\\n`.

    Args:
        path: A `.txt` or `.txt.gz` file.

    Yields:
        Strings of at most about a million characters.

    Raises:
        CorpusError: The file is missing, of another kind, not UTF-8, holds NUL characters (a binary file), or is
            a damaged or cut-off gzip file; the text names the byte of the (unpacked) file.
    """
    check_source(path)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    num_bytes = 0
    try:
        with _open(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                if (nul := chunk.find(b"\0")) >= 0:
                    raise CorpusError(f"{path}: byte {num_bytes + nul} is NUL: this is not a text file")
                yield newlines.decode(_decode(decoder, chunk, path, num_bytes))
                num_bytes += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(
            f"{path}: damaged gzip file, readable up to byte {num_bytes} of its content: {error}"
        ) from error
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror or error}") from error
    if tail := newlines.decode(_decode(decoder, b"", path, num_bytes), final=True):
        yield tail


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, path: Path, num_bytes: int) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        place = num_bytes - pending + error.start
        found = error.object[error.start]
        raise CorpusError(
            f"{path}: byte {place} (0x{found:02x}) is not UTF-8; "
            "convert the file first, for example with iconv -f LATIN1 -t UTF-8"
        ) from error


def read_lines(path: Path) -> Iterator[LinePart]:
    """Yields the lines of a text file; a line longer than a chunk comes in several parts.

    Args:
        path: As for `read_text`, which says what may be raised.
    """
    starts = True
    rest = ""
    for chunk in read_text(path):
        *lines, last = chunk.split("\n")
        for index, line in enumerate(lines):
            text = rest + line if index == 0 else line
            yield LinePart(text, starts, True)
            starts = True
        if lines:
            rest = last
        else:  # no line ended in this chunk: hand on what has gathered
            rest += last
            if len(rest) >= CHUNK_BYTES:
                yield LinePart(rest, starts, False)
                rest, starts = "", False
    if rest or not starts:
        yield LinePart(rest, starts, True)
