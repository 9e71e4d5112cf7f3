"""How reading is shared out: tasks, each a stretch of a large file or some small files, which are read apart.

    a.jsonl (3 GB)           ──▶  0: bytes up to 1.1 G    1: up to 2.1 G    2: up to the end
    b/1.txt ... b/900.txt    ──▶  3: all of them
    c.parquet (2 GB)         ──▶  4: groups of rows 0 to 11    5: 12 to 23
    d.txt.gz                 ──▶  6: the file, which cannot be read from its middle

A file is cut where a document begins. How it is cut depends on the files alone, never on who reads them or on how many
do, so that whatever is made of a task is the same everywhere. A document's number is its task's and its place in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq

from unmask.text.columnar_rows import DAMAGED
from unmask.text.json_rows import json_form
from unmask.text.reading import COMPRESSIONS, Stretch
from unmask.text.settings import DocumentUnit
from unmask.text.sources import Source

SMALLEST_TASK_BYTES, LARGEST_TASK_BYTES = 1 << 25, 1 << 30
TASKS_A_CORPUS = 1024
PLACE_BITS = 32  # of a document's number, which are its place in its task
_WINDOW = 1 << 20  # bytes in which the beginning of a document is looked for
_LINE, _BLOCK, _SEQUENCE = re.compile(rb"\n"), re.compile(rb"\n[ \t\r]*\n"), re.compile(rb"\n(?=>)")


@dataclass(frozen=True)
class ReadTask:
    """What is read at once, by one process.

    Attributes:
        number: Of the task, counted from 0; those that are held out come last.
        sources: Files, or a stretch of one.
        num_bytes: Size of these on the disk, compressed or not.
        is_held: Whether these are files that are held out.
    """

    number: int
    sources: tuple[Source, ...]
    num_bytes: int
    is_held: bool = False

    @property
    def first_document(self) -> int:
        """The number of its first document."""
        return self.number << PLACE_BITS

    @property
    def stamp(self) -> str:
        """A hash of what is read and how; where it is the same, so is the text."""
        content = []
        for source in self.sources:
            stat = source.path.stat()
            file = [str(source.path.absolute()), stat.st_size, stat.st_mtime_ns, source.stretch]
            content.append([*file, source.kind, source.column, source.label, source.group])
        return hashlib.sha256(json.dumps([self.number, self.is_held, content]).encode()).hexdigest()


def task_bytes(num_bytes: int) -> int:
    """How much a task reads: about a thousandth of the files, 32 MiB at the least and 1 GiB at the most.

    Args:
        num_bytes: Size of all files.
    """
    return min(max(num_bytes // TASKS_A_CORPUS, SMALLEST_TASK_BYTES), LARGEST_TASK_BYTES)


def plan_reading(
    sources: Sequence[Source], held: Sequence[Source], *, unit: DocumentUnit, size_bytes: int | None = None
) -> list[ReadTask]:
    """Cuts files into tasks.

    Args:
        sources: In the order in which they are read; tables with their columns.
        held: Files that are held out, likewise.
        unit: What a document is in text files: those are cut between lines or at empty lines, or not at all.
        size_bytes: Of a task, about; None fits it to the files.
    """
    size_bytes = size_bytes or task_bytes(sum(source.path.stat().st_size for source in (*sources, *held)))
    tasks: list[ReadTask] = []
    for files, is_held in ((sources, False), (held, True)):
        for part, num_bytes in _gathered(files, unit, size_bytes):
            tasks.append(ReadTask(len(tasks), part, num_bytes, is_held))
    return tasks


def _gathered(
    sources: Sequence[Source], unit: DocumentUnit, size_bytes: int
) -> Iterator[tuple[tuple[Source, ...], int]]:
    """Small files together, and stretches of large ones."""
    group: list[Source] = []
    num_bytes = 0
    for source in sources:
        stretches = list(_stretches(source, unit, size_bytes))
        for part, size in stretches:
            if len(stretches) > 1 and group:
                yield tuple(group), num_bytes
                group, num_bytes = [], 0
            group.append(part)
            num_bytes += size
            if num_bytes >= size_bytes or len(stretches) > 1:
                yield tuple(group), num_bytes
                group, num_bytes = [], 0
    if group:
        yield tuple(group), num_bytes


def _stretches(source: Source, unit: DocumentUnit, size_bytes: int) -> Iterator[tuple[Source, int]]:
    """The parts of a file with their sizes; the file itself where it is too small, or cannot be cut."""
    num_bytes = source.path.stat().st_size
    cuts: list[tuple[int, int]] = []
    if num_bytes >= 2 * size_bytes:
        cuts = (
            _groups_of_rows(source.path, size_bytes) if source.kind == "parquet" else _bytes(source, unit, size_bytes)
        )
    if len(cuts) < 2:
        yield source, num_bytes
        return
    ends = [place for place, _ in cuts[1:]]
    for (begin, size), end in zip(cuts, [*ends, _end(source, num_bytes)], strict=True):
        yield replace(source, stretch=Stretch(begin, end)), size


def _end(source: Source, num_bytes: int) -> int:
    if source.kind != "parquet":
        return num_bytes
    with pq.ParquetFile(source.path) as file:
        return file.metadata.num_row_groups


def _groups_of_rows(path: Path, size_bytes: int) -> list[tuple[int, int]]:
    """Which groups of rows of a Parquet file begin a part, and how large that is; reading tells of a damaged file."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            sizes = [
                sum(group.column(column).total_compressed_size for column in range(group.num_columns))
                for group in map(metadata.row_group, range(metadata.num_row_groups))
            ]
    except DAMAGED:
        return []
    cuts: list[tuple[int, int]] = []
    for number, size in enumerate(sizes):
        if not cuts or cuts[-1][1] >= size_bytes:
            cuts.append((number, size))
        else:
            cuts[-1] = (cuts[-1][0], cuts[-1][1] + size)
    return cuts


def _bytes(source: Source, unit: DocumentUnit, size_bytes: int) -> list[tuple[int, int]]:
    """The bytes at which parts of a file of lines begin, and how large these are."""
    mark = _mark(source, unit)
    if mark is None:
        return []
    num_bytes = source.path.stat().st_size
    begins = [0]
    with source.path.open("rb") as file:
        for place in range(size_bytes, num_bytes - size_bytes // 2, size_bytes):
            begin = _beginning(file, place, mark)
            if begin is not None and begins[-1] < begin < num_bytes:
                begins.append(begin)
    return [(begin, end - begin) for begin, end in zip(begins, [*begins[1:], num_bytes], strict=True)]


def _mark(source: Source, unit: DocumentUnit) -> re.Pattern[bytes] | None:
    """Behind what a document begins; None where that cannot be told from the middle of the file."""
    if source.path.suffix.lower() in COMPRESSIONS:
        return None
    if source.kind == "text":
        return {"line": _LINE, "block": _BLOCK, "file": None}[unit]
    if source.kind == "jsonl":
        return _LINE if json_form(source.path) == "lines" else None
    return _SEQUENCE if source.kind == "fasta" else None


def _beginning(file: IO[bytes], place: int, mark: re.Pattern[bytes]) -> int | None:
    """Where the first document behind a place begins; None where that is far."""
    file.seek(place)
    found = mark.search(file.read(_WINDOW))
    return None if found is None else place + found.end()
