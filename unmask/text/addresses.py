"""Text that lies elsewhere: `s3://`, `gs://`, `hf://`, `https://` and what else fsspec knows, as files on this machine.

    s3://bucket/corpus  ──list──▶ names, sizes, versions ──▶ ~/.cache/unmask/KEY/corpus/part-1.jsonl.gz ...

Files are fetched once, into a folder whose name is a hash of what the listing says: what has changed there is fetched
anew, and what was begun goes on with the files that are missing. A file has its name only once it is whole. Processes
of one machine wait for each other and find what another has fetched.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from filelock import FileLock

from unmask.errors import CorpusError
from unmask.files import writing

CACHE = "UNMASK_CACHE"  # names another folder than ~/.cache/unmask
TRIES, FIRST_WAIT = 7, 1.0  # seconds, twice as many after each try: two minutes in all
AT_ONCE = 4
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(.*)", re.DOTALL)
_LOCAL = ("file", "local")
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FOR_GOOD = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
log = logging.getLogger(__name__)
Value = TypeVar("Value")


def address_of(name: object) -> str | None:
    """The address that a name is; None: it is a path. What `Path` makes of one, with a slash less, counts as well."""
    if not isinstance(name, str | os.PathLike):
        return None
    found = _ADDRESS.fullmatch(os.fspath(name)) if isinstance(os.fspath(name), str) else None
    return None if found is None else f"{found[1]}://{found[2]}"


@dataclass(frozen=True)
class _Remote:
    """A file that lies elsewhere.

    Attributes:
        path: As its file system calls it.
        inside: Where it goes in the folder that it is fetched into.
        size: In bytes; None where nobody says.
        version: Other, when its content is.
    """

    path: str
    inside: str
    size: int | None
    version: str


def local_copies(address: str) -> list[Path]:
    """Fetches what is at an address, unless it was before.

    Args:
        address: Of a file, of a folder, or a pattern.

    Returns:
        A file, or a folder with all that is below it there; several for a pattern.

    Raises:
        CorpusError: There is nothing, it cannot be read, or a package for such addresses is missing.
        WriteError: The disk is full.
    """
    scheme, _, rest = address.partition("://")
    if scheme in _LOCAL:
        return [Path("/" + rest.lstrip("/"))]
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(address)
    except (ImportError, ValueError) as error:  # its text names the package
        raise CorpusError(f"{address}: addresses of this kind cannot be read ({error})") from error
    if any(sign in path for sign in "*?["):
        matches = _tried(address, lambda: sorted(system.glob(path)))
        if not matches:
            raise CorpusError(f"{address}: nothing there has such a name")
        return [_fetched(system, f"{scheme}://{match}", match) for match in matches]
    return [_fetched(system, address.rstrip("/"), path)]


def _fetched(system: Any, address: str, path: str) -> Path:
    """What is at one place, in the cache."""
    remotes = _tried(address, lambda: _listed(system, path.rstrip("/")))
    if not remotes:
        raise CorpusError(f"{address}: there is no file")
    listing = "\n".join(f"{remote.inside}\t{remote.size}\t{remote.version}" for remote in remotes)
    folder = _cache() / hashlib.sha256(f"{address}\n{listing}".encode()).hexdigest()[:24]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        missing = [remote for remote in remotes if not (folder / remote.inside).is_file()]
        if missing:
            log.info("%s: fetching %d files (%s bytes)", address, len(missing), f"{_size(missing):,}")
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(threads.map(lambda remote: _fetch(system, address, remote, folder / remote.inside), missing))
    return folder / PurePosixPath(remotes[0].inside).parts[0]


def _listed(system: Any, path: str) -> list[_Remote]:
    """The file at a place, or all below it, by name."""
    base = PurePosixPath(path).name or "text"
    found = system.find(path, detail=True)
    if not isinstance(found, dict):
        found = {name: system.info(name) for name in found}
    remotes = []
    for name, info in sorted(found.items()):
        below = name.removeprefix(path).lstrip("/") if name != path else ""
        inside = PurePosixPath(base, below)
        if ".." in inside.parts:
            raise CorpusError(f"{name}: such a name leads out of its folder")
        version = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("LastModified") or "")
        remotes.append(_Remote(name, str(inside), info.get("size"), version or str(system.ukey(name))))
    return remotes


def _fetch(system: Any, address: str, remote: _Remote, file: Path) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")

    def get() -> None:
        system.get_file(remote.path, str(partial))
        if remote.size is not None and partial.stat().st_size != remote.size:
            raise OSError(f"{partial.stat().st_size:,} bytes came, of {remote.size:,}")

    _tried(f"{address}: {remote.path}", get)
    with writing(file):
        os.replace(partial, file)


def _tried(what: str, work: Callable[[], Value]) -> Value:
    """Does it, several times where a server does not answer.

    Raises:
        CorpusError: It cannot be done.
    """
    for number in range(TRIES):
        try:
            return work()
        except CorpusError:
            raise
        except _FOR_GOOD as error:
            raise CorpusError(f"{what}: {type(error).__name__}: {error}") from error
        except Exception as error:  # whatever a package for a kind of server raises
            if getattr(error, "errno", None) in _OF_DISK:
                with writing(_cache()):
                    raise
            if number + 1 == TRIES:
                raise CorpusError(f"{what}: it was not to be had in {TRIES} tries ({error})") from error
            log.warning(
                "%s: %s; trying again", what, str(error).splitlines()[0] if str(error) else type(error).__name__
            )
            time.sleep(FIRST_WAIT * 2**number)
    raise AssertionError("the last try returns or raises")


def _cache() -> Path:
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def _size(remotes: Sequence[_Remote]) -> int:
    return sum(remote.size or 0 for remote in remotes)


def with_local_copies(names: Sequence[Any]) -> list[Any]:
    """Replaces addresses by what was fetched from them; all else stays.

    Raises:
        CorpusError, WriteError: As `local_copies`.
    """
    found: list[Any] = []
    for name in names:
        address = address_of(name)
        found += [name] if address is None else local_copies(address)
    return found
