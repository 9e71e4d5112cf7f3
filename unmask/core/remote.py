"""Text that lies elsewhere: `s3://`, `gs://`, `hf://`, `https://` and what else fsspec knows, as files on this machine.

    s3://bucket/corpus  ──list──▶ names, sizes, versions ──▶ ~/.cache/unmask/KEY/corpus/part-1.jsonl.gz ...

Files are fetched once, into a folder whose name is a hash of what the listing says: what has changed there is fetched
anew, and what was begun goes on with the files that are missing. A file has its name only once it is whole. Processes
of one machine wait for each other and find what another has fetched.

Of prepared data only the manifest and the tokenizer are fetched at once, into a folder whose name is a hash of the
manifest; shards follow as they are wanted (`unmask.data.data_folder`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from filelock import FileLock

from unmask.core.errors import CorpusError, DataError, RunError, UnmaskError, parse_json
from unmask.core.files import HOLDER, LOCK, ClaimedFolder, check_file, file_sha256, held_file, write_atomically, writing

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


# ----------------------------------------
# A folder on this machine whose whole files are sent to an address, as they become whole.
#
#     ~/.cache/unmask/out-KEY/NAME/   the work: parts, shards, checkpoints ──┐ a thread looks every second
#                             sent.json   what is at the address by now      └─▶ s3://bucket/NAME/
#
# Whatever this package writes has its name only once it is whole, so that a file which is there can be sent, and
# whoever
# writes it needs to know nothing of addresses. In what order files are sent is as strict as in what order they are
# written: what says that others are whole (a part, a checkpoint's state, a manifest, a summary) is looked for before
# those and sent after them. So at any moment what is at the address is what a kill could have left in a folder.
#
# A file whose size and checksum are known to be there is not sent again.

PAUSE = 1.0  # seconds between two looks
SENT = "sent.json"
# What is sent after all that it speaks of, in this order; the first pattern that fits counts.
_LAST: tuple[str, ...] = (
    "parts/*.json",
    "*/parts/*.json",
    "parts/*.task",
    "*/parts/*.task",
    "unfinished.json",
    "*/unfinished.json",
    "*/manifest.json",
)
_LAST += ("checkpoints/*/state.json", "recipe.toml", "settings.json", "summary.json", "manifest.json")
_GROWING = ("metrics.jsonl", "tensorboard/*")  # sent with what is sent last, and at the end
# What was only looked at is looked at anew; what was made of it is sent.
_LOOKED_AT = ("parts/*.npz", "parts/*.arrow", "parts/*.state")
_NEVER = ("*.partial", LOCK, HOLDER, SENT, ".*", *_LOOKED_AT, *(f"*/{name}" for name in _LOOKED_AT))


@dataclass(frozen=True)
class Sent:
    """What is known to be at the address.

    Attributes:
        size: In bytes.
        sha256: Of the bytes; None: it came from there, and was not hashed.
        changed: Of the file here, in nanoseconds; None: it is not here.
        version: As the server calls it; None: it was about to be sent, or to be removed, when this was written.
    """

    size: int | None
    sha256: str | None
    changed: int | None
    version: str | None


class Mirror:
    """Sends a folder; see the module's docstring. As a context manager it has a thread do so meanwhile.

    Args:
        address: Where to.
        folder: Where the work is done; what was sent stands beside it.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self._system, self._path = connect(address)
        self._file = folder.parent / SENT
        self._sent = self._read()
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="unmask-mirror", daemon=True)

    def _read(self) -> dict[str, Sent]:
        try:
            found = parse_json(self._file.read_text(encoding="utf-8"))
            return {name: Sent(**entry) for name, entry in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _save(self) -> None:
        write_atomically(self._file, json.dumps({name: asdict(entry) for name, entry in self._sent.items()}))

    def there(self) -> dict[str, Remote]:
        """The files at the address, by their names in the folder.

        Raises:
            CorpusError: It cannot be looked at.
        """

        def look() -> list[Remote]:
            try:
                return listed(self._system, self._path)
            except FileNotFoundError:
                return []

        found = {str(PurePosixPath(*PurePosixPath(r.inside).parts[1:])): r for r in tried(self.address, look)}
        return {name: remote for name, remote in found.items() if name not in (".", HOLDER)}

    def is_as_left(self, there: dict[str, Remote]) -> bool:
        """Whether the address holds what was sent from this folder, and nothing else."""
        return set(there) <= set(self._sent) and all(
            sent.version is None or (name in there and there[name].version == sent.version)
            for name, sent in self._sent.items()
        )

    def begin_from(self, there: dict[str, Remote], wanted: Callable[[str], bool]) -> None:
        """Fetches what is wanted of what is there, and is not here.

        Args:
            there: As `there` has found.
            wanted: Says of a name whether it is.

        Raises:
            CorpusError, WriteError: As `unmask.core.remote.local_copies`.
        """
        files = {name: self.folder / name for name in there if wanted(name)}
        missing = {name for name, path in files.items() if not path.is_file()}
        fetch_all(self._system, self.address, [(there[name], files[name]) for name in missing])
        self._seen = set(files)  # so that one which goes before the first look is missed
        known, self._sent = self._sent, {}
        for name, remote in there.items():
            sent = known.get(name)
            if sent is None or sent.version != remote.version:  # nothing is known of it, or it was being sent
                sent = Sent(remote.size, None, None, remote.version)
            self._sent[name] = replace(sent, changed=files[name].stat().st_mtime_ns) if name in missing else sent
        self._save()

    def remove(self, names: Iterable[str], *, tries: int | None = None) -> None:
        """Removes files at the address: first those that say that others are whole.

        Raises:
            RunError: One cannot be removed.
        """
        names = sorted(names, key=lambda name: (-_turn(name), name))
        for name in names:
            self._sent[name] = Sent(None, None, None, None)
        if names:
            self._save()
        for name in names:
            self._do(f"remove {name}", partial(self._removed, self._at(name)), tries)
            self._sent.pop(name)
        if names:
            self._save()

    def _removed(self, path: str) -> None:
        try:
            self._system.rm_file(path)
        except FileNotFoundError:
            return

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _do(self, what: str, work: Callable[[], object], tries: int | None) -> None:
        tried(f"{self.address}: {what}", work, tries=tries, how="it was not to be done", raising=RunError)

    def say_who(self, text: str) -> str | None:
        """Writes who sends files, with which it is known that files can be written there.

        Returns:
            What was said there before, by somebody who has not ended or was killed.

        Raises:
            RunError: Nothing can be written there.
        """
        place, before = self._at(HOLDER), None
        try:
            before = self._system.cat_file(place).decode(errors="replace")
        except Exception:  # nobody is there; or nothing can be read, which the next line says
            before = None
        self._do("cannot be written", lambda: self._system.pipe_file(place, text.encode()), None)
        return before

    def say_nobody(self) -> None:
        """Takes that away again, if that is possible."""
        try:
            self._system.rm_file(self._at(HOLDER))
        except Exception as error:  # of whatever package: it does no harm where it stays
            log.debug("%s: %s", self.address, error)

    def _names(self) -> dict[str, os.stat_result]:
        """The files of the folder that may be sent."""
        found = {}
        for root, folders, files in os.walk(self.folder):
            inside = Path(root).relative_to(self.folder)
            folders[:] = [name for name in folders if not _is_passing(inside / name)]
            for name in (inside / name for name in files if not _is_passing(inside / name)):
                try:
                    found[name.as_posix()] = (self.folder / name).stat()
                except OSError:  # it is gone by now
                    continue
        return found

    def send(self, *, final: bool = False, tries: int | None = None) -> None:
        """Sends what is new and removes what is gone, once.

        Args:
            final: Whether nobody writes in the folder any more.
            tries: For each file; None: for two minutes.

        Raises:
            RunError: It cannot be sent.
        """
        last = {name: stat for name, stat in self._names().items() if _turn(name) and self._is_new(name, stat)}
        now = self._names()
        self._seen |= set(now)
        new = [name for name, stat in now.items() if not _turn(name) and self._is_new(name, stat)]
        if not last and not final:
            new = [name for name in new if not _fits(name, _GROWING)]
        turns = [new, *([name] for name in sorted(last, key=lambda name: (_turn(name), name)))]
        for names in turns:
            self._send_all(names, {**now, **last}, tries)
        gone = self._seen - set(now)
        self.remove(gone & set(self._sent), tries=tries)
        self._seen -= gone

    def _is_new(self, name: str, stat: os.stat_result) -> bool:
        sent = self._sent.get(name)
        return sent is None or (sent.size, sent.changed) != (stat.st_size, stat.st_mtime_ns) or sent.version is None

    def _send_all(self, names: list[str], stats: dict[str, os.stat_result], tries: int | None) -> None:
        """Sends some files, several at a time."""
        if not names:
            return
        found = {}
        for name in names:
            try:
                stat, sha256 = stats[name], file_sha256(self.folder / name)
            except OSError:  # it is gone by now
                continue
            before = self._sent.get(name)
            if before is not None and before.version is not None and before.sha256 == sha256:
                self._sent[name] = Sent(stat.st_size, sha256, stat.st_mtime_ns, before.version)
                continue
            self._sent[name] = found[name] = Sent(stat.st_size, sha256, stat.st_mtime_ns, None)
        if found:
            self._save()
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(threads.map(lambda name: self._put(name, found[name], tries), found))
        self._save()

    def _put(self, name: str, sent: Sent, tries: int | None) -> None:
        here = self.folder / name

        def put() -> Remote | None:
            try:
                self._system.put_file(str(here), self._at(name))
            except FileNotFoundError:
                if here.is_file():
                    raise
                return None  # it is gone by now
            (remote,) = listed(self._system, self._at(name))
            return remote

        found: list[Remote | None] = []
        self._do(name, lambda: found.append(put()), tries)
        remote = found[0]
        if remote is None:
            self._sent.pop(name)
        elif remote.size in (None, sent.size) and here.is_file() and here.stat().st_mtime_ns == sent.changed:
            self._sent[name] = Sent(sent.size, sent.sha256, sent.changed, remote.version)
        else:  # it was written meanwhile, and is sent again
            self._sent[name] = Sent(remote.size, None, None, remote.version)

    def _follow(self) -> None:
        wait = PAUSE
        while not self._stop.wait(wait):
            try:
                self.send(tries=1)
                wait = PAUSE
            except (UnmaskError, OSError) as error:
                wait = min(wait * 2, 60.0)
                log.warning("%s; it is kept in %s, and sent later", error, self.folder)

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self.send(final=True)
        except UnmaskError as reason:
            way_out = f"what was made is kept in {self.folder}, and sent by the same command with --resume"
            if error is None:
                raise RunError(f"{reason}; {way_out}") from reason
            log.warning("%s; %s", reason, way_out)  # beside what the work ends with
        else:
            self.say_nobody()


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(PurePosixPath("/" + name).match("/" + pattern) for pattern in patterns)


def _turn(name: str) -> int:
    """When a file is sent: 0 are those that nothing has to wait for."""
    return next((number + 1 for number, pattern in enumerate(_LAST) if _fits(name, [pattern])), 0)


def _is_passing(name: Path) -> bool:
    """Whether a file or folder is not to be sent: it is not whole yet, or of this machine alone."""
    if any(PurePosixPath(name.name).match(pattern) for pattern in _NEVER):
        return True
    in_checkpoints = name.parent.name == "checkpoints"
    return in_checkpoints and (name.name.startswith("partial") or name.suffix == ".safetensors")


# ----------------------------------------
# Outputs at addresses: a command works in a folder of the cache, which is mirrored (`unmask.core.remote`).
#
# What is at the address is what counts. A folder of the cache goes on only where the address holds what was sent from
# it;
# else it is made anew from there. So a command that is started again on another machine goes on from what was sent, and
# one on the same machine also from what was not.
#
# One process of a machine writes to an address at a time. That nobody does on another is not known, since servers of
# objects have no locks: who has begun stands there, and a warning says so.

Wanted = Callable[[Collection[str]], Callable[[str], bool]]
"""Of the names of all files at an address, says which are fetched when work goes on from there."""


def all_of_it(names: Collection[str]) -> Callable[[str], bool]:
    """Fetches everything."""
    return lambda name: True


def refused(out: str | Path, what: str) -> None:
    """Says that a command does not write to addresses.

    Raises:
        RunError: `out` is one.
    """
    if path_at(out) is None:
        raise RunError(f"{address_of(out)}: {what} is not written to an address; give a folder or a file as --out")


@contextmanager
def staged(
    out: str | Path,
    claim: Callable[[Path], ClaimedFolder],
    *,
    resume: bool = False,
    overwrite: bool = False,
    wanted: Wanted = all_of_it,
    unfinished: str | None = None,
) -> Iterator[Path]:
    """The folder to work in: `out`, or, for an address, one whose files are sent there until this is left.

    Args:
        out: A folder or an address.
        claim: The claim on a folder, as the command has it.
        resume: Go on with what is there.
        overwrite: Remove it first.
        wanted: What is fetched of it.
        unfinished: Name of a file beside which the marker does not count: the work goes on anyway.

    Raises:
        UnmaskError: The address cannot be read or written, holds something else, or another process of this machine
            writes there; and whatever the claim says of what is there.
    """
    if (here := path_at(out)) is not None:
        yield here
        return
    address = str(address_of(out))
    address = address.rstrip("/")
    folder = _folder_of(address)
    with held_file(folder, named=address):
        mirror = Mirror(address, folder)
        there = mirror.there()
        claimed = replace(claim(folder), named=address)
        if not mirror.is_as_left(there) or overwrite:
            if folder.exists() and not overwrite:
                log.info("%s: what is there is not what this machine has sent; it is fetched anew", address)
            shutil.rmtree(folder.parent, ignore_errors=True)
            mirror = Mirror(address, folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _check(claimed, there, resume=resume or unfinished in there, overwrite=overwrite)
        _say_who(mirror)
        if overwrite:
            mirror.remove(name for name in there if PurePosixPath(name).parts[0] in _ours(claimed))
            there = {}
        mirror.begin_from(there, wanted(there.keys()))
        with mirror:
            yield folder


def _folder_of(address: str) -> Path:
    key = hashlib.sha256(address.encode()).hexdigest()[:24]
    return cache() / f"out-{key}" / (PurePosixPath(address).name or "out")


def _ours(claimed: ClaimedFolder) -> set[str]:
    return {*claimed.ours, *([claimed.marker] if claimed.marker else [])}


def _check(claimed: ClaimedFolder, there: Collection[str], *, resume: bool, overwrite: bool) -> None:
    """What `ClaimedFolder.check` says of a folder, of what is at an address.

    Raises:
        UnmaskError: As there.
    """
    if resume and overwrite:
        raise claimed.error("--resume and --overwrite exclude each other")
    is_claimed = claimed.marker in there if claimed.marker else bool(there)
    strangers = sorted({PurePosixPath(name).parts[0] for name in there} - _ours(claimed))
    if strangers and not (claimed.is_shared and is_claimed):
        raise claimed.holds_others(strangers)
    if is_claimed and not resume and not overwrite:
        raise claimed.is_there()


def _say_who(mirror: Mirror) -> None:
    own = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    before = mirror.say_who(json.dumps(own) + "\n")
    if before is not None:
        log.warning(
            "%s: somebody has begun to write there and was killed, or has not ended yet (%s); make sure that nobody "
            "else writes there now",
            mirror.address,
            before.strip(),
        )


@contextmanager
def staged_file(out: str | Path, *, overwrite: bool) -> Iterator[Path]:
    """The file to write: `out`, or, for an address, one of the cache that is sent there when this is left.

    Args:
        out: A file or an address.
        overwrite: Replace it.

    Raises:
        RunError: It is there already, or cannot be sent; then it is kept, and the error says where.
    """
    if (here := path_at(out)) is not None:
        yield here
        return
    address = str(address_of(out))
    system, path = connect(address)
    if tried(address, lambda: bool(system.exists(path))) and not overwrite:
        raise RunError(f"{address} is already there; replace it with --overwrite, or give another --out")
    file = _folder_of(address)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    check_file(file, overwrite=overwrite)
    yield file
    how = f"it is kept as {file}, since it was not to be sent"
    tried(address, lambda: system.put_file(str(file), path), how=how, raising=RunError)
    file.unlink()
