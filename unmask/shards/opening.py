"""Prepared data, opened: when its shards are checked, and how they come from an address.

A shard is checked against the manifest's checksum when it is first read in a process, wherever that is. Data of up to
`CHECKED_AT_ONCE` tokens (some 64 MB) is checked whole when it is opened, so that damage is known before any work.

Data at an address lies in the cache, under a hash of its manifest: two addresses with the same data share it. What is
small is there from the beginning, a shard when it is wanted, and those that will be wanted next come meanwhile:

    manifest.json  tokenizer/   fetched when the address was named, with origin.json, which says where shards are
    train/00000.arrow ...       by whichever process of the machine wants one first; the others wait for it
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from unmask.addresses import fetch_checked, origin_of
from unmask.errors import UnmaskError
from unmask.shards.manifest import Manifest, Split, check_file, check_is_there
from unmask.shards.mapped import OPENED_AT_ONCE
from unmask.shards.store import TokenStore

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
        entry = self._entries[number]
        if self._origin is None or self.paths[number].is_file():
            check_file(self._root, entry)
        else:
            fetch_checked(f"{self._origin}/{entry.name}", self.paths[number], entry.sha256)
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
