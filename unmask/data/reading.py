"""Files to text in bounded memory: bytes are decompressed, decoded, and cut into lines or sequences.

A line may be longer than memory, so it comes in parts. Decoding is strict: a file in another encoding is an error that
names the byte, never a replacement character in a vocabulary.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import itertools
import logging
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from unmask.core.errors import CorpusError, SettingsError
from unmask.core.files import say_once
from unmask.data.settings import AS_FOUND, Reading
from unmask.tokenizer.spans import Spans

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
PIECE_BYTES = 1 << 15  # per read: less than this is lost of a truncated .zst file
LONGEST_ROW = 1 << 26  # characters
BROKEN_LINES = "lines that are not UTF-8 text"
CUT_OFF = "files that are truncated"
NOT_CSV = "rows that are not CSV"
# If bad input is skipped, bytes that cannot be decoded become a lone surrogate.
_BROKEN, _MARKED = re.compile("[\ud800-\udfff\0]"), "unmask-marked"
codecs.register_error(_MARKED, lambda error: ("\udc80", cast(UnicodeDecodeError, error).end))
_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": lambda path, _: io.BufferedReader(cast(Any, pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))),
}
COMPRESSIONS = tuple(_OPENERS)
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ": ".xz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}  # magic numbers
# The likely encodings; among dozens of rare ones, a wrong one often looks as good.
_ENCODINGS = [
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1258", "koi8_r", "cp866", "cp437", "cp850",
    "gb18030", "big5", "cp932", "euc_jp", "cp949", "tis_620",
]  # fmt: skip
_MARKS = re.compile("(?<=\n)\ufeff+")  # byte-order marks
_JIS = re.compile(rb"\x1b\$[@B]")  # where Japanese begins in ISO-2022-JP, all of whose bytes are ASCII
_GAPS = re.compile("[\n\r\t\u3001\u3002\uff0c]")
_INVISIBLE = re.compile("[\u00a0\u00ad\u200b-\u200f\u3000\ufeff]")  # but common in texts; not printable for Python
SKIP_BAD = 'to skip what cannot be read, set corpus.bad_input="skip"'

Row = dict[str, Any]


class LinePart(NamedTuple):
    """A line of a text file, a row of a table, or a part of a long one."""

    text: str  # without the line end
    starts: bool  # whether the line begins here
    ends: bool  # whether the line ends here
    spans: Spans | None = None  # annotations in the data; only on whole lines
    label: str | None = None  # class of the row
    group: str | None = None  # value that keeps rows in the same split
    id: str | int | None = None  # the row's id in the table
    title: str | None = None


class Stretch(NamedTuple):
    """A range of a file, [begin, end): in bytes; in a Parquet file, in row groups."""

    begin: int
    end: int


class BadInput:
    """How files are read, and what happens to bad input: it is an error, or it is skipped and counted by reason. Errors
    end with `way_out`; None if there is no such setting."""

    def __init__(self, *, skip: bool, way_out: str | None = SKIP_BAD, reading: Reading = AS_FOUND) -> None:
        self.skip, self.way_out, self.reading, self.encoding = skip, way_out, reading, reading.encoding
        self.counts: Counter[str] = Counter()

    def setting(self, name: str) -> str:
        """How advice names a setting of `corpus`: commands without `corpus.bad_input` have an option of that name."""
        return name if self.way_out is None else f"corpus.{name}"

    def report(self, reason: str, message: str) -> None:
        """Counts bad input, or raises a CorpusError with this message."""
        if not self.skip:
            raise CorpusError(message if self.way_out is None else f"{message}; {self.way_out}")
        self.counts[reason] += 1

    def is_broken(self, text: str) -> bool:
        """Whether a text is to be skipped, and counts it if so: it holds bytes that were not UTF-8, or NULs."""
        if not self.skip or _BROKEN.search(text) is None:
            return False
        self.counts[BROKEN_LINES] += 1
        return True


def broken_character(text: str) -> str | None:
    """A NUL in a text, or half of a surrogate pair, which JSON can spell; None if it has neither."""
    match = _BROKEN.search(text)
    return None if match is None else f"U+{ord(match.group()):04X}"


def check_characters(text: str, name: str) -> None:
    """Raises a SettingsError for text that no tokenizer accepts, such as a command line in another encoding."""
    if broken := broken_character(text):
        raise SettingsError(
            f"{name} contains {broken}, which is not a character; remove it, or set the text's encoding"
        )


def bare_suffix(path: Path) -> str:
    """The suffix of a file in lower case, without that of a compression."""
    name = path.name.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    # Rotated logs: app.log.1, app.jsonl-20260301. But train.csv.1 is a second download of train.csv.
    name = re.sub(r"(\.(?:log|jsonl|ndjson))[.-]\d[\d-]*$", r"\1", name)
    return ".conll" if name.endswith("_conll") else Path(name).suffix  # OntoNotes has `x.v4_gold_conll`


class _LongWindowError(CorpusError):
    """The file is intact, but cannot be decompressed here."""


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    try:
        with _OPENERS.get(path.suffix.lower(), Path.open)(path, "rb") as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, pa.ArrowInvalid) as error:
        raise CorpusError(f"{path}: the file is damaged or truncated: {error}") from error
    except OSError as error:
        if "too much memory" in str(error):  # zstd's words
            way_out = f"unpack it (zstd -d --long=31 {path.name}) and compress it again without --long"
            raise _LongWindowError(f"{path}: compressed with a longer window than can be read; {way_out}") from error
        kind = "damaged or cut-off file: " if error.errno is None else ""
        raise CorpusError(f"{path}: {kind}{error.strerror or error}") from error


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    """The content of an open file. `read1` returns what is available: waiting for more would lose what was decompressed
    before a truncated file ends."""
    while piece := cast(io.BufferedIOBase, file).read1(PIECE_BYTES):
        yield piece


def read_text(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[str]:
    """Decodes a text file, or a stretch of bytes of a plain one, in strings of at most about a million characters.
    Byte-order marks where lines begin are dropped (files that were joined have several), line ends become `\\n`.

    Undecodable bytes, NULs and truncated files are bad input; the error names the byte in the (decompressed) file. If
    they are skipped, undecodable bytes become lone surrogates, for the caller to check line by line.
    """
    begin, end = stretch or (0, None)

    def chunks() -> Iterator[bytes]:  # of equal size, then the rest before the file's end or damage
        num_bytes, chunk, failure = 0, bytearray(), None
        try:
            with open_bytes(path) as file:
                if begin:
                    file.seek(begin)
                while True:
                    most = min(PIECE_BYTES, CHUNK_BYTES - len(chunk))
                    most = most if end is None else min(most, end - begin - num_bytes)
                    if not (piece := cast(io.BufferedIOBase, file).read1(most)):
                        break
                    num_bytes += len(piece)
                    chunk += piece
                    if len(chunk) == CHUNK_BYTES:
                        yield bytes(chunk)
                        chunk.clear()
        except _LongWindowError:
            raise
        except CorpusError as error:
            failure = error
        if chunk:
            yield bytes(chunk)
        if failure is not None:
            bad.report(CUT_OFF, f"{failure} (its content is readable up to byte {num_bytes})")

    return decoded(chunks(), path, bad, begin=begin)


def decoded(chunks: Iterator[bytes], path: Path, bad: BadInput, *, begin: int = 0) -> Iterator[str]:
    """As `read_text`, for chunks of bytes, none empty; `begin` bytes come before them."""
    first = next(chunks, b"")
    wide = None if begin else wide_encoding(first, bad.encoding)
    encoding = codecs.lookup(wide or bad.encoding or "utf-8").name
    if wide is not None and not wide.endswith(("16", "32")):
        say_once(f"{path}: looks like {wide}, and is read as such; if that is wrong, set the encoding")
    decoder = codecs.getincrementaldecoder(encoding)(_MARKED if bad.skip else "strict")
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    num_bytes, before, is_ascii = begin, "\n", True  # `before`: the last character so far
    for chunk in itertools.chain([first] if first else (), chunks, [b""]):
        pending = decoder.getstate()[0]
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = num_bytes - len(pending) + error.start
            called = encoding.upper() if wide or bad.encoding is None else bad.encoding
            what = f"{path}: byte {place} (0x{error.object[error.start]:02x}) is not {called}"
            advice = ""
            if encoding == "utf-8" and not (chunk or is_ascii):  # if all else is ASCII, it may be in another encoding
                advice = "; the file ends within a character, so it was cut off: remove its last bytes"
            elif not (bad.encoding or wide):
                advice = likely_encoding(path, bad, error.object)
            bad.report(BROKEN_LINES, what + advice)
            text = ""  # a character cut off at the file's end
        if not bad.skip and (nul := text.find("\0")) >= 0:
            is_wide = "\0".encode(encoding) != b"\0"
            behind = len(text[:nul].encode(encoding, "surrogatepass")) if is_wide else (pending + chunk).index(0)
            bad.report("", f"{path}: byte {num_bytes - len(pending) + behind} is NUL: this is not a text file")
        is_ascii = is_ascii and text.isascii()
        if text := newlines.decode(text, final=not chunk):
            text = _MARKS.sub("", before + text)[1:] if "\ufeff" in text else text
            before = text[-1:] or before
            yield text
        num_bytes += len(chunk)


def wide_encoding(content: bytes, encoding: str | None = None) -> str | None:
    """The encoding that a text's beginning gives away: UTF-16 or UTF-32 by a byte-order mark; unless an encoding is
    set, also by NULs if it decodes to printable text, and ISO-2022-JP by its escape sequences. None if it is none of
    these."""
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if not encoding and content.isascii() and _JIS.search(content):
        return "iso2022_jp"
    content = content[:4096]
    for guess in () if encoding or content.count(0) < 3 else ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = codecs.getincrementaldecoder(guess)().decode(content)
        except UnicodeDecodeError:
            continue
        # Pairs of ASCII letters are Chinese characters, too, but hardly ever spaces or punctuation.
        plain = _GAPS.sub(" ", _INVISIBLE.sub("", text))
        if plain.isprintable() and plain.count(" ") * 200 >= len(plain):
            return guess
    return None


def likely_encoding(path: Path, bad: BadInput, chunk: bytes) -> str:
    """Advice for a text of which a chunk is not UTF-8: its likeliest encoding, with a sample, unless it is
    compressed."""
    from charset_normalizer import from_bytes  # slow to import, and needed for errors only

    with path.open("rb") as file:
        begin = file.read(8)
    packed = next((suffix for sign, suffix in _MAGIC.items() if begin.startswith(sign)), None)
    if packed is not None and path.suffix.lower() not in COMPRESSIONS:
        return f"; it is compressed: add {packed} to its name"
    lines = [line for line in chunk.splitlines(keepends=True) if not line.isascii()]
    others = [line for line in lines if line.decode(errors="ignore").encode() != line]
    content = b"".join(others)[:PIECE_BYTES]
    matches = from_bytes(content, cp_isolation=_ENCODINGS, threshold=0.4)
    if (best := matches.best()) is None:
        return "; this is not a text file"
    # Of about equally likely ones, the commonest.
    near = [m for m in matches if m.chaos <= best.chaos and m.coherence >= best.coherence - 0.05]
    likely = {name for each in near for name in each.could_be_from_charset}
    name = "cp1252" if "cp1252" in likely else best.encoding
    words = content.partition(b"\n")[0].decode(name, "replace").split()
    sample = " ".join(word for word in words if not word.isascii())[:60] or " ".join(words)[:60]
    if 10 * len(others) < 9 * len(lines):  # some are UTF-8 by chance
        return f"; it looks like {name} ({sample!r}), but other lines are UTF-8: convert these lines"
    setting = "" if bad.way_out is None else " (corpus.encoding)"
    return f"; it looks like {name} ({sample!r}): use --encoding {name}{setting}"


def read_lines(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[LinePart]:
    """Yields the lines of a text file; a line longer than a chunk comes in parts. If bad input is skipped, undecodable
    lines, or parts of them, are left out."""
    parts = line_parts(read_text(path, bad, stretch))
    if not bad.skip:
        yield from parts
    for part in parts:
        if not bad.is_broken(part.text):
            yield part
        elif not (part.starts and part.ends):  # keeps the marks of a line's beginning and end
            yield part._replace(text="")


def line_parts(chunks: Iterable[str]) -> Iterator[LinePart]:
    starts = True
    rest = ""
    for chunk in chunks:
        *lines, last = chunk.split("\n")
        for index, line in enumerate(lines):
            yield LinePart(rest + line if index == 0 else line, starts, True)
            starts = True
        if lines:
            rest = last
        else:  # no line ended in this chunk
            rest += last
            if len(rest) >= CHUNK_BYTES:
                yield LinePart(rest, starts, False)
                rest, starts = "", False
    if rest or not starts:
        yield LinePart(rest, starts, True)


def whole_lines(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[str]:
    """Yields the lines of a text file whole; raises a CorpusError if one is longer than 64 million characters."""
    parts: list[str] = []
    size = 0
    for part in read_lines(path, bad, stretch):
        parts.append(part.text)
        size += len(part.text)
        if size > LONGEST_ROW:
            raise CorpusError(f"{path}: a row is longer than {LONGEST_ROW:,} characters; store such text as .txt")
        if part.ends:
            yield "".join(parts)
            parts, size = [], 0


def cut_rows(
    path: Path, bad: BadInput, *, one_line: bool = False, **options: Any
) -> Iterator[tuple[int, int, list[str]]]:
    """Yields the rows of CSV, by `options` of `csv.reader`: numbers of their first and last lines, and cells. Malformed
    rows are bad input; with `one_line`, so are rows of several lines."""
    csv.field_size_limit(LONGEST_ROW)
    reader = csv.reader((line + "\n" for line in whole_lines(path, bad)), strict=True, **options)
    while True:
        begin = reader.line_num + 1
        try:
            if (cells := next(reader, None)) is None:
                return
            if one_line and reader.line_num > begin:
                raise csv.Error("no cell may have a line end")
        except csv.Error as error:
            end = reader.line_num
            problem = f"{error} (in line {end}: a quote may be open)" if begin < end else str(error)
            bad.report(NOT_CSV, f'{path}: line {begin}: {problem}; write quotes inside a text, also \\", as ""')
            bad.counts[NOT_CSV] += end - begin  # all lines within the quote
            continue
        yield begin, reader.line_num, cells


def read_smiles(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[LinePart]:
    """Yields the molecules of a file, which may have an id after each, and a header."""
    for number, line in enumerate(read_lines(path, bad, stretch)):
        is_whole = line.starts and line.ends and not line.text.isspace()
        text, *rest = (line.text.split(None, 1) if is_whole else None) or [line.text]
        if number or (stretch is not None and stretch.begin) or not text.lower().endswith("smiles"):
            yield line._replace(text=text, id=rest[0].split("\t")[0].strip() if rest else None)


def read_fasta(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[LinePart]:
    """Yields the sequences of a FASTA file, without comments (`;`); ids are the first words of the description lines.

    A sequence of several lines comes in parts, to be joined without a space. A stretch begins with a `>`.
    """
    inside = open_sequence = is_comment = False
    name: str | None = None
    for line in read_lines(path, bad, stretch):
        is_comment = line.text.startswith(";") if line.starts else is_comment
        if is_comment:
            continue
        if line.starts and line.text.startswith(">"):
            if inside:
                yield LinePart("", not open_sequence, True, id=name)
            inside, open_sequence, name = True, False, next(iter(line.text[1:].split()), None)
        elif letters := "".join(line.text.split()):
            if not inside:
                bad.report("sequences without a description", f"{path}: a FASTA file must begin with a line `>name`")
                continue
            yield LinePart(letters, not open_sequence, False, id=name)
            open_sequence = True
    if inside:
        yield LinePart("", not open_sequence, True, id=name)
