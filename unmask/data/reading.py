"""Files to decoded lines in bounded memory, however compressed, and what is done about input that cannot be read.

A line may be longer than memory, so it arrives in parts. Bytes are decoded strictly: a file that is not UTF-8 is an
error with its byte, never a replacement character in somebody's vocabulary.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import pyarrow as pa

from unmask.core.errors import CorpusError, SettingsError
from unmask.tokenizer.spans import Spans

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


# ----------------------------------------
# A place in a text of JSON that is read as far as it is needed, value by value.

_LONG_LINE = 1 << 23
AS_TEXT = "give such text as .txt"
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*+")
_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[",\[\]{}]', re.DOTALL)  # a whole string, or a sign outside of strings
_NEAR_END = 32  # characters: an error so near to the end of what was read may be one of too little


class EndsEarlyError(Exception):
    """The text ends before a value does, as far as can be told."""


class JsonCursor:
    """A place in a text that is read as far as it is needed; what lies before the place is dropped.

    Args:
        name: What errors call it, such as the file.
        chunks: The text, in pieces of any size, as `read_text` gives it.
        most: Characters that are read, about; None: all.
        way_out: What errors advise where a value is longer than 64 million characters.
    """

    def __init__(
        self, name: str | Path, chunks: Iterator[str], *, most: int | None = None, way_out: str = AS_TEXT
    ) -> None:
        self._name, self._way_out = name, way_out
        self._chunks = chunks
        self._left = most
        self.text = ""
        self.place = self.begin = 0  # `begin`: of the value that was decoded last
        self._lines = 0  # before what is held

    @property
    def line_number(self) -> int:
        """Of the place, counted from 1. It takes a look at all that is held, so it is for errors."""
        return 1 + self._lines + self.text.count("\n", 0, self.place)

    @property
    def excerpt(self) -> str:
        """What comes next, for errors."""
        return self.text[self.place : self.place + 20]

    def _read(self) -> bool:
        """Reads as much again as is held behind the place, so that no text is copied or looked at often."""
        wanted = max(1, len(self.text) - self.place)
        if wanted > LONGEST_ROW:
            raise CorpusError(f"{self._name}: a row is longer than {LONGEST_ROW:,} characters; {self._way_out}")
        found: list[str] = []
        while wanted > 0 and (self._left is None or self._left > 0) and (chunk := next(self._chunks, None)) is not None:
            found.append(chunk)
            wanted -= len(chunk)
            self._left = None if self._left is None else self._left - len(chunk)
        self._lines += self.text.count("\n", 0, self.place)
        self.text, self.place = "".join([self.text[self.place :], *found]), 0
        return bool(found)

    def peek(self, behind: int = 0) -> str:
        """The next character that is no white space; empty at the end.

        Args:
            behind: Characters that are passed over first; the place only moves where there are none.
        """
        while True:
            found = _SPACE.match(self.text, self.place + behind)
            assert found is not None, "it also fits nothing"
            if not behind:
                self.place = found.end()
            if found.end() < len(self.text):
                return self.text[found.end()]
            if not self._read():
                return ""

    def take(self, sign: str) -> bool:
        """Goes behind a sign, if it comes next."""
        if self.peek() != sign:
            return False
        self.place += 1
        return True

    def line(self) -> str | None:
        """The rest of the line, behind which the place is then; None where it is long."""
        searched = self.place
        while (end := self.text.find("\n", searched)) < 0:
            held = len(self.text) - self.place
            if held > _LONG_LINE:
                return None
            if not self._read():
                end = len(self.text)
                break
            searched = held
        line = self.text[self.place : end]
        self.place = end
        return line

    def value(self) -> Any:
        """Decodes the value that begins here, behind which the place is then; it stays where that fails.

        Raises:
            JSONDecodeError: It is not JSON.
            ValueError: A number has too many digits.
            RecursionError: It is nested too deep.
            EndsEarlyError: The text ends where more is expected.
        """
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.place)
            except JSONDecodeError as error:
                if error.pos < len(self.text) - _NEAR_END and not error.msg.startswith("Unterminated string"):
                    raise
                if self._read():
                    continue
                raise EndsEarlyError(told(error)) from error
            if end == len(self.text) and not isinstance(value, str | list | dict) and self._read():
                continue  # there may be more of a number
            self.begin, self.place = self.place, end
            return value

    def skip(self) -> str | None:
        """Goes behind the value that begins here without decoding it, however deep it is.

        Returns:
            What it holds that is no character (`broken_character`).

        Raises:
            EndsEarlyError: The text ends within it.
        """
        depth, broken = 0, None
        while True:
            found = _MARK.search(self.text, self.place)
            sign = None if found is None else found.group()
            ends = depth == 0 and sign in (",", "]", "}")
            end = len(self.text)
            if found is not None:
                end = found.start() if ends or sign == '"' else found.end()
            broken = broken or broken_character(self.text[self.place : end])
            self.place = end
            if sign in (None, '"'):  # all was looked at, or a string goes on behind what is held
                if not self._read():
                    raise EndsEarlyError
                continue
            depth += (sign in ("[", "{")) - (sign in ("]", "}")) if not ends else 0
            if ends or (depth == 0 and sign != ","):
                return broken


def told(error: Exception) -> str:
    """What is wrong with a value that cannot be decoded."""
    if isinstance(error, JSONDecodeError):
        return f"is not JSON: {error.msg} at {error.doc[error.pos : error.pos + 20]!r}"
    if isinstance(error, RecursionError):
        return "is JSON that is nested too deep to be read"
    return "holds a whole number of too many digits to be read"


# ----------------------------------------
# Rows of JSON: an object a line, an array of objects, or an object with one list of them; in bounded memory.
#
# What other tools write is told from each other by how it begins, in .json and .jsonl alike:
#
#     lines     {"text": "One."}
# {"text": "Two."}                        one row a line; a string is a text
#     array     [{"text": "One."}, {"text": "Two."}]                      `json.dump`, pandas' orient="records"
#     object    {"version": "1", "data": [{"text": "One."}, ...]}         the one field that is a list of objects
#
# An array is read element by element: whatever its size, memory is that of one row and a piece of the file.

Row = dict[str, Any]
Form = Literal["lines", "array", "object"]
NOT_JSON = "rows that are not JSON"
TRUNCATED = "files that are JSON only up to a place"
_LOOK_CHARS = 1 << 21
_WAYS_OUT = (
    'rows are an array of objects ([{"text": "..."}, ...]), as json.dump and pandas\' to_json(orient="records") write '
    "it, or an object a line"
)


def json_rows(path: Path, bad: BadInput, stretch: Stretch | None = None) -> Iterator[tuple[int, Row]]:
    """The rows of a file with their numbers, counted from 1: lines of the file, or elements of its array.

    Args:
        path: A file of JSON in any of the three forms.
        bad: What is done about rows that cannot be read, and as for text files.
        stretch: Which bytes of a file of lines are read; the numbers are of the lines in it.

    Raises:
        CorpusError: A row is no JSON, no object and no string, nested too deep or too long; or the file is cut off;
            or it is an object with no list of objects, or with several. With file and row.
    """
    form: Form = "lines" if stretch is not None else json_form(path)
    if form == "lines":
        return _of_lines(path, bad, stretch)
    if form == "array":
        return _Reader(path, bad).in_array()
    _check_lists(path, lists_in(path))
    return _Reader(path, bad).in_object()


def json_form(path: Path) -> Form:
    """How a file holds its rows. What it is not whole enough to tell, reading it as lines will say."""
    text = JsonCursor(path, read_text(path, BadInput(skip=True)))
    first, is_lines_by_name = text.peek(), bare_suffix(path) != ".json"
    if first == "[" and not is_lines_by_name:
        return "array"
    if first != "[" and (first != "{" or is_lines_by_name):
        return "lines"
    other: Form = "array" if first == "[" else "object"
    if (line := text.line()) is None:
        return other
    more = text.peek()
    broken_row = first == "{" == more and line.rstrip().endswith("}")
    return "lines" if more and (_is_whole(line) or broken_row) else other


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        return True  # whatever else is wrong with it
    return True


def holds_rows(path: Path) -> bool:
    """Whether a file begins as one with rows does: lines or an array of objects or strings, or one list of objects.

    A file that cannot be read is taken for one that does, so that reading it tells what is wrong.
    """
    bad = BadInput(skip=True)
    text = JsonCursor(path, read_text(path, bad))
    first = text.peek()
    if not first:
        return bool(bad.counts)
    if first == "[":
        return text.peek(behind=1) in ("{", '"')
    if first not in ("{", '"'):
        return False
    return json_form(path) == "lines" or len(lists_in(path)) == 1


def lists_in(path: Path) -> list[str]:
    """The fields of an object that are lists of objects, as far as the first two million characters tell."""
    reader = _Reader(path, BadInput(skip=True), most=_LOOK_CHARS)
    for _ in reader.in_object(read=False):
        pass
    return reader.lists


def rows_of_field(path: Path, field: str, bad: BadInput, *, way_out: str) -> Iterator[tuple[int, Row]]:
    """The elements of the list in one field of the object that a file is; none where it has no such field.

    Args:
        path: A file of JSON.
        field: Whatever else is in the object is passed over.
        bad: As for `json_rows`.
        way_out: What errors advise where an element is too long.

    Raises:
        CorpusError: As `json_rows`.
    """
    return _Reader(path, bad, way_out=way_out).in_object(field=field)


def parsed_line(line: str) -> Any:
    """What a line of JSON says.

    Raises:
        ValueError: It is not JSON, nested too deep, or holds a number of too many digits; the text says so.
    """
    try:
        return json.loads(line)
    except JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(told(error)) from error


def _of_lines(path: Path, bad: BadInput, stretch: Stretch | None) -> Iterator[tuple[int, Row]]:
    behind = f" behind byte {stretch.begin:,}" if stretch is not None and stretch.begin else ""
    for number, line in enumerate(whole_lines(path, bad, stretch), 1):
        if not line.strip():
            continue
        try:
            value = parsed_line(line)
        except ValueError as error:
            bad.found(NOT_JSON, f"{path}: line {number}{behind} {error}")
            continue
        if (row := _as_row(value)) is not None:
            yield number, row
        else:
            bad.found(NOT_JSON, f"{path}: line {number}{behind} is {type(value).__name__}, not an object")


def _as_row(value: Any) -> Row | None:
    if isinstance(value, str):
        return {"text": value}
    return value if isinstance(value, dict) else None


class _Reader:
    """The rows of an array, or of the one list in an object.

    Attributes:
        lists: The fields of the object that are lists of objects, as far as they were met.
    """

    def __init__(self, path: Path, bad: BadInput, *, most: int | None = None, way_out: str = AS_TEXT) -> None:
        self._path, self._bad = path, bad
        self._text = JsonCursor(path, read_text(path, bad), most=most, way_out=way_out)
        self._cut_before = bad.counts[CUT_OFF]
        self._stopped = False
        self.lists: list[str] = []

    def in_array(self) -> Iterator[tuple[int, Row]]:
        """The elements of the array that the file is."""
        yield from self._elements()
        self._end()

    def in_object(self, *, read: bool = True, field: str | None = None) -> Iterator[tuple[int, Row]]:
        """The elements of the one list of objects, or of a named one; or goes past all lists, which then are met."""
        text = self._text
        names: list[str] = []
        text.take("{")
        while not self._stopped and not text.take("}"):
            if names and not text.take(","):
                self._stop(f"field {names[-1]!r} is followed by {text.peek()!r}, not by a comma")
                return
            try:
                name = text.value() if text.peek() == '"' else None
            except CorpusError:  # of the file: it is a ValueError, too
                raise
            except (ValueError, EndsEarlyError):
                name = None
            if name is None or not text.take(":"):
                self._stop(f"a field's name, between quotes, and a colon are expected, not {text.peek()!r}")
                return
            names.append(name)
            is_list = text.peek() == "[" and (name == field or text.peek(behind=1) == "{")
            if is_list and field in (None, name):
                self.lists.append(name)
            if is_list and read and field in (None, name):
                _check_lists(self._path, self.lists)
                yield from self._elements()
                continue
            try:
                text.skip()
            except EndsEarlyError:
                self._stop("it is cut off", at_end=True)
        self._end()
        if read and field is None and not self.lists and not self._stopped:
            raise CorpusError(
                f"{self._path}: an object without a list of rows (its fields are {', '.join(names[:10]) or 'none'}"
                f"{', ...' if len(names) > 10 else ''}); {_WAYS_OUT}"
            )

    def _elements(self) -> Iterator[tuple[int, Row]]:
        text, number = self._text, 0
        text.take("[")
        if text.take("]"):
            return
        while True:
            number += 1
            if (row := self._element(number)) is not None:
                yield number, row
            if self._stopped or text.take("]"):
                return
            if not text.take(","):
                self._stop(f"row {number} is followed by {text.peek()!r}, not by a comma")
                return

    def _element(self, number: int) -> Row | None:
        text, bad = self._text, self._bad
        text.peek()
        try:
            value = text.value()
        except CorpusError:  # of the file: it is a ValueError, too
            raise
        except (ValueError, RecursionError, EndsEarlyError) as error:
            self._pass_over(number, error)
            return None
        if bad.skip and bad.is_broken(text.text[text.begin : text.place]):
            return None
        if (row := _as_row(value)) is None:
            bad.found(NOT_JSON, f"{self._where(number)} is {type(value).__name__}, not an object")
        return row

    def _pass_over(self, number: int, error: Exception) -> None:
        """Goes behind an element that cannot be decoded, where bad input is passed over."""
        where, bad = self._where(number), self._bad
        what = str(error) if isinstance(error, EndsEarlyError) else told(error)
        if not bad.skip and not isinstance(error, EndsEarlyError):
            bad.found(NOT_JSON, f"{where} {what}")
        try:
            broken = self._text.skip()
        except EndsEarlyError:
            self._stop(f"row {number} has no end", at_end=True)
        else:
            bad.found(BROKEN_LINES if broken else NOT_JSON, f"{where} {what}")

    def _where(self, number: int) -> str:
        line = "" if self._bad.skip else f" (line {self._text.line_number})"  # what is passed over is only counted
        return f"{self._path}: row {number}{line}"

    def _end(self) -> None:
        if not self._stopped and self._text.peek():
            self._stop(f"{self._text.excerpt!r} follows what was the whole of it; {_WAYS_OUT}")

    def _stop(self, what: str, *, at_end: bool = False) -> None:
        """Tells of what nothing can be read behind: the end of the file, or something that is no JSON."""
        self._stopped = True
        line = self._text.line_number
        if not at_end and self._text.peek():
            self._bad.found(TRUNCATED, f"{self._path}: line {line} is not JSON: {what}")
        elif self._bad.counts[CUT_OFF] == self._cut_before:
            self._bad.found(CUT_OFF, f"{self._path}: the file ends too early, in line {line}: {what}")


def _check_lists(path: Path, lists: list[str]) -> None:
    if len(lists) > 1:
        raise CorpusError(
            f"{path}: an object in which several fields are lists of rows: {', '.join(lists)}; put the one that is to "
            "be read into a file of its own"
        )
