"""The folder of prepared data, while it is made and afterwards.

    manifest.json            written last: a folder with a manifest is complete
    tokenizer/               tokenizer.json and what transformers wants beside it
    train/00000-00000.arrow ...    token shards (see `unmask.shards.store`), one a job: number of task and job
    validation/00000-00000.arrow ...
    stdin.txt                what came on standard input, if that was a source
    pipes/                   what came out of pipes, if some were
    given/                   texts that were in memory, if they were given so
    parts/                   what was found and made so far (see `unmask.shards.passes`)
    unfinished.json          what is being made, and of what

The last two are there only while the data is made. A kill at any moment leaves either of two things: whole data with
its manifest, or parts from which the same command goes on.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.claimed import LOCK, ClaimedFolder, held_by, is_held
from unmask.errors import DataError
from unmask.files import sync_folder, write_atomically, writing
from unmask.shards.job_parts import PARTS
from unmask.shards.job_work import TRAIN, VALIDATION
from unmask.shards.manifest import MANIFEST, Manifest, load_manifest
from unmask.text.given import GIVEN
from unmask.text.pipes import PIPES, STDIN_FILE
from unmask.text.sources import Source
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.values import parse_json

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
                raise self.claimed.holds_others(strangers)

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
