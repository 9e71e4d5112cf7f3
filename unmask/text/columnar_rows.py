"""Rows of Parquet files and of the Arrow files of `datasets`, column by column, of files that may be damaged.

Columns that nobody uses are not read, since there may be anything in them. A batch of an Arrow file is checked before
it is used: it lies in memory as it lies on the disk, and a place in it that a flipped bit has moved ends the process.
(Of 12,000 files with a flipped bit, 170 did so unchecked and none checked. Parquet's decoder checks by itself.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.errors import CorpusError
from unmask.text.json_rows import Row
from unmask.text.reading import CUT_OFF, BadInput, Stretch
from unmask.values import shortened, shown

# What pyarrow raises of damaged files; of values that Python does not have; and of ones that are nested wrongly.
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError)
_NO_VALUE = (pa.ArrowException, ValueError, ArithmeticError, LookupError, TypeError)
UNREADABLE = "rows with values that cannot be read"
_BATCH_ROWS, _BATCH_BYTES = 256, 1 << 24


def parquet_rows(
    path: Path,
    bad: BadInput,
    *,
    only: Collection[str] | None,
    within: Collection[str] | None,
    stretch: Stretch | None = None,
) -> Iterator[tuple[int, Row]]:
    """The rows of a Parquet file with their numbers, counted from 1.

    Args:
        path: The file.
        bad: What is done about a damaged file, and about values that cannot be read.
        only: The columns that are read; None reads all, those that cannot be read as nulls.
        within: Lists and structures that are read; None reads all.
        stretch: Which groups of rows are read; None reads all.

    Raises:
        CorpusError: The file is damaged, a value of `only` is none that Python has, or a name of `only` stands for
            several columns.
    """
    try:
        with pq.ParquetFile(path) as file:
            only = _held(file.schema_arrow, only)
            rows, num_bytes = file.metadata.num_rows, sum(_group_bytes(file))
            most = min(_BATCH_ROWS, max(1, _BATCH_BYTES * rows // max(num_bytes, 1)))
            groups = None if stretch is None else list(range(*stretch))
            batches = file.iter_batches(batch_size=most, row_groups=groups, columns=only and list(only))
            before = sum(file.metadata.row_group(number).num_rows for number in range(groups[0] if groups else 0))
            yield from _numbered(batches, path, bad, only, within, before=before)
    except DAMAGED as error:
        bad.found(CUT_OFF, f"{path}: damaged or not a Parquet file: {_reason(error)}")


def _group_bytes(file: pq.ParquetFile) -> Iterator[int]:
    """Size of each group of rows, unpacked."""
    for number in range(file.metadata.num_row_groups):
        yield max(0, file.metadata.row_group(number).total_byte_size)


def arrow_rows(
    path: Path, bad: BadInput, *, only: Collection[str] | None, within: Collection[str] | None
) -> Iterator[tuple[int, Row]]:
    """The rows of an Arrow stream; arguments, result and errors as for `parquet_rows`."""
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            only = _held(stream.schema, only)
            yield from _numbered(_whole(stream, only, within), path, bad, only, within)
    except DAMAGED as error:
        bad.found(CUT_OFF, f"{path}: damaged or not an Arrow stream: {_reason(error)}")


def _whole(
    stream: pa.RecordBatchReader, only: Collection[str] | None, within: Collection[str] | None
) -> Iterator[pa.RecordBatch]:
    """The batches, of which what is read is whole."""
    for batch in stream:
        taken = batch.select(_places(batch.schema, only, within))
        taken.validate(full=True)
        yield taken


def _held(schema: pa.Schema, only: Collection[str] | None) -> set[str] | None:
    """The columns of `only` that are there; all where there is none, so that the reader of the rows tells of it."""
    return None if only is None else {name for name in schema.names if name in only} or None


def _reason(error: BaseException) -> str:
    """The first line of what a library says, in which names out of the file may stand."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return shortened("".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line))


def _places(schema: pa.Schema, only: Collection[str] | None, within: Collection[str] | None) -> list[int]:
    """The columns that are read."""
    if only is not None:
        return [place for place, name in enumerate(schema.names) if name in only]
    return [
        place
        for place, field in enumerate(schema)
        if within is None or field.name in within or not pa.types.is_nested(field.type)
    ]


def _numbered(
    batches: Iterator[pa.RecordBatch],
    path: Path,
    bad: BadInput,
    only: Collection[str] | None,
    within: Collection[str] | None,
    *,
    before: int = 0,
) -> Iterator[tuple[int, Row]]:
    number = before
    for batch in batches:
        taken = batch.select(_places(batch.schema, only, within))
        names = taken.schema.names
        if only is not None and (twice := [name for name, count in Counter(names).items() if count > 1]):
            raise CorpusError(f"{path}: there are several columns {twice[0]!r}; rename all but one")
        unread: dict[int, str] = {}
        columns = [_values(column, name, unread) for name, column in zip(names, taken.columns, strict=True)]
        for place, values in enumerate(zip(*columns, strict=True)):
            number += 1
            if only is not None and place in unread:
                bad.found(UNREADABLE, f"{path}: row {number} has {unread[place]}; mend it, or take the row out")
            else:
                yield number, dict(zip(names, values, strict=True))


def _values(column: pa.Array, name: str, unread: dict[int, str]) -> list[Any]:
    """The values of a column; None where Python has none, which is told by the place in the batch."""
    try:
        return list(column.to_pylist())
    except _NO_VALUE:
        found = []
        for place, scalar in enumerate(column):
            try:
                found.append(scalar.as_py())
            except _NO_VALUE as error:
                found.append(None)
                unread[place] = (
                    f"a value in column {name!r} that cannot be read ({shown(str(column.type))}: {_reason(error)})"
                )
        return found
