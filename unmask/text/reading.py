"""Files to decoded lines in bounded memory, however compressed, and what is done about input that cannot be read.

A line may be longer than memory, so it arrives in parts. Bytes are decoded strictly: a file that is not UTF-8 is an
error with its byte, never a replacement character in somebody's vocabulary.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

import pyarrow as pa

from unmask.errors import CorpusError, SettingsError
from unmask.text.spans import Spans

# Bytes that are not UTF-8 arrive as lone surrogates where they are not an error at once.
_BROKEN = re.compile("[\ud800-\udfff\0]")
BROKEN_LINES = "lines that are not UTF-8 text"
CUT_OFF = "files that are cut off"
LONGEST_ROW = 1 << 26  # characters


class LinePart(NamedTuple):
    """A line of a text file or a row of a table, or a part of a long one.

    Attributes:
        text: The characters, without the line's end.
        starts: Whether the line begins here.
        ends: Whether the line ends here.
        spans: Annotations that came with the text; only whole lines have them.
        label: Class of the row; None where it has none.
        group: What the row shares with those that stay on its side; None where it says nothing.
    """

    text: str
    starts: bool
    ends: bool
    spans: Spans | None = None
    label: str | None = None
    group: str | None = None


class Stretch(NamedTuple):
    """A part of a file.

    Attributes:
        begin: The first byte; of a Parquet file, the first group of rows.
        end: Where it ends: the byte, or group of rows, that is not read any more.
    """

    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes, or groups of rows."""
        return self.end - self.begin


_WAY_OUT = '--set corpus.bad_input="skip" passes over what cannot be read'


class BadInput:
    """Raises, or counts what is passed over.

    Args:
        skip: Whether bad input is passed over.
        way_out: What errors advise beside; None where there is no such setting.

    Attributes:
        skip: Whether bad input is passed over.
        counts: What was passed over: reason to number.
    """

    def __init__(self, *, skip: bool, way_out: str | None = _WAY_OUT) -> None:
        self.skip = skip
        self._way_out = way_out
        self.counts: Counter[str] = Counter()

    def found(self, reason: str, message: str) -> None:
        """Counts bad input.

        Raises:
            CorpusError: It is not to be passed over.
        """
        if not self.skip:
            raise CorpusError(message if self._way_out is None else f"{message}; {self._way_out}")
        self.counts[reason] += 1

    def is_broken(self, text: str) -> bool:
        """Whether a text holds bytes that were not UTF-8, or NULs; they are counted."""
        broken = self.skip and broken_character(text) is not None
        self.counts[BROKEN_LINES] += broken
        return broken


def broken_character(text: str) -> str | None:
    """What a text holds that is no character: a NUL, or half of a pair of surrogates, which JSON can spell."""
    found = _BROKEN.search(text)
    return None if found is None else f"U+{ord(found.group()):04X}"


def check_characters(text: str, name: str) -> None:
    """Refuses a text that no tokenizer takes, such as one of a command line in another encoding.

    Args:
        text: One that was handed over.
        name: What the error calls it.

    Raises:
        SettingsError: It holds something that is no character.
    """
    if broken := broken_character(text):
        raise SettingsError(
            f"{name} holds {broken}, which is no character; take it out, or read the text in its own encoding"
        )


COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")


def bare_suffix(path: Path) -> str:
    """The suffix that says what kind of file it is, in lower case, without that of a compression."""
    name = path.name.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return Path(name).suffix


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading, unpacked.

    Raises:
        CorpusError: The file cannot be opened; or, while it is read, the compressed data is damaged or cut off.
    """
    try:
        with _opened(path) as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, pa.ArrowInvalid) as error:
        raise CorpusError(f"{path}: damaged or cut-off file: {error}") from error
    except OSError as error:
        kind = "damaged or cut-off file: " if error.errno is None else ""
        raise CorpusError(f"{path}: {kind}{error.strerror or error}") from error


def read_some(file: IO[bytes], most: int) -> bytes:
    """Reads what can be had at once, at least a byte before the end.

    Reading until so many bytes are there loses those that were unpacked before the file turned out to be cut off.

    Args:
        file: As `open_bytes` opens it.
        most: Bytes.
    """
    return cast(io.BufferedIOBase, file).read1(most)


def _opened(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        case ".xz":
            return cast(IO[bytes], lzma.open(path, "rb"))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path, "rb"))
        case ".zst":
            return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")))
    return path.open("rb")


CHUNK_BYTES = 1 << 20
PIECE_BYTES = 1 << 15  # read at once; of a cut-off .zst file less than this is lost


def read_text(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[str]:
    """Decodes a UTF-8 text file piece by piece; a byte-order mark is dropped, line ends become `\\n`.

    Args:
        path: A text file, plain or compressed.
        bad: What is done about bytes that are not UTF-8, NULs (a binary file) and cut-off files. Where they are
            passed over, broken bytes come as lone surrogates, for the caller to look at line by line.
        stretch: Which bytes of a plain file are read; None reads all of any file.

    Yields:
        Strings of at most about a million characters.

    Raises:
        CorpusError: The text names the byte of the (unpacked) file.
    """
    return decoded(_chunks(path, bad, stretch), path, bad, begin=0 if stretch is None else stretch.begin)


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    """What is in a file that is open, piece by piece."""
    while piece := read_some(file, PIECE_BYTES):
        yield piece


def decoded(chunks: Iterator[bytes], name: str | Path, bad: BadInput, *, begin: int = 0) -> Iterator[str]:
    """As `read_text`, of bytes that somebody else reads.

    Args:
        chunks: The bytes, in pieces of any size but 0.
        name: What errors call them.
        bad: As there.
        begin: How many bytes stand before the first of them. A byte-order mark is one at the very beginning only.
    """
    decoder = codecs.getincrementaldecoder("utf-8" if begin else "utf-8-sig")(
        "surrogateescape" if bad.skip else "strict"
    )
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    num_bytes = begin
    while chunk := next(chunks, b""):
        if not bad.skip and (nul := chunk.find(b"\0")) >= 0:
            bad.found("", f"{name}: byte {num_bytes + nul} is NUL: this is not a text file")
        yield newlines.decode(_decode(decoder, chunk, name, num_bytes, bad))
        num_bytes += len(chunk)
    if tail := newlines.decode(_decode(decoder, b"", name, num_bytes, bad), final=True):
        yield tail


def _chunks(path: Path, bad: BadInput, stretch: Stretch | None) -> Iterator[bytes]:
    """Chunks of equal size, and what is left of a file, or of a stretch, that ends or is cut off."""
    num_bytes, chunk, failure = 0, bytearray(), None
    try:
        with open_bytes(path) as file:
            if stretch is not None:
                file.seek(stretch.begin)
            while piece := read_some(file, _most(num_bytes, len(chunk), stretch)):
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
        bad.found(CUT_OFF, f"{failure} (readable up to byte {num_bytes} of its content)")


def _most(num_bytes: int, gathered: int, stretch: Stretch | None) -> int:
    """How much may be read next."""
    most = min(PIECE_BYTES, CHUNK_BYTES - gathered)
    return most if stretch is None else min(most, stretch.size - num_bytes)


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, name: str | Path, num_bytes: int, bad: BadInput) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        place = num_bytes - pending + error.start
        bad.found(
            "",
            f"{name}: byte {place} (0x{error.object[error.start]:02x}) is not UTF-8; "
            "convert the file first, for example with iconv -f LATIN1 -t UTF-8",
        )
        raise AssertionError("bytes that are passed over do not raise") from error


def read_lines(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[LinePart]:
    """Yields the lines of a text file; a line longer than a chunk comes in several parts.

    Args:
        path: As for `read_text`, which says what may be raised.
        bad: As there; broken lines are left out, of one in several parts those that are broken.
        stretch: As there.
    """
    parts = line_parts(read_text(path, bad, stretch))
    return _unbroken(parts, bad) if bad.skip else parts


def _unbroken(parts: Iterator[LinePart], bad: BadInput) -> Iterator[LinePart]:
    for part in parts:
        if not bad.is_broken(part.text):
            yield part
        elif not (part.starts and part.ends):
            yield part._replace(text="")  # where the line begins and ends stays known


def line_parts(chunks: Iterable[str]) -> Iterator[LinePart]:
    """The lines of a text that comes in pieces of any size; a line longer than a chunk comes in several parts."""
    starts = True
    rest = ""
    for chunk in chunks:
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


def whole_lines(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[str]:
    """Yields the lines of a text file whole, as rows are.

    Raises:
        CorpusError: As for `read_text`; or a line is longer than 64 million characters.
    """
    parts: list[str] = []
    size = 0
    for part in read_lines(path, bad, stretch):
        parts.append(part.text)
        size += len(part.text)
        if size > LONGEST_ROW:
            raise CorpusError(f"{path}: a row is longer than {LONGEST_ROW:,} characters; give such text as .txt")
        if part.ends:
            yield "".join(parts)
            parts, size = [], 0


def read_fasta(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[LinePart]:
    """Yields the sequences of a FASTA file, each a document without its description line.

    A sequence of several lines comes in parts, which join without a space.

    Args:
        path: The file.
        bad: What is done about letters before the first `>`, and as for text files.
        stretch: What of it is read; it begins with a `>`.

    Raises:
        CorpusError: As for text files; or there is a sequence before the first description.
    """
    inside = open_sequence = False
    for line in read_lines(path, bad, stretch):
        if line.starts and line.text.startswith(">"):
            if open_sequence:
                yield LinePart("", False, True)
            inside, open_sequence = True, False
        elif letters := "".join(line.text.split()):
            if not inside:
                bad.found("sequences without a description", f"{path}: a FASTA file begins with a line `>name`")
                continue
            yield LinePart(letters, not open_sequence, False)
            open_sequence = True
    if open_sequence:
        yield LinePart("", False, True)
