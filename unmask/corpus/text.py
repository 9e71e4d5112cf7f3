"""Text files to decoded lines, in bounded memory.

A line may be longer than memory, so it arrives in parts. Bytes are decoded strictly: a file that is not UTF-8 is an
error with its byte, never a replacement character in somebody's vocabulary.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from pathlib import Path

from unmask.corpus.compression import open_bytes, read_some
from unmask.corpus.reading import BadInput, LinePart
from unmask.errors import CorpusError

CHUNK_BYTES = 1 << 20
PIECE_BYTES = 1 << 15  # read at once; of a cut-off .zst file less than this is lost


def read_text(path: Path, bad: BadInput) -> Iterator[str]:
    """Decodes a UTF-8 text file piece by piece; a byte-order mark is dropped, line ends become `\\n`.

    Args:
        path: A text file, plain or compressed.
        bad: What is done about bytes that are not UTF-8, NULs (a binary file) and cut-off files. Where they are
            passed over, broken bytes come as lone surrogates, for the caller to look at line by line.

    Yields:
        Strings of at most about a million characters.

    Raises:
        CorpusError: The text names the byte of the (unpacked) file.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape" if bad.skip else "strict")
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    num_bytes = 0
    chunks = _chunks(path, bad)
    while chunk := next(chunks, b""):
        if not bad.skip and (nul := chunk.find(b"\0")) >= 0:
            bad.found("", f"{path}: byte {num_bytes + nul} is NUL: this is not a text file")
        yield newlines.decode(_decode(decoder, chunk, path, num_bytes, bad))
        num_bytes += len(chunk)
    if tail := newlines.decode(_decode(decoder, b"", path, num_bytes, bad), final=True):
        yield tail


def _chunks(path: Path, bad: BadInput) -> Iterator[bytes]:
    """Chunks of equal size, and what is left of a file that ends or is cut off."""
    num_bytes, chunk, failure = 0, bytearray(), None
    try:
        with open_bytes(path) as file:
            while piece := read_some(file, min(PIECE_BYTES, CHUNK_BYTES - len(chunk))):
                num_bytes += len(piece)
                chunk += piece
                if len(chunk) == CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
    except CorpusError as error:
        failure = error
    if chunk:
        yield bytes(chunk)
    if failure is not None:
        bad.found("files that are cut off", f"{failure} (readable up to byte {num_bytes} of its content)")


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, path: Path, num_bytes: int, bad: BadInput) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        place = num_bytes - pending + error.start
        bad.found(
            "",
            f"{path}: byte {place} (0x{error.object[error.start]:02x}) is not UTF-8; "
            "convert the file first, for example with iconv -f LATIN1 -t UTF-8",
        )
        raise AssertionError("bytes that are passed over do not raise") from error


def read_lines(path: Path, bad: BadInput) -> Iterator[LinePart]:
    """Yields the lines of a text file; a line longer than a chunk comes in several parts.

    Args:
        path: As for `read_text`, which says what may be raised.
        bad: As there; broken lines are left out, of one in several parts those that are broken.
    """
    parts = _line_parts(path, bad)
    return _unbroken(parts, bad) if bad.skip else parts


def _unbroken(parts: Iterator[LinePart], bad: BadInput) -> Iterator[LinePart]:
    for part in parts:
        if not bad.is_broken(part.text):
            yield part
        elif not (part.starts and part.ends):
            yield part._replace(text="")  # where the line begins and ends stays known


def _line_parts(path: Path, bad: BadInput) -> Iterator[LinePart]:
    starts = True
    rest = ""
    for chunk in read_text(path, bad):
        *lines, last = chunk.split("\n")
        for index, line in enumerate(lines):
            yield LinePart(rest + line if index == 0 else line, starts, True)
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
