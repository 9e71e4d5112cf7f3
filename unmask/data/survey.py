"""A first look at the corpus: what a document is, and how validation text is held out. Both are announced.

It reads until it has seen enough, never the whole of a large corpus.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Literal, NamedTuple

import pyarrow.parquet as pq

from unmask.core.errors import CorpusError
from unmask.data.documents import PIECE_CHARS, Document, choose_unit, cut_pieces, names_of, read_documents
from unmask.data.json_rows import json_form
from unmask.data.reading import COMPRESSIONS, BadInput, Stretch
from unmask.data.settings import CleaningSettings, ColumnGroups, CorpusSettings, DocumentUnit
from unmask.data.sources import Source
from unmask.data.tables import DAMAGED

# ----------------------------------------
# Cleaning, as far as the settings ask for it. Every document that is left out is counted.

_SPACES = re.compile(r"[^\S\n]+")
_AROUND_LINE_END = re.compile(r" ?\n ?")


def read_cleaned(
    sources: Sequence[Source],
    bad: BadInput,
    settings: CleaningSettings,
    skipped: Counter[str],
    *,
    unit: DocumentUnit,
    piece_chars: int,
) -> Iterator[Document]:
    """Documents as the settings leave them: cleaned as a whole, and then cut into pieces.

    Args:
        sources, bad, unit, piece_chars: As for `read_documents`.
        settings, skipped: As for `clean`.
    """
    if settings == CleaningSettings():
        return read_documents(sources, bad, unit=unit, piece_chars=piece_chars)
    return cut_pieces(clean(read_documents(sources, bad, unit=unit), settings, skipped), piece_chars)


class LeftOut(NamedTuple):
    """Documents that are left out, by their places among those that cleaning leaves otherwise.

    Attributes:
        duplicates: Whose text stood before.
        near: Near-duplicates of earlier ones.
    """

    duplicates: Set[int] = frozenset()
    near: Set[int] = frozenset()


def clean(
    pieces: Iterator[Document],
    settings: CleaningSettings,
    skipped: Counter[str],
    *,
    first: int = 0,
    left_out: LeftOut | None = None,
) -> Iterator[Document]:
    """Changes texts and leaves documents out.

    Duplicates are documents that come in one piece; of a longer one, every piece is kept. Documents that are left have
    numbers without gaps.

    Args:
        pieces: The corpus.
        settings: What is asked for.
        skipped: Counts what is left out.
        first: Number of the first document.
        left_out: Which are duplicates, where that is known; None leaves out those whose text was met before.
    """
    gone = duplicates = 0
    with _SeenTexts() as seen:
        for piece in pieces:
            text = clean_text(piece.text, settings)
            whole = piece.offset == 0 and piece.last
            if whole and len(text) < settings.min_chars:
                skipped["documents that are too short"] += 1
            elif not text.strip():
                skipped["documents without text after cleaning"] += piece.offset == 0
            elif whole and (reason := _is_left_out(piece.document - gone - first, text, settings, seen, left_out)):
                skipped[reason] += 1
                duplicates += 1
                continue
            else:
                yield replace(piece, text=text, document=piece.document - gone - duplicates)
                continue
            gone += whole


def _is_left_out(
    place: int, text: str, settings: CleaningSettings, seen: _SeenTexts, left_out: LeftOut | None
) -> str | None:
    """Why a document is left out, if it is."""
    if left_out is not None:
        if place in left_out.duplicates:
            return "duplicates"
        return "near-duplicates" if place in left_out.near else None
    return "duplicates" if settings.duplicates != "keep" and seen.add(text) else None


def clean_text(text: str, settings: CleaningSettings) -> str:
    """Normalised characters, without control characters, with single spaces: as far as asked for."""
    if settings.unicode is not None:
        text = unicodedata.normalize(settings.unicode, text)
    if settings.control_characters == "drop" and not text.isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))
    if settings.white_space == "collapse":
        text = _AROUND_LINE_END.sub("\n", _SPACES.sub(" ", text)).strip()
    return text


def content_digest(text: str) -> bytes:
    """16 bytes that tell a text from all others."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _SeenTexts:
    """Hashes of 128 bits of all texts so far, on the disk, so that memory is bounded whatever the corpus."""

    def __enter__(self) -> _SeenTexts:
        self._folder = tempfile.TemporaryDirectory(prefix="unmask-")
        # Who trains a tokenizer reads from a thread of its own; there is one reader at a time in any case.
        path = Path(self._folder.name) / "seen.sqlite"
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=OFF")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")
        return self

    def add(self, text: str) -> bool:
        """Remembers a text; true where it was there before."""
        digest = content_digest(text)
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 0

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()


# ----------------------------------------
# How reading is shared out: tasks, each a stretch of a large file or some small files, which are read apart.
#
#     a.jsonl (3 GB)           ──▶  0: bytes up to 1.1 G    1: up to 2.1 G    2: up to the end
#     b/1.txt ... b/900.txt    ──▶  3: all of them
#     c.parquet (2 GB)         ──▶  4: groups of rows 0 to 11    5: 12 to 23
#     d.txt.gz                 ──▶  6: the file, which cannot be read from its middle
#
# A file is cut where a document begins. How it is cut depends on the files alone, never on who reads them or on how
# many
# do, so that whatever is made of a task is the same everywhere. A document's number is its task's and its place in it.

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


FEW_DOCUMENTS = 100
MANY_DOCUMENTS = 2000  # of so many, some are held out at any share worth asking for
SURVEY_CHARS = 256 << 20
PART_CHARS = 1 << 14
SMALL_PART_CHARS = 1 << 11


@dataclass(frozen=True)
class CorpusPlan:
    """How this corpus is read. The same files and settings always give the same plan.

    Attributes:
        unit: What a document is in text files and treebanks.
        reason: Why, in words.
        holdout_unit: Whether whole documents are held out or, where there are few, parts of them; or groups of
            documents by a column, the end of the text, files of their own, or nothing.
        threshold: A document or part is held out if its hash, in [0, 1), is below this.
        piece_chars: Longest piece that is read at once, in characters.
    """

    unit: DocumentUnit
    reason: str
    holdout_unit: Literal["document", "part", "group", "end", "file", "nothing"]
    threshold: float
    piece_chars: int

    def describe(self) -> str:
        """One line for the reader of a log."""
        held = {
            "document": f"whole documents, {self.threshold:.1%}",
            "part": f"parts of about {self.piece_chars:,} characters, since documents are few, {self.threshold:.1%}",
            "group": f"groups of documents, {self.threshold:.1%}",
            "end": f"the end of the text, {self.threshold:.1%}",
            "file": "files of their own",
            "nothing": "nothing",
        }
        return f"{self.unit_in_words}; held out: {held[self.holdout_unit]}"

    @property
    def unit_in_words(self) -> str:
        """What a document is."""
        return f"a document is {self.reason}"

    def holds_out(self, text: str) -> bool:
        """Whether a text falls on the held-out side; equal texts always fall on the same."""
        return fraction(text) < self.threshold


def plan_corpus(
    sources: Sequence[Source], settings: CorpusSettings, *, hold_out: bool, has_files: bool = False
) -> CorpusPlan:
    """Looks at the corpus and decides how to read it.

    Args:
        sources: The files; tables with their columns.
        settings: What the user asked for.
        hold_out: Whether a part is held out.
        has_files: Whether that is files of their own.

    Raises:
        CorpusError: A file cannot be read, there is no text at all, or too little to hold a part out.
    """
    bad = BadInput(skip=settings.bad_input == "skip")
    unit, reason = choose_unit(sources, settings.documents, bad)

    def pieces(piece_chars: int) -> Iterator[Document]:
        found = read_cleaned(sources, bad, settings.cleaning, Counter(), unit=unit, piece_chars=piece_chars)
        return _beginning_of_survey(found)

    if not hold_out:
        return CorpusPlan(unit, reason, "nothing", 0.0, PIECE_CHARS)
    if has_files:
        return CorpusPlan(unit, reason, "file", 0.0, PIECE_CHARS)
    if settings.holdout_from == "end" or isinstance(settings.holdout_groups, ColumnGroups):
        where: Literal["end", "group"] = "end" if settings.holdout_from == "end" else "group"
        return CorpusPlan(unit, reason, where, settings.holdout, PIECE_CHARS)
    begins = (fraction(piece.text) for piece in pieces(PIECE_CHARS) if piece.offset == 0)
    hashes = list(islice(begins, MANY_DOCUMENTS))
    if len(hashes) > FEW_DOCUMENTS and len(set(hashes)) > 1:
        return CorpusPlan(unit, reason, "document", _threshold(settings.holdout, hashes), PIECE_CHARS)
    part_chars = PART_CHARS
    hashes = [fraction(piece.text) for piece in pieces(part_chars)]
    if len(hashes) * settings.holdout < 4:  # little text: smaller parts, so that the share is met
        part_chars = SMALL_PART_CHARS
        hashes = [fraction(piece.text) for piece in pieces(part_chars)]
    if not hashes:
        raise CorpusError(f"{names_of(sources)}: there is no text in it")
    if len(set(hashes)) < 2:
        raise CorpusError(
            f"{names_of(sources)}: too little text to hold a part out for validation; give more (two different "
            f"documents, or {2 * SMALL_PART_CHARS:,} characters, at the least), or files of its own with "
            'corpus.validation=["FILE"]'
        )
    return CorpusPlan(unit, reason, "part", _threshold(settings.holdout, hashes), part_chars)


def _threshold(share: float, hashes: list[float]) -> float:
    """The share itself, moved only where none or all of the texts would fall below it."""
    lowest, second, *_ = sorted(set(hashes))
    return min(share if lowest < share else (lowest + second) / 2, max(hashes))


def _beginning_of_survey(pieces: Iterator[Document]) -> Iterator[Document]:
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece.text)
        if num_chars > SURVEY_CHARS:
            return
        yield piece


def fraction(text: str) -> float:
    """A hash of the text as a number in [0, 1)."""
    return text_hash(text) / 2**64


def text_hash(text: str) -> int:
    """A hash of the text as a whole number in [0, 2^64)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
