"""A first look at the corpus: what a document is, and how validation text is held out. Both are announced.

It reads until it has seen enough, never the whole of a large corpus.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from unmask.errors import CorpusError
from unmask.text.cleaning import read_cleaned
from unmask.text.documents import PIECE_CHARS, TextPiece, read_parts
from unmask.text.reading import BadInput, read_lines
from unmask.text.settings import ColumnGroups, CorpusSettings, DocumentUnit
from unmask.text.sources import Source
from unmask.text.text_columns import columns_of

LOOK_CHARS = 8 << 20
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
    reasons = []
    unit: DocumentUnit = "line"
    if texts := [source for source in sources if source.kind == "text"]:
        unit, why = (settings.documents, "as set") if settings.documents != "auto" else _choose_unit(texts, bad)
        reasons.append(f"a {unit} ({why})")
    if trees := [source for source in sources if source.kind in ("conll", "conllu")]:
        if not texts:
            unit = settings.documents if settings.documents != "auto" else _tree_unit(trees, bad)
        named = {"line": "a sentence", "block": "the sentences between two newdoc marks", "file": "the file"}
        reasons.append(f"{named[unit]} (corpus.documents = {unit})")
    if columns := {columns_of(source.column) for source in sources if source.column is not None}:
        several = "s" if any(len(names) > 1 for names in columns) else ""
        spelled = sorted(" and ".join(map(repr, names)) for names in columns)
        reasons.append(f"a row, its text in column{several} {' or '.join(spelled)}")
    if any(source.kind == "fasta" for source in sources):
        reasons.append("a sequence")
    reason = ", ".join(reasons)

    def pieces(piece_chars: int) -> Iterator[TextPiece]:
        found = read_cleaned(sources, bad, settings.cleaning, Counter(), unit=unit, piece_chars=piece_chars)
        return _beginning(found)

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
        raise CorpusError(f"{_names(sources)}: there is no text in it")
    if len(set(hashes)) < 2:
        raise CorpusError(
            f"{_names(sources)}: too little text to hold a part out for validation; give more (two different "
            f"documents, or {2 * SMALL_PART_CHARS:,} characters, at the least), or files of its own with "
            "--set 'corpus.validation=[\"FILE\"]'"
        )
    return CorpusPlan(unit, reason, "part", _threshold(settings.holdout, hashes), part_chars)


def _threshold(share: float, hashes: list[float]) -> float:
    """The share itself, moved only where none or all of the texts would fall below it."""
    lowest, second, *_ = sorted(set(hashes))
    return min(share if lowest < share else (lowest + second) / 2, max(hashes))


def _choose_unit(sources: Sequence[Source], bad: BadInput) -> tuple[DocumentUnit, str]:
    """Blocks where empty lines stand between lines of text, else lines, else the file."""
    lines = empty_inside = num_chars = looked = 0
    for source in sources:
        if num_chars >= LOOK_CHARS:
            break
        looked += 1
        lines_before, empty = lines, 0
        for line in read_lines(source.path, bad):
            if num_chars >= LOOK_CHARS:
                break
            num_chars += len(line.text) + 1
            if line.text.strip():
                lines += line.starts
                empty_inside, empty = empty_inside + empty, 0
            elif lines > lines_before:
                empty += 1
    if not lines:
        raise CorpusError(f"{_names(sources)}: there is no text in it")
    if empty_inside:
        return "block", f"there are {empty_inside:,} empty lines among the first {lines:,} lines of text"
    if lines > looked:
        return "line", "there are no empty lines between them"
    return "file", "there is one line a file"


def _tree_unit(sources: Sequence[Source], bad: BadInput) -> DocumentUnit:
    """Blocks where the beginning of the first file has marks of documents, else sentences."""
    beginning = islice(read_parts(sources[0], bad, None), 1000)
    return "block" if any(not line.text for line in beginning) else "line"


def _beginning(pieces: Iterator[TextPiece]) -> Iterator[TextPiece]:
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece.text)
        if num_chars > SURVEY_CHARS:
            return
        yield piece


def _names(sources: Sequence[Source]) -> str:
    names = [str(source.path) for source in sources]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def fraction(text: str) -> float:
    """A hash of the text as a number in [0, 1)."""
    return text_hash(text) / 2**64


def text_hash(text: str) -> int:
    """A hash of the text as a whole number in [0, 2^64)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
