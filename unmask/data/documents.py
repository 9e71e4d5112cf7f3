"""Files to documents: one for each line, block between empty lines, file, or row of a table.

    Documents("corpus.jsonl", "*.txt.gz", objects in memory ...)
        -> files (sources.py) -> columns of tables (tables.py) -> what a document is -> `Document`s, in order

A document longer than `piece_chars` comes in pieces, cut after white space, so that memory is bounded.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from unmask.core.errors import CorpusError, listed
from unmask.core.plugins import Table
from unmask.data.annotations import read_conll
from unmask.data.columns import ColumnNames
from unmask.data.reading import COMPRESSIONS, BadInput, LinePart, bare_suffix, read_fasta, read_lines, read_smiles
from unmask.data.settings import AS_FOUND, DocumentUnit, Reading
from unmask.data.sources import TABLES, InMemory, Source, Texts, find_split, is_stream, keep_as_files, paths_or_texts
from unmask.data.tables import WITHOUT, TableColumns, in_words, read_table, with_columns
from unmask.data.treebanks import DOCUMENT_BEGIN, form_of
from unmask.tokenizer.spans import Spans, cut_spans, join_spans

PIECE_CHARS = 1 << 18
LINES = ("text", "conll", "conllu")  # kinds whose lines (sentences) are grouped into documents
_END = LinePart("", True, True)  # of a file
EMPTY = "texts without a letter or other visible character"
Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Document:
    """A document, or a piece of a long one. The pieces of a document, joined, are its text."""

    document: int  # its number in the corpus, counted from 0
    offset: int  # byte of the document's UTF-8 text where the piece begins
    text: str  # never only white space, unless it continues a document
    last: bool = True  # whether the document ends here
    spans: Spans | None = None  # annotations in the data, in characters of the piece; None: not read
    label: str | None = None  # class of the document, the same in all pieces
    group: str | None = None  # value that keeps documents in the same split
    id: str | int = 0  # of its row, sequence or molecule; else number of its line, block or row in the file, from 1
    title: str | None = None  # from a column of titles

    def part(self, begin: int, end: int) -> Document:
        """Part of the text as a piece. It ends the document only if it reaches the end of a piece that does."""
        return replace(
            self,
            offset=self.offset + len(self.text[:begin].encode()),
            text=self.text[begin:end],
            last=self.last and end >= len(self.text),
            spans=None if self.spans is None else cut_spans(self.spans, begin, end),
        )


# To read another kind of file, give its suffix a kind in `sources.SUFFIXES` and the kind a reader here, which yields a
# `LinePart` for each line, or parts of long lines. See docs/how-to/extending.md.
Reader = Callable[[Source, BadInput, Fields | None], Iterator[LinePart]]
READERS: Table[Reader] = Table("readers", {
    "text": lambda source, bad, _: read_lines(source.path, bad, source.stretch),
    "fasta": lambda source, bad, _: read_fasta(source.path, bad, source.stretch),
    "smiles": lambda source, bad, _: read_smiles(source.path, bad, source.stretch),
    "conll": read_conll,
    "conllu": read_conll,
    **dict.fromkeys(TABLES, read_table),
})  # fmt: skip


def read_documents(  # noqa: PLR0913  (files, and how they are read)
    sources: Iterable[Source],
    bad: BadInput,
    *,
    unit: DocumentUnit,
    piece_chars: int = PIECE_CHARS,
    fields: Fields | None = None,
    first: int = 0,
    skipped: Counter[str] | None = None,
    blank: Literal["drop", "keep", "title"] = "drop",
    names: bool = True,
) -> Iterator[Document]:
    """Reads files (tables with their columns) as documents, in order.

    Args:
        unit: What a document is in text files and treebanks; elsewhere it is a row or a sequence.
        fields: Annotations to read with the text: column to the name of its field.
        first: Number of the first document.
        skipped: Counts empty lines (`EMPTY`) and rows (`WITHOUT`).
        blank: How to treat a row or line without text: `drop` it, `keep` it as an empty document, or use its `title` as
            text.
        names: Whether names of sequences and molecules are their ids; otherwise they are numbered, too.
    """

    def lines(source: Source) -> Iterator[LinePart]:
        if source.kind not in READERS:
            raise CorpusError(
                f"{source.path}: no reader of {source.kind!r} files in this worker process; install the reader as an "
                "entry point, or call unmask.prepare(..., workers=1)"
            )
        parts = READERS[source.kind](source, bad, fields)
        if not names:
            parts = (part if part.id is None else part._replace(id=None) for part in parts)
        if blank != "title":
            return parts
        return (part._replace(text=part.title) if part.title and not part.text.strip() else part for part in parts)

    # The files of a saved dataset are one table, with rows numbered through all files.
    tables = groupby(sources, key=lambda source: (source.kind == "arrow" or source.path, source.kind))
    files = (
        (chain.from_iterable(map(lines, one)), unit if kind in LINES else "line", WITHOUT if kind in TABLES else EMPTY)
        for (_, kind), one in tables
    )
    return split_lines(files, piece_chars=piece_chars, first=first, skipped=skipped, keeps_blank=blank == "keep")


def split_lines(
    files: Iterable[tuple[Iterable[LinePart], str, str]],
    *,
    piece_chars: int = PIECE_CHARS,
    first: int = 0,
    skipped: Counter[str] | None = None,
    keeps_blank: bool = False,
) -> Iterator[Document]:
    """Groups lines into documents; blank ones are dropped unless `keeps_blank`. The end of a file ends a document.
    `files` are their lines, what a document is, and what `skipped` calls blank lines.

    Example: with unit `block`, the lines `a`, `b`, ``, `c` are the documents `a\\nb` and `c`.
    """
    document = first
    for lines, unit, reason in files:
        number = num_chars = offset = 0  # of the document in its file; characters collected; byte where they begin
        parts: list[str] = []
        spans: list[tuple[int, Spans]] = []  # each with the number of characters before it
        head = DOCUMENT_BEGIN  # the last line, with the document's label, id, ...
        for line in chain(lines, [_END]):
            is_whole = line.starts and line.ends
            # The fast path, nearly always taken
            if unit == "line" and is_whole and len(line.text) < piece_chars and line is not _END:
                number += line is not DOCUMENT_BEGIN
                text = line.text.rstrip("\n")
                if (keeps_blank and line is not DOCUMENT_BEGIN) or (text and not text.isspace()):
                    id_ = number if line.id is None else line.id
                    yield Document(document, 0, text, True, line.spans, line.label, line.group, id_, line.title)
                    document += 1
                elif skipped is not None and line is not DOCUMENT_BEGIN:
                    skipped[reason] += 1
                continue
            ends = line is _END or (unit == "block" and is_whole and not line.text.strip())
            if not ends:
                if line.spans is not None:
                    spans.append((num_chars, line.spans))
                parts.append(line.text + "\n" if line.ends else line.text)
                num_chars += len(parts[-1])
                head, ends = line, unit == "line" and line.ends
            if not ends and num_chars <= piece_chars:
                continue
            text, marks = "".join(parts), join_spans(spans) if spans else None
            while not offset and len(text) > piece_chars and text[:piece_chars].isspace():  # cannot begin a document
                text, marks = text[piece_chars:], marks and cut_spans(marks, piece_chars, len(text))
            parts, spans, num_chars = [], [], 0
            if offset or text.strip():
                id_ = number + (not offset) if head.id is None else head.id
                whole = Document(document, offset, text, True, marks, head.label, head.group, id_, head.title)
                *pieces, rest = cut_pieces([whole], piece_chars)
                yield from pieces
                number += not offset and (ends or bool(pieces))
                if not ends:
                    parts, num_chars, offset = [rest.text], len(rest.text), rest.offset
                    spans = [] if rest.spans is None else [(0, rest.spans)]
                    continue
                if text := rest.text.rstrip("\n"):
                    yield replace(rest, text=text)
                document += 1
            offset = 0


def cut_pieces(pieces: Iterable[Document], piece_chars: int) -> Iterator[Document]:
    """Cuts long pieces after white space, or at the limit if there is none in the second half."""
    for piece in pieces:
        text, begin = piece.text, 0
        while len(text) - begin > piece_chars:
            end = begin + piece_chars
            space = (place for place in range(end, begin + piece_chars // 2, -1) if text[place - 1].isspace())
            end = next(space, end)
            yield piece.part(begin, end)
            begin = end
        yield piece.part(begin, len(text)) if begin else piece


# ----------------------------------------
# What a document is, judged by the beginning of the text

LOOK_CHARS = 8 << 20
_HTML = (".html", ".htm", ".xhtml")
MARKUP = (*_HTML, ".xml")


def choose_unit(
    sources: Sequence[Source], chosen: DocumentUnit | Literal["auto"], bad: BadInput
) -> tuple[DocumentUnit, str]:
    """What a document is in text files and treebanks, and a description for all files. `auto` looks at the text."""
    reasons = []
    unit: DocumentUnit = "line" if chosen == "auto" else chosen
    kinds = {source.kind for source in sources}
    trees = [source for source in sources if source.kind in ("conll", "conllu")]
    if "text" in kinds:
        why = "as set"
        if chosen == "auto":
            texts = [source for source in sources if source.kind == "text"]
            unit, why = "file", "of HTML"  # blocks would cut scripts and comments
            sizes = [(source.path.stat().st_size, bare_suffix(source.path) in _HTML) for source in texts]
            if 2 * sum(size for size, is_html in sizes if is_html) <= sum(size for size, _ in sizes):
                unit, why = _unit_by_empty_lines(texts, bad)
        reasons.append(f"a {unit}{' between empty lines' if unit == 'block' else ''} ({why})")
    elif trees and chosen == "auto":  # blocks if the first file begins with marks of documents
        unit = "block" if any(not line.text for line in islice(read_conll(trees[0], bad, None), 1000)) else "line"
    elif not trees:
        unit = "line"
    if trees:
        named = {"line": "a sentence", "block": "the sentences between two newdoc marks", "file": "the file"}
        form = form_of(trees[0].path, trees[0].by_suffix)
        rows = "; a text column makes rows documents" if trees[0].by_suffix in TABLES else ""
        reasons.append(f"{named[unit]} (documents: {unit}){f': {form.title}{rows}' if form else ''}")
    if columns := {in_words(source.column) for source in sources if source.column is not None}:
        reasons.append(f"a row, its text in {' or '.join(sorted(columns))}")
    named_kinds = {"fasta": "a sequence", "smiles": "a molecule"}
    reasons += [name for kind, name in named_kinds.items() if kind in kinds]
    if others := sorted(kinds - TABLES - {"text", "conll", "conllu", *named_kinds}):
        reasons.append(f"a record of {' or '.join(others)}")
    return unit, ", ".join(reasons)


def _unit_by_empty_lines(sources: Sequence[Source], bad: BadInput) -> tuple[DocumentUnit, str]:
    """A block if there are empty lines within the text, else a line, else the file."""
    lines = num_chars = num_files = 0
    for source in sources:
        if num_chars >= LOOK_CHARS:
            break
        num_files += 1
        lines_before, is_gap = lines, False
        for line in read_lines(source.path, bad):
            if num_chars >= LOOK_CHARS:
                break
            num_chars += len(line.text) + 1
            if not line.text.strip():
                is_gap = lines > lines_before
            elif is_gap:
                return "block", "the text has empty lines"
            else:
                lines += line.starts
    if not lines:
        raise CorpusError(f"{names_of(sources)}: contains no text")
    if lines > num_files:
        return "line", "no empty lines between lines of text"
    return "file", "each file has one line"


def names_of(sources: Sequence[Source]) -> str:
    return listed([str(source.path) for source in sources], 3)


def text_bytes(sources: Sequence[Source]) -> int | None:
    """Size of the files, about that of the text; None if any is compressed or a table."""
    if all(source.kind in ("text", "fasta") and source.path.suffix.lower() not in COMPRESSIONS for source in sources):
        return sum(source.path.stat().st_size for source in sources)
    return None


class Documents:
    """The documents of files, folders, patterns, streams or objects in memory, in order.

    Example:
        for document in Documents(["corpus.jsonl"], id_column="key"):
            print(document.id, document.title, document.text)

    Args:
        texts: As the user names them. All files of a folder are read, whatever their names.
        column: Column of the text in tables, a path into one (`content.text`), or several, which are joined. Columns
            that are not named are found by their usual names (`columns.USUAL`).
        title_column: None finds it. A row without text has its title as text. False reads no titles and keeps the text
            empty.
        blank_lines: Whether empty lines of text files are documents; applies only if each line is one.
        unit: What a document is in text files; `auto` looks at the text.
        piece_chars: Longest piece, in characters.
        reading: How files are read, as set by the user.
        usual: Columns of earlier tables, used for tables with these texts and ids if no text column is named.

    Attributes:
        sources: The files with their columns.
        unit, unit_in_words: What a document is.
        num_bytes: See `text_bytes`.
        skipped: Empty lines and rows so far.
    """

    def __init__(  # noqa: PLR0913  (files, and how they are read)
        self,
        texts: Texts,
        column: ColumnNames = None,
        *,
        id_column: str | None = None,
        title_column: str | Literal[False] | None = None,
        blank_lines: bool = False,
        unit: DocumentUnit | Literal["auto"] = "auto",
        piece_chars: int = PIECE_CHARS,
        reading: Reading = AS_FOUND,
        usual: Sequence[TableColumns] = (),
    ) -> None:
        names = paths_or_texts(texts)
        if any(isinstance(name, InMemory) or is_stream(name) for name in names):
            scratch = tempfile.mkdtemp(prefix="unmask-")
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            names = list(keep_as_files(names, Path(scratch)))
        self.skipped: Counter[str] = Counter()
        self._bad = BadInput(skip=False, way_out=None, reading=reading)
        self._piece_chars, self._has_ids = piece_chars, id_column != ""
        self._blank_rows, self._blank_lines = title_column is False, blank_lines
        sources = find_split(cast(Sequence[str | Path], names), by_name=False).train
        id_, title = (True if name is None else name or False for name in (id_column, title_column))
        self.sources = with_columns(sources, column, self._bad, id=id_, title=title, usual=usual)
        self.unit, reason = choose_unit(self.sources, unit, self._bad)
        self.unit_in_words = f"a document is {reason}"
        self.num_bytes = text_bytes(self.sources)

    def __iter__(self) -> Iterator[Document]:
        self.skipped.clear()
        document = None
        for document in self.read(*self.sources):
            yield document
        if document is None:
            raise CorpusError(f"{names_of(self.sources)}: contains no text")

    def read(self, *sources: Source) -> Iterator[Document]:
        options: dict[str, Any] = {"piece_chars": self._piece_chars, "skipped": self.skipped, "names": self._has_ids}
        are_kept = self._blank_rows if sources[0].is_table else self._blank_lines
        blank: Literal["keep", "title"] = "keep" if are_kept else "title"
        return read_documents(sources, self._bad, unit=self.unit, blank=blank, **options)


Item = TypeVar("Item", bound=Any)
_TEXT_OF = attrgetter("text")


def in_groups(
    items: Iterable[Item], *, most: int, most_chars: int, text_of: Callable[[Item], str] = _TEXT_OF
) -> Iterator[list[Item]]:
    """Groups items so that their texts fit into memory: `most` items, or fewer once they have `most_chars`."""
    group: list[Item] = []
    num_chars = 0
    for item in items:
        group.append(item)
        num_chars += len(text_of(item))
        if len(group) == most or num_chars >= most_chars:
            yield group
            group, num_chars = [], 0
    if group:
        yield group
