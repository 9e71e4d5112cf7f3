"""Counting 64-bit keys, more than fit into memory: sorted runs on the disk, merged range by range. Exact."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Most keys in memory at a time; counting and merging take about 100 bytes for each.
RUN_KEYS = 1 << 21


class Counted(NamedTuple):
    """Keys in increasing order, and how often each was seen."""

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]


_NOTHING = Counted(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class KeyCounter:
    """Counts keys. Use it as a context: its files go when it ends.

    Args:
        folder: Where temporary files may stand.
        run_keys: Keys that are held in memory.
    """

    def __init__(self, folder: Path, *, run_keys: int = RUN_KEYS) -> None:
        self.run_keys = run_keys
        self._files = tempfile.TemporaryDirectory(prefix=".lexicon-", dir=folder, ignore_cleanup_errors=True)
        self._spilled: list[Path] = []
        self._new: list[NDArray[np.int64]] = []
        self._num_new = 0
        self._table = _NOTHING

    def __enter__(self) -> KeyCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.cleanup()

    def add(self, keys: NDArray[np.int64]) -> None:
        """Counts each of these once more."""
        self._new.append(keys)
        self._num_new += len(keys)
        if self._num_new >= self.run_keys:
            self._gather()
            if len(self._table.keys) >= self.run_keys:
                self._spill()

    def merged(self) -> Iterator[Counted]:
        """What was counted, in increasing order of the keys, a range of them at a time."""
        self._gather()
        if not self._spilled:
            yield self._table
            return
        self._spill()
        runs = [
            Counted(*(np.load(path.with_suffix(f".{name}.npy"), mmap_mode="r") for name in Counted._fields))
            for path in self._spilled
        ]
        # Keys between which about `run_keys` keys of all runs lie, from samples of each run.
        stride = max(1, self.run_keys // (4 * len(runs)))
        sample = np.sort(np.concatenate([run.keys[::stride] for run in runs]))
        inner = np.unique(sample[:: max(1, self.run_keys // stride)][1:])
        places = [np.concatenate([[0], np.searchsorted(run.keys, inner), [len(run.keys)]]) for run in runs]
        for part in range(len(inner) + 1):
            slices = [slice(place[part], place[part + 1]) for place in places]
            keys = np.concatenate([run.keys[s] for run, s in zip(runs, slices, strict=True)])
            counts = np.concatenate([run.counts[s] for run, s in zip(runs, slices, strict=True)])
            yield _sum(keys, counts)
        del runs  # unmaps the files before they go

    def above(self, count: int) -> Counted:
        """The keys that were seen more often than this; they must fit into memory."""
        parts = []
        for part in self.merged():
            often = part.counts > count
            parts.append(Counted(part.keys[often], part.counts[often]))
        return Counted(np.concatenate([p.keys for p in parts]), np.concatenate([p.counts for p in parts]))

    def _gather(self) -> None:
        """Takes the new keys into the table."""
        if self._num_new:
            keys, counts = np.unique(np.concatenate(self._new), return_counts=True)
            self._new, self._num_new = [], 0
            table = self._table
            self._table = _sum(np.concatenate([table.keys, keys]), np.concatenate([table.counts, counts]))

    def _spill(self) -> None:
        """Moves the table to the disk."""
        if len(self._table.keys):
            path = Path(self._files.name) / f"{len(self._spilled)}"
            for name, array in self._table._asdict().items():
                np.save(path.with_suffix(f".{name}.npy"), array)
            self._spilled.append(path)
            self._table = _NOTHING


def _sum(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> Counted:
    """Sorts keys and adds the counts of equal ones."""
    if not len(keys):
        return Counted(keys, counts)
    order = np.argsort(keys, kind="stable")  # a merge of runs that are sorted already
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return Counted(keys[first], np.add.reduceat(counts[order], first))
