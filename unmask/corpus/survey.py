"""A first look at the corpus: what a document is, and how validation text is held out. Both are announced.

It reads until it has seen enough, never the whole of a large corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from unmask.corpus.documents import PIECE_CHARS, TextPiece, read_documents
from unmask.corpus.settings import CorpusSettings, DocumentUnit
from unmask.corpus.text import read_lines
from unmask.errors import CorpusError

LOOK_CHARS = 8 << 20
FEW_DOCUMENTS = 100
SURVEY_CHARS = 256 << 20
PART_CHARS = 1 << 14
SMALL_PART_CHARS = 1 << 11


@dataclass(frozen=True)
class Plan:
    """How this corpus is read. The same files and settings always give the same plan.

    Attributes:
        unit: What a document is.
        reason: Why, in words.
        holdout_unit: Whether whole documents are held out or, where there are few, parts of them.
        threshold: A document or part is held out if its hash, in [0, 1), is below this.
        piece_chars: Longest piece that is read at once, in characters.
    """

    unit: DocumentUnit
    reason: str
    holdout_unit: Literal["document", "part"]
    threshold: float
    piece_chars: int

    def describe(self) -> str:
        """One line for the reader of a log."""
        held = (
            "whole documents"
            if self.holdout_unit == "document"
            else f"parts of about {self.piece_chars:,} characters, since documents are few"
        )
        return f"a document is a {self.unit} ({self.reason}); held out: {held}, {self.threshold:.1%}"


def plan_corpus(paths: Sequence[Path], settings: CorpusSettings) -> Plan:
    """Looks at the corpus and decides how to read it.

    Args:
        paths: The files.
        settings: What the user asked for.

    Raises:
        CorpusError: No files, a file that cannot be read, no text at all, or too little to hold a part out.
    """
    if not paths:
        raise CorpusError("no files were given")
    unit, reason = (settings.documents, "as set") if settings.documents != "auto" else _choose_unit(paths)
    hashes = [fraction(piece.text) for piece in islice(_first_pieces(paths, unit), FEW_DOCUMENTS + 1)]
    if len(hashes) > FEW_DOCUMENTS:
        return Plan(unit, reason, "document", settings.holdout, PIECE_CHARS)
    part_chars = PART_CHARS
    hashes, num_chars = _part_hashes(paths, unit, part_chars)
    if len(hashes) * settings.holdout < 4:  # little text: smaller parts, so that the share is met
        part_chars = SMALL_PART_CHARS
        hashes, num_chars = _part_hashes(paths, unit, part_chars)
    if len(hashes) < 2:
        raise CorpusError(
            f"{', '.join(map(str, paths))}: {num_chars:,} characters of text are too few to hold a part out for "
            f"validation; give more text (two documents, or {2 * SMALL_PART_CHARS:,} characters, at the least)"
        )
    lowest, *others = sorted(hashes)
    threshold = max(settings.holdout, (lowest + others[0]) / 2) if lowest >= settings.holdout else settings.holdout
    return Plan(unit, reason, "part", min(threshold, max(hashes)), part_chars)


def _choose_unit(paths: Sequence[Path]) -> tuple[DocumentUnit, str]:
    """Blocks where empty lines stand between lines of text, else lines, else the file."""
    lines = empty = empty_inside = num_chars = 0
    for path in paths:
        for line in read_lines(path):
            num_chars += len(line.text) + 1
            if line.text.strip():
                lines += line.ends
                empty_inside = empty
            elif lines:
                empty += 1
        if num_chars >= LOOK_CHARS:
            break
    if not lines:
        raise CorpusError(f"{', '.join(map(str, paths))}: there is no text in it")
    if empty_inside:
        return "block", f"there are {empty_inside:,} empty lines among the first {lines:,} lines of text"
    if lines > len(paths):
        return "line", "there are no empty lines between them"
    return "file", "there is one line a file"


def _first_pieces(paths: Sequence[Path], unit: DocumentUnit) -> Iterator[TextPiece]:
    num_chars = 0
    for piece in read_documents(paths, unit):
        num_chars += len(piece.text)
        if num_chars > SURVEY_CHARS:
            return
        if piece.offset == 0:
            yield piece


def _part_hashes(paths: Sequence[Path], unit: DocumentUnit, part_chars: int) -> tuple[list[float], int]:
    hashes, num_chars = [], 0
    for piece in read_documents(paths, unit, piece_chars=part_chars):
        hashes.append(fraction(piece.text))
        num_chars += len(piece.text)
        if num_chars > SURVEY_CHARS:
            break
    return hashes, num_chars


def fraction(text: str) -> float:
    """A hash of the text as a number in [0, 1): the same text always falls on the same side."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def split_validation(pieces: Iterator[TextPiece], plan: Plan) -> Iterator[tuple[TextPiece, bool]]:
    """Marks each piece as training text (False) or validation text (True).

    Whole documents go by the hash of their first piece, which is stable when the corpus grows; equal documents are
    always on the same side.
    """
    held = False
    for piece in pieces:
        if plan.holdout_unit == "part" or piece.offset == 0:
            held = fraction(piece.text) < plan.threshold
        yield piece, held
