"""Token shards, written and read: Arrow IPC stream files, a row a document or a piece of a long one.

They open with `datasets.Dataset.from_file` and are memory-mapped without copies. Columns:

    input_ids    list<uint16 or uint32>   tokens of the text, without special tokens
    word_starts  list<uint8>              1 where a word begins (boolean lists would need a copy to map)
    document     int64                    number of the document in the corpus
    offset       int64                    byte of the document's text at which the row begins
    num_bytes    int64                    UTF-8 bytes of the row's text
    label        int64                    number of the document's class, -1 where it has none; only where classes
                                          were asked for, and the same for every piece of a document
    group        int64                    what a held-out row is a draw of: a number below 0 for its group, that of
                                          its document where it is in none; only where groups were held out
    entities, pos, dependencies, chunks   list<uint8, uint16 or uint32>, those that were asked for: what annotators
                                          say of each token, as `unmask.tokenizer.alignment` writes it
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmask.core.compiled import bytes_at, compiled
from unmask.core.errors import DataError
from unmask.core.files import write_atomically
from unmask.core.hashing import GOLDEN, mix

COLUMNS = ("input_ids", "word_starts", "document", "offset", "num_bytes")
LABEL, GROUP, DRAW = "label", "group", "draw"
MOST_OPEN = 8192  # shards; a kernel maps some 65,530 files a process at most
OPENED_AT_ONCE = 8  # threads that wait for files and check them
CHUNK_TOKENS = 1 << 24


@compiled
def _gather(address: NDArray[np.int64], size: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    """Copies stretches of memory, one behind another: `size` bytes at each address."""
    place = 0
    for n in range(len(address)):
        stretch = bytes_at(address[n], size[n])
        for i in range(size[n]):
            into[place + i] = stretch[i]
        place += size[n]


@compiled
def _read_numbers(address: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The whole number of 8 or 4 bytes at each address."""
    numbers = np.empty(len(address), dtype=np.int64)
    for n in range(len(address)):
        if size == 8:
            numbers[n] = bytes_at(address[n], 8).view(np.int64)[0]
        else:
            numbers[n] = bytes_at(address[n], 4).view(np.int32)[0]
    return numbers


class TokenChunk(NamedTuple):
    """Some pieces, one behind another, without a copy."""

    input_ids: NDArray[np.generic]  # [num_tokens]
    word_starts: NDArray[np.uint8]  # [num_tokens]
    lengths: NDArray[np.int64]  # [num_pieces]: tokens of each


@dataclass(frozen=True)
class GatheredPieces:
    """Some pieces, copied one behind another, and what is known of each.

    Attributes:
        piece: [num_pieces], int64: their numbers, in order.
        begin, lengths: [num_pieces], int64: where each begins here, and its tokens.
        input_ids: [num_tokens].
        word_starts: [num_tokens], uint8.
        document, offset, draw: [num_pieces], int64: as the columns of `TokenStore`.
        label: [num_pieces], int64; None where there are no classes.
        annotations: By column, [num_tokens].
    """

    piece: NDArray[np.int64]
    begin: NDArray[np.int64]
    lengths: NDArray[np.int64]
    input_ids: NDArray[np.unsignedinteger]
    word_starts: NDArray[np.uint8]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    draw: NDArray[np.int64]
    label: NDArray[np.int64] | None = None
    annotations: Mapping[str, NDArray[np.unsignedinteger]] = field(default_factory=dict)

    def number(self, piece: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of these each of some pieces is."""
        return np.searchsorted(self.piece, piece)

    def places(self, piece: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a token of each of some pieces stands here: the one with the number `start` of its piece."""
        return self.begin[self.number(piece)] + start

    @cached_property
    def key(self) -> NDArray[np.int64]:
        """[num_pieces], int64: a hash of the place in the corpus of each."""
        return mix(mix(self.document * np.int64(GOLDEN)) + self.offset)


# ----------------------------------------
# Shards as files that are mapped into memory, each when something of it is wanted: they are their own index.
#
# What is known of every piece (its length, document, place in it, bytes, class, draw) stands in a shard's columns. Of a
# shard that is open only where its record batches begin is kept, and numbers are read from the mapped file:
#
#     piece 70,123 ──▶ shard 4 ──▶ its record batch 2 ──▶ address of `document` + 8 x (70,123 - first piece) ──▶ number
#
# So a split of any size opens with the counts of its manifest, all processes of a machine share what the system has
# read, and an index that could disagree with the shards is not there.


class ShardCounts(NamedTuple):
    """How much is in each shard of a split, which is known before any is opened."""

    pieces: NDArray[np.int64]  # [num_shards]
    tokens: NDArray[np.int64]  # [num_shards]


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
    if any(each.null_count for each in arrays):
        raise ValueError("numbers are missing in it")
    starts = [each.buffers()[1].address + each.offset * (each.type.bit_width // 8) for each in arrays]
    return np.array(starts, dtype=np.int64)


class Located(NamedTuple):
    """Some pieces, and where they are."""

    pieces: NDArray[np.int64]  # places among those that were asked for
    local: NDArray[np.int64]  # their numbers in their record batches
    addresses: Callable[[str], NDArray[np.int64]]  # by column, where their record batches begin

    def number(self, name: str) -> NDArray[np.int64]:
        """[num_pieces]: what a column says of each."""
        return _read_numbers(self.addresses(name) + 8 * self.local, 8)

    def stretch(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[num_pieces] each: where a piece begins in the tokens of its record batch, and how long it is."""
        place = self.addresses("lengths") + 4 * self.local
        begin = _read_numbers(place, 4)
        return begin, _read_numbers(place + 4, 4) - begin


class OpenShards:
    """The shards of a split, of which those that were wanted last are open. Any thread may ask for any.

    Args:
        files: Their paths.
        counts: What the manifest says of them; None: all of them are opened to find it out.
        ready: Called with a shard's number before it is first opened: checks it.
    """

    def __init__(
        self, files: Sequence[Path], counts: ShardCounts | None, ready: Callable[[int], None] = lambda number: None
    ) -> None:
        self._files, self._ready = files, ready
        self._open: OrderedDict[int, MappedShard] = OrderedDict()
        self._was_ready: set[int] = set()
        self._lock = threading.Lock()
        # Numbers of shards, the shards themselves, the first piece of each record batch, and addresses by column.
        self._table: tuple[NDArray[np.int64], list[MappedShard], NDArray[np.int64], dict[str, NDArray[np.int64]]]
        self._table = np.empty(0, dtype=np.int64), [], np.empty(0, dtype=np.int64), {}
        self._first: MappedShard | None = None
        self._read: MappedShard | None = None
        self._pieces: NDArray[np.int64] | None = None if counts is None else counts.pieces
        if counts is None:
            pieces, tokens = [], []
            for shard in map(self.to_read, range(len(files))):
                pieces.append(len(shard))
                tokens.append(sum(int(shard.begins(batch)[-1]) for batch in range(len(shard.batches))))
            counts = ShardCounts(np.array(pieces, dtype=np.int64), np.array(tokens, dtype=np.int64))
        self.counts = counts
        self.before = np.cumsum(counts.pieces) - counts.pieces

    def __len__(self) -> int:
        return len(self._files)

    def shard(self, number: int) -> MappedShard:
        """One of them, open; an error where it is missing or damaged, or differs in its columns from the others."""
        self.make_ready([number])
        with self._lock:
            shard = self._open.get(number)
            if shard is None:
                shard = MappedShard(self._files[number])
                if self._pieces is not None and len(shard) != self._pieces[number]:
                    raise DataError(
                        f"{shard.file}: it holds {len(shard):,} pieces, and the manifest says "
                        f"{self._pieces[number]:,}; prepare the data again"
                    )
                if self._first is None:
                    self._first = shard
                if shard.types != self._first.types:
                    raise DataError("shards of one split have columns of different widths; prepare the data again")
                self._open[number] = shard
                if len(self._open) > MOST_OPEN:  # a thread that works with the oldest has it until then
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return shard

    def to_read(self, number: int) -> MappedShard:
        """One of them, open, whose record batches are wanted; those of the last one are let go."""
        shard, before = self.shard(number), self._read
        if before is not None and before is not shard:
            before.let_go()
        self._read = shard
        return shard

    def make_ready(self, numbers: Sequence[int]) -> None:
        """Checks some of them, several at a time."""
        missing = [number for number in numbers if number not in self._was_ready]
        if len(missing) > 1:
            with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:
                list(threads.map(self._ready, missing))
        elif missing:
            self._ready(missing[0])
        self._was_ready.update(missing)

    def locate(self, pieces: NDArray[np.int64]) -> Iterator[Located]:
        """Finds pieces ([num_pieces], in any order): all at once, or, of very many shards, those of some at a time."""
        shard = np.searchsorted(self.before, pieces, side="right") - 1
        used = np.unique(shard)
        for begin in range(0, len(used), MOST_OPEN):
            some = used[begin : begin + MOST_OPEN]
            if not np.isin(some, self._table[0], assume_unique=True).all():
                self.make_ready(some.tolist())
                opened = [self.shard(number) for number in some.tolist()]
                first = [each.first[:-1] + self.before[n] for n, each in zip(some, opened, strict=True)]
                names = set(opened[0].addresses).intersection(*(each.addresses for each in opened))
                addresses = {name: np.concatenate([each.addresses[name] for each in opened]) for name in names}
                self._table = some, opened, np.concatenate(first), addresses  # open as long as its addresses are used
            _, _, firsts, addresses = self._table
            which = np.flatnonzero((shard >= some[0]) & (shard <= some[-1]))
            batch = np.searchsorted(firsts, pieces[which], side="right") - 1
            local = pieces[which] - firsts[batch]
            yield Located(which, local, lambda name, at=addresses, batch=batch: at[name][batch])  # type: ignore[misc]


Widths = Mapping[str, type[np.unsignedinteger]]


@dataclass(frozen=True)
class TokenBatch:
    """Some rows of a shard, one behind another; see the module's docstring.

    Attributes:
        input_ids: [num_tokens].
        word_starts: [num_tokens], bool.
        lengths: [num_rows]: tokens of each row.
        document, offset, num_bytes: [num_rows], int64.
        annotations: By column, [num_tokens].
        label: [num_rows], int64; None where no classes are read.
        group: [num_rows], int64; None where there are no groups.
    """

    input_ids: NDArray[np.int32]
    word_starts: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    annotations: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    label: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None

    def select(self, rows: NDArray[np.bool_]) -> TokenBatch:
        """Some of the rows."""
        tokens = np.repeat(rows, self.lengths)
        return TokenBatch(
            self.input_ids[tokens],
            self.word_starts[tokens],
            self.lengths[rows],
            self.document[rows],
            self.offset[rows],
            self.num_bytes[rows],
            {name: values[tokens] for name, values in self.annotations.items()},
            None if self.label is None else self.label[rows],
            None if self.group is None else self.group[rows],
        )


@dataclass(frozen=True)
class ShardFile:
    """A finished shard, as the manifest lists it."""

    name: str  # path relative to the data folder
    pieces: int
    tokens: int
    sha256: str


class ShardWriter:
    """Gathers one shard in memory and writes it whole: a file with its name is complete and on the disk.

    Args:
        root: The data folder.
        name: Path of the shard relative to it.
        vocab_size: Number of ids of the tokenizer.
        annotations: The type of each column of annotation.
        labelled: Whether there is a column of labels.
        grouped: Whether there is a column of groups.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        vocab_size: int,
        annotations: Widths | None = None,
        labelled: bool = False,
        grouped: bool = False,
    ) -> None:
        self.root = root
        self.name = name
        self.schema = pa.schema(
            {
                "input_ids": pa.list_(pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()),
                "word_starts": pa.list_(pa.uint8()),
                **dict.fromkeys(("document", "offset", "num_bytes"), pa.int64()),
                **({LABEL: pa.int64()} if labelled else {}),
                **({GROUP: pa.int64()} if grouped else {}),
                **{name: pa.list_(pa.from_numpy_dtype(width)) for name, width in (annotations or {}).items()},
            }
        )
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, self.schema)
        self._pieces = self._tokens = 0

    def write(self, batch: TokenBatch) -> None:
        """Appends rows, as one record batch."""
        if not len(batch.lengths):
            return
        offsets = np.zeros(len(batch.lengths) + 1, dtype=np.int32)  # of Arrow's lists; a batch is far below 2^31 tokens
        np.cumsum(batch.lengths, out=offsets[1:])

        def in_lists(name: str, values: NDArray[Any]) -> pa.Array:
            width = self.schema.field(name).type.value_type.to_pandas_dtype()
            return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(width, copy=False)))

        columns = {
            "input_ids": in_lists("input_ids", batch.input_ids),
            "word_starts": in_lists("word_starts", batch.word_starts.view(np.uint8)),
            "document": pa.array(batch.document),
            "offset": pa.array(batch.offset),
            "num_bytes": pa.array(batch.num_bytes),
            LABEL: None if batch.label is None else pa.array(batch.label),
            GROUP: pa.array(batch.document if batch.group is None else batch.group),
            **{name: in_lists(name, values) for name, values in batch.annotations.items()},
        }
        arrays = [columns[name] for name in self.schema.names]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self._pieces += len(batch.lengths)
        self._tokens += len(batch.input_ids)

    def save(self) -> ShardFile | None:
        """Writes the file, if there is anything to write.

        Raises:
            OSError: It cannot be written.
        """
        self._writer.close()
        if not self._pieces:
            return None
        content = memoryview(self._sink.getvalue())
        path = self.root / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        return ShardFile(self.name, self._pieces, self._tokens, hashlib.sha256(content).hexdigest())


class TokenStore:
    """All pieces of a split. Shards are mapped when something of them is wanted (see `unmask.data.store`).

    Whole columns (`lengths` and so on) are read from all shards when they are first asked for, and take 8 bytes a piece
    from then on: for splits that are known to be small. `gather` is for those of any size.

    Attributes:
        counts: How much is in each shard.
        annotations: Names of the columns of annotation.
    """

    def __init__(
        self,
        files: Sequence[Path],
        entries: Sequence[ShardFile] | None = None,
        *,
        ready: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Opens the shards of a split, in order.

        Args:
            files: Their paths.
            entries: What the manifest says of them; None: all are opened at once.
            ready: Called with the number of a shard before it is first opened: checks it.

        Raises:
            DataError: The first one is missing or is not a token shard; without entries, any.
        """
        counts = None
        if entries is not None:
            pieces, tokens = ([getattr(entry, name) for entry in entries] for name in ("pieces", "tokens"))
            counts = ShardCounts(np.array(pieces, dtype=np.int64), np.array(tokens, dtype=np.int64))
        self._shards = OpenShards(files, counts, ready)
        self.counts = self._shards.counts
        if not self.counts.pieces.sum():
            raise DataError("the split holds no rows")
        self._ends: list[int] = np.cumsum(self.counts.pieces).tolist()
        self._first = self._shards.shard(int(np.flatnonzero(self.counts.pieces)[0]))
        self.annotations: tuple[str, ...] = self._first.annotations

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return int(self.counts.tokens.sum())

    @property
    def is_labelled(self) -> bool:
        """Whether the data was prepared with classes."""
        return self._first.is_labelled

    @cached_property
    def grouped(self) -> bool:
        """Whether groups were held out. Only shards with such a text say so, so that all may have to be opened."""
        return any(shard.is_grouped for shard in self._in_order())

    @property
    def is_one_document(self) -> bool:
        """Whether all pieces are of one document."""
        ends = self.gather(np.array([0, len(self) - 1])).document  # documents are numbered as they come
        return bool(ends[0] == ends[1])

    def _in_order(self) -> Iterator[MappedShard]:
        return map(self._shards.to_read, range(len(self._shards)))

    def _whole(self, name: str) -> NDArray[np.int64]:
        self._shards.make_ready(range(len(self._shards)))
        return np.concatenate([s.numbers(n, name) for s in self._in_order() for n in range(len(s.batches))])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[num_pieces], int64: tokens of each piece."""
        return self._whole("lengths")

    @cached_property
    def document(self) -> NDArray[np.int64]:
        """[num_pieces], int64: as in the shards."""
        return self._whole("document")

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        """[num_pieces], int64: as in the shards."""
        return self._whole("offset")

    @cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """[num_pieces], int64: as in the shards."""
        return self._whole("num_bytes")

    @cached_property
    def draw(self) -> NDArray[np.int64]:
        """[num_pieces], int64: what each is a draw of: its group where groups were held out, else its document."""
        return self._whole(DRAW)

    @cached_property
    def label(self) -> NDArray[np.int64] | None:
        """[num_pieces], int64: number of each piece's class, -1 where it has none; None where there are no classes."""
        return self._whole(LABEL) if self.is_labelled else None

    def _place(self, piece: int) -> tuple[MappedShard, int, int]:
        """The shard of a piece, its record batch there, and where it begins in the tokens of that."""
        number = bisect_right(self._ends, piece)
        shard = self._shards.to_read(number)
        local = piece - int(self._shards.before[number])
        batch = int(np.searchsorted(shard.first, local, side="right")) - 1
        return shard, batch, int(shard.begins(batch)[local - shard.first[batch]])

    def read(self, piece: int, start: int, length: int) -> tuple[NDArray[np.generic], NDArray[np.uint8]]:
        """The ids and word starts of `length` tokens of a piece from token `start` on, without a copy."""
        shard, batch, begin = self._place(piece)
        tokens = slice(begin + start, begin + start + length)
        return shard.tokens(batch, "input_ids")[tokens], shard.tokens(batch, "word_starts")[tokens].view(np.uint8)

    def gather(self, pieces: NDArray[np.int64]) -> GatheredPieces:
        """Copies of some pieces, whose order does not matter.

        Raises:
            DataError: A shard of theirs is missing or damaged.
        """
        pieces = np.sort(pieces)
        columns = ["document", "offset", DRAW, *([LABEL] if self.is_labelled else [])]
        numbers = {name: np.empty(len(pieces), dtype=np.int64) for name in columns}
        tokens: dict[str, list[NDArray[np.unsignedinteger]]] = {name: [] for name in self._first.types}
        lengths = np.empty(len(pieces), dtype=np.int64)
        for located in self._shards.locate(pieces):
            begin, length = located.stretch()
            lengths[located.pieces] = length
            for name, column in numbers.items():
                column[located.pieces] = located.number(name)
            for name, parts in tokens.items():
                width = self._first.types[name].itemsize
                values = np.empty(int(length.sum()), dtype=self._first.types[name])
                _gather(located.addresses(name) + begin * width, length * width, values.view(np.uint8))
                parts.append(values)
        found = {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in tokens.items()}
        return GatheredPieces(
            pieces,
            np.cumsum(lengths) - lengths,
            lengths,
            found.pop("input_ids"),
            found.pop("word_starts").view(np.uint8),
            document=numbers["document"],
            offset=numbers["offset"],
            draw=numbers[DRAW],
            label=numbers.get(LABEL),
            annotations=found,
        )

    def chunks(self, num_tokens: int) -> Iterator[TokenChunk]:
        """All pieces in order, some at a time: as many as have `num_tokens` tokens together, or one that has more."""
        for shard in self._in_order():
            for batch in range(len(shard.batches)):
                ids, starts = (shard.tokens(batch, name) for name in COLUMNS[:2])
                begins = shard.begins(batch).astype(np.int64)
                done = 0
                while done + 1 < len(begins):
                    upto = max(done + 1, int(np.searchsorted(begins, begins[done] + num_tokens, side="right")) - 1)
                    tokens = slice(int(begins[done]), int(begins[upto]))
                    yield TokenChunk(ids[tokens], starts[tokens].view(np.uint8), np.diff(begins[done : upto + 1]))
                    done = upto

    def read_annotation(self, name: str, piece: int, start: int, length: int) -> NDArray[np.unsignedinteger]:
        """A column of annotation at `length` tokens of a piece from token `start` on, without a copy."""
        shard, batch, begin = self._place(piece)
        return shard.tokens(batch, name)[begin + start : begin + start + length]


def document_frequencies(store: TokenStore, vocab_size: int) -> NDArray[np.int64]:
    """In how many rows of the shards (documents, or pieces of long ones) each id stands: [vocab_size].

    Only some strategies need it. Memory is bounded: rows are taken in groups of some million tokens.
    """
    counts: NDArray[np.int64] = np.zeros(vocab_size, dtype=np.int64)
    for chunk in store.chunks(CHUNK_TOKENS):
        piece_of = np.repeat(np.arange(len(chunk.lengths), dtype=np.int64), chunk.lengths)
        pairs = np.unique(piece_of * vocab_size + chunk.input_ids.astype(np.int64))
        counts += np.bincount(pairs % vocab_size, minlength=vocab_size)
    return counts
