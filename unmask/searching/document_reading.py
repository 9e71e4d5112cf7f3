"""Documents to search in, from the files that every command reads, each with what it is called.

A document is what it is for a corpus: a line, a block between empty lines or a file; a row of a table; a sequence. It
is called by its file and its number there, counted from 1, or by what the table's column of ids says; and by its title,
which is a column of the table, or the first line of a block or a file where that looks like one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.errors import CorpusError
from unmask.settings import validated
from unmask.text.corpus import Corpus
from unmask.text.documents import PIECE_CHARS, TextPiece, cut_pieces, read_documents
from unmask.text.json_rows import Row
from unmask.text.reading import BadInput, broken_character
from unmask.text.settings import CorpusSettings, DocumentUnit
from unmask.text.sources import Source
from unmask.text.table_rows import LOOK_ROWS, AskedColumn, rows_of
from unmask.text.text_columns import columns_of, has_column, names_in, text_of, value_or_none
from unmask.text.text_file import EMPTY, naming_column
from unmask.values import shown

IDS, TITLES = ("id", "_id"), ("title", "Title", "headline")
LONGEST_TITLE = 120  # letters


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A document, or a part of a long one; parts of a document follow each other and join to its text.

    Attributes:
        document: Its number among all, counted from 0.
        file: That it stands in, as it was given.
        id: What the file calls it: a number counted from 1, or what the column of ids says.
        title: Its title; None where it has none.
        begin: Character of the document at which the part begins.
        text: The characters, without the title where that is a column.
        has_title_column: Whether the title is none of the text.
    """

    document: int
    file: str
    id: str | int
    title: str | None
    begin: int
    text: str
    has_title_column: bool = False

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"{self.file}: document {self.id!r}"


class DocumentFiles:
    """Files of documents.

    Args:
        paths: Files, folders or patterns; all files in a folder are read, whatever their names say.
        column: Where the text of tables stands, as for `find_column`; None finds it.
        id_column, title_column: Of tables; None takes one called `id` or `_id`, and one called `title`, if it is there.
        documents: What a document is in text files.
        within: A folder; files in it are called by their place there.

    Attributes:
        skipped: What the last reading passed over: reason to number.
        num_bytes: Of all files together; None where one is compressed or a table.

    Raises:
        CorpusError: As `Corpus`; or a column is not there.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        column: AskedColumn = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
        within: Path | None = None,
    ) -> None:
        self._within = within
        asked = {"column": column, "documents": documents, "splits": "ignore"}
        with naming_column():
            corpus = Corpus(paths, validated(CorpusSettings, asked, where="search"), hold_out=False)
        self.sources, self.unit, self.num_bytes = corpus.sources, corpus.plan.unit, corpus.num_bytes
        self.unit_in_words = corpus.plan.unit_in_words
        self.skipped: Counter[str] = Counter()
        self._columns = [_columns_of(source, id_column, title_column) for source in self.sources]
        if not any(source.is_table for source in self.sources):
            for name, what in ((column, "text"), (id_column, "ids"), (title_column, "titles")):
                if name is not None:
                    raise CorpusError(f"{paths[0]}: there are no columns in this file, so none of {what} can be named")

    def describe(self) -> str:
        """What is read, in a line."""
        columns = {columns for columns in self._columns if columns is not None}
        said = [self.unit_in_words]
        for what, names in zip(("id", "title"), zip(*columns, strict=True), strict=True) if columns else ():
            if found := sorted(set(filter(None, names))):
                said.append(f"its {what} in column {' or '.join(map(repr, found))}")
        return ", ".join(said)

    def read(self) -> Iterator[DocumentPart]:
        """Yields the documents in order.

        Raises:
            CorpusError: A file cannot be read, or there is no text at all.
        """
        self.skipped = Counter()
        number = 0
        for source, columns in zip(self.sources, self._columns, strict=True):
            parts = self._lines(source) if columns is None else self._rows(source, *columns)
            for is_new, id_, title, begin, text in parts:
                number += is_new
                yield DocumentPart(number - 1, self.name_of(source), id_, title, begin, text, columns is not None)
        if not number:
            raise CorpusError(f"{', '.join(str(source.path) for source in self.sources[:3])}: there is no text in it")

    def name_of(self, source: Source) -> str:
        """What a file is called."""
        path = source.path
        if self._within is not None and path.is_relative_to(self._within):
            path = path.relative_to(self._within)
        return os.fsencode(path).decode("utf-8", "backslashreplace")  # a name may hold bytes that are no characters

    def _lines(self, source: Source) -> Iterator[tuple[bool, str | int, str | None, int, str]]:
        title, begin = None, 0
        for piece in read_documents([source], BadInput(skip=False, way_out=None), unit=self.unit):
            if is_new := piece.offset == 0:
                title, begin = None if self.unit == "line" else first_line_title(piece.text), 0
            yield is_new, piece.document + 1, title, begin, piece.text
            begin += len(piece.text)

    def _rows(
        self, source: Source, id_column: str | None, title_column: str | None
    ) -> Iterator[tuple[bool, str | int, str | None, int, str]]:
        bad, column = BadInput(skip=False, way_out=None), source.column
        assert column is not None, "tables have one"
        known = [name for name in (id_column, title_column) if name is not None]
        rows = rows_of(source, bad, column, known=known, only=[*columns_of(column), *known])
        for count, (number, row) in enumerate(rows, 1):
            title = _title(row, title_column)
            with naming_column():
                text = text_of(source, number, row, column, bad) or title or ""
            if not text.strip():
                self.skipped[EMPTY] += 1
                continue
            id_ = count if id_column is None else _id(source, number, row, id_column)
            for value, name in ((id_, id_column), (title, title_column)):
                if isinstance(value, str) and (broken := broken_character(value)):
                    raise CorpusError(
                        f"{source.path}: row {number} has {broken} in column {name!r}, which is no character; take it "
                        "out"
                    )
            begin = 0
            for piece in cut_pieces([TextPiece(count, 0, text)], PIECE_CHARS):
                yield begin == 0, id_, title, begin, piece.text
                begin += len(piece.text)


def first_line_title(text: str) -> str | None:
    """The first line of a text, where it looks like a title: short, not ended like a sentence, and more text follows.

    Example: `On whales\\nThere are many.` has the title `On whales`; `There are many.\\nNo.` has none.
    """
    line, _, rest = text.lstrip().partition("\n")
    line = line.strip().lstrip("#").strip()
    if not 0 < len(line) <= LONGEST_TITLE or not any(map(str.isalpha, line)) or len(rest.strip()) < 2 * len(line):
        return None
    return None if line[-1] in ".,;:!?\"'”’)" else line


def _columns_of(
    source: Source, id_column: str | None, title_column: str | None
) -> tuple[str | None, str | None] | None:
    """Where ids and titles of a table stand; None of what is no table."""
    if not source.is_table:
        return None
    assert source.column is not None, "tables have one"
    known = [name for name in (id_column, title_column) if name is not None]
    rows = rows_of(source, BadInput(skip=False, way_out=None), source.column, known=known)
    first = [row for _, row in islice(rows, LOOK_ROWS)]
    for name in known:
        if not has_column(first, name):
            raise CorpusError(f"{source.path}: there is no column {name!r}; columns are {names_in(first)}")
    taken = set(columns_of(source.column))

    def usual(names: Sequence[str]) -> str | None:
        return next((name for name in names if name not in taken and any(name in row for row in first)), None)

    return id_column or usual(IDS), title_column or usual(TITLES)


def _title(row: Row, column: str | None) -> str | None:
    value = None if column is None else value_or_none(row, column)
    return " ".join(value.split()) if isinstance(value, str) and value.strip() else None


def _id(source: Source, number: int, row: dict[str, Any], column: str) -> str | int:
    value = value_or_none(row, column)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise CorpusError(
            f"{source.path}: row {number} has {shown(value)} in column {column!r}; ids are texts or whole numbers"
        )
    return value
