"""Cleaning, as far as the settings ask for it. Every document that is left out is counted."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from unmask.text.documents import Fields, TextPiece, cut_pieces, read_documents
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
    fields: Fields | None = None,
) -> Iterator[TextPiece]:
    """Documents as the settings leave them: cleaned as a whole, and then cut into pieces.

    Args:
        sources, bad, unit, piece_chars, fields: As for `read_documents`.
        settings, skipped: As for `clean`.
    """
    if settings == CleaningSettings():
        return read_documents(sources, bad, unit=unit, piece_chars=piece_chars, fields=fields)
    return cut_pieces(clean(read_documents(sources, bad, unit=unit, fields=fields), settings, skipped), piece_chars)


def clean(pieces: Iterator[TextPiece], settings: CleaningSettings, skipped: Counter[str]) -> Iterator[TextPiece]:
    """Changes texts and leaves documents out.

    Duplicates are looked for among documents that come in one piece; of a longer one, every piece is kept. Documents
    that are left have numbers without gaps.

    Args:
        pieces: The corpus.
        settings: What is asked for.
        skipped: Counts what is left out.
    """
    left_out = 0
    with _SeenTexts() as seen:
        for piece in pieces:
            text = clean_text(piece.text, settings)
            whole = piece.offset == 0 and piece.last
            if whole and len(text) < settings.min_chars:
                skipped["documents that are too short"] += 1
            elif not text.strip():
                skipped["documents without text after cleaning"] += piece.offset == 0
            elif whole and settings.duplicates == "drop" and seen.add(text):
                skipped["duplicates"] += 1
            else:
                yield replace(piece, text=text, document=piece.document - left_out)
                continue
            left_out += whole


def clean_text(text: str, settings: CleaningSettings) -> str:
    """Normalised characters, without control characters, with single spaces: as far as asked for."""
    if settings.unicode is not None:
        text = unicodedata.normalize(settings.unicode, text)
    if settings.control_characters == "drop" and not text.isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))
    if settings.white_space == "collapse":
        text = _AROUND_LINE_END.sub("\n", _SPACES.sub(" ", text)).strip()
    return text


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
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 0

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()
