"""Classes of documents: which files name them, and which there are in a corpus, numbered once for all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from unmask.errors import CorpusError
from unmask.text.documents import TextPiece
from unmask.text.reading import BadInput
from unmask.text.sources import Source
from unmask.text.table_rows import AskedColumn, rows_of
from unmask.text.tables import in_order
from unmask.text.text_columns import has_column, names_in

MOST_CLASSES = 10_000


def with_labels(
    sources: Sequence[Source], column: str | int, bad: BadInput, *, text: AskedColumn = None
) -> list[Source]:
    """The sources, tables among them with the column of classes. What has no such column has documents without class.

    Args:
        sources: All files of the corpus.
        column: What the user named.
        bad: As for reading.
        text: The column of the text, where it was named: a header is told by it.

    Raises:
        CorpusError: No file can have the column.
    """
    labelled = [replace(source, label=str(column)) if source.is_table else source for source in sources]
    tables = [source for source in labelled if source.is_table]
    if not tables:
        raise CorpusError(
            f"corpus.label = {str(column)!r} names a column of tables (JSON, CSV, TSV, Parquet), but "
            f"{sources[0].path} is {sources[0].kind}; give tables, or leave corpus.label out"
        )
    found: dict[str, str] = {}
    for source in tables:
        rows = [row for _, row in islice(rows_of(source, bad, text), 1)]
        # Rows of JSON have columns of their own; the pass over the corpus tells.
        if source.is_json or has_column(rows, str(column)):
            return labelled
        found[str(source.path)] = names_in(rows)
    path, names = next(iter(found.items()))
    raise CorpusError(f"{path}: there is no column {str(column)!r} for corpus.label; columns are {names}")


def label_names(pieces: Iterable[tuple[TextPiece, bool]], column: str | int) -> tuple[str, ...]:
    """The classes of a corpus in the order of their numbers, counted from 0.

    Args:
        pieces: All of the corpus.
        column: Of the labels, for the error's text.

    Raises:
        CorpusError: No document has a class, or they have more than 10,000.
    """
    seen: set[str] = set()
    for piece, _ in pieces:
        if piece.label is not None:
            seen.add(piece.label)
            check_number(seen, column, piece.label)
    return ordered(seen, column)


def check_number(seen: Collection[str], column: str | int | None, newest: str) -> None:
    """Makes sure that values of a column, the newest among them, may be classes.

    Raises:
        CorpusError: There are more than 10,000.
    """
    if len(seen) > MOST_CLASSES:
        raise CorpusError(
            f"corpus.label = {str(column)!r} has more than {MOST_CLASSES:,} different values, such as "
            f"{newest!r}: these are no classes; name another column"
        )


def ordered(seen: Collection[str], column: str | int | None) -> tuple[str, ...]:
    """The classes in the order of their numbers.

    Raises:
        CorpusError: There are none.
    """
    if not seen:
        raise CorpusError(
            f"corpus.label = {str(column)!r}: no row of the corpus has a value in this column; name another, or leave "
            "corpus.label out"
        )
    return in_order(seen)
