"""A folder on this machine whose whole files are sent to an address, as they become whole.

    ~/.cache/unmask/out-KEY/NAME/   the work: parts, shards, checkpoints ──┐ a thread looks every second
                            sent.json   what is at the address by now      └─▶ s3://bucket/NAME/

Whatever this package writes has its name only once it is whole, so that a file which is there can be sent, and whoever
writes it needs to know nothing of addresses. In what order files are sent is as strict as in what order they are
written: what says that others are whole (a part, a checkpoint's state, a manifest, a summary) is looked for before
those and sent after them. So at any moment what is at the address is what a kill could have left in a folder.

A file whose size and checksum are known to be there is not sent again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from unmask.addresses import AT_ONCE, Remote, connect, fetch_all, listed, tried
from unmask.claimed import HOLDER, LOCK
from unmask.errors import RunError, UnmaskError
from unmask.files import file_sha256, write_atomically
from unmask.values import parse_json

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
log = logging.getLogger(__name__)


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
            CorpusError, WriteError: As `unmask.addresses.local_copies`.
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
