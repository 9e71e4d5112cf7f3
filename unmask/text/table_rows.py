"""Rows of tables, file by file: a row is its names with their values.

Tables are JSON (`json_rows.py`), CSV and TSV, Parquet, and the Arrow files of `datasets`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from unmask.errors import CorpusError
from unmask.text.columnar_rows import arrow_rows, parquet_rows
from unmask.text.json_rows import Row, json_rows
from unmask.text.reading import LONGEST_ROW, BadInput, whole_lines
from unmask.text.sources import Source

AskedColumn = str | int | Sequence[str | int] | None  # what a user names: a column, several, or none
# Names by which people call the text, the likeliest first; those of chats; and names that only a header has.
TEXT_NAMES = (
    "text", "content", "sentence", "document", "body", "abstract", "article", "review", "sequence", "tweet", "comment",
    "message", "post", "headline", "description", "utterance", "paragraph",
)  # fmt: skip
CHAT_NAMES = ("messages", "conversations", "conversation")
OTHER_NAMES = {"label", "id", "title", "idx", "index", "score", "source", "url", "date", "category", "lang", "split"}
LOOK_ROWS = 200
NOT_CSV = "rows that are not CSV"


def rows_of(
    source: Source,
    bad: BadInput,
    column: AskedColumn,
    *,
    nested: bool = False,
    known: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> Iterator[tuple[int, Row]]:
    """The rows of a table with their numbers, counted from 1 (lines of the file where it is a text).

    Args:
        source: A table.
        bad: What is done about what cannot be read.
        column: That of the text, where it is known.
        nested: Whether all lists and structures of Parquet and Arrow files are read, which takes time; else only those
            in which the text is, or where its column is not known, may be.
        known: Other columns that are known to be there: by these names, too, a header is told from a row.
        only: All columns, and fields within them, that the rows are read for, so that others do not matter; None: the
            rows are looked at, and what cannot be read in them is null.

    Raises:
        CorpusError: A row cannot be read, or a name of `only` stands for several columns; with file and row.
    """
    used = None if only is None else _holders(only)
    others = [str(name) for name in (source.label, source.group, *known) if name is not None]
    if source.kind in ("csv", "tsv"):
        asked = {name.lower() for name in (*asked_names(column), *others)}
        return _delimited(source.path, bad, tabs=source.kind == "tsv", asked=asked, used=used)
    if source.is_json:
        return json_rows(source.path, bad, source.stretch)
    text_within = CHAT_NAMES if column is None else asked_names(column)
    within = None if nested else _holders([*text_within, *others])
    if source.kind == "parquet":
        return parquet_rows(source.path, bad, only=used, within=within, stretch=source.stretch)
    return arrow_rows(source.path, bad, only=used, within=within)


def asked_names(column: AskedColumn) -> list[str]:
    """All names that a user may mean: `a,b` is a column of this name, or two."""
    if column is None:
        return []
    names = [str(column)] if isinstance(column, str | int) else [str(name) for name in column]
    return [each for name in names for each in dict.fromkeys((name, *(part.strip() for part in name.split(","))))]


def _holders(names: Iterable[str]) -> set[str]:
    """The columns in which fields may be: `a.b.c` is in `a`, in `a.b`, or a column itself."""
    return {name[:end] for name in names for end in (*(i for i, sign in enumerate(name) if sign == "."), len(name))}


def _delimited(
    path: Path, bad: BadInput, *, tabs: bool, asked: set[str], used: Collection[str] | None
) -> Iterator[tuple[int, Row]]:
    """CSV with quotes; TSV as it is, since quotes there are mostly letters like any other.

    The first row holds names if one of them is a column that was asked for, or a name that is common.
    """
    known = {*TEXT_NAMES, *OTHER_NAMES, *(name for name in asked if not name.isdigit())}
    csv.field_size_limit(LONGEST_ROW)
    lines = (line + "\n" for line in whole_lines(path, bad))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    names: list[str] | None = None
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad.found(NOT_CSV, f"{path}: {_broken_row(error, begin, reader.line_num)}")
            bad.counts[NOT_CSV] += reader.line_num - begin  # all lines that a quote took in
            continue
        if cells is None:
            return
        if not cells:
            continue
        if names is None:
            is_header = any(cell.strip().lower() in known for cell in cells)
            names = [cell.strip() for cell in cells] if is_header else [str(n) for n in range(len(cells))]
            if twice := [name for name, count in Counter(names).items() if count > 1 and name in (used or ())]:
                raise CorpusError(f"{path}: there are several columns {twice[0]!r}; rename all but one")
            if is_header:
                continue
        if any(cell.strip() for cell in cells[len(names) :]):
            bad.found(
                "rows with too many cells",
                f"{path}: line {reader.line_num} has {len(cells)} cells where the table has {len(names)} columns; "
                + ("a text must hold no tab" if tabs else 'put a text with commas between quotes ("...")'),
            )
            continue
        yield reader.line_num, dict(zip(names, cells, strict=False))


def _broken_row(error: csv.Error, begin: int, end: int) -> str:
    """What is wrong with a row: where it goes over several lines, mostly that a quote within it was never closed."""
    if begin == end:
        return f"line {end}: {error}"
    if "unexpected end" in str(error) or "field larger" in str(error):
        found = f"the row that begins here has a quote that is not closed by line {end}"
    else:
        found = f"the row that begins here goes on to line {end}, where {error}; a quote may be left open"
    return f'line {begin}: {found}; close it, and write quotes within a text twice ("")'
