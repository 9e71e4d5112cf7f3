"""A first look at the corpus: what a document is, and how validation text is held out. Both are announced.

It reads only as much as it needs, never all of a large corpus.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Literal

import pyarrow.parquet as pq

from unmask.core.errors import CorpusError
from unmask.core.files import lasting_path
from unmask.data.documents import MARKUP, PIECE_CHARS, Document, choose_unit, cut_pieces, names_of, read_documents
from unmask.data.json_rows import json_form
from unmask.data.reading import COMPRESSIONS, BadInput, Stretch, bare_suffix, wide_encoding
from unmask.data.settings import CleaningSettings, CorpusSettings, DocumentUnit
from unmask.data.sources import Source
from unmask.data.tables import DAMAGED

# ----------------------------------------
# Documents that are left out, as set. Every one is counted.


def without_repeats(
    pieces: Iterator[Document], skipped: Counter[str], *, first: int = 0, left_out: Mapping[int, str] | None = None
) -> Iterator[Document]:
    """Leaves documents out, counted in `skipped`, and numbers the others without gaps, from `first` on.

    Only documents of one piece are compared; all pieces of a longer one are kept. `left_out` gives the reason for each
    document to leave out, by its place among all; None leaves out repeated texts.
    """
    num_left_out = 0
    seen: set[bytes] = set()  # 100 bytes a text, if there was no look at the corpus
    for piece in pieces:
        reason = None
        if piece.last and piece.offset == 0:
            if left_out is not None:
                reason = left_out.get(piece.document - first)
            else:
                digest = content_digest(piece.text)
                reason = "duplicates" if digest in seen else None
                seen.add(digest)
        if reason is None:
            yield replace(piece, document=piece.document - num_left_out)
        else:
            skipped[reason] += 1
            num_left_out += 1


def content_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


# ----------------------------------------
# How reading is divided: each task is a part of a large file, or several small files.
#
#     a.jsonl (3 GB)           ──▶  0: bytes up to 1.1 G    1: up to 2.1 G    2: up to the end
#     b/1.txt ... b/900.txt    ──▶  3: all of them
#     c.parquet (2 GB)         ──▶  4: row groups 0 to 11    5: 12 to 23
#     d.txt.gz                 ──▶  6: the file, which can only be read from its beginning
#
# A file is cut where a document begins. The cuts depend only on the files, so the results of a task are the same
# everywhere. A document's number consists of its task's number and its place in the task.

SMALLEST_TASK_BYTES, LARGEST_TASK_BYTES = 1 << 25, 1 << 30
TASKS_A_CORPUS = 1024
PLACE_BITS = 32  # lowest bits of a document's number: its place in its task
_WINDOW = 1 << 20  # bytes to search for the beginning of a document
_LINE, _BLOCK, _SEQUENCE = re.compile(rb"\n"), re.compile(rb"\n[ \t\r]*\n"), re.compile(rb"\n(?=>)")


@dataclass(frozen=True)
class ReadTask:
    """What one process reads at a time."""

    number: int  # counted from 0; held-out files come last
    sources: tuple[Source, ...]  # files, or a part of one
    num_bytes: int  # their size on the disk, compressed or not
    is_held: bool = False  # whether these are held-out files

    @property
    def first_document(self) -> int:
        return self.number << PLACE_BITS

    @property
    def stamp(self) -> str:
        """A hash of what is read and how; equal stamps mean equal text."""
        content = []
        for source in self.sources:
            stat = source.path.stat()
            file = [str(lasting_path(source.path)), stat.st_size, stat.st_mtime_ns, source.stretch]
            content.append([*file, source.kind, source.column, source.label, source.group, source.layout])
        return hashlib.sha256(json.dumps([self.number, self.is_held, content]).encode()).hexdigest()


def plan_reading(
    sources: Sequence[Source], held: Sequence[Source], *, unit: DocumentUnit, encoding: str | None = None
) -> list[ReadTask]:
    """Cuts files, then held-out files, into tasks of about a thousandth of the files, 32 MiB to 1 GiB. Text files are
    cut between documents, as `unit` defines them."""
    total = sum(source.path.stat().st_size for source in (*sources, *held))
    size_bytes = min(max(total // TASKS_A_CORPUS, SMALLEST_TASK_BYTES), LARGEST_TASK_BYTES)
    tasks: list[ReadTask] = []
    for files, is_held in ((sources, False), (held, True)):
        groups: list[tuple[list[Source], int]] = []
        small, small_bytes = list[Source](), 0  # files that are read together
        for source in files:
            stretches = _stretches(source, unit, encoding, size_bytes)
            if len(stretches) == 1:
                small.append(source)
                small_bytes += stretches[0][1]
            if len(stretches) > 1 or small_bytes >= size_bytes:
                groups.append((small, small_bytes))
                small, small_bytes = [], 0
            if len(stretches) > 1:
                groups += [([stretch], num_bytes) for stretch, num_bytes in stretches]
        for group, num_bytes in (*groups, (small, small_bytes)):
            if group:
                tasks.append(ReadTask(len(tasks), tuple(group), num_bytes, is_held))
    return tasks


def _stretches(source: Source, unit: DocumentUnit, encoding: str | None, size_bytes: int) -> list[tuple[Source, int]]:
    """The parts of a file with their sizes; the whole file if it is too small or cannot be cut."""
    num_bytes = source.path.stat().st_size
    if num_bytes < 2 * size_bytes:
        return [(source, num_bytes)]
    marks: dict[str, re.Pattern[bytes] | None] = {"fasta": _SEQUENCE, "smiles": _LINE}  # pattern before a document
    if source.kind == "text":
        marks["text"] = {"line": _LINE, "block": _BLOCK, "file": None}[unit]
    if source.kind == "jsonl" and json_form(source.path) == "lines":
        marks["jsonl"] = _LINE
    mark = None if source.path.suffix.lower() in COMPRESSIONS else marks.get(source.kind)
    with source.path.open("rb") as file:  # not all have line ends of one byte, or say their encoding again
        is_wide = wide_encoding(file.read(_WINDOW), encoding) or "\n".encode(encoding or "utf-8") != b"\n"
        mark = None if is_wide else mark
    if mark is None and source.kind != "parquet":
        return [(source, num_bytes)]
    begins, sizes = [0], list[int]()
    if mark is not None:
        with source.path.open("rb") as file:
            for place in range(size_bytes, num_bytes - size_bytes // 2, size_bytes):
                file.seek(place)
                match = mark.search(file.read(_WINDOW))
                if match is not None and begins[-1] < place + match.end() < num_bytes:
                    begins.append(place + match.end())
        begins.append(num_bytes)
        sizes = [stop - begin for begin, stop in pairwise(begins)]
    else:
        try:
            with pq.ParquetFile(source.path) as file:
                groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
                of_groups = [sum(g.column(n).total_compressed_size for n in range(g.num_columns)) for g in groups]
        except DAMAGED:  # reading will report it
            return [(source, num_bytes)]
        begins = []
        for number, size in enumerate(of_groups):
            if not begins or sizes[-1] >= size_bytes:
                begins.append(number)
                sizes.append(0)
            sizes[-1] += size
        begins.append(len(groups))
    if len(sizes) < 2:
        return [(source, num_bytes)]
    return [
        (replace(source, stretch=Stretch(begin, stop)), size)
        for (begin, stop), size in zip(pairwise(begins), sizes, strict=True)
    ]


FEW_DOCUMENTS = 100
MANY_DOCUMENTS = 2000  # with so many, some are held out at any useful share
SURVEY_CHARS = 256 << 20
PART_CHARS = 1 << 14
SMALL_PART_CHARS = 1 << 11


@dataclass(frozen=True)
class CorpusPlan:
    """How a corpus is read. The same files and settings always give the same plan."""

    unit: DocumentUnit  # what a document is in text files and treebanks
    reason: str  # why, in words
    # What is held out: whole documents or, if they are few, parts of them; groups of documents by a column; the end of
    # the text; separate files; or nothing
    holdout_unit: Literal["document", "part", "group", "end", "file", "nothing"]
    threshold: float  # a document without a group, or a part, is held out if its hash, in [0, 1), is below this
    piece_chars: int  # characters of the longest piece

    def describe(self) -> str:
        held = {
            "document": f"{self.threshold:.1%} of the documents",
            "part": f"{self.threshold:.1%} of the text: since there are few documents, short ones, and parts of those "
            f"longer than about {self.piece_chars:,} characters",
            "group": f"{self.threshold:.1%} of the text, in groups of documents",
            "end": f"the last {self.threshold:.1%} of the text",
            "file": "separate files",
            "nothing": "nothing",
        }
        return f"a document is {self.reason}; held out: {held[self.holdout_unit]}"


def plan_corpus(
    sources: Sequence[Source], settings: CorpusSettings, bad: BadInput, *, hold_out: bool, has_files: bool = False
) -> CorpusPlan:
    """Looks at the corpus and decides how to read it; with `has_files`, separate files are held out."""
    unit, reason = choose_unit(sources, settings.documents, bad)
    if any(bare_suffix(source.path) in MARKUP for source in sources):
        reason += ", with the tags of HTML and XML (to leave them out, extract the text first)"

    def pieces(piece_chars: int) -> Iterator[Document]:
        if settings.cleaning == CleaningSettings():
            documents = read_documents(sources, bad, unit=unit, piece_chars=piece_chars)
        else:
            documents = cut_pieces(without_repeats(read_documents(sources, bad, unit=unit), Counter()), piece_chars)
        num_chars = 0
        for piece in documents:
            num_chars += len(piece.text)
            if num_chars > SURVEY_CHARS:
                return
            yield piece

    if not hold_out or has_files:
        return CorpusPlan(unit, reason, "file" if hold_out else "nothing", 0.0, PIECE_CHARS)
    if settings.holdout_from == "end" or settings.holdout_groups is not None:
        where: Literal["end", "group"] = "end" if settings.holdout_from == "end" else "group"
        return CorpusPlan(unit, reason, where, settings.holdout, PIECE_CHARS)

    def threshold(hashes: list[float]) -> float:
        """The share itself, moved only if none or all of the texts would be below it."""
        lowest, second, *_ = sorted(set(hashes))
        return min(settings.holdout if lowest < settings.holdout else (lowest + second) / 2, max(hashes))

    begins = (fraction(piece.text) for piece in pieces(PIECE_CHARS) if piece.offset == 0)
    hashes = list(islice(begins, MANY_DOCUMENTS))
    if len(hashes) > FEW_DOCUMENTS and len(set(hashes)) > 1:
        return CorpusPlan(unit, reason, "document", threshold(hashes), PIECE_CHARS)
    part_chars = PART_CHARS
    hashes = [fraction(piece.text) for piece in pieces(part_chars)]
    if len(hashes) * settings.holdout < 4:  # little text: smaller parts come closer to the share
        part_chars = SMALL_PART_CHARS
        hashes = [fraction(piece.text) for piece in pieces(part_chars)]
    if not hashes:
        raise CorpusError(f"{names_of(sources)}: contains no text")
    if len(set(hashes)) < 2:
        raise CorpusError(
            f"{names_of(sources)}: too little text to hold out a part for validation; give more (at least two "
            f"different documents or {2 * SMALL_PART_CHARS:,} characters), or a separate file with "
            "'corpus.validation=[\"FILE\"]'"
        )
    return CorpusPlan(unit, reason, "part", threshold(hashes), part_chars)


def fraction(text: str) -> float:
    """A hash of the text as a number in [0, 1)."""
    return text_hash(text) / 2**64


def text_hash(text: str) -> int:
    """A hash of the text as a whole number in [0, 2^64)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
