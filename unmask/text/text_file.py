"""Texts of a file one by one, each with what it is called: for work on texts that are given, not on a corpus.

A line of a text file, a row of a table, a sequence, a sentence. Memory is bounded; nothing is passed over but lines
without text, which are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from unmask.errors import CorpusError
from unmask.text.documents import read_parts
from unmask.text.reading import LONGEST_ROW, BadInput
from unmask.text.sources import find_sources, is_saved_dataset
from unmask.text.table_rows import LOOK_ROWS, AskedColumn, rows_of
from unmask.text.text_columns import columns_of, find_column, has_column, in_words, names_in, text_of, value_or_none
from unmask.values import shown

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
