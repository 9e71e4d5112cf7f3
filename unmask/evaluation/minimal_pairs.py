"""Minimal pairs in BLiMP's format: files of JSON lines, each with a sentence that is right and one that is wrong.

    {"sentence_good": "Katherine can't help herself.", "sentence_bad": "Katherine can't help himself.",
     "linguistics_term": "anaphor_agreement", "UID": "anaphor_gender_agreement", ...}

`UID` names the paradigm, `linguistics_term` the phenomenon that it belongs to. Where they are absent, the file's name
is the paradigm, and the paradigm is the phenomenon.

Source: Warstadt et al. 2020 (BLiMP: the benchmark of linguistic minimal pairs for English).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unmask.corpus.compression import bare_suffix, open_bytes
from unmask.corpus.reading import broken_character
from unmask.errors import CorpusError

_LINES = (".jsonl", ".ndjson", ".json")
_TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")


@dataclass(frozen=True)
class Pair:
    """A minimal pair.

    Attributes:
        good, bad: The sentence that is right, and the one that is wrong.
        paradigm: What pairs of a kind are called.
        phenomenon: What several paradigms show.
        where: File and line, for errors.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    where: str


def read_pairs(path: Path) -> list[Pair]:
    """Reads minimal pairs.

    Args:
        path: A file of JSON lines (also compressed), a folder of such, or a tar archive of such.

    Raises:
        CorpusError: There is no such file, no pair in it, or a line is not in BLiMP's format; with file and line.
    """
    if not path.exists():
        raise CorpusError(f"{path}: no such file; give a file, a folder or a tar archive of minimal pairs")
    pairs = [pair for name, file in _files(path) for pair in _pairs_of(name, file)]
    if not pairs:
        raise CorpusError(
            f"{path}: there are no minimal pairs in it; expected lines like "
            '{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."} in files that end with .jsonl'
        )
    return pairs


def _files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in their order by name, one open at a time."""
    if path.is_dir():
        for file in sorted(entry for entry in path.rglob("*") if entry.is_file() and bare_suffix(entry) in _LINES):
            with open_bytes(file) as content:
                yield str(file), content
    elif path.name.lower().endswith(_TARS):
        yield from _members(path)
    else:
        with open_bytes(path) as content:
            yield str(path), content


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an archive, which is read in one go and never unpacked to the disk."""
    found = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                hidden = Path(member.name).name.startswith("._")  # what macOS puts beside files
                if member.isfile() and not hidden and bare_suffix(Path(member.name)) in _LINES:
                    content = archive.extractfile(member)
                    assert content is not None, "a file has content"
                    found.append((f"{path}:{member.name}", content.read()))
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = next(iter(str(error).splitlines()), "it ends too early").rstrip(":")  # the rest lists all methods
        raise CorpusError(f"{path}: not a readable tar archive ({reason})") from error
    yield from ((name, io.BytesIO(data)) for name, data in sorted(found))


def _pairs_of(name: str, file: IO[bytes]) -> Iterator[Pair]:
    own_name = Path(name).name.split(".")[0]
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"{name}: line {number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise CorpusError(f"{where}: not JSON ({error}); minimal pairs are a JSON object a line") from error
        sentences = [entry.get(key) if isinstance(entry, dict) else None for key in ("sentence_good", "sentence_bad")]
        good, bad = sentences
        if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
            raise CorpusError(
                f"{where}: not in BLiMP's format; a pair is a JSON object with the texts sentence_good and sentence_bad"
            )
        if broken := broken_character(good + bad):
            raise CorpusError(f"{where}: a sentence holds {broken}, which is no character; take the pair out")
        paradigm = str(entry.get("UID") or own_name)
        yield Pair(good, bad, paradigm, str(entry.get("linguistics_term") or paradigm), where)
