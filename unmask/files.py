"""Files: written so that a kill at any moment leaves either the old content or the new one, and their checksums."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.errors import RunError, WriteError
from unmask.values import parse_json


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Tells in one line that a file or a folder cannot be written.

    Args:
        path: What is written.
        others: What a library raises in place of `OSError`.

    Raises:
        WriteError: It cannot be written.
    """
    refusals: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except WriteError:  # it names the file itself
        raise
    except refusals as error:
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        raise WriteError(number, reason or str(error), str(path)) from error


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Writes a file under another name, forces it to the disk, and gives it its name in one step.

    Raises:
        WriteError: It cannot be written; nothing of it is left.
    """
    partial = path.with_name(path.name + ".partial")
    data = content.encode() if isinstance(content, str) else content
    try:
        with writing(path):
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except WriteError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@contextlib.contextmanager
def whole_folder(target: Path, partial: Path | None = None) -> Iterator[Path]:
    """Gives a new folder to fill, forces its files to the disk and gives it its name: it is whole or not there.

    Args:
        target: The folder; one that stands there is replaced.
        partial: Where it is until then; None: beside it, as `NAME.partial`.

    Raises:
        WriteError: It cannot be made or moved; nothing of it is left.
    """
    partial = partial or target.with_name(target.name + ".partial")
    try:
        with writing(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        yield partial
        with writing(target):
            sync_folder(partial)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_object(path: Path, way_out: str) -> dict[str, Any]:
    """The object in a JSON file that a run wrote.

    Args:
        path: The file.
        way_out: What to do where it is damaged, in words.

    Raises:
        RunError: It is not there, no JSON, or no object.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: damaged ({error}); {way_out}") from error
    return content


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe, which can be read only once"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def absence(path: Path, wanted: str = "file") -> str:
    """Why there is no file, or no folder, to be read at a path: what stands there, or that nothing does.

    Args:
        path: Where there is none.
        wanted: `file` or `folder`.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"this link leads to no {wanted}" if path.is_symlink() else f"no such {wanted}"
    except NotADirectoryError:
        return f"no such {wanted}: a part of this path is no folder"
    except (OSError, ValueError) as error:
        return f"cannot be looked at ({getattr(error, 'strerror', None) or error})"
    what = next((what for fits, what in _KINDS if fits(mode)), "a file")
    return f"this is {what}, not a {wanted}"


def typed(path: str | Path) -> str:
    """A path as it is typed in a shell, for commands that are suggested.

    Example: `my runs/a` is `'my runs/a'`, and `-x`, which would be an option, `./-x`.
    """
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def sync_folder(folder: Path) -> None:
    """Forces every file in a folder, and the folder's own list of names, to the disk."""
    for path in folder.iterdir():
        if not path.is_file():
            continue
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if os.name == "posix":  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
