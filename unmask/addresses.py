"""Text that lies elsewhere: `s3://`, `gs://`, `hf://`, `https://` and what else fsspec knows, as files on this machine.

    s3://bucket/corpus  ──list──▶ names, sizes, versions ──▶ ~/.cache/unmask/KEY/corpus/part-1.jsonl.gz ...

Files are fetched once, into a folder whose name is a hash of what the listing says: what has changed there is fetched
anew, and what was begun goes on with the files that are missing. A file has its name only once it is whole. Processes
of one machine wait for each other and find what another has fetched.

Of prepared data only the manifest and the tokenizer are fetched at once, into a folder whose name is a hash of the
manifest; shards follow as they are wanted (`unmask.shards.opening`).
"""

from __future__ import annotations

import errno
import hashlib
import json
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

from unmask.errors import CorpusError, DataError, UnmaskError
from unmask.files import file_sha256, write_atomically, writing
from unmask.values import parse_json

CACHE = "UNMASK_CACHE"  # names another folder than ~/.cache/unmask
TRIES, FIRST_WAIT = 7, 1.0  # seconds, twice as many after each try: two minutes in all
AT_ONCE = 4
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(.*)", re.DOTALL)
_LOCAL = ("file", "local")
_ORIGIN = "origin.json"  # in or beside what was fetched: from where
_DATA = "data-"
_MANIFEST, _TOKENIZER = "manifest.json", "tokenizer"  # by which prepared data is known
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FOR_GOOD = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, NotImplementedError)
log = logging.getLogger(__name__)
Value = TypeVar("Value")


def address_of(name: object) -> str | None:
    """The address that a name is; None: it is a path. What `Path` makes of one, with a slash less, counts as well."""
    if not isinstance(name, str | os.PathLike):
        return None
    found = _ADDRESS.fullmatch(os.fspath(name)) if isinstance(os.fspath(name), str) else None
    return None if found is None else f"{found[1]}://{found[2]}"


def path_at(out: str | Path) -> Path | None:
    """Where something is written on this machine; None: at an address elsewhere."""
    address = address_of(out)
    if address is None:
        return Path(out)
    scheme, _, rest = address.partition("://")
    return Path("/" + rest.lstrip("/")) if scheme in _LOCAL else None


@dataclass(frozen=True)
class Remote:
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
    if (here := path_at(address)) is not None:
        return [here]
    scheme = address.partition("://")[0]
    system, path = connect(address)
    if any(sign in path for sign in "*?["):
        matches = tried(address, lambda: sorted(system.glob(path)))
        if not matches:
            raise CorpusError(f"{address}: nothing there has such a name")
        return [_fetched(system, f"{scheme}://{match}", match) for match in matches]
    return [_fetched(system, address.rstrip("/"), path)]


def connect(address: str) -> tuple[Any, str]:
    """The file system of an address, and what it calls the place.

    Raises:
        CorpusError: No package for such addresses is there.
    """
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(address)
    except (ImportError, ValueError) as error:  # its text names the package
        raise CorpusError(f"{address}: addresses of this kind cannot be read ({error})") from error
    return system, path.rstrip("/")


def _fetched(system: Any, address: str, path: str) -> Path:
    """What is at one place, in the cache."""
    remotes = tried(address, lambda: listed(system, path.rstrip("/")))
    if not remotes:
        raise CorpusError(f"{address}: there is no file")
    base = PurePosixPath(remotes[0].inside).parts[0]
    of_data = [r for r in remotes if r.inside == f"{base}/{_MANIFEST}" or r.inside.startswith(f"{base}/{_TOKENIZER}/")]
    if {PurePosixPath(remote.inside).parts[1] for remote in of_data} == {_MANIFEST, _TOKENIZER}:
        return _fetched_data(system, address, path, of_data)
    listing = "\n".join(f"{remote.inside}\t{remote.size}\t{remote.version}" for remote in remotes)
    folder = cache() / hashlib.sha256(f"{address}\n{listing}".encode()).hexdigest()[:24]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        _note_origin(folder, address)
        missing = [remote for remote in remotes if not (folder / remote.inside).is_file()]
        if missing:
            log.info("%s: fetching %d files (%s bytes)", address, len(missing), f"{_size(missing):,}")
            fetch_all(system, address, [(remote, folder / remote.inside) for remote in missing])
    return folder / base


def _fetched_data(system: Any, address: str, path: str, remotes: Sequence[Remote]) -> Path:
    """The manifest and the tokenizer of prepared data, in the cache. The manifest comes last, as ever."""
    name = f"{path.rstrip('/')}/{_MANIFEST}"
    manifest: bytes = tried(f"{address}: {name}", lambda: system.cat_file(name))
    folder = cache() / f"{_DATA}{hashlib.sha256(manifest).hexdigest()[:24]}"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        _note_origin(folder, address)  # of the one that was named last, since others may be gone
        files = [(remote, folder.joinpath(*PurePosixPath(remote.inside).parts[1:])) for remote in remotes]
        fetch_all(system, address, [each for each in files if each[1].name != _MANIFEST and not each[1].is_file()])
        write_atomically(folder / _MANIFEST, manifest)
    return folder


def _note_origin(folder: Path, address: str) -> None:
    if origin_of(folder) != address:
        write_atomically(folder / _ORIGIN, json.dumps({"address": address}) + "\n")


def origin_of(path: Path) -> str | None:
    """The address that a file or a folder of the cache was fetched from; None: it is something else."""
    if not path.is_absolute() or cache() not in path.parents:
        return None
    return next((_noted(folder) for folder in (path, path.parent) if (folder / _ORIGIN).is_file()), None)


def _noted(folder: Path) -> str:
    return str(parse_json((folder / _ORIGIN).read_text(encoding="utf-8"))["address"])


def lasting_source(path: str | Path) -> str:
    """A path as records name it: of what was fetched its address and, behind a #, the name of its folder in the cache,
    which tells its content; these are the same on every machine."""
    path = Path(path)
    origin = origin_of(path)
    if origin is None:
        return str(path)
    return f"{origin}#{path.name if (path / _ORIGIN).is_file() else path.parent.name}"


def source_named(name: str) -> str:
    """Where what `lasting_source` names is on this machine; it is fetched where it is not there.

    Raises:
        CorpusError: It cannot be fetched, or has changed.
    """
    address, _, key = name.rpartition("#")
    if not key or address_of(address) is None:
        return name
    if key.startswith(_DATA) and (cache() / key / _MANIFEST).is_file():
        return str(cache() / key)
    found = cache() / key / PurePosixPath(address).name
    if not found.exists():
        (found,) = local_copies(address)
        if lasting_source(found) != name:
            raise CorpusError(f"{address}: what is there has changed since it was read first; begin anew")
    return str(found)


def fetch_checked(address: str, file: Path, sha256: str) -> None:
    """Fetches a file of known content, unless another process does meanwhile, which is waited for.

    Args:
        address: Of the file.
        file: Where it goes.
        sha256: Of its bytes.

    Raises:
        CorpusError: It cannot be fetched.
        DataError: What comes is something else.
        WriteError: The disk is full.
    """
    system, path = connect(address)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    with FileLock(file.with_name(f".{file.name}.lock")):
        for _ in range(2):  # what came may be cut off, where a server does not say how much there is
            if file.is_file():
                return
            tried(address, lambda: system.get_file(path, str(partial)))
            if file_sha256(partial) == sha256:
                with writing(file):
                    os.replace(partial, file)
    if not file.is_file():
        partial.unlink(missing_ok=True)
        raise DataError(f"{address}: its content does not fit the checksum in the manifest; prepare the data again")


def fetch_all(system: Any, address: str, files: Sequence[tuple[Remote, Path]]) -> None:
    """Fetches files, several at a time.

    Raises:
        CorpusError, WriteError: As `local_copies`.
    """
    if not files:
        return
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda each: _fetch(system, address, *each), files))


def listed(system: Any, path: str) -> list[Remote]:
    """The file at a place, or all below it, by name."""
    system.invalidate_cache()
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
        remotes.append(Remote(name, str(inside), info.get("size"), version or str(system.ukey(name))))
    return remotes


def _fetch(system: Any, address: str, remote: Remote, file: Path) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")

    def get() -> None:
        system.get_file(remote.path, str(partial))
        if remote.size is not None and partial.stat().st_size != remote.size:
            raise OSError(f"{partial.stat().st_size:,} bytes came, of {remote.size:,}")

    tried(f"{address}: {remote.path}", get)
    with writing(file):
        os.replace(partial, file)


def tried(
    what: str,
    work: Callable[[], Value],
    *,
    tries: int | None = None,
    how: str = "it was not to be had",
    raising: type[UnmaskError] = CorpusError,
) -> Value:
    """Does it, several times where a server does not answer.

    Args:
        what: The address, for the error.
        work: What is done.
        tries: How often at most; None: for two minutes.
        how: What the error says of it.
        raising: Its class.

    Raises:
        UnmaskError: It cannot be done.
    """
    tries = tries or TRIES
    for number in range(tries):
        try:
            return work()
        except UnmaskError:
            raise
        except _FOR_GOOD as error:
            raise raising(f"{what}: {type(error).__name__}: {error}") from error
        except Exception as error:  # whatever a package for a kind of server raises
            if getattr(error, "errno", None) in _OF_DISK:
                with writing(cache()):
                    raise
            if number + 1 == tries:
                raise raising(f"{what}: {how}{f' in {tries} tries' if tries > 1 else ''} ({error})") from error
            log.warning(
                "%s: %s; trying again", what, str(error).splitlines()[0] if str(error) else type(error).__name__
            )
            time.sleep(FIRST_WAIT * 2**number)
    raise AssertionError("the last try returns or raises")


def cache() -> Path:
    """The folder of what was fetched, and of what is to be sent."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def _size(remotes: Sequence[Remote]) -> int:
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
