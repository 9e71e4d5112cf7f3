"""Files: written so that a kill at any moment leaves either the old content or the new one, and their checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unmask.core.errors import RunError, UnmaskError, WriteError, parse_json, sealed, shortened, unsealed

CACHE = "UNMASK_CACHE"  # names another folder than ~/.cache/unmask


def cache() -> Path:
    if named := os.environ.get(CACHE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Makes a WriteError of an `OSError`, or of what a library raises in its place, while a path is written."""
    refusals: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except WriteError:  # it names the file itself
        raise
    except refusals as error:
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        raise WriteError(number, reason or str(error), str(path)) from error


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Writes a file under another name, forces it to the disk, and gives it its name in one step. No link is followed.
    Where it cannot be written, nothing of it is left, and a WriteError says why."""
    partial = path.with_name(path.name + ".partial")
    data = content.encode() if isinstance(content, str) else content
    try:
        with writing(path):
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync_names(path.parent)
    except WriteError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@contextlib.contextmanager
def whole_folder(target: Path, partial: Path | None = None) -> Iterator[Path]:
    """Gives a new folder to fill, forces its files to the disk and gives it its name: it is whole or not there. Until
    then a `target` that stands there stays, and the folder is `partial`; None: beside it, as `NAME.partial`."""
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
    """Writes a JSON object, which has no `sha256`, with its checksum as that, for `read_object`."""
    plain = json.loads(json.dumps(content))  # as it is read, for the checksum
    write_atomically(path, json.dumps(sealed(plain), indent=1) + "\n")


def read_object(
    path: Path, way_out: str, *, is_sealed: bool = False, raising: type[UnmaskError] = RunError
) -> dict[str, Any]:
    """The object in a JSON file, `is_sealed` by its checksum; where it is damaged or not there, an error of the class
    `raising` with the way out."""
    try:
        content = unsealed(parse_json(path)) if is_sealed else parse_json(path)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise raising(f"{path}: damaged ({error}); {way_out}") from error
    return content


def absence(path: Path, kind: str = "file") -> str:
    """Why there is no file (or folder, as `kind` says) to be read at a path: what is there, or that nothing is."""
    try:
        if path.exists():
            return f"this is {'a folder' if path.is_dir() else 'something else'}, not a {kind}"
    except (OSError, ValueError) as error:
        return f"cannot be accessed ({getattr(error, 'strerror', None) or error})"
    return f"this link points to no {kind}" if path.is_symlink() else f"no such {kind}"


def typed(path: str | Path) -> str:
    """A path as it is typed in a shell, for commands that are suggested; `-x`, which would be an option, is `./-x`."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


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


# Output folders. One file, the marker, claims a folder: what stands in a folder without one belongs to others. One
# process writes at a time: it holds a lock of the system's, which ends with the process however that ends, and says who
# it is beside it. The steps are the same for runs, fine-tunings, prepared data, comparisons, indexes and exports:
#
#     check ──▶ held ──▶ clear, where it is replaced ──▶ claim ──▶ the work, its result written last
#                 └────▶ check_same, where it goes on ──────────▶

LOCK = ".lock"
_WAYS = {"resume": "resume it", "overwrite": "overwrite it"}


@dataclass(frozen=True, kw_only=True)
class ClaimedFolder:
    """A folder that one command writes."""

    root: Path
    marker: str | None  # name of the file that claims it; None: whatever stands in it does
    what: str  # what it holds then, with its article
    last: str | None = None  # name of the file that is written last: without it, the work was begun and not finished
    # Names that may stand in it before it is claimed: what a command that was stopped has left. Partial files
    # (`*.partial`) may in any.
    ours: Collection[str] = ()
    is_shared: bool = True  # files of others may be added to it once it is claimed; they are never touched
    options: tuple[str, ...] = ("resume", "overwrite")  # by which it may be written although it is claimed
    error: type[UnmaskError] = RunError  # the class of its errors
    named: str | None = None  # what errors call it; None: by its path

    @property
    def is_claimed(self) -> bool:
        return bool(self._names()) if self.marker is None else (self.root / self.marker).is_file()

    def _names(self) -> list[str]:
        names = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        return sorted(names - {LOCK, f"{LOCK}.json"})

    def check(self, *, resume: bool = False, overwrite: bool = False, inputs: Iterable[Path] = ()) -> None:
        """Makes sure that it may be written, and that `inputs`, which are read, are not in it. Nothing is touched."""
        if resume and overwrite:
            raise self.error("resume and overwrite exclude each other", options=("resume", "overwrite"))
        for path in inputs if overwrite else ():
            if path.resolve().is_relative_to(self.root.resolve()):
                raise self.error(
                    f"{path} is an input inside {self.root}, which would be removed", options=("overwrite", "out")
                )
        if self.root.exists() and not self.root.is_dir():
            raise self.error(f"{self.root} is a file; give a folder", options=("out",))
        if not (self.is_shared and self.is_claimed):
            others = [name for name in self._names() if name not in self.ours and not name.endswith(".partial")]
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
        """Makes sure that the work goes on with the settings that it was begun with: two tables of JSON or TOML, which
        may differ in the keys, or tables, of `but_for`. The error names the first other one, and what it is `of`."""
        for key, old, new in differences(before, now):
            if not any(key == name or key.startswith(f"{name}.") for name in but_for):
                raise self.changed(f"with {of}{key} = {shortened(repr(old))}, which is now {shortened(repr(new))}")

    def changed(self, how: str) -> UnmaskError:
        """The error that something is not as it was begun: what, in words that follow `a run`."""
        options = tuple(option for option in self.options if option != "resume")
        ways = ", ".join(["change that back", *(_WAYS[option] for option in options), "or give another folder"])
        return self.error(
            f"{self.root} holds {self.what} {how}; {self.what} can only resume as it started: {ways}",
            options=(*options, "out"),
        )

    def clear(self, names: Iterable[str], *, marker: bool = True) -> None:
        """Removes these files and folders and all partial ones, the marker last: until then, it is claimed."""
        paths = [self.root / name for name in sorted(names) if name != self.marker]
        try:
            for path in (*paths, *self.root.glob("*.partial")):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if self.marker is not None and marker:
                (self.root / self.marker).unlink(missing_ok=True)
        except OSError as error:
            raise self.error(f"{self.root}: its content cannot be removed ({error})") from error

    def claim(self, content: str) -> None:
        """Writes the marker; what it says is read when the work goes on."""
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
        """Checks the folder and holds it. To overwrite, it removes `clears`; None: all that is ours, and the claim."""
        self.check(resume=resume, overwrite=overwrite, inputs=inputs)
        with self.held():
            self.check(resume=resume, overwrite=overwrite)  # again: no other process comes from now on
            if overwrite:
                self.clear(self.ours if clears is None else clears, marker=clears is None)
            yield


@contextmanager
def locked(
    out: Path,
    *,
    lock: Path | None = None,
    wait: float = 0,
    named: str | None = None,
    error: type[UnmaskError] = RunError,
) -> Iterator[None]:
    """While it is entered, no other process writes a file or folder: the one place where outputs are locked.

    Args:
        lock: The file that is locked; which process holds it is written beside it. None: `.NAME.lock` beside `out`,
            which goes with the lock.
        wait: For so many seconds, while another process holds it; -1: as long as it does.
        named: What the error calls it; None: by its path.
        error: The class of the error, which says which other process writes it.
    """
    stays, lock = lock is not None, lock or out.with_name(f".{out.name}.lock")
    holder, of_system = lock.with_name(f"{lock.name}.json"), FileLock(lock)
    with writing(out), contextlib.suppress(Timeout):  # an `OSError` too
        of_system.acquire(timeout=wait)
    if not of_system.is_locked:
        try:
            other = parse_json(holder)
            where = "" if other["host"] == socket.gethostname() else f" on {other['host']}"
            who = f"{other['pid']}{where}, since {other['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            who = "which has just started"
        raise error(
            f"{named or out}: another process ({who}) is writing here; wait for it, stop it, or write elsewhere",
            options=("out",),
        )
    try:
        own = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        write_atomically(holder, json.dumps(own) + "\n")
        yield
    finally:
        holder.unlink(missing_ok=True)
        if not stays:  # before it is released: a process that opened it meanwhile finds it gone, and opens the next one
            with contextlib.suppress(OSError):  # Windows removes no open file
                lock.unlink()
        of_system.release()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two tables differ: the key, with those of the tables around it, and both values."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def check_file(out: Path, *, overwrite: bool) -> None:
    """Makes sure that a file may be written, before any work is done."""
    if out.is_dir():
        raise RunError(f"{out} is a folder; give a file", options=("out",))
    if out.exists() and not overwrite:
        raise RunError(f"{out} already exists; overwrite it, or give another file", options=("overwrite", "out"))
