"""Lines to documents: one a line, one a block between empty lines, or one a file.

A document longer than `piece_chars` arrives in pieces, cut behind white space, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from unmask.text.conll import read_conll
from unmask.text.reading import BadInput, LinePart, read_fasta, read_lines
from unmask.text.settings import DocumentUnit
from unmask.text.sources import Source
from unmask.text.spans import Spans, cut_spans, join_spans, shift_spans
from unmask.text.tables import read_table

PIECE_CHARS = 1 << 18
Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextPiece:
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
    """

    document: int
    offset: int
    text: str
    last: bool = True
    spans: Spans | None = None
    label: str | None = None
    group: str | None = None

    def part(self, begin: int, end: int) -> TextPiece:
        """Some of its characters, as a piece that ends the document only if this one does, and at its end."""
        return TextPiece(
            self.document,
            self.offset + len(self.text[:begin].encode()),
            self.text[begin:end],
            self.last and end >= len(self.text),
            None if self.spans is None else cut_spans(self.spans, begin, end),
            self.label,
            self.group,
        )


class _Cutter:
    """Gathers the text of one document after another and hands out pieces of bounded size."""

    def __init__(self, piece_chars: int, first: int) -> None:
        self.piece_chars = piece_chars
        self.document = first
        self._parts: list[str] = []
        self._spans: list[Spans] = []
        self._num_chars = 0
        self._offset = 0
        self._label: str | None = None
        self._group: str | None = None

    def add(self, text: str, line: LinePart) -> Iterator[TextPiece]:
        self._parts.append(text)
        self._label, self._group = line.label, line.group
        if line.spans is not None:
            self._spans.append(shift_spans(line.spans, self._num_chars))
        self._num_chars += len(text)
        if self._num_chars <= self.piece_chars:
            return
        gathered = "".join(self._parts)
        spans = self._gathered_spans()
        begin = 0
        while len(gathered) - begin > self.piece_chars:
            end = _cut_behind_space(gathered, begin, begin + self.piece_chars)
            if self._offset or not gathered[begin:end].isspace():  # white space alone begins no document
                yield self._piece(gathered[begin:end], spans and cut_spans(spans, begin, end), last=False)
            begin = end
        self._parts, self._num_chars = [gathered[begin:]], len(gathered) - begin
        self._spans = [] if spans is None else [cut_spans(spans, begin, len(gathered))]

    def _gathered_spans(self) -> Spans | None:
        return join_spans(self._spans) if self._spans else None

    def whole(self, line: LinePart) -> TextPiece | None:
        """A document that comes in one piece; None where it is white space only."""
        text = line.text.rstrip("\n")
        if not text or text.isspace():
            return None
        self.document += 1
        return TextPiece(self.document - 1, 0, text, spans=line.spans, label=line.label, group=line.group)

    def finish(self) -> Iterator[TextPiece]:
        text = "".join(self._parts).rstrip("\n")
        if text.strip() or (self._offset and text):
            yield self._piece(text, self._gathered_spans(), last=True)
        if self._offset:
            self.document += 1
        self._parts, self._spans, self._num_chars, self._offset = [], [], 0, 0

    def _piece(self, text: str, spans: Spans | None, *, last: bool) -> TextPiece:
        piece = TextPiece(self.document, self._offset, text, last, spans, self._label, self._group)
        self._offset += len(text.encode())
        return piece


def _cut_behind_space(text: str, begin: int, end: int) -> int:
    """The place behind the last white space in `text[begin:end]`, or `end` where there is none in its second half."""
    for place in range(end, begin + (end - begin) // 2, -1):
        if text[place - 1].isspace():
            return place
    return end


def split_lines(
    files: Iterable[tuple[Iterable[LinePart], DocumentUnit]], *, piece_chars: int = PIECE_CHARS, first: int = 0
) -> Iterator[TextPiece]:
    """Groups lines into documents. Lines of white space only are never documents; a file's end ends a document.

    Args:
        files: The lines of each file, and what a document is there.
        piece_chars: Longest piece, in characters.
        first: Number of the first document.

    Example: with unit `block`, the lines `a`, `b`, ``, `c` are the documents `a\\nb` and `c`.
    """
    cutter = _Cutter(piece_chars, first)
    for lines, unit in files:
        for line in lines:
            whole = line.starts and line.ends
            if unit == "line" and whole and len(line.text) < piece_chars:  # nearly always, and worth being quick at
                if piece := cutter.whole(line):
                    yield piece
                continue
            if unit == "block" and whole and not line.text.strip():
                yield from cutter.finish()
                continue
            yield from cutter.add(line.text + "\n" if line.ends else line.text, line)
            if unit == "line" and line.ends:
                yield from cutter.finish()
        yield from cutter.finish()


def cut_pieces(pieces: Iterable[TextPiece], piece_chars: int) -> Iterator[TextPiece]:
    """Cuts pieces that are longer than that, behind white space."""
    for piece in pieces:
        begin = 0
        while len(piece.text) - begin > piece_chars:
            end = _cut_behind_space(piece.text, begin, begin + piece_chars)
            yield piece.part(begin, end)
            begin = end
        yield piece.part(begin, len(piece.text)) if begin else piece


def read_documents(
    sources: Iterable[Source],
    bad: BadInput,
    *,
    unit: DocumentUnit,
    piece_chars: int = PIECE_CHARS,
    fields: Fields | None = None,
    first: int = 0,
) -> Iterator[TextPiece]:
    """Reads files as documents, in the order given.

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
    files = (
        (read_parts(source, bad, fields), unit if source.has_lines else "line") for source in sources
    )  # fmt: skip
    return split_lines(files, piece_chars=piece_chars, first=first)


def read_parts(source: Source, bad: BadInput, fields: Fields | None = None) -> Iterator[LinePart]:
    """The lines, rows, sentences or sequences of one file."""
    if source.kind == "text":
        return read_lines(source.path, bad, source.stretch)
    if source.kind in ("conll", "conllu"):
        return read_conll(source, bad, fields)
    if source.kind == "fasta":
        return read_fasta(source.path, bad, source.stretch)
    assert source.column is not None, "the column of a table is found before it is read"
    return read_table(source, source.column, bad, fields)
