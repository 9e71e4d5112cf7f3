"""Lines to documents: one a line, one a block between empty lines, or one a file.

A document longer than `piece_chars` arrives in pieces, cut behind white space, so that memory stays bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from unmask.core.errors import CorpusError, shortened, shown, whole_number
from unmask.data.reading import LONGEST_ROW, BadInput, LinePart, read_fasta, read_lines
from unmask.data.settings import DocumentUnit
from unmask.data.sources import Source, find_sources, is_saved_dataset
from unmask.data.tables import (
    LOOK_ROWS,
    AskedColumn,
    columns_of,
    find_column,
    has_column,
    in_words,
    names_in,
    read_table,
    rows_of,
    text_of,
    value_or_none,
)
from unmask.tokenizer.spans import Span, Spans, closed_loop, cut_spans, join_spans, shift_spans

# ----------------------------------------
# Treebanks and tagged text: CoNLL (a token a line with its tags) and CoNLL-U (Universal Dependencies).
#
#     .conll                          .conllu
#     Anna<TAB>B-person               1<TAB>Anna<TAB>Anna<TAB>PROPN<TAB>NNP<TAB>_<TAB>2<TAB>nsubj<TAB>_<TAB>_
#     sleeps<TAB>O
#     2<TAB>sleeps<TAB>sleep<TAB>VERB<TAB>VBZ<TAB>_<TAB>0<TAB>root<TAB>_<TAB>SpaceAfter=No
#     <empty line>                    <empty line>
#
# In `.conll` a line `# sent_id = 3`, and one that begins with `#` and has not as many columns as words have, is a
# comment; in `.conllu` every line that begins with `#` is.
#
# The text is put together again: a space between tokens, none behind `SpaceAfter=No`. A sentence is given as a line,
# and
# an empty line where a document begins (`# newdoc`, `-DOCSTART-`), so what a document is can be chosen as for any text.

_UPOS, _XPOS, _HEAD, _ROLE, _MISC = 3, 4, 6, 7, 9
_OF_DOCUMENTS = re.compile(r"#\s*(newdoc|newpar|\w[\w.:-]*\s*=\s)")  # `# newdoc`, `# sent_id = 3`
DOCUMENT_END = LinePart("", True, True)
MOST_WORDS = 100_000  # of a sentence
_MOST_CHARS = 1 << 23


class TaggedLine(NamedTuple):
    """A line of a sentence: its number in the file, counted from 1, and its columns."""

    number: int
    cells: list[str]


def offered_columns(kind: str) -> set[str]:
    """The annotations that such a file holds, unless `annotation.fields` says more."""
    return {"pos", "dependencies"} if kind == "conllu" else {"entities"}


def readable_columns(kind: str) -> set[str]:
    """The annotations that such a file may hold."""
    return {"pos", "dependencies"} if kind == "conllu" else {"entities", "chunks", "pos"}


def read_conll(source: Source, bad: BadInput, fields: Mapping[str, str] | None) -> Iterator[LinePart]:
    """Yields sentences, and empty lines where documents begin.

    Args:
        source: A file of kind `conll` or `conllu`.
        bad: What is done about sentences that cannot be read.
        fields: Annotations that are wanted. For `.conll`, a field is the number of a tab-separated column, counted
            from 0, or the annotation's own name for the last one. For `.conllu`, `pos` may name the field `xpos`.

    Raises:
        CorpusError: A line is malformed, or does not have what is wanted; with file and line.
    """
    if missing := [column for column in fields or () if column not in readable_columns(source.kind)]:
        raise CorpusError(f"{source.path}: a .{source.kind} file holds no {' and no '.join(missing)}")
    if source.kind == "conllu":
        _check_fields(source, fields or {})
    build = _conllu_sentence if source.kind == "conllu" else _conll_sentence
    for item in read_sentences(source, bad):
        if item is None:
            yield DOCUMENT_END
            continue
        try:
            text, spans = build(item, fields or {})
        except ValueError as error:
            bad.found("sentences that cannot be read", f"{source.path}: line {error}")
            continue
        if not bad.is_broken(text):
            yield LinePart(text, True, True, None if fields is None else spans)


def _check_fields(source: Source, fields: Mapping[str, str]) -> None:
    """Makes sure that a CoNLL-U file has the columns that are named."""
    for column, field in fields.items():
        if field not in (("pos", "upos", "xpos") if column == "pos" else (column,)):
            ways = "name upos or xpos" if column == "pos" else "leave it out"
            raise CorpusError(
                f"{source.path}: annotation.fields.{column} = {shown(field)} is no column of a .conllu file; {ways}"
            )


def read_sentences(source: Source, bad: BadInput) -> Iterator[list[TaggedLine] | None]:
    """Yields the lines of each sentence, and None where a document begins.

    Raises:
        CorpusError: The file cannot be read, a line is far too long, or a sentence: it has more than 100,000 words, or
            8 million characters.
    """
    lines: list[TaggedLine] = []
    num_chars = 0
    width: int | None = None
    for number, part in enumerate(read_lines(source.path, bad), 1):
        if not (part.starts and part.ends):
            raise CorpusError(f"{source.path}: a line is longer than a million characters; this is no CoNLL file")
        cells = part.text.split("\t") if "\t" in part.text else part.text.split()
        is_comment = part.text.startswith("#") and (source.kind == "conllu" or _is_comment(part.text, cells, width))
        if not part.text.strip():
            if lines:
                yield lines
                lines, num_chars = [], 0
        elif is_comment:
            if part.text[1:].split()[:1] == ["newdoc"]:
                yield None
        elif cells[0] == "-DOCSTART-":
            yield None
        else:
            lines.append(TaggedLine(number, cells))
            width = width or len(cells)
            num_chars += len(part.text)
            if len(lines) > MOST_WORDS or num_chars > _MOST_CHARS:
                raise CorpusError(
                    f"{source.path}: the sentence that begins in line {lines[0].number} has more than {MOST_WORDS:,} "
                    f"words, or {_MOST_CHARS:,} characters; put an empty line behind each sentence"
                )
    if lines:
        yield lines


def _is_comment(line: str, cells: list[str], width: int | None) -> bool:
    """Whether a line of `.conll` that begins with `#` is a comment, and not a word such as `#` or `#unmask`.

    Args:
        line: It.
        cells: Its columns.
        width: Columns of the file's first word; None: there was none yet.
    """
    if "\t" in line:
        return False
    if _OF_DOCUMENTS.match(line):
        return True
    return len(cells) != width if width is not None else cells[0] == "#"


def word_number(line: TaggedLine) -> int | None:
    """The number of a word of CoNLL-U; None for a multiword token, `3-4`, and for a word that was left out, `5.1`.

    Raises:
        ValueError: It is no number; the text has the line and what stands there.
    """
    first, sign, last = line.cells[0].replace(".", "-", 1).partition("-")
    numbers = [whole_number(part) for part in ((first, last) if sign else (first,))]
    if None in numbers:
        raise ValueError(f"{line.number}: {shown(line.cells[0])} is not the number of a word")
    return None if sign else numbers[0]


def _conll_sentence(lines: list[TaggedLine], fields: Mapping[str, str]) -> tuple[str, Spans]:
    places, end = [], 0
    for line in lines:
        places.append((end, end + len(line.cells[0])))
        end += len(line.cells[0]) + 1
    text = " ".join(line.cells[0] for line in lines)
    found: dict[str, tuple[Span, ...]] = {}
    for column, field in fields.items():
        tags = [_cell(line, None if field == column else field) for line in lines]
        if column in ("entities", "chunks"):
            found[column] = _from_bio(lines, tags, places)
        else:
            found[column] = tuple(Span(*place, tag) for place, tag in zip(places, tags, strict=True))
    return text, found


def _cell(line: TaggedLine, field: str | None) -> str:
    """The cell in a column that is named by its number, or in the last one, if it is not that of the words."""
    index = len(line.cells) - 1 if field is None else whole_number(field)
    if index is None or index >= len(line.cells) or (field is None and index < 1):
        raise ValueError(
            f"{line.number}: there is no column {'with tags' if field is None else shortened(field, 40)}, only "
            f"{len(line.cells)} columns; a column is named by its number, counted from 0, in annotation.fields"
        )
    return line.cells[index].strip()


def _from_bio(lines: list[TaggedLine], tags: list[str], places: list[tuple[int, int]]) -> tuple[Span, ...]:
    """Spans of BIO tags; also of IOB1 (an `I-` may begin one) and of BIOES and BILOU."""
    spans: list[Span] = []
    open_label: str | None = None
    for line, tag, (begin, end) in zip(lines, tags, places, strict=True):
        mark, _, label = tag.partition("-")
        if tag in ("O", "_"):
            open_label = None
            continue
        if mark not in ("B", "I", "E", "L", "S", "U") or not label:
            raise ValueError(f"{line.number}: {shown(tag)} is not a tag like O, B-person or I-person")
        if mark in ("I", "E", "L") and label == open_label:
            spans[-1] = spans[-1]._replace(end=end)
        else:
            spans.append(Span(begin, end, label))
        open_label = None if mark in ("E", "L", "S", "U") else label
    return tuple(spans)


def _conllu_sentence(lines: list[TaggedLine], fields: Mapping[str, str]) -> tuple[str, Spans]:
    """The text of a sentence; words of a multiword token share its letters, in order where they spell it."""
    text, words, places = "", [], []
    shared_to, room = 0, (0, 0)  # the last word of the current multiword token, and what is left of its letters
    for line in lines:
        if len(line.cells) != 10:
            raise ValueError(f"{line.number}: {len(line.cells)} columns where CoNLL-U has 10, with tabs between them")
        name, form = line.cells[0], line.cells[1]
        space = "" if "SpaceAfter=No" in line.cells[_MISC].split("|") else " "
        number = word_number(line)
        if "." in name:  # a word that was left out, which has no letters
            continue
        if number is None:
            shared_to, room = int(name.partition("-")[2]), (len(text), len(text) + len(form))
            text += form + space
            continue
        words.append(line)
        if number <= shared_to:
            spelled = text.startswith(form, room[0]) and room[0] + len(form) <= room[1]
            end = room[0] + len(form) if spelled and number < shared_to else room[1]
            places.append((room[0], end))
            room = end, room[1]
        else:
            places.append((len(text), len(text) + len(form)))
            text += form + space
    found: dict[str, tuple[Span, ...]] = {}
    for column, field in fields.items():
        if column == "dependencies":
            found[column] = _dependencies(words, places)
        else:
            cell = _XPOS if field == "xpos" else _UPOS
            found[column] = tuple(Span(*p, w.cells[cell]) for w, p in zip(words, places, strict=True))
    return text.rstrip(), found


def _dependencies(words: list[TaggedLine], places: list[tuple[int, int]]) -> tuple[Span, ...]:
    index = {line.cells[0]: number for number, line in enumerate(words)}
    heads = []
    for number, line in enumerate(words):
        head = line.cells[_HEAD]
        if head != "0" and head not in index:
            raise ValueError(f"{line.number}: the head {shown(head)} is no word of the sentence")
        heads.append(number if head == "0" else index[head])
    if words and closed_loop(heads):
        raise ValueError(f"{words[0].number}: the heads of this sentence run in a circle")
    return tuple(
        Span(*place, line.cells[_ROLE], heads[number] - number)
        for number, (line, place) in enumerate(zip(words, places, strict=True))
    )


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


# ----------------------------------------
# Texts of a file one by one, each with what it is called: for work on texts that are given, not on a corpus.
#
# A line of a text file, a row of a table, a sequence, a sentence. Memory is bounded; nothing is passed over but lines
# without text, which are counted.

ID = "id"
EMPTY = "texts without a letter or sign"


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text.

    Attributes:
        id: What the column of ids says; else the number of the line or row in the file, counted from 1.
        text: The text; never only white space.
    """

    id: str | int
    text: str


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


class TextFile:
    """A file of texts.

    Args:
        path: The file, of any kind that a corpus may have; or a folder that a `Dataset` was saved to.
        column: Where the text of a table stands, as for `find_column`; None finds it.
        id_column: Where the ids of a table stand; None takes a column called `id`, else numbers of rows.

    Attributes:
        source: The file, with the column of its texts; the first one of a saved dataset.
        id_column: The column of ids that is read; None where numbers are.
        skipped: What the last reading passed over: reason to number.
        first_skipped: The first of these, such as `line 3`; None where nothing was passed over.

    Raises:
        CorpusError: It is not one file that can be read, or a column is not there.
    """

    def __init__(self, path: str | Path, *, column: AskedColumn = None, id_column: str | None = None) -> None:
        sources = find_sources([path])
        if (len(sources) != 1 or Path(path).is_dir()) and not is_saved_dataset(Path(path)):
            raise CorpusError(f"{path}: these are {len(sources)} files; name one of them")
        bad = BadInput(skip=False, way_out=None)
        self.source, *self._others = sources
        self.id_column = id_column
        self.skipped: Counter[str] = Counter()
        self.first_skipped: str | None = None
        if not self.source.is_table:
            for name, option in ((column, "text"), (id_column, "ids")):
                if name is not None:
                    raise CorpusError(f"{path}: there are no columns in this file, so none of {option} can be named")
            return
        known = [] if id_column is None else [id_column]
        with naming_column():
            self.source = replace(self.source, column=find_column(self.source, column, bad, among=known))
        first = [row for _, row in islice(rows_of(self.source, bad, self.source.column, known=known), LOOK_ROWS)]
        if id_column is not None and not has_column(first, id_column):
            raise CorpusError(f"{path}: there is no column {id_column!r}; columns are {names_in(first)}")
        if id_column is None and any(ID in row for row in first) and self.source.column != ID:
            self.id_column = ID

    def describe(self) -> str:
        """One line on what is read."""
        if not self.source.is_table:
            return f"a text is a {self._unit}"
        assert self.source.column is not None, "tables have one"
        ids = "the number of the row" if self.id_column is None else f"column {self.id_column!r}"
        return f"a text is a row, its text in {in_words(self.source.column)}, its id {ids}"

    @property
    def _unit(self) -> str:
        """What a text is in the file."""
        kinds = {"fasta": "sequence", "conll": "sentence", "conllu": "sentence"}
        return "row" if self.source.is_table else kinds.get(self.source.kind, "line")

    def read(self) -> Iterator[NamedText]:
        """Yields the texts.

        Raises:
            CorpusError: A row has no text or no id, or cannot be read; or there is no text at all.
        """
        self.skipped, self.first_skipped = Counter(), None
        found = False
        with naming_column():
            for number, text in enumerate(self._rows() if self.source.is_table else self._lines(), 1):
                if text.text.strip():
                    found = True
                    yield text
                else:
                    self.skipped[EMPTY] += 1
                    self.first_skipped = self.first_skipped or f"{self._unit} {number}"
        if not found:
            raise CorpusError(f"{self.source.path}: there is no text in it")

    def _rows(self) -> Iterator[NamedText]:
        bad, column = BadInput(skip=False, way_out=None), self.source.column
        assert column is not None, "tables have one"
        known = [] if self.id_column is None else [self.id_column]
        files = [self.source, *self._others]
        used = [*columns_of(column), *known]
        rows = ((file, *row) for file in files for row in rows_of(file, bad, column, known=known, only=used))
        for row_number, (file, number, row) in enumerate(rows, 1):
            text = text_of(file, number, row, column, bad)
            assert text is not None, "bad input is an error"
            yield NamedText(row_number if self.id_column is None else self._id(number, row, self.id_column), text)

    def _id(self, number: int, row: dict[str, Any], column: str) -> str | int:
        value = value_or_none(row, column)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise CorpusError(
                f"{self.source.row(number)} has {shown(value)} in column {column!r}; ids are texts or whole numbers"
            )
        return value

    def _lines(self) -> Iterator[NamedText]:
        number, parts, size = 0, [], 0
        for part in read_parts(self.source, BadInput(skip=False, way_out=None)):
            parts.append(part.text)
            size += len(part.text)
            if size > LONGEST_ROW:
                raise CorpusError(f"{self.source.path}: a text is longer than {LONGEST_ROW:,} characters; cut it")
            if part.ends:
                if self.source.kind != "text" and not "".join(parts):
                    parts = []
                    continue  # the mark of a document, or of a sequence without letters
                number += 1
                yield NamedText(number, "".join(parts))
                parts, size = [], 0


@contextmanager
def naming_column() -> Iterator[None]:
    """Errors of tables name the way out that there is here."""
    try:
        yield
    except CorpusError as error:
        raise CorpusError(error.args[0].replace("--set corpus.column=NAME", "--column NAME")) from error
