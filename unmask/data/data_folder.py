"""The folder of prepared data, while it is made and afterwards.

    manifest.json            written last: a folder with a manifest is complete
    tokenizer/               tokenizer.json and what transformers wants beside it
    train/00000-00000.arrow ...    token shards (see `unmask.data.store`), one a job: number of task and job
    validation/00000-00000.arrow ...
    stdin.txt                what came on standard input, if that was a source
    pipes/                   what came out of pipes, if some were
    given/                   texts that were in memory, if they were given so
    parts/                   what was found and made so far (see `unmask.data.passes`)
    unfinished.json          what is being made, and of what

The last two are there only while the data is made. A kill at any moment leaves either of two things: whole data with
its manifest, or parts from which the same command goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import queue
import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.core.errors import DataError, UnmaskError, parse_json
from unmask.core.files import LOCK, ClaimedFolder, file_sha256, held_by, is_held, sync_folder, write_atomically, writing
from unmask.core.remote import origin_of
from unmask.data.jobs import PARTS, TRAIN, VALIDATION
from unmask.data.near_duplicates import LeftOutPair, NearDuplicates, from_plain
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE, Source
from unmask.data.store import OPENED_AT_ONCE, ShardFile, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

# ----------------------------------------
# The manifest of prepared data: a ledger of what went in, what came out, and how to check it.

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True)
class Split:
    """The training or the validation part.

    Attributes:
        documents: Documents with text in this split (a document that is held out in parts counts in both).
        pieces: Rows of the shards.
        bytes: UTF-8 bytes of the text.
        tokens: Tokens, without special tokens.
        unknown_tokens: Tokens that stand for text outside the vocabulary.
        files: The shards.
    """

    documents: int
    pieces: int
    bytes: int
    tokens: int
    unknown_tokens: int
    files: tuple[ShardFile, ...]


@dataclass(frozen=True)
class Manifest:
    """What a data folder holds.

    Attributes:
        sources: The files it was made from: path, size in bytes.
        settings: The settings that shaped it.
        plan: How documents were told apart and held out, in words.
        tokenizer_sha256: Fingerprint of the tokenizer, which stands beside it in `tokenizer/`.
        vocab_size: Number of ids.
        documents: Documents in the sources.
        bytes: UTF-8 bytes of their text.
        tokens: Tokens of both splits.
        skipped: What was left out: reason to number of documents. Empty when nothing was.
        overlap: Held-out documents, or parts, that are equal to a training text: `near_duplicates.equal`.
        train: The training split.
        validation: The held-out split.
        token_frequencies: [vocab_size]: how often each id stands in the training split.
        annotations: By column of annotation, its labels, in the order of their numbers from 1 on.
        spans: By column of annotation: how many spans there were, and to how many of them no token belongs.
        labels: Names of the documents' classes in the order of their numbers from 0 on, and how many documents each
            has; empty where none were asked for.
        unlabelled: Documents without a class, where classes were asked for.
        near_duplicates: What of the held-out text nearly stands in the training text; None in data that was made
            before this was looked at.
        left_out: Some near-duplicates that were left out, each with the earlier text that stays.
    """

    sources: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    plan: str
    tokenizer_sha256: str
    vocab_size: int
    documents: int
    bytes: int
    tokens: int
    skipped: dict[str, int]
    overlap: int
    train: Split
    validation: Split
    token_frequencies: tuple[int, ...]
    annotations: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    unlabelled: int = 0
    near_duplicates: NearDuplicates | None = None
    left_out: tuple[LeftOutPair, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal data has equal fingerprints, wherever it lies."""
        files = [file.sha256 for split in (self.train, self.validation) for file in split.files]
        # Numbers in the shards mean nothing without them.
        labels: list[Any] = [self.annotations] if self.annotations else []
        labels += [list(self.labels)] if self.labels else []
        return hashlib.sha256(json.dumps([VERSION, self.tokenizer_sha256, files, *labels]).encode()).hexdigest()

    def save(self, root: Path) -> None:
        """Writes `manifest.json`, last of all files: a folder with a manifest is complete."""
        content = {"version": VERSION, "fingerprint": self.fingerprint, **dataclasses.asdict(self)}
        content["near_duplicates"] = self.near_duplicates and self.near_duplicates.plain()
        write_atomically(root / MANIFEST, json.dumps(content, indent=1) + "\n")


def load_manifest(root: Path) -> Manifest:
    """Reads the manifest of a data folder.

    Raises:
        DataError: There is none, or it is damaged or of another version.
    """
    file = root / MANIFEST
    if not file.is_file():
        raise DataError(f"{root}: there is no {MANIFEST}; make the folder with `unmask prepare`")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if content.pop("version") != VERSION:
            raise DataError(f"{file}: made by another version of unmask; prepare the data again")
        fingerprint = content.pop("fingerprint")
        for name in ("train", "validation"):
            split = content[name]
            split["files"] = tuple(ShardFile(**entry) for entry in split["files"])
            content[name] = Split(**split)
        for name in ("sources", "token_frequencies"):
            content[name] = tuple(content[name])
        for name in ("annotations", "spans"):
            content[name] = {column: tuple(values) for column, values in content.get(name, {}).items()}
        content["left_out"] = tuple(LeftOutPair(*pair) for pair in content.get("left_out", ()))
        if content.get("near_duplicates") is not None:
            content["near_duplicates"] = from_plain(content["near_duplicates"])
        manifest = Manifest(**content)
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error!r}); prepare the data again") from error
    if manifest.fingerprint != fingerprint:
        raise DataError(f"{file}: its fingerprint does not fit its content; prepare the data again")
    return manifest


def verify_files(root: Path, manifest: Manifest) -> None:
    """Checks every shard against its checksum.

    Raises:
        DataError: A file is missing or changed.
    """
    for split in (manifest.train, manifest.validation):
        for entry in split.files:
            check_file(root, entry)


def check_file(root: Path, entry: ShardFile) -> None:
    """Checks a shard against its checksum.

    Raises:
        DataError: It is missing or changed.
    """
    check_is_there(root, entry)
    path = root / entry.name
    try:
        is_same = file_sha256(path) == entry.sha256
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); prepare the data again") from error
    if not is_same:
        raise DataError(f"{path}: its content does not fit the checksum; prepare the data again")


def check_is_there(root: Path, entry: ShardFile) -> None:
    """Makes sure that a shard is where the manifest says.

    Raises:
        DataError: It is not.
    """
    path = root / entry.name
    if not path.is_file():
        raise DataError(f"{path}: the manifest lists this file, but it is not there; prepare the data again")


UNFINISHED, TOKENIZER = "unfinished.json", "tokenizer"
# Written into the tokenizer that stands beside the data; a model writes its own length.
ANY_LENGTH = int(1e9)
_PART_LOCK = ".part-"
_SHARD = re.compile(r"\d{5,}(-\d{5,})?\.arrow(\.partial)?")
_MADE = re.compile(r"\d{5,}(-\d{5,})?\.(json|npy|task)")


@dataclass(frozen=True)
class Unfinished:
    """What a preparation is of.

    Attributes:
        settings: As the manifest will have them.
        sources: Path, size and time of change of each file.
        tokenizer_sha256: Fingerprint of the tokenizer, which is saved.
        made_by: Fingerprint of settings, tokenizer and libraries, which the parts carry.
    """

    settings: dict[str, Any]
    sources: list[list[Any]]
    tokenizer_sha256: str
    made_by: str


def stamp(sources: Iterable[Source]) -> list[list[Any]]:
    """Path, size and time of change of files: where these are the same, so is the content."""
    stats = ((source.path, source.path.stat()) for source in sources)
    return [[str(path.absolute()), stat.st_size, stat.st_mtime_ns] for path, stat in stats]


class DataFolder:
    """Paths in the folder and what is done to it as a whole; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tokenizer = root / TOKENIZER
        self.splits = (root / TRAIN, root / VALIDATION)
        self.parts = root / PARTS
        self._manifest = root / MANIFEST
        self._unfinished = root / UNFINISHED
        ours = (MANIFEST, UNFINISHED, STDIN_FILE, PIPES, GIVEN, TOKENIZER, PARTS, TRAIN, VALIDATION)
        self.claimed = ClaimedFolder(
            root=root, marker=MANIFEST, what="prepared data", ours=ours, is_shared=False, error=DataError
        )

    @property
    def is_complete(self) -> bool:
        """Whether it holds whole data, and nothing remains to be tidied."""
        return self._manifest.is_file() and not self._unfinished.is_file()

    def check(self) -> None:
        """Makes sure that nothing of somebody else's is touched.

        Raises:
            DataError: It is a file, or holds files that are not ours.
        """
        self.claimed.check_names()
        for split in (path for path in self.splits if path.exists()):
            names = split.iterdir() if split.is_dir() else (split,)
            if strangers := sorted(
                f"{path.relative_to(self.root)}" for path in names if not _SHARD.fullmatch(path.name)
            ):
                raise DataError(
                    f"{self.root} holds other files ({', '.join(strangers[:3])}); give a new or empty folder"
                )

    def unfinished(self) -> Unfinished | None:
        """What an earlier try was making; None where there was none or its file cannot be read."""
        try:
            return Unfinished(**parse_json(self._unfinished.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def num_parts(self) -> int:
        """How many parts are there."""
        return sum(1 for _ in self.parts.glob("*.json"))

    def finished(self, work: Unfinished) -> Manifest | None:
        """The manifest of a try that was stopped when only tidying remained; that is done now.

        Args:
            work: What was being made. Since whatever stood there before is removed when work begins, a manifest
                beside it is its result.
        """
        if not self._manifest.is_file():
            return None
        manifest = load_manifest(self.root)
        if (manifest.settings, manifest.tokenizer_sha256) != (work.settings, work.tokenizer_sha256):
            return None
        self.tidy()
        return manifest

    def begin(self, work: Unfinished, tokenizer: Tokenizer, *, anew: bool) -> None:
        """Makes the folder ready for parts. Only here is anything touched that an earlier try has left.

        Args:
            work: What will be made.
            tokenizer: Saved beside it.
            anew: Whether parts that are there are removed.

        Raises:
            WriteError: The folder cannot be written.
        """
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            self._manifest.unlink(missing_ok=True)
            if anew:
                self._unfinished.unlink(missing_ok=True)  # so that what it promises is there as long as it is
                for folder in self.splits:
                    shutil.rmtree(folder, ignore_errors=True)
                for path in self.parts.glob("*"):
                    if _MADE.fullmatch(path.name):  # what was found before the tokenizer stays
                        path.unlink()
            self.tokenizer.mkdir(exist_ok=True)
            tokenizer.save(self.tokenizer, max_length=ANY_LENGTH)
            sync_folder(self.tokenizer)
            self.parts.mkdir(exist_ok=True)
            for folder in self.splits:
                folder.mkdir(exist_ok=True)
        write_atomically(self._unfinished, json.dumps(dataclasses.asdict(work), indent=1) + "\n")

    def forget(self) -> None:
        """Removes what was found so far, so that all of it is looked for anew."""
        shutil.rmtree(self.parts, ignore_errors=True)

    def held_part(self, number: int, of: int) -> AbstractContextManager[None]:
        """While it is entered, no other process does this part; those of other parts may do theirs.

        Raises:
            DataError: Another process does it.
            WriteError: The folder is closed to us.
        """
        with writing(self.parts):
            self.parts.mkdir(parents=True, exist_ok=True)
        if is_held(self.root / LOCK):
            raise DataError(f"{self.root}: another process prepares data here, or puts it together; wait for it")
        lock = self.parts / f"{_PART_LOCK}{number}-of-{of}.lock"
        return held_by(lock, lock.with_suffix(".json"), self.root, DataError)

    def check_no_parts(self) -> None:
        """Makes sure that nobody does a part of the work now.

        Raises:
            DataError: Somebody does.
        """
        for lock in sorted(self.parts.glob(f"{_PART_LOCK}*.lock")):
            if is_held(lock):
                part = lock.stem.removeprefix(_PART_LOCK).replace("-of-", "/")
                raise DataError(f"{self.root}: part {part} is being done now; wait until all parts have ended")

    def forget_failure(self) -> None:
        """After an error, removes what nobody goes on from: nothing at all, or what lies beside whole data."""
        if self.is_complete:
            self.forget()
        left = list(self.parts.glob("*")) if self.parts.is_dir() else []
        if all(path.name.startswith(_PART_LOCK) and not is_held(path) for path in left):
            shutil.rmtree(self.parts, ignore_errors=True)

    def finish(self, manifest: Manifest) -> None:
        """Removes shards that the manifest does not list, writes it, and removes what it was put together from.

        Raises:
            WriteError: The folder cannot be written.
        """
        listed = {file.name for split in (manifest.train, manifest.validation) for file in split.files}
        with writing(self.root):
            for folder in self.splits:
                for path in folder.iterdir():
                    if f"{folder.name}/{path.name}" not in listed:
                        path.unlink()
                sync_folder(folder)
        manifest.save(self.root)
        self.tidy()

    def tidy(self) -> None:
        """Removes what is there only while data is made; where a kill hit this, the next command does it."""
        shutil.rmtree(self.parts, ignore_errors=True)
        for path in self.root.glob("*.partial"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._unfinished.unlink(missing_ok=True)


# ----------------------------------------
# Prepared data, opened: when its shards are checked, and how they come from an address.
#
# A shard is checked against the manifest's checksum when it is first read in a process, wherever that is. Data of up to
# `CHECKED_AT_ONCE` tokens (some 64 MB) is checked whole when it is opened, so that damage is known before any work.
#
# Data at an address lies in the cache, under a hash of its manifest: two addresses with the same data share it. What is
# small is there from the beginning, a shard when it is wanted, and those that will be wanted next come meanwhile:
#
#     manifest.json  tokenizer/   fetched when the address was named, with origin.json, which says where shards are
#     train/00000.arrow ...       by whichever process of the machine wants one first; the others wait for it

CHECKED_AT_ONCE = 1 << 24  # tokens
FETCHED_AHEAD_AT_ONCE = 4
log = logging.getLogger(__name__)


def open_split(root: Path, manifest: Manifest, split: Split) -> TokenStore:
    """Opens a split of prepared data.

    Args:
        root: The data folder.
        manifest: Its ledger.
        split: One of its splits.

    Raises:
        DataError: A file is missing, or, of small data, damaged. Of large data this is found when it is read.
    """
    files = SplitFiles(root, split)
    if manifest.tokens <= CHECKED_AT_ONCE:
        files.all_ready()
    return TokenStore(files.paths, split.files, ready=files.ready, ahead=files.ahead)


def obtain_split(root: Path, split: Split) -> list[Path]:
    """The files of a split, all there and checked.

    Raises:
        DataError: One is missing or damaged.
        CorpusError: One cannot be fetched.
    """
    files = SplitFiles(root, split)
    files.all_ready()
    return files.paths


class SplitFiles:
    """The shards of a split: there and as they were written, or on their way.

    Attributes:
        paths: Where they are, or will be.

    Raises:
        DataError: One is missing that does not lie at an address.
    """

    def __init__(self, root: Path, split: Split) -> None:
        self._root, self._entries, self._origin = root, split.files, origin_of(root)
        self.paths = [root / entry.name for entry in split.files]
        self._ready: set[int] = set()
        self._asked: set[int] = set()
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        if self._origin is None:
            for entry in split.files:
                check_is_there(root, entry)
        elif missing := [path for path in self.paths if not path.is_file()]:
            log.info("%s: %d shards of %s are fetched as they are wanted", self._origin, len(missing), root)

    def ready(self, number: int) -> None:
        """Waits until a shard is there, and checks it, once.

        Raises:
            DataError: It is damaged.
            CorpusError: It cannot be fetched.
        """
        if number in self._ready:
            return
        check_file(self._root, self._entries[number])
        self._ready.add(number)

    def all_ready(self) -> None:
        """The same for all of them, several at a time; of more than one that is damaged the first is named."""
        with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:
            list(threads.map(self.ready, range(len(self.paths))))

    def ahead(self, numbers: Sequence[int]) -> None:
        """Begins to fetch shards that are wanted soon. Who wants one meanwhile waits for it."""
        if self._origin is None:
            return
        new = [n for n in numbers if n not in self._asked and n not in self._ready]
        for number in new:
            self._asked.add(number)
            self._queue.put(number)
        while new and len(self._threads) < FETCHED_AHEAD_AT_ONCE:
            # A daemon: the end of a run does not wait for what it will not read any more.
            self._threads.append(threading.Thread(target=self._fetch, name="unmask-fetch", daemon=True))
            self._threads[-1].start()

    def _fetch(self) -> None:
        while True:
            number = self._queue.get()
            try:
                self.ready(number)
            except UnmaskError as error:  # whoever wants it tries again, and is told
                self._asked.discard(number)
                log.debug("%s", error)
