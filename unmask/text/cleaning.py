"""Cleaning, as far as the settings ask for it. Every document that is left out is counted."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from unmask.text.documents import TextPiece, cut_pieces, read_documents
from unmask.text.reading import BadInput
from unmask.text.settings import CleaningSettings, DocumentUnit
from unmask.text.sources import Source

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
) -> Iterator[TextPiece]:
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
    pieces: Iterator[TextPiece],
    settings: CleaningSettings,
    skipped: Counter[str],
    *,
    first: int = 0,
    left_out: LeftOut | None = None,
) -> Iterator[TextPiece]:
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
