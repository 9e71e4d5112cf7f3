"""Files whose writing leaves either the old content or the new one, even if killed; their checksums; output folders."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import multiprocessing
import os
import shlex
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unmask.core.errors import RunError, UnmaskError, WriteError, parse_json, sealed, shortened, unsealed

log = logging.getLogger(__name__)


@functools.cache
def say_once(message: str) -> None:
    """Warns once per message, and not in worker processes."""
    if multiprocessing.parent_process() is None:
        log.warning("%s", message)


CACHE = "UNMASK_CACHE"  # environment variable that replaces ~/.cache/unmask


def cache() -> Path:
    if named := os.environ.get(CACHE):
        return Path(named).absolute()  # records of fetched text are recognised by it
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def lasting_path(path: Path) -> Path:
    """An absolute path; in the cache, the path within it, which is the same on every machine."""
    path, root = path.absolute(), cache().absolute()
    return path.relative_to(root) if path.is_relative_to(root) else path


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """While a path is written, turns an `OSError`, or what a library raises in its place, into a WriteError."""
    refusals: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except WriteError:  # already names the file
        raise
    except refusals as error:
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        raise WriteError(number, reason or str(error), str(path)) from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` to write to, then flushes that file to the disk and renames it in one step.
    Links are not followed. If anything fails, nothing of it is left."""
    partial = path.with_name(path.name + ".partial")
    try:
        with writing(path):
            partial.unlink(missing_ok=True)
        yield partial
        with writing(path):
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync_names(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Writes a whole file (see `whole_file`); if that fails, a WriteError says why."""
    data = content.encode() if isinstance(content, str) else content
    with whole_file(path) as partial, writing(path), partial.open("xb") as file:
        file.write(data)


@contextlib.contextmanager
def whole_folder(target: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yields a new folder to fill, flushes its files to the disk and renames it, so that it is complete or absent.
    Until then an existing `target` stays, and the folder is called `partial` (None: `NAME.partial`, beside it)."""
    partial = partial or target.with_name(target.name + ".partial")
    try:
        with writing(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        yield partial
        with writing(target):
            for path in filter(Path.is_file, partial.iterdir()):
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            sync_names(partial)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
            sync_names(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object with its checksum under `sha256` (no key of its own), for `read_object`."""
    plain = json.loads(json.dumps(content))  # as JSON returns it: the checksum is of that
    write_atomically(path, json.dumps(sealed(plain), indent=1) + "\n")


def read_object(
    path: Path, way_out: str, *, is_sealed: bool = False, raising: type[UnmaskError] = RunError
) -> dict[str, Any]:
    """The object in a JSON file, checked against its checksum if it `is_sealed`. If it is damaged or missing, raises an
    error of the class `raising` with the way out."""
    try:
        content = unsealed(parse_json(path)) if is_sealed else parse_json(path)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise raising(f"{path}: damaged ({error}); {way_out}") from error
    return content


def absence(path: Path, kind: str = "file") -> str:
    """Why a path has no file (or folder, as `kind` says) to read: what is there instead, or that nothing is."""
    try:
        if path.exists():
            return f"this is {'a folder' if path.is_dir() else 'something else'}, not a {kind}"
    except (OSError, ValueError) as error:
        return f"cannot be accessed ({getattr(error, 'strerror', None) or error})"
    return f"this link points to no {kind}" if path.is_symlink() else f"no such {kind}"


def typed(path: str | Path) -> str:
    """A path as typed in a shell, for suggested commands; `-x`, which would be an option, becomes `./-x`."""
    text = str(path)
    return in_shell([f"./{text}" if text.startswith("-") else text])


def in_shell(words: Sequence[str]) -> str:
    """The words of a command as typed in a shell, quoted where that is needed."""
    if os.name == "posix":
        return shlex.join(words)
    from subprocess import list2cmdline  # the command line starts without it

    return list2cmdline(words)  # cmd knows only double quotes


def sync_names(folder: Path) -> None:
    if os.name == "posix":  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Output folders. A file, the marker, claims a folder for a command; without one, the folder's content is not ours. One
# process writes at a time: it holds a lock of the operating system, which is released however the process ends, and its
# id is recorded beside the lock. The steps are the same for runs, prepared data, indexes and all other outputs:
#
#     check ──▶ held ──▶ clear, to overwrite ──▶ claim ──▶ the work, its result written last
#                 └────▶ check_same, to resume ───────────▶

LOCK = ".lock"
REPLACED = ".replaced"  # in a folder: what an overwriting command found there, until its own work is accepted
_WAYS = {"resume": "resume it", "overwrite": "overwrite it"}


@dataclass(frozen=True, kw_only=True)
class ClaimedFolder:
    """A folder that one command writes."""

    root: Path
    marker: str | None  # name of the file that claims it; None: any content does
    what: str  # what a claimed folder holds, with its article
    last: str | None = None  # name of the file written last: without it, the work is unfinished
    # What it writes, and removes to overwrite. Unless it is overwritten, only these may be there before it is claimed:
    # `early`, what a stopped command leaves and the next one replaces; `theirs`, what a user may have made for it; and
    # files `*.partial`.
    ours: Collection[str] = ()
    early: Collection[str] = ()
    theirs: Collection[str] = ()
    is_shared: bool = True  # users may add files once it is claimed; they are never touched
    options: tuple[str, ...] = ("resume", "overwrite")  # options that allow writing a claimed folder
    error: type[UnmaskError] = RunError  # class of its errors
    named: str | None = None  # its name in errors; None: its path

    @property
    def is_claimed(self) -> bool:
        return bool(self._names()) if self.marker is None else (self.root / self.marker).is_file()

    def _names(self) -> list[str]:
        names = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        return sorted(names - {LOCK, f"{LOCK}.json", REPLACED})

    def check(self, *, resume: bool = False, overwrite: bool = False, inputs: Iterable[Path] = ()) -> None:
        """Checks that it may be written, and that overwriting would remove none of the `inputs`. Changes nothing."""
        if resume and overwrite:
            ways = "leave out overwrite to continue, or leave out resume to start over"
            raise self.error(f"resume and overwrite exclude each other; {ways}", options=("resume", "overwrite"))
        for path in inputs if overwrite else ():
            if path.resolve().is_relative_to(self.root.resolve()):
                raise self.error(
                    f"{path} is an input inside {self.root}, which would be removed", options=("overwrite", "out")
                )
        if self.root.exists() and not self.root.is_dir():
            raise self.error(f"{self.root} is a file; give a folder", options=("out",))
        if not (self.is_shared and self.is_claimed):
            may_be = {*self.theirs, *(self.ours if self.is_claimed or overwrite else self.early)}
            others = [name for name in self._names() if name not in may_be and not name.endswith(".partial")]
            if others:
                names = ", ".join(others[:3])
                raise self.error(f"{self.named or self.root} holds other files ({names}); give a new or empty folder")
        if self.is_claimed and not resume and not overwrite:
            ways = ", ".join([_WAYS[option] for option in self.options] + ["or give another folder"])
            is_whole = self.last is None or (self.root / self.last).is_file()
            state = "" if is_whole else ", which is unfinished"
            raise self.error(
                f"{self.named or self.root} already holds {self.what}{state}: {ways}", options=(*self.options, "out")
            )

    def check_same(
        self, before: Mapping[str, Any], now: Mapping[str, Any], *, but_for: Collection[str] = (), of: str = ""
    ) -> None:
        """Checks that the settings are those that the work began with: two tables of JSON or TOML, which may differ in
        the keys, or tables, of `but_for`. The error names the first difference; `of` says what its key belongs to."""
        for key, old, new in differences(before, now):
            if not any(key == name or key.startswith(f"{name}.") for name in but_for):
                raise self.changed(f"with {of}{key} = {shortened(repr(old))}, which is now {shortened(repr(new))}")

    def changed(self, how: str) -> UnmaskError:
        """The error that something differs from the beginning of the work; `how` continues the words `a run`."""
        options = tuple(option for option in self.options if option != "resume")
        ways = ", ".join(["change that back", *(_WAYS[option] for option in options), "or give another folder"])
        return self.error(
            f"{self.root} holds {self.what} {how}; {self.what} can only resume as it started: {ways}",
            options=(*options, "out"),
        )

    def clear(self, names: Iterable[str], *, marker: bool = True) -> None:
        """Removes these files and folders and all partial ones. The marker goes last, so the claim holds until then."""
        paths = [self.root / name for name in sorted(names) if name != self.marker]
        try:
            for path in (*paths, *self.root.glob("*.partial")):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if self.marker is not None and marker:
                (self.root / self.marker).unlink(missing_ok=True)
        except OSError as error:
            raise self.error(f"{self.root}: its content cannot be removed ({error})") from error

    def claim(self, content: str) -> None:
        assert self.marker is not None
        write_atomically(self.root / self.marker, content)

    @contextmanager
    def held(self, *, wait: float = 0) -> Iterator[None]:
        """Keeps other processes from writing here; see `locked`. A new folder that stays empty is removed."""
        is_new = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise self.error(f"{self.root} is a file; give a folder", options=("out",)) from error
        except OSError as error:
            raise self.error(f"{self.root}: cannot create the folder ({error.strerror})") from error
        with locked(self.root, lock=self.root / LOCK, wait=wait, error=self.error):
            try:
                yield
            finally:
                if is_new and not self._names():
                    shutil.rmtree(self.root, ignore_errors=True)

    @contextmanager
    def entered(
        self,
        *,
        resume: bool = False,
        overwrite: bool = False,
        inputs: Iterable[Path] = (),
        clears: Collection[str] | None = None,
    ) -> Iterator[None]:
        """Checks and locks the folder. To overwrite, it removes `clears`; None: all of `ours`, and the marker, which
        come back if the folder is not claimed in the end, as the new work was refused."""
        if (self.root / REPLACED).is_dir():  # put aside by a process that was killed
            with self.held():
                self._settle()
        self.check(resume=resume, overwrite=overwrite, inputs=inputs)
        with self.held():
            self.check(resume=resume, overwrite=overwrite)  # again, now that no other process can write
            if overwrite and clears is None and self.is_claimed:
                self._put_aside()
            if overwrite:
                self.clear(self.ours if clears is None else clears, marker=False)
            try:
                yield
            finally:
                self._settle()

    def _settle(self) -> None:
        if self.is_claimed:
            self.remove_replaced()
        else:
            self._restore()

    def _put_aside(self) -> None:
        with writing(self.root, self.error):
            (self.root / REPLACED).mkdir(exist_ok=True)
            for name in sorted({*self.ours, str(self.marker)}, key=lambda name: name != self.marker):
                if (path := self.root / name).exists():
                    path.rename(self.root / REPLACED / name)

    def _restore(self) -> None:
        if (aside := self.root / REPLACED).is_dir():
            with writing(self.root, self.error):
                self.clear(self.ours)
                for path in sorted(aside.iterdir(), key=lambda path: path.name == self.marker):
                    path.rename(self.root / path.name)
                aside.rmdir()
            log.warning("%s: %s that was to be overwritten is still there", self.root, self.what)

    def remove_replaced(self) -> None:
        """Removes what was overwritten, now that it will not come back."""
        shutil.rmtree(self.root / REPLACED, ignore_errors=True)


@contextmanager
def locked(
    out: Path,
    *,
    lock: Path | None = None,
    wait: float = 0,
    named: str | None = None,
    error: type[UnmaskError] = RunError,
) -> Iterator[None]:
    """While it is entered, no other process writes a file or folder. All outputs are locked here.

    Args:
        lock: The lock file; the process that holds it is recorded beside it. None: a temporary `.NAME.lock` beside
            `out`.
        wait: Seconds to wait while another process holds it; -1: until it is free.
        named: The output's name in errors; None: its path.
        error: The class of the error, which names the other process.
    """
    keeps_lock, lock = lock is not None, lock or out.with_name(f".{out.name}.lock")
    holder, system_lock = lock.with_name(f"{lock.name}.json"), FileLock(lock, preserve_lock_file=keeps_lock)
    with writing(out):
        try:
            system_lock.acquire(timeout=wait if wait >= 0 else 1.0)
        except Timeout:  # an `OSError` too
            if wait < 0:
                log.warning("%s: waiting for another process that writes here", named or out)
                system_lock.acquire()
    if not system_lock.is_locked:
        try:
            other = parse_json(holder)
            is_here = other["host"] == socket.gethostname()
            where = "" if is_here else f" on {other['host']}"
            who = f"another process ({other['pid']}{where}, since {other['since']})"
            if is_here and other["pid"] == os.getpid():  # stopping it would end a notebook
                who = f"another thread of this process (since {other['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another process (which has just started)"
        raise error(
            f"{named or out}: {who} is writing here; wait for it, stop it, or write elsewhere",
            options=("out",),
        )
    try:
        own = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        write_atomically(holder, json.dumps(own) + "\n")
        yield
    finally:
        holder.unlink(missing_ok=True)
        if not keeps_lock:  # before the release: a process that opened it meanwhile finds it gone and opens a new one
            with contextlib.suppress(OSError):  # Windows removes no open file
                lock.unlink()
        system_lock.release()


def leaves(table: Mapping[str, Any], prefix: str = "", *, between: str = ".") -> Iterator[tuple[str, Any]]:
    """The values in a table and in the tables within it, by dotted keys, or with another sign `between` their names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}{between}", between=between)
        else:
            yield f"{prefix}{key}", value


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The differences of two tables: each dotted key, with both values."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def check_file(out: Path, *, overwrite: bool) -> None:
    """Checks that a file may be written, before any work is done."""
    if out.is_dir():
        raise RunError(f"{out} is a folder; give a file", options=("out",))
    if out.exists() and not overwrite:
        raise RunError(f"{out} already exists; overwrite it, or give another file", options=("overwrite", "out"))


@contextmanager
def output_file(out: Path, *, overwrite: bool) -> Iterator[None]:
    """For the work whose result is a file: its folder exists, no other process writes it, and it may be written."""
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out):
        check_file(out, overwrite=overwrite)
        yield
