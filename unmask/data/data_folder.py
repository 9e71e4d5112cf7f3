"""The folder of prepared data, while it is made and afterwards.

    manifest.json            written last: a folder with a manifest is complete
    tokenizer/               tokenizer.json and what transformers wants beside it
    train/00000-00000.arrow ...    token shards (see `unmask.data.store`): number of task and of chunk
    validation/00000-00000.arrow ...
    stdin.txt                what came on standard input, if that was a source
    pipes/                   what came out of pipes, if some were
    given/                   texts that were in memory, if any were
    parts/                   a file a task that is done (see `unmask.data.work`)

The last one is there only while the data is made. A kill at any moment leaves either of two things: whole data with
its manifest, or tasks that the same command goes on from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.core.errors import DataError, parse_json
from unmask.core.files import ClaimedFolder, file_sha256, locked, sync_folder, write_atomically, writing
from unmask.data.near_duplicates import LeftOutPair, NearDuplicates, from_plain
from unmask.data.shards import TRAIN, VALIDATION, Split
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE, Source
from unmask.data.store import OPENED_AT_ONCE, ShardFile, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

MANIFEST, TOKENIZER, PARTS, SETTLED = "manifest.json", "tokenizer", "parts", "settled.npz"
VERSION = 1
ANY_LENGTH = int(1e9)  # written into the tokenizer that stands beside the data; a model writes its own length
CHECKED_AT_ONCE = 1 << 24  # tokens; some 64 MB
_PART_LOCK = ".part-"
_SHARD = re.compile(r"\d{5,}(-\d{5,})?\.arrow(\.partial)?")


@dataclass(frozen=True)
class Manifest:
    """What a data folder holds: what went in, what came out, and how to check it.

    Attributes:
        sources: The files it was made from: path, size in bytes.
        settings: The settings that shaped it.
        plan: What a document is and what is held out, in words.
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
            has; empty where there are none.
        unlabelled: Documents without a class, where classes were read.
        near_duplicates: What of the held-out text nearly stands in the training text.
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
        for split in (TRAIN, VALIDATION):
            del content[split]["first"], content[split]["last"]
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
        content = parse_json(file)
        version, fingerprint = content.pop("version"), content.pop("fingerprint")
        for name in ("train", "validation"):
            split = content[name]
            content[name] = Split(**{**split, "files": tuple(ShardFile(**entry) for entry in split["files"])})
        for name in ("sources", "token_frequencies"):
            content[name] = tuple(content[name])
        for name in ("annotations", "spans"):
            content[name] = {column: tuple(values) for column, values in content[name].items()}
        content["left_out"] = tuple(LeftOutPair(*pair) for pair in content["left_out"])
        near = content["near_duplicates"]
        manifest = Manifest(**{**content, "near_duplicates": near and from_plain(near)})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error!r}); prepare the data again") from error
    if version != VERSION or manifest.fingerprint != fingerprint:
        raise DataError(f"{file}: its fingerprint does not fit its content; prepare the data again")
    return manifest


def stamp(sources: Iterable[Source]) -> list[list[Any]]:
    """Path, size and time of change of files: where these are the same, so is the content."""
    stats = ((source.path, source.path.stat()) for source in sources)
    return [[str(path.absolute()), stat.st_size, stat.st_mtime_ns] for path, stat in stats]


class DataFolder:
    """The folder as a whole, while it is made; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root, self.tokenizer, self.parts = root, root / TOKENIZER, root / PARTS
        self._manifest, self._settled = root / MANIFEST, self.parts / SETTLED
        ours = (MANIFEST, STDIN_FILE, PIPES, GIVEN, TOKENIZER, PARTS, TRAIN, VALIDATION)
        self.claimed = ClaimedFolder(
            root=root, marker=MANIFEST, what="prepared data", ours=ours, is_shared=False, error=DataError
        )

    @property
    def is_complete(self) -> bool:
        """Whether it holds whole data, and nothing remains to be tidied."""
        return self.claimed.is_claimed and not self._settled.is_file()

    def check(self) -> None:
        """Makes sure that no other files are touched.

        Raises:
            DataError: It is a file, or holds files that are not ours.
        """
        self.claimed.check_names()
        for split in (self.root / TRAIN, self.root / VALIDATION):
            paths = split.iterdir() if split.is_dir() else [split] if split.exists() else []
            strangers = sorted(str(path.relative_to(self.root)) for path in paths if not _SHARD.fullmatch(path.name))
            if strangers:
                raise DataError(
                    f"{self.root} holds other files ({', '.join(strangers[:3])}); give a new or empty folder"
                )

    def begin(self, tokenizer: Tokenizer) -> None:
        """Makes the folder ready for shards. Only from here on is complete data touched that stood there before.

        Args:
            tokenizer: Saved in it.

        Raises:
            WriteError: The folder cannot be written.
        """
        with writing(self.root):
            self._settled.unlink(missing_ok=True)  # it speaks of a tokenizer that goes
            for folder in (self.tokenizer, self.parts, self.root / TRAIN, self.root / VALIDATION):
                folder.mkdir(parents=True, exist_ok=True)
            self._manifest.unlink(missing_ok=True)
            tokenizer.save(self.tokenizer, max_length=ANY_LENGTH)
            sync_folder(self.tokenizer)

    @contextmanager
    def held(self, part: tuple[int, int] | None = None) -> Iterator[None]:
        """While it is entered, no other process writes here, or, with a part, does that part: those of other parts may
        do theirs. After an error, what no later try goes on from is removed.

        Args:
            part: Its number and of how many.

        Raises:
            DataError: Another process writes here, or the folder holds other files.
            WriteError: The folder is closed to us.
        """
        self.check()
        lock: AbstractContextManager[None] = self.claimed.held()
        if part is not None:
            with writing(self.parts):
                self.parts.mkdir(parents=True, exist_ok=True)
            with self.claimed.held(wait=5):  # whether all of it is prepared, or put together; other parts look, too
                pass
            own = self.parts / f"{_PART_LOCK}{part[0]}-of-{part[1]}.lock"
            lock = locked(self.root, lock=own, error=DataError)
        with lock:
            self.check()  # again: nothing else comes from now on
            try:
                yield
            except BaseException:
                if self.is_complete or all(path.name.startswith(_PART_LOCK) for path in self.parts.glob("*")):
                    shutil.rmtree(self.parts, ignore_errors=True)
                raise

    def finish(self, manifest: Manifest) -> None:
        """Removes shards that the manifest does not list, writes it, and removes what it was put together from.

        Raises:
            WriteError: The folder cannot be written.
        """
        listed = {file.name for split in (manifest.train, manifest.validation) for file in split.files}
        with writing(self.root):
            for folder in (self.root / TRAIN, self.root / VALIDATION):
                for path in folder.iterdir():
                    if f"{folder.name}/{path.name}" not in listed:
                        path.unlink()
                sync_folder(folder)
        manifest.save(self.root)
        self.tidy()

    def tidy(self) -> None:
        """Removes what is there only while data is made; where a kill hit this, the next command does it."""
        for path in self.parts.glob("*"):
            if path != self._settled:  # which says that this is not done
                path.unlink(missing_ok=True)
        for path in self.root.glob("*.partial"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.parts, ignore_errors=True)


# ----------------------------------------
# Prepared data, opened. A shard is checked against its checksum when it is first read in a process; data of up to
# `CHECKED_AT_ONCE` tokens is checked whole when it is opened, so that damage is known before any work.


def open_split(root: Path, manifest: Manifest, split: Split) -> TokenStore:
    """Opens a split of prepared data.

    Args:
        root: The data folder.
        manifest: Its manifest.
        split: One of its splits.

    Raises:
        DataError: A file is missing, or, of small data, damaged. Of large data this is found when it is read.
    """
    is_small = manifest.tokens <= CHECKED_AT_ONCE
    files = checked_files(root, split, content=is_small)
    check = (lambda number: None) if is_small else (lambda number: _check_shard(root, split.files[number]))
    return TokenStore(files, split.files, check=check)


def checked_files(root: Path, split: Split, *, content: bool = True) -> list[Path]:
    """The files of a split, all there and, with `content`, checked against their checksums, several at a time.

    Raises:
        DataError: One is missing or damaged; the first such is named.
    """
    with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:
        list(threads.map(lambda entry: _check_shard(root, entry, content=content), split.files))
    return [root / entry.name for entry in split.files]


def _check_shard(root: Path, entry: ShardFile, *, content: bool = True) -> None:
    path = root / entry.name
    if not path.is_file():
        raise DataError(f"{path}: the manifest lists this file, but it is not there; prepare the data again")
    try:
        if content and file_sha256(path) != entry.sha256:
            raise DataError(f"{path}: its content does not fit the checksum; prepare the data again")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); prepare the data again") from error
