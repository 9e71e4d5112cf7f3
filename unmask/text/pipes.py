"""Text that is no file: standard input, and pipes such as `<(zcat a.gz)`. It can be read once, so it is kept as a file.

    unmask prepare - <(zcat a.gz) <(zcat b.gz) --out data     data/stdin.txt, data/pipes/1.txt, data/pipes/2.txt

What comes out of them is plain text, unless the name of a pipe says otherwise, as after `mkfifo rows.jsonl`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from unmask.addresses import lasting_source, source_named
from unmask.errors import CorpusError
from unmask.files import writing
from unmask.text.reading import CHUNK_BYTES, COMPRESSIONS, bare_suffix
from unmask.text.sources import SUFFIXES

STDIN, STDIN_FILE, PIPES = "-", "stdin.txt", "pipes"
_ALSO_STDIN = (STDIN, "/dev/stdin", "/dev/fd/0")
_MARK = "<({})"  # as shells write it


def is_stream(name: object) -> bool:
    """Whether what a user names can be read once: standard input or a pipe."""
    if not isinstance(name, str | Path):
        return False
    try:
        return str(name) in _ALSO_STDIN or Path(name).is_fifo()
    except (OSError, ValueError):  # whoever looks for a file says what is wrong with the name
        return False


class StreamNames:
    """The files that streams are kept in: one for standard input, one for each pipe in their order."""

    def __init__(self) -> None:
        self._num_pipes = 0

    def file_of(self, name: str | Path) -> str:
        """The file of the next stream, as a path within the folder that it is kept in."""
        if str(name) in _ALSO_STDIN:
            return STDIN_FILE
        self._num_pipes += 1
        return f"{PIPES}/{self._num_pipes}{_suffixes(Path(name))}"


def _suffixes(path: Path) -> str:
    if bare_suffix(path) not in SUFFIXES:
        return ".txt"
    return bare_suffix(path) + (path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else "")


def names_to_keep(names: Sequence[object]) -> list[str]:
    """Sources as the settings of prepared data name them: a pipe by its file, `<(pipes/1.txt)`.

    The number that a shell gives to a pipe (/dev/fd/63) says nothing the next time.
    """
    files, found = StreamNames(), []
    for name in names:
        if isinstance(name, str | Path) and is_stream(name):
            file = files.file_of(name)
            found.append(STDIN if file == STDIN_FILE else _MARK.format(file))
        else:
            found.append(lasting_source(name) if isinstance(name, str | Path) else str(name))
    return found


def kept_source(folder: Path, name: str) -> str:
    """Where what `names_to_keep` names lies now, for data that was prepared in a folder.

    Raises:
        CorpusError: It has an address, and cannot be fetched from there or has changed.
    """
    name = source_named(name)
    if name == STDIN:
        return str(folder / STDIN_FILE)
    before, after = _MARK.split("{}")
    return str(folder / name[len(before) : -len(after)]) if name.startswith(f"{before}{PIPES}/") else name


@contextmanager
def from_stdin() -> Iterator[IO[bytes]]:
    """Standard input.

    Raises:
        CorpusError: It is a terminal, or closed; or, while it is read, it cannot be.
    """
    if sys.stdin is None:
        raise CorpusError("- reads standard input, but that is closed; pipe a text into the command")
    if sys.stdin.isatty():
        raise CorpusError("- reads standard input, but that is a terminal; pipe a text into the command")
    try:
        yield sys.stdin.buffer
    except OSError as error:
        raise CorpusError(f"standard input cannot be read ({error.strerror or error}); pipe a text in") from error


def keep_stream(name: str | Path, file: Path, *, kept: bool) -> Path:
    """Writes what comes out of a stream into a file, which has its name only once all has come.

    Args:
        name: Of standard input or a pipe.
        file: Where.
        kept: Whether a file that is there stands in where nothing comes now.

    Raises:
        CorpusError: Standard input is a terminal or closed; nothing comes; or it cannot be read.
        WriteError: The file cannot be written.
    """
    kept = kept and file.is_file()
    is_stdin = str(name) in _ALSO_STDIN
    if is_stdin and kept and (sys.stdin is None or sys.stdin.isatty()):
        return file
    partial = file.with_name(file.name + ".partial")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            for chunk in _from_stdin() if is_stdin else _from_pipe(Path(name)):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if partial.stat().st_size:
            os.replace(partial, file)
            return file
        partial.unlink()
    if kept:
        return file
    raise CorpusError("standard input is empty" if is_stdin else f"{name}: nothing came out of this pipe")


def _from_stdin() -> Iterator[bytes]:
    with from_stdin() as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _from_pipe(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise CorpusError(f"{path}: this pipe cannot be read ({error.strerror or error})") from error


@contextmanager
def readable(path: str | Path) -> Iterator[Path]:
    """A file that can be read again and again: the path itself, or, of a stream, a temporary copy while it is entered.

    Raises:
        CorpusError: As `keep_stream`.
    """
    if not is_stream(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        file = keep_stream(path, Path(scratch) / StreamNames().file_of(path), kept=False)
        try:
            yield file
        except CorpusError as error:
            raise CorpusError(str(error.args[0]).replace(str(file), str(path))) from error
