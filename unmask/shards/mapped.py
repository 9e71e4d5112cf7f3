"""Shards as files that are mapped into memory, each when something of it is wanted: they are their own index.

What is known of every piece (its length, document, place in it, bytes, class, draw) stands in a shard's columns. Of a
shard that is open only where its record batches begin is kept, and numbers are read from the mapped file:

    piece 70,123 ──▶ shard 4 ──▶ its record batch 2 ──▶ address of `document` + 8 x (70,123 - first piece) ──▶ a number

So a split of any size opens with the counts of its manifest, all processes of a machine share what the system has read,
and an index that could disagree with the shards is not there. A kernel maps some 65,530 files a process at most; no
more than `MOST_OPEN` stay open, in the order in which they were wanted last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.shards.gather_loops import read_int32, read_int64

COLUMNS = ("input_ids", "word_starts", "document", "offset", "num_bytes")
LABEL, GROUP, DRAW = "label", "group", "draw"
MOST_OPEN = 8192
OPENED_AT_ONCE = 8  # threads that wait for files and check them


class ShardCounts(NamedTuple):
    """How much is in each shard of a split, which is known before any is opened.

    Attributes:
        pieces, tokens: [num_shards], int64.
    """

    pieces: NDArray[np.int64]
    tokens: NDArray[np.int64]


class MappedShard:
    """A shard that is open. Where its numbers lie takes some kilobytes; its record batches are made when they are read.

    Attributes:
        file: Its path.
        annotations: Names of its columns of annotation.
        types: By column of lists, the type of their values.
        first: [num_batches + 1], int64: the first piece of each record batch, counted in the shard, and how many there
            are in all.
        addresses: By column, [num_batches], int64: where its numbers begin in each; of columns of lists where their
            values do. `lengths` are the lists' offsets, `draw` the groups, or the documents where there are none.
    """

    def __init__(self, file: Path) -> None:
        """Maps it.

        Raises:
            DataError: It is missing, or is not a token shard.
        """
        self.file = file
        try:
            with pa.memory_map(str(file)) as source:
                self._content = source.read_buffer()  # no copy: the file stays mapped as long as this is there
            reader = pa.ipc.open_stream(self._content)
            names, batches = reader.schema.names, [batch for batch in reader if len(batch)]
            self.annotations = tuple(name for name in names if name not in (*COLUMNS, LABEL, GROUP))
            lists = ("input_ids", "word_starts", *self.annotations)
            self.types = {name: np.dtype(reader.schema.field(name).type.value_type.to_pandas_dtype()) for name in lists}
            columns = {name: [batch.column(names.index(name)) for batch in batches] for name in names}
            self.addresses = {
                name: _addresses([each.values for each in parts] if name in lists else parts)
                for name, parts in columns.items()
            }
            self.addresses["lengths"] = _addresses([each.offsets for each in columns["input_ids"]])
            self.addresses[DRAW] = self.addresses[GROUP if GROUP in names else "document"]
        except (OSError, pa.ArrowInvalid, KeyError, AttributeError, ValueError) as error:
            raise DataError(f"{file}: not a readable token shard ({error}); prepare the data again") from error
        self.is_labelled, self.is_grouped = LABEL in names, GROUP in names
        self.first = np.cumsum([0, *map(len, batches)])

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def batches(self) -> list[pa.RecordBatch]:
        """Its record batches, without a copy. `let_go` frees them."""
        return [batch for batch in pa.ipc.open_stream(self._content) if len(batch)]

    def let_go(self) -> None:
        """Forgets the record batches until they are asked for again."""
        self.__dict__.pop("batches", None)

    def tokens(self, batch: int, name: str) -> NDArray[np.unsignedinteger]:
        """All values of a column of lists in a record batch, without a copy."""
        return self.batches[batch][name].values.to_numpy()

    def begins(self, batch: int) -> NDArray[np.int32]:
        """[num_pieces + 1]: where each piece of a record batch begins in its tokens, and where they end."""
        return self.batches[batch]["input_ids"].offsets.to_numpy()

    def numbers(self, batch: int, name: str) -> NDArray[np.int64]:
        """What a column says of each piece of a record batch."""
        if name == "lengths":
            return np.diff(self.begins(batch)).astype(np.int64)
        if name == DRAW:
            name = GROUP if self.is_grouped else "document"
        return self.batches[batch][name].to_numpy()


def _addresses(arrays: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Where the numbers of arrays lie.

    Raises:
        ValueError: One is missing, as in no shard of ours.
    """
    if any(each.null_count for each in arrays):
        raise ValueError("numbers are missing in it")
    starts = [each.buffers()[1].address + each.offset * (each.type.bit_width // 8) for each in arrays]
    return np.array(starts, dtype=np.int64)


class _Table:
    """Where the record batches of some shards lie.

    Attributes:
        shards: [num_shards], int64: their numbers, ascending.
        first: [num_batches], int64: the first piece of each, counted in the split.
        addresses: By column, [num_batches], int64.
    """

    def __init__(self, shards: NDArray[np.int64], opened: Sequence[MappedShard], before: NDArray[np.int64]) -> None:
        self.shards, self._opened = shards, opened  # kept open as long as somebody has addresses of them
        self.first = np.concatenate([shard.first[:-1] + before[n] for n, shard in zip(shards, opened, strict=True)])
        names = set(opened[0].addresses).intersection(*(shard.addresses for shard in opened))
        self.addresses = {name: np.concatenate([shard.addresses[name] for shard in opened]) for name in names}


class Located(NamedTuple):
    """Some pieces, and where they are.

    Attributes:
        pieces: Which of those that were asked for, as places among them.
        local: [num_pieces], int64: their numbers in their record batches.
        addresses: By column, [num_pieces], int64: where their record batches begin.
    """

    pieces: NDArray[np.int64]
    local: NDArray[np.int64]
    addresses: Callable[[str], NDArray[np.int64]]

    def number(self, name: str) -> NDArray[np.int64]:
        """[num_pieces]: what a column says of each."""
        return read_int64(self.addresses(name) + 8 * self.local)

    def stretch(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[num_pieces] each: where a piece begins in the tokens of its record batch, and how long it is."""
        place = self.addresses("lengths") + 4 * self.local
        begin = read_int32(place)
        return begin, read_int32(place + 4) - begin


class OpenShards:
    """The shards of a split, of which those that were wanted last are open. Any thread may ask for any.

    Args:
        files: Their paths.
        counts: What the manifest says of them; None: all of them are opened to find it out.
        ready: Called with a shard's number before it is first opened: waits until it is there, and checks it.
    """

    def __init__(
        self, files: Sequence[Path], counts: ShardCounts | None, ready: Callable[[int], None] = lambda number: None
    ) -> None:
        self._files, self._ready = files, ready
        self._open: OrderedDict[int, MappedShard] = OrderedDict()
        self._was_ready: set[int] = set()
        self._lock = threading.Lock()
        self._table: _Table | None = None
        self._like: MappedShard | None = None
        self._read: MappedShard | None = None
        self.counts = counts or self._counted()
        self.before = np.cumsum(self.counts.pieces) - self.counts.pieces

    def __len__(self) -> int:
        return len(self._files)

    def _counted(self) -> ShardCounts:
        pieces, tokens = [], []
        for shard in map(self.to_read, range(len(self._files))):
            pieces.append(len(shard))
            tokens.append(sum(int(shard.begins(batch)[-1]) for batch in range(len(shard.batches))))
        return ShardCounts(np.array(pieces, dtype=np.int64), np.array(tokens, dtype=np.int64))

    def shard(self, number: int) -> MappedShard:
        """One of them, open.

        Raises:
            DataError: It is missing or damaged, or differs in its columns from the others.
        """
        self._make_ready(number)
        with self._lock:
            found = self._open.get(number)
            if found is None:
                found = self._open[number] = self._opened(number)
                if len(self._open) > MOST_OPEN:  # whoever works with the oldest has it until then
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return found

    def to_read(self, number: int) -> MappedShard:
        """One of them, open, whose record batches are wanted; those of the last one are let go.

        Raises:
            DataError: As `shard`.
        """
        found, before = self.shard(number), self._read
        if before is not None and before is not found:
            before.let_go()
        self._read = found
        return found

    def _make_ready(self, number: int) -> None:
        if number not in self._was_ready:
            self._ready(number)
            self._was_ready.add(number)

    def _opened(self, number: int) -> MappedShard:
        found = MappedShard(self._files[number])
        if hasattr(self, "counts") and len(found) != self.counts.pieces[number]:
            raise DataError(
                f"{found.file}: it holds {len(found):,} pieces, and the manifest says {self.counts.pieces[number]:,}; "
                "prepare the data again"
            )
        if self._like is None:
            self._like = found
        elif found.types != self._like.types:
            raise DataError("shards of one split have columns of different widths; prepare the data again")
        return found

    def make_ready(self, numbers: Sequence[int]) -> None:
        """Waits for many of them and checks them, several at a time.

        Raises:
            DataError: As `shard`.
        """
        if missing := [number for number in numbers if number not in self._was_ready]:
            with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:
                list(threads.map(self._make_ready, missing))

    def locate(self, pieces: NDArray[np.int64]) -> Iterator[Located]:
        """Finds pieces: all at once, or, where they lie in very many shards, those of some of these at a time.

        Args:
            pieces: [num_pieces], int64, in any order.

        Raises:
            DataError: As `shard`.
        """
        shard = np.searchsorted(self.before, pieces, side="right") - 1
        used = np.unique(shard)
        if len(used) <= MOST_OPEN:
            yield self._located(self._table_of(used), pieces, np.arange(len(pieces)))
            return
        for begin in range(0, len(used), MOST_OPEN):
            some = used[begin : begin + MOST_OPEN]
            which = np.flatnonzero((shard >= some[0]) & (shard <= some[-1]))
            yield self._located(self._table_of(some), pieces, which)

    def _table_of(self, used: NDArray[np.int64]) -> _Table:
        table = self._table
        if table is None or not np.isin(used, table.shards, assume_unique=True).all():
            numbers = used.tolist()
            self.make_ready(numbers)
            table = self._table = _Table(used, [self.shard(number) for number in numbers], self.before)
        return table

    @staticmethod
    def _located(table: _Table, pieces: NDArray[np.int64], which: NDArray[np.int64]) -> Located:
        wanted = pieces[which]
        batch = np.searchsorted(table.first, wanted, side="right") - 1
        return Located(which, wanted - table.first[batch], lambda name: table.addresses[name][batch])
