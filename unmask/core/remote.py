"""Inputs and outputs at addresses: `s3://`, `gs://`, `hf://`, `https://` and whatever else fsspec supports.

    s3://bucket/corpus  ──▶ ~/.cache/unmask/KEY/corpus/part-1.jsonl.gz ...     inputs, fetched once
    ~/.cache/unmask/out-KEY/NAME/ ... ──▶ s3://bucket/NAME/                    outputs, sent after each checkpoint

KEY of an input is a hash of its listed files (name, size, version): changed files are fetched anew, and a stopped fetch
continues with the missing ones. A file gets its name only once it is complete.

fsspec's own `filecache` is not used: runs record the content that they read, and its names do not identify that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

from unmask.core.errors import CorpusError, RunError, UnmaskError, parse_json, without_secrets, without_secrets_of
from unmask.core.files import LOCK, REPLACED, ClaimedFolder, cache, locked, write_atomically, writing

TRIES, FIRST_WAIT = 7, 1.0  # seconds, doubled after each try
AT_ONCE = 4
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(.*)", re.DOTALL)
_ORIGIN = "origin.json"  # file beside what was fetched, with its address
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_PERMANENT = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, NotImplementedError)
# The order in which files are sent. First what claims the place, so that a run whose first upload is broken off can
# resume; behind all others what marks these as complete.
_OTHERS = "others"
_ORDER = (
    "sources.json", "recipe.toml", "settings.json", _OTHERS, "*/manifest.json", "checkpoints/*/state.json",
    "summary.json", "manifest.json",
)  # fmt: skip
_NEVER = (LOCK, f"{LOCK}.json", REPLACED, "*.partial", "partial*", "*.tmp", ".*.lock")
log = logging.getLogger(__name__)


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True


log.addFilter(_without_secrets)
Value = TypeVar("Value")


def address_of(name: object) -> str | None:
    """The address in a name; None for a path. An address that `Path` has shortened by a slash counts as well."""
    text = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    text = name.as_posix() if isinstance(name, PureWindowsPath) else text
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else f"{match[1]}://{match[2]}"


def path_at(out: str | Path) -> Path | None:
    """The local path of an output; None if it is at a remote address."""
    address = address_of(out)
    if address is None:
        return Path(out)
    scheme, _, rest = address.partition("://")
    if scheme not in ("file", "local"):
        return None
    path = Path(rest.lstrip("/"))
    return path if path.drive else Path("/") / path


def local_copies(*names: Any) -> list[Any]:
    """Replaces addresses of files, folders and patterns by local copies, fetched unless they exist; leaves everything
    else. Raises a CorpusError if nothing is there, it cannot be read, or the package for such addresses is missing."""
    paths: list[Any] = []
    for name in names:
        if (address := address_of(name)) is None:
            paths.append(name)
        elif (local := path_at(address)) is not None:
            paths.append(local)
        else:
            system, path = connect(address)
            is_web = address.startswith(("http://", "https://"))  # there ? begins a query
            if not any(sign in path.partition("?")[0] if is_web else sign in path for sign in "*?["):
                paths.append(_fetch(system, address.rstrip("/"), path))
                continue
            matches = sorted(tried(address, partial(system.glob, path)))
            if not matches:
                raise CorpusError(f"{address}: no file matches this pattern")
            log.warning("%s: fetching %d files, unless they are in the cache", address, len(matches))
            scheme = address.partition("://")[0]
            paths += [_fetch(system, f"{scheme}://{match}", match, level=logging.INFO) for match in matches]
    return paths


def connect(address: str) -> tuple[Any, str]:
    """fsspec's file system for an address, and the path within it."""
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(address)
    except (ImportError, ValueError) as error:  # the error names the missing package
        raise CorpusError(f"{address}: cannot read this kind of address ({error})") from error
    return system, path.rstrip("/")


def _fetch(system: Any, address: str, path: str, *, level: int = logging.WARNING) -> Path:
    sizes = tried(address, lambda: _listed(system, path))
    if not sizes:
        raise CorpusError(f"{address}: no such file")
    address = without_secrets(address)
    base = PurePosixPath(urlsplit(path).path if "://" in path else path).name or "text"
    inside = {name: PurePosixPath(base, name.removeprefix(path).lstrip("/")) for name in sizes}
    for name, place in inside.items():
        if ".." in place.parts:
            raise CorpusError(f"{name}: this name points outside its folder")
    listing = "\n".join(f"{inside[name]}\t{size}\t{version}" for name, (size, version) in sizes.items())
    folder = cache() / hashlib.sha256(f"{address}\n{listing}".encode()).hexdigest()[:24]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def get(name: str, callback: Any) -> None:
        file = folder / inside[name]
        unfinished = file.with_name(f".{file.name}.partial")
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        _download(system, address, name, unfinished, sizes[name][0], callback)
        with writing(file):
            os.utime(unfinished, (0, 0))  # the same on any machine: preparations recognise files by their times, too
            os.replace(unfinished, file)

    with locked(folder, lock=folder / LOCK, wait=-1):
        write_atomically(folder / _ORIGIN, json.dumps({"address": address}) + "\n")
        if missing := [name for name in sizes if not (folder / inside[name]).is_file()]:
            size = f" ({num:,} bytes)" if (num := sum(sizes[name][0] or 0 for name in missing)) else ""
            # At the level that is shown by default, since it may take hours.
            log.log(level, "%s: fetching %d files%s", address, len(missing), size)
            _in_threads(get, missing)
    return folder / base


def _download(system: Any, address: str, name: str, target: Path, size: int | None, callback: Any) -> None:
    def copy() -> None:
        callback.relative_update(0)
        system.get_file(name, str(target), callback=callback)
        callback.relative_update(0)  # it may have called nothing until now
        if size is not None and target.stat().st_size != size:
            raise OSError(f"{target.stat().st_size:,} bytes arrived, of {size:,}")

    tried(f"{address}: {name}", copy)


def _in_threads(transfer: Callable[[str, Any], None], names: Iterable[str], *, is_upload: bool = False) -> None:
    """Transfers files in a few threads, each by its name and a callback for fsspec; after an error, begins no further
    file.

    After Ctrl-C, the callback ends each download at its next piece. No download is waited for, since huggingface_hub
    fetches whole files without calling it: the threads are daemons, which end with the process. Uploads are waited for.
    """
    from fsspec.callbacks import NoOpCallback

    is_stopped, failures, waiting = threading.Event(), list[BaseException](), iter(list(names))

    def check(_: int = 0) -> None:
        if is_stopped.is_set():
            raise RunError("stopped")

    # With a callback of any other class, huggingface_hub fetches small pieces, which is slow.
    callback = NoOpCallback()
    callback.relative_update = callback.absolute_update = check

    def work() -> None:
        try:
            for name in waiting:  # shared by the threads
                if not failures:
                    transfer(name, callback)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, name="unmask-transfer", daemon=True) for _ in range(AT_ONCE)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # Windows delivers Ctrl-C only between waits
    except KeyboardInterrupt:
        is_stopped.set()
        for thread in threads:
            if is_upload and thread.is_alive():
                thread.join()
        raise
    if failures:
        raise failures[0]


def _listed(system: Any, path: str) -> dict[str, tuple[int | None, str]]:
    """The size, if known, and the version of the file at a path, or of all files below it, by name."""
    system.invalidate_cache()
    infos = system.find(path, detail=True)
    if not isinstance(infos, dict):
        infos = {name: system.info(name) for name in infos}
    versions = ("ETag", "etag", "md5Hash", "LastModified")
    return {
        name: (info.get("size"), next((str(info[key]) for key in versions if info.get(key)), str(system.ukey(name))))
        for name, info in sorted(infos.items())
    }


def tried(
    what: str,
    work: Callable[[], Value],
    *,
    how: str = "it could not be read",
    raising: type[UnmaskError] = CorpusError,
) -> Value:
    """Runs `work`, which talks to the server of an address (`what`), and tries again while that does not answer. If it
    still fails, raises an error of the class `raising`, which says `how`."""
    for number in range(TRIES):
        try:
            return work()
        except UnmaskError:
            raise
        except _PERMANENT as error:  # from None: a traceback would show the address's secrets
            raise raising(f"{what}: {type(error).__name__}: {without_secrets_of(what, str(error))}") from None
        except Exception as error:  # each package for a kind of server has its own exceptions
            if getattr(error, "errno", None) in _OF_DISK:
                with writing(cache()):
                    raise
            if number + 1 == TRIES:
                raise raising(f"{what}: {how} in {TRIES} tries ({without_secrets_of(what, str(error))})") from None
            reason = without_secrets_of(what, next(iter(str(error).splitlines()), type(error).__name__))
            log.warning("%s: %s; trying again", what, reason)
            time.sleep(FIRST_WAIT * 2**number)
    raise AssertionError("the last try returns or raises")


def lasting_source(path: str | Path) -> str:
    """A path as records name it; a fetched copy is `ADDRESS#KEY`, whose key identifies the content."""
    file = Path(path).parent / _ORIGIN
    if not file.is_absolute() or cache() not in file.parents or not file.is_file():
        return str(path)
    return f"{parse_json(file)['address']}#{file.parent.name}"


def source_named(name: str) -> str:
    """The local path of what `lasting_source` names; fetches it if it is missing."""
    address, _, key = name.rpartition("#")
    if not key or address_of(address) is None:
        return name
    path = cache() / key / PurePosixPath(urlsplit(address).path).name
    if not path.exists():
        (path,) = local_copies(address)
        if lasting_source(path) != name:
            raise CorpusError(f"{address}: its content has changed since it was first read; start over")
    return str(path)


def refused(out: str | Path, what: str) -> None:
    """Raises a RunError if `out` is an address: a command does not write there."""
    if path_at(out) is None:
        way_out = "give a local path"
        raise RunError(f"{address_of(out)}: {what} cannot be written to an address; {way_out}", options=("out",))


@dataclass
class Output:
    """The folder or file that a command writes, and the address that `put` sends it to (None: nowhere)."""

    path: Path
    address: str | None = None
    _sent: dict[str, tuple[int, int]] = field(default_factory=dict)  # size and time of the last change, by name
    _overwrites: bool = False  # whether the files there are of earlier work, which the first `put` replaces

    def _files(self) -> dict[str, tuple[int, int]]:
        """The files here that belong at the address, as `_sent` has them."""
        files: dict[str, tuple[int, int]] = {}
        for path in [self.path] if self.path.is_file() else self.path.rglob("*"):
            inside = path.relative_to(self.path)  # `.` for a file that is the output itself
            if path.is_file() and not any(PurePosixPath(part).match(p) for p in _NEVER for part in inside.parts):
                files[inside.as_posix()] = path.stat().st_size, path.stat().st_mtime_ns
        return files

    def put(self) -> None:
        """Sends new and changed files, in the order of `_ORDER`; removes those that are gone here.

        Call it while no file is being written, such as after a checkpoint. After a RunError the local files are kept.
        """
        if self.address is None:
            return
        system, root = connect(self.address)
        current = self._files()

        def order(name: str) -> int:
            path, others = PurePosixPath("/" + name), _ORDER.index(_OTHERS)
            return next((n for n, pattern in enumerate(_ORDER) if path.match("/" + pattern)), others)

        def send(name: str, callback: Any = None) -> None:
            place = root if name == "." else f"{root}/{name}"

            def work() -> None:
                if name in current:
                    callback.relative_update(0)  # by whole files: ended within one, fsspec would complete it as it is
                    system.put_file(str(self.path / name), place)
                elif system.exists(place):
                    system.rm_file(place)

            tried(f"{self.address}/{name}", work, how="it could not be sent", raising=RunError)

        changed = sorted((name for name in sorted(current) if self._sent.get(name) != current[name]), key=order)
        gone = sorted(set(self._sent) - set(current), key=order, reverse=True)
        for name in gone if self._overwrites else ():  # first: an old summary would mark the new files as complete
            send(name)
        for _, names in groupby(changed, key=order):
            _in_threads(send, names, is_upload=True)
        for name in gone if not self._overwrites else ():
            send(name)
        self._sent, self._overwrites = current, False


@contextmanager
def output_at(
    out: str | Path,
    claim: Callable[[Path], ClaimedFolder] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Output]:
    """Yields where to work: `out` or, for an address, a folder of the cache, sent there by `put` and at the end of the
    work.

    The files at the address are fetched first, so that any machine can continue. With `overwrite` they stay until new
    files are sent. Two processes of one machine cannot write to an address at a time; two machines that do so corrupt
    it. `claim` makes the claim to the folder; None: a file is written.
    """
    if (local := path_at(out)) is not None:
        yield Output(local)
        return
    address = str(address_of(out)).rstrip("/")
    own = cache() / f"out-{hashlib.sha256(address.encode()).hexdigest()[:24]}"
    path = own / PurePosixPath(address).name
    with locked(own, named=address):
        system, root = connect(address)
        existing = tried(address, lambda: _listed(system, root))
        if claim is None and existing and not overwrite:
            raise RunError(f"{address} already exists; overwrite it, or give another", options=("overwrite", "out"))
        with writing(path):
            shutil.rmtree(own, ignore_errors=True)
            (own if claim is None else path).mkdir(parents=True)
        output = Output(path, address)
        if claim is not None:
            files = {name: path / name.removeprefix(root).lstrip("/") for name in existing}
            for file in files.values():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()  # the check needs only its name
            claimed = replace(claim(path), named=address)
            claimed.check(resume=resume, overwrite=overwrite)

            def get(name: str, callback: Any) -> None:
                _download(system, address, name, files[name], existing[name][0], callback)

            if not overwrite:
                _in_threads(get, files)
            output._sent = output._files()
            if overwrite:
                claimed.clear(claimed.ours)
                output._overwrites = True
        try:
            yield output
            output.put()
        except BaseException as error:
            has_unsent = output._files().items() - output._sent.items()
            if not has_unsent or (output._overwrites and not claimed.is_claimed):
                raise
            if not isinstance(error, RunError):  # sends what is done so far
                try:
                    output.put()
                except (RunError, KeyboardInterrupt):
                    pass
                else:
                    raise
            saved = own.with_name(f"{own.name}-{time.time_ns()}")
            os.replace(own, saved)
            log.warning("%s: results not uploaded yet are kept in %s", address, saved)
            raise
