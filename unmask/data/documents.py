"""Files to documents: one a line, one a block between empty lines, one a file, one a row of a table.

    Documents("corpus.jsonl", "*.txt.gz", objects in memory ...)
        -> files (sources.py) -> columns of tables (tables.py) -> what a document is -> `Document`s, in order

A document longer than `piece_chars` arrives in pieces, cut behind white space, so that memory stays bounded.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

from unmask.core.errors import CorpusError
from unmask.data.reading import BadInput, LinePart, read_fasta, read_lines
from unmask.data.settings import DocumentUnit
from unmask.data.sources import InMemory, Source, Texts, find_split, is_stream, keep_as_files, paths_or_texts
from unmask.data.tables import AskedColumn, Role, columns_of, find_column, first_rows, read_table, with_columns
from unmask.data.treebanks import DOCUMENT_BEGIN, read_conll
from unmask.tokenizer.spans import Spans, cut_spans, join_spans, shift_spans

PIECE_CHARS = 1 << 18
EMPTY = "texts without a letter or sign"
Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Document:
    """A document, or a piece of a long one.

    The pieces of a document, joined, are its text: nothing is cut away between them.

    Attributes:
        document: Number of the document in the corpus, counted from 0.
        offset: Byte of the document's UTF-8 text at which the piece begins.
        text: The characters; never only white space, unless it continues a document.
        last: Whether the document ends here.
        spans: Annotations that came with the text, in characters of the piece; None where none were asked for.
        label: Class of the document, the same for each of its pieces; None where it has none.
        group: What it shares with the documents that stay on its side when text is held out; None where it says
            nothing.
        id: What its table calls it; else the number of its line, block or row in the file, counted from 1.
        title: From a column of titles; None where there is none.
    """

    document: int
    offset: int
    text: str
    last: bool = True
    spans: Spans | None = None
    label: str | None = None
    group: str | None = None
    id: str | int = 0
    title: str | None = None

    def part(self, begin: int, end: int) -> Document:
        """Some of its characters, as a piece that ends the document only if this one does, and at its end."""
        return replace(
            self,
            offset=self.offset + len(self.text[:begin].encode()),
            text=self.text[begin:end],
            last=self.last and end >= len(self.text),
            spans=None if self.spans is None else cut_spans(self.spans, begin, end),
        )


# ----------------------------------------
# Kinds of files. To read another kind, give its suffix a name in `sources.SUFFIXES` and that name a reader here: a
# function that yields a `LinePart` for each line, or parts of long ones. See docs/extending.md.

Reader = Callable[[Source, BadInput, Fields | None], Iterator[LinePart]]


def _read_rows(source: Source, bad: BadInput, fields: Fields | None) -> Iterator[LinePart]:
    assert source.column is not None, "the column of a table is found before it is read"
    return read_table(source, source.column, bad, fields)


READERS: dict[str, Reader] = {
    "text": lambda source, bad, _: read_lines(source.path, bad, source.stretch),
    "fasta": lambda source, bad, _: read_fasta(source.path, bad, source.stretch),
    "conll": read_conll,
    "conllu": read_conll,
    **dict.fromkeys(("jsonl", "json", "csv", "tsv", "parquet", "arrow"), _read_rows),
}


def read_parts(source: Source, bad: BadInput, fields: Fields | None = None) -> Iterator[LinePart]:
    """The lines, rows, sentences or sequences of one file."""
    return READERS[source.kind](source, bad, fields)


def read_documents(
    sources: Iterable[Source],
    bad: BadInput,
    *,
    unit: DocumentUnit,
    piece_chars: int = PIECE_CHARS,
    fields: Fields | None = None,
    first: int = 0,
) -> Iterator[Document]:
    """Reads files as documents, in their order.

    Args:
        sources: The files; tables with their columns.
        bad: What is done about input that cannot be read.
        unit: What a document is in text files and treebanks; in others it is a row or a sequence.
        piece_chars: Longest piece, in characters.
        fields: Annotations that are read with the text: column to the name of the field that holds it; None reads
            none.
        first: Number of the first document.

    Raises:
        CorpusError: As the readers of the kinds.
    """
    line: DocumentUnit = "line"
    files = ((read_parts(source, bad, fields), unit if source.has_lines else line) for source in sources)
    return split_lines(files, piece_chars=piece_chars, first=first)


# ----------------------------------------
# Lines to documents


class _Cutter:
    """Gathers the text of one document after another and hands out pieces of bounded size."""

    def __init__(self, piece_chars: int, first: int) -> None:
        self.piece_chars = piece_chars
        self.document = first
        self.number = 0  # of the current document in its file
        self._parts: list[str] = []
        self._spans: list[Spans] = []
        self._num_chars = self._offset = 0
        self._line = DOCUMENT_BEGIN

    def add(self, text: str, line: LinePart) -> Iterator[Document]:
        self._parts.append(text)
        self._line = line
        if line.spans is not None:
            self._spans.append(shift_spans(line.spans, self._num_chars))
        self._num_chars += len(text)
        if self._num_chars <= self.piece_chars:
            return
        gathered = "".join(self._parts)
        spans = join_spans(self._spans) if self._spans else None
        begin = 0
        while len(gathered) - begin > self.piece_chars:
            end = _cut_behind_space(gathered, begin, begin + self.piece_chars)
            if self._offset or not gathered[begin:end].isspace():  # white space alone begins no document
                yield self._piece(gathered[begin:end], spans and cut_spans(spans, begin, end), last=False)
            begin = end
        self._parts, self._num_chars = [gathered[begin:]], len(gathered) - begin
        self._spans = [] if spans is None else [cut_spans(spans, begin, len(gathered))]

    def whole(self, line: LinePart) -> Document | None:
        """A document that comes in one piece; None where it is white space only."""
        self.number += line is not DOCUMENT_BEGIN
        text = line.text.rstrip("\n")
        if not text or text.isspace():
            return None
        self.document += 1
        _, _, _, spans, label, group, id_, title = line
        return Document(
            self.document - 1, 0, text, True, spans, label, group, self.number if id_ is None else id_, title
        )

    def finish(self) -> Iterator[Document]:
        text = "".join(self._parts).rstrip("\n")
        if text.strip() or (self._offset and text):
            yield self._piece(text, join_spans(self._spans) if self._spans else None, last=True)
        if self._offset:
            self.document += 1
        self._parts, self._spans, self._num_chars, self._offset = [], [], 0, 0

    def _piece(self, text: str, spans: Spans | None, *, last: bool) -> Document:
        self.number += self._offset == 0
        _, _, _, _, label, group, id_, title = self._line
        id_ = self.number if id_ is None else id_
        piece = Document(self.document, self._offset, text, last, spans, label, group, id_, title)
        self._offset += len(text.encode())
        return piece


def _cut_behind_space(text: str, begin: int, end: int) -> int:
    """The place behind the last white space in `text[begin:end]`, or `end` where there is none in its second half."""
    for place in range(end, begin + (end - begin) // 2, -1):
        if text[place - 1].isspace():
            return place
    return end


def split_lines(
    files: Iterable[tuple[Iterable[LinePart], DocumentUnit]],
    *,
    piece_chars: int = PIECE_CHARS,
    first: int = 0,
    skipped: Counter[str] | None = None,
) -> Iterator[Document]:
    """Groups lines into documents. Lines of white space only are never documents; a file's end ends a document.

    Args:
        files: The lines of each file, and what a document is there.
        piece_chars: Longest piece, in characters.
        first: Number of the first document.
        skipped: Counts lines of white space only, where each line is a document.

    Example: with unit `block`, the lines `a`, `b`, ``, `c` are the documents `a\\nb` and `c`.
    """
    cutter = _Cutter(piece_chars, first)
    for lines, unit in files:
        cutter.number = 0
        for line in lines:
            whole = line.starts and line.ends
            if unit == "line" and whole and len(line.text) < piece_chars:  # nearly always, and worth being quick at
                if piece := cutter.whole(line):
                    yield piece
                elif skipped is not None and line is not DOCUMENT_BEGIN:
                    skipped[EMPTY] += 1
                continue
            if unit == "block" and whole and not line.text.strip():
                yield from cutter.finish()
                continue
            yield from cutter.add(line.text + "\n" if line.ends else line.text, line)
            if unit == "line" and line.ends:
                yield from cutter.finish()
        yield from cutter.finish()


def cut_pieces(pieces: Iterable[Document], piece_chars: int) -> Iterator[Document]:
    """Cuts pieces that are longer than that, behind white space."""
    for piece in pieces:
        begin = 0
        while len(piece.text) - begin > piece_chars:
            end = _cut_behind_space(piece.text, begin, begin + piece_chars)
            yield piece.part(begin, end)
            begin = end
        yield piece.part(begin, len(piece.text)) if begin else piece


# ----------------------------------------
# What a document is, by a look at the beginning of the text

LOOK_CHARS = 8 << 20


def choose_unit(
    sources: Sequence[Source], asked: DocumentUnit | Literal["auto"], bad: BadInput
) -> tuple[DocumentUnit, str]:
    """What a document is in text files and treebanks, and that of every file in words.

    Args:
        sources: The files; tables with their columns.
        asked: As set; `auto` looks.
        bad: As for reading.

    Raises:
        CorpusError: A file cannot be read, or there is no text at all in text files.
    """
    reasons = []
    unit: DocumentUnit = "line"
    if texts := [source for source in sources if source.kind == "text"]:
        unit, why = (asked, "as set") if asked != "auto" else _by_empty_lines(texts, bad)
        reasons.append(f"a {unit} ({why})")
    if trees := [source for source in sources if source.kind in ("conll", "conllu")]:
        if not texts and asked != "auto":
            unit = asked
        elif not texts:  # blocks where the beginning of the first file has marks of documents
            unit = "block" if any(not line.text for line in islice(read_parts(trees[0], bad), 1000)) else "line"
        named = {"line": "a sentence", "block": "the sentences between two newdoc marks", "file": "the file"}
        reasons.append(f"{named[unit]} (corpus.documents = {unit})")
    if columns := {columns_of(source.column) for source in sources if source.column is not None}:
        several = "s" if any(len(names) > 1 for names in columns) else ""
        spelled = sorted(" and ".join(map(repr, names)) for names in columns)
        reasons.append(f"a row, its text in column{several} {' or '.join(spelled)}")
    if any(source.kind == "fasta" for source in sources):
        reasons.append("a sequence")
    if others := sorted({source.kind for source in sources if not (source.has_lines or source.is_table)} - {"fasta"}):
        reasons.append(f"a record of {' or '.join(others)}")
    return unit, ", ".join(reasons)


def _by_empty_lines(sources: Sequence[Source], bad: BadInput) -> tuple[DocumentUnit, str]:
    """Blocks where empty lines stand between lines of text, else lines, else the file."""
    lines = empty_inside = num_chars = looked = 0
    for source in sources:
        if num_chars >= LOOK_CHARS:
            break
        looked += 1
        lines_before, empty = lines, 0
        for line in read_lines(source.path, bad):
            if num_chars >= LOOK_CHARS:
                break
            num_chars += len(line.text) + 1
            if line.text.strip():
                lines += line.starts
                empty_inside, empty = empty_inside + empty, 0
            elif lines > lines_before:
                empty += 1
    if not lines:
        raise CorpusError(f"{names_of(sources)}: there is no text in it")
    if empty_inside:
        return "block", f"there are {empty_inside:,} empty lines among the first {lines:,} lines of text"
    if lines > looked:
        return "line", "there are no empty lines between them"
    return "file", "there is one line a file"


def names_of(sources: Sequence[Source]) -> str:
    """Files for an error."""
    names = [str(source.path) for source in sources]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ----------------------------------------
# The door: text of any form, document by document


@dataclass(frozen=True)
class DocumentColumns:
    """Where tables say what of a document. Columns that are not named are found by their usual names (`tables.USUAL`).

    Attributes:
        text: A column, a path into one (`content.text`), or several, which are joined; None finds it.
        id: Of ids.
        title: Of titles.
    """

    text: AskedColumn = None
    id: str | None = None
    title: str | None = None


class Documents:
    """The documents of files, folders, patterns, streams or objects in memory, in order.

    Example:
        for document in Documents(["corpus.jsonl"], DocumentColumns(id="key")):
            print(document.id, document.title, document.text)

    Args:
        texts: As the user names them. All files of a folder are read, whatever their names say.
        columns: Of tables.
        unit: What a document is in text files; `auto` looks at the text.
        piece_chars: Longest piece, in characters: a longer document comes in several.
        with_titles: Whether titles are read; a row without text then has its title as text.

    Attributes:
        sources: The files with their columns.
        unit, unit_in_words: What a document is.
        skipped: Empty lines and rows so far, where these are documents.

    Raises:
        CorpusError: It cannot be read, or a column is not there.
    """

    def __init__(
        self,
        texts: Texts,
        columns: DocumentColumns | None = None,
        *,
        unit: DocumentUnit | Literal["auto"] = "auto",
        piece_chars: int = PIECE_CHARS,
        with_titles: bool = True,
    ) -> None:
        columns = columns or DocumentColumns()
        named = paths_or_texts(texts) or []
        if any(isinstance(name, InMemory) or is_stream(name) for name in named):
            scratch = tempfile.mkdtemp(prefix="unmask-")
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            named = list(keep_as_files(named, Path(scratch)))
        paths = cast(Sequence[str | Path], named)
        self.skipped: Counter[str] = Counter()
        self._bad = BadInput(skip=False, way_out=None)
        self._piece_chars = piece_chars
        sources = find_split(paths, by_name=False).train
        asked = {"text": columns.text, "ids": columns.id, "titles": columns.title}
        named_column = next((name for name, column in asked.items() if column is not None), None)
        if named_column is not None and not any(source.is_table for source in sources):
            what = f"there are no columns in this file, so none of {named_column} can be named"
            raise CorpusError(f"{sources[0].path}: {what}")
        self._titles_as_text = with_titles
        title = columns.title or with_titles
        self.sources = [
            find_names(source, self._bad, id=columns.id or True, title=title) if source.is_table else source
            for source in with_columns(sources, columns.text, self._bad, known=(columns.id, columns.title))
        ]
        self.unit, reason = choose_unit(self.sources, unit, self._bad)
        self.unit_in_words = f"a document is {reason}"

    def __iter__(self) -> Iterator[Document]:
        """Yields the documents.

        Raises:
            CorpusError: A file cannot be read, or there is no text at all.
        """
        # The files of a saved dataset are one table, whose rows are numbered on.
        groups = [list(group) for _, group in groupby(self.sources, key=lambda s: (s.kind == "arrow") or s.path)]
        line: DocumentUnit = "line"
        files = [
            (chain.from_iterable(map(self._parts, group)), self.unit if group[0].has_lines else line)
            for group in groups
        ]
        document = None
        self.skipped.clear()
        for document in split_lines(files, piece_chars=self._piece_chars, skipped=self.skipped):
            yield document
        if document is None:
            raise CorpusError(f"{names_of(self.sources)}: there is no text in it")

    def read(self, source: Source) -> Iterator[Document]:
        """The documents of one of the sources."""
        unit: DocumentUnit = self.unit if source.has_lines else "line"
        return split_lines([(self._parts(source), unit)], piece_chars=self._piece_chars, skipped=self.skipped)

    def _parts(self, source: Source) -> Iterator[LinePart]:
        for line in read_parts(source, self._bad):
            if line.title is not None and self._titles_as_text and not line.text.strip():
                yield line._replace(text=line.title)
            else:
                yield line

    @property
    def num_bytes(self) -> int | None:
        """Size of the files together, where none is compressed or a table; about the size of the text."""
        return text_bytes(self.sources)


def text_bytes(sources: Sequence[Source]) -> int | None:
    """Size of files together, where none is compressed or a table; about the size of the text."""
    if all(source.path.suffix in (".txt", ".fasta", ".fa") for source in sources):
        return sum(source.path.stat().st_size for source in sources)
    return None


def find_names(source: Source, bad: BadInput, *, id: str | bool = False, title: str | bool = False) -> Source:  # noqa: A002
    """A table with its columns of ids and titles: the named ones; True: those with a usual name, if there are any.

    Raises:
        CorpusError: There is no column of this name.
    """
    assert source.column is not None, "tables have one"
    rows = first_rows(source, bad, source.column, known=[name for name in (id, title) if isinstance(name, str)])
    found: dict[Role, str | None] = {}
    asked: dict[Role, str | bool] = {"id": id, "title": title}
    for role, name in asked.items():
        named = name if isinstance(name, str) else None
        taken = columns_of(source.column)
        found[role] = find_column(rows, role, named, where=source.path, taken=taken) if name else None
    return replace(source, id=found["id"], title=found["title"])


class HasText(Protocol):
    """Something with a text."""

    @property
    def text(self) -> str:
        """The text."""


Item = TypeVar("Item", bound=HasText)


def in_groups(items: Iterable[Item], *, most: int, most_chars: int) -> Iterator[list[Item]]:
    """Items one behind the other in groups that fit into memory: so many, or fewer, where their texts are long.

    Args:
        items: In any number.
        most: Of a group.
        most_chars: Of its texts; the last one may go beyond that.
    """
    group: list[Item] = []
    num_chars = 0
    for item in items:
        group.append(item)
        num_chars += len(item.text)
        if len(group) == most or num_chars >= most_chars:
            yield group
            group, num_chars = [], 0
    if group:
        yield group
