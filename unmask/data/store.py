"""Token shards, read: Arrow IPC stream files with one row for each document, or piece of a long one.

They open with `datasets.Dataset.from_file` and are memory-mapped without copies. Columns:

    input_ids    list<uint16 or uint32>   tokens of the text, without special tokens
    word_starts  list<uint8>              1 where a word begins (boolean lists would need a copy to map)
    document     int64                    number of the document in the corpus
    offset       int64                    byte of the document's text at which the row begins
    num_bytes    int64                    UTF-8 bytes of the row's text
    label        int64                    number of the document's class, -1: none; the same in all pieces of a
                                          document; only if classes were read
    group        int64                    the sampling unit of a held-out row: a number below 0 for its group, else
                                          its document's number; only if groups were held out
    entities, pos, dependencies, chunks   list<uint8, uint16 or uint32>, those that were chosen: annotations of
                                          each token, as `unmask.tokenizer.spans` writes them
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from unmask.core.hashing import GOLDEN, mix

COLUMNS = ("input_ids", "word_starts", "document", "offset", "num_bytes")
LABEL, GROUP, DRAW = "label", "group", "draw"
OPENED_AT_ONCE = 8  # threads that read and check files
CHUNK_TOKENS = 1 << 19


@compiled
def _gather(address: NDArray[np.int64], size: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    """Copies ranges of memory one after the other: `size` bytes at each address."""
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
    """Consecutive pieces, without a copy."""

    input_ids: NDArray[np.generic]  # [num_tokens]
    word_starts: NDArray[np.uint8]  # [num_tokens]
    lengths: NDArray[np.int64]  # [num_pieces]: tokens of each


@dataclass(frozen=True)
class GatheredPieces:
    """Copies of pieces, concatenated, with their numbers; columns as in `TokenStore`."""

    piece: NDArray[np.int64]  # [num_pieces]: their numbers, in order
    begin: NDArray[np.int64]  # [num_pieces]: where each begins here
    lengths: NDArray[np.int64]  # [num_pieces]: tokens of each
    input_ids: NDArray[np.unsignedinteger]  # [num_tokens]
    word_starts: NDArray[np.uint8]  # [num_tokens]
    document: NDArray[np.int64]  # [num_pieces], like the next ones
    offset: NDArray[np.int64]
    draw: NDArray[np.int64]
    label: NDArray[np.int64] | None = None  # None: no classes
    annotations: Mapping[str, NDArray[np.unsignedinteger]] = field(default_factory=dict)  # by column, [num_tokens]

    def number(self, piece: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index of each given piece among these."""
        return np.searchsorted(self.piece, piece)

    @cached_property
    def key(self) -> NDArray[np.int64]:
        """[num_pieces], int64: a hash of each piece's place in the corpus."""
        return mix(mix(self.document * np.int64(GOLDEN)) + self.offset)


# ----------------------------------------
# Shards are files mapped into memory, each when it is first read. They are their own index.
#
# A shard's columns hold everything about each piece (length, document, offset, bytes, class, draw). For an open shard,
# only where its record batches begin stays in memory; numbers are read from the mapped file:
#
#     piece 70,123 ──▶ shard 4 ──▶ its record batch 2 ──▶ address of `document` + 8 x (70,123 - first piece) ──▶ number
#
# So opening a split of any size needs only the counts of its manifest, all processes of a machine share what the system
# has read, and no separate index can disagree with the shards.


class ShardCounts(NamedTuple):
    """The amounts in each shard of a split, known before any is opened."""

    pieces: NDArray[np.int64]  # [num_shards]
    tokens: NDArray[np.int64]  # [num_shards]


class MappedShard:
    """An open shard: the addresses of its numbers, which take some kilobytes.

    Attributes:
        annotations: Names of its columns of annotation.
        types: For each column of lists, the type of its values.
        is_labelled, is_grouped: Whether there are columns of classes and of groups.
        first: [num_batches + 1], int64: the first piece of each record batch, counted in the shard, then `num_pieces`.
        addresses: By column, [num_batches], int64: address of its numbers in each batch (in columns of lists, of their
            values). `lengths` are the lists' offsets; `draw` are the groups, or the documents if there are none.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            with pa.memory_map(str(file)) as source:
                self._content = source.read_buffer()  # no copy: the file is mapped as long as this exists
            schema, batches = pa.ipc.open_stream(self._content).schema, list(self.batches())
            names = schema.names
            self.annotations = tuple(name for name in names if name not in (*COLUMNS, LABEL, GROUP))
            lists = ("input_ids", "word_starts", *self.annotations)
            self.types = {name: np.dtype(schema.field(name).type.value_type.to_pandas_dtype()) for name in lists}
            arrays = {
                name: [batch[name].values if name in lists else batch[name] for batch in batches] for name in names
            }
            arrays["lengths"] = [batch["input_ids"].offsets for batch in batches]
            arrays[DRAW] = arrays[GROUP if GROUP in names else "document"]
            self.addresses = {}
            for name, column in arrays.items():
                if any(each.null_count for each in column):
                    raise ValueError("it has missing numbers")
                starts = [each.buffers()[1].address + each.offset * (each.type.bit_width // 8) for each in column]
                self.addresses[name] = np.array(starts, dtype=np.int64)
        except (OSError, pa.ArrowInvalid, KeyError, AttributeError, ValueError) as error:
            raise DataError(f"{file}: not a readable token shard ({error}); prepare the data again") from error
        self.is_labelled, self.is_grouped = LABEL in names, GROUP in names
        self.first = np.cumsum([0, *map(len, batches)])
        self.num_pieces = int(self.first[-1])

    def batches(self) -> Iterator[pa.RecordBatch]:
        return (batch for batch in pa.ipc.open_stream(self._content) if len(batch))


@dataclass(frozen=True)
class ShardFile:
    """A finished shard, as the manifest lists it."""

    name: str  # path relative to the data folder
    pieces: int
    tokens: int
    sha256: str


class TokenStore:
    """All pieces of a split. Shards are mapped when they are first read; any thread may read.

    Attributes:
        counts: The amounts in each shard.
        annotations: Names of the columns of annotation.
        is_labelled: Whether the data was prepared with classes.
    """

    def __init__(
        self,
        files: Sequence[Path],
        entries: Sequence[ShardFile] | None = None,
        *,
        check: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Opens the shards of a split, in order: all at once, or, if the manifest's `entries` are given, only the
        first. `check` is called with a shard's number before it is first opened. A DataError names a shard that is
        missing or unreadable."""
        self._files, self._check = files, check
        self._entries, self._checked = entries, set[int]()
        self._open: dict[int, MappedShard] = {}  # at most about 65,530, a kernel's limit of mapped files
        self._lock = threading.Lock()
        self._types: dict[str, np.dtype[Any]] = {}  # of values in columns of lists, the same in all shards
        self._columns: dict[str, NDArray[np.int64]] = {}
        if entries is None:
            shards = [self._shard(number) for number in range(len(files))]
            pieces = [shard.num_pieces for shard in shards]
            tokens = [sum(int(each["input_ids"].offsets[-1].as_py()) for each in shard.batches()) for shard in shards]
        else:
            pieces, tokens = ([getattr(entry, name) for entry in entries] for name in ("pieces", "tokens"))
        self.counts = ShardCounts(np.array(pieces, dtype=np.int64), np.array(tokens, dtype=np.int64))
        if not self.counts.pieces.sum():
            raise DataError("the split has no rows")
        self._before = np.cumsum(self.counts.pieces) - self.counts.pieces
        first = self._shard(int(np.flatnonzero(self.counts.pieces)[0]))
        self.annotations, self.is_labelled = first.annotations, first.is_labelled

    def __len__(self) -> int:
        return int(self.counts.pieces.sum())

    @property
    def num_tokens(self) -> int:
        return int(self.counts.tokens.sum())

    def _shard(self, number: int) -> MappedShard:
        """Opens a shard; raises an error if it is missing or damaged, or its columns differ from those of others."""
        self._check_shards([number])
        with self._lock:
            shard = self._open.get(number)
            if shard is None:
                shard = MappedShard(self._files[number])
                if self._entries is not None and shard.num_pieces != self._entries[number].pieces:
                    raise DataError(
                        f"{shard.file}: it holds {shard.num_pieces:,} pieces, and the manifest says "
                        f"{self._entries[number].pieces:,}; prepare the data again"
                    )
                self._types = self._types or shard.types
                if shard.types != self._types:
                    raise DataError("shards of one split have columns of different widths; prepare the data again")
                self._open[number] = shard
            return shard

    def _check_shards(self, numbers: Sequence[int]) -> None:
        """Checks those shards that were not checked yet, several at a time."""
        missing = [number for number in numbers if number not in self._checked]
        if len(missing) > 1:
            with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:
                list(threads.map(self._check, missing))
        elif missing:
            self._check(missing[0])
        self._checked.update(missing)

    @cached_property
    def grouped(self) -> bool:
        """Whether groups were held out. Only shards with grouped text show it, so this may open all of them."""
        return any(self._shard(number).is_grouped for number in range(len(self._files)))

    def column(self, name: str) -> NDArray[np.int64]:
        """A number of every piece [num_pieces], which stays in memory, so for small splits only: `lengths` (tokens), a
        column of numbers in the shards, or `draw`, the sampling unit: the piece's group if groups were held out, else
        its document."""
        if name not in self._columns:
            self._check_shards(range(len(self._files)))
            parts = []
            for shard in map(self._shard, range(len(self._files))):
                stored = (GROUP if shard.is_grouped else "document") if name == DRAW else name
                for batch in shard.batches():
                    if name == "lengths":
                        parts.append(np.diff(batch["input_ids"].offsets.to_numpy()).astype(np.int64))
                    else:
                        parts.append(batch[stored].to_numpy())
            self._columns[name] = np.concatenate(parts)
        return self._columns[name]

    def gather(self, pieces: NDArray[np.int64]) -> GatheredPieces:
        """Copies pieces, given in any order; raises a DataError if one of their shards is damaged."""
        pieces = np.sort(pieces)
        columns = ["document", "offset", DRAW, *([LABEL] if self.is_labelled else [])]
        shards = np.unique(np.searchsorted(self._before, pieces, side="right") - 1).tolist()
        self._check_shards(shards)
        opened = [self._shard(number) for number in shards]
        # By record batch of these shards: its first piece, and the addresses of its columns
        first = np.concatenate([each.first[:-1] + self._before[n] for n, each in zip(shards, opened, strict=True)])
        names = ("lengths", *columns, *self._types)
        addresses = {name: np.concatenate([each.addresses[name] for each in opened]) for name in names}
        batch = np.searchsorted(first, pieces, side="right") - 1
        local = pieces - first[batch]
        # Where each piece begins in the tokens of its record batch, and how long it is
        offsets = addresses["lengths"][batch] + 4 * local
        begin = _read_numbers(offsets, 4)
        lengths = _read_numbers(offsets + 4, 4) - begin
        numbers = {name: _read_numbers(addresses[name][batch] + 8 * local, 8) for name in columns}
        tokens: dict[str, NDArray[np.unsignedinteger]] = {}
        for name, kind in self._types.items():
            values = tokens[name] = np.empty(int(lengths.sum()), dtype=kind)
            begins = addresses[name][batch] + begin * kind.itemsize
            _gather(begins, lengths * kind.itemsize, values.view(np.uint8))
        return GatheredPieces(
            pieces,
            np.cumsum(lengths) - lengths,
            lengths,
            tokens.pop("input_ids"),
            tokens.pop("word_starts").view(np.uint8),
            document=numbers["document"],
            offset=numbers["offset"],
            draw=numbers[DRAW],
            label=numbers.get(LABEL),
            annotations=tokens,
        )

    def chunks(self, num_tokens: int = CHUNK_TOKENS) -> Iterator[TokenChunk]:
        """All pieces in order, in chunks of up to `num_tokens` tokens, or of one longer piece."""
        for number in range(len(self._files)):
            for batch in self._shard(number).batches():
                ids, starts = (batch[name].values.to_numpy() for name in COLUMNS[:2])
                begins = batch["input_ids"].offsets.to_numpy().astype(np.int64)
                done = 0
                while done + 1 < len(begins):
                    upto = max(done + 1, int(np.searchsorted(begins, begins[done] + num_tokens, side="right")) - 1)
                    tokens = slice(int(begins[done]), int(begins[upto]))
                    yield TokenChunk(ids[tokens], starts[tokens].view(np.uint8), np.diff(begins[done : upto + 1]))
                    done = upto


def document_frequencies(chunks: Iterable[TokenChunk], vocab_size: int) -> NDArray[np.int64]:
    """The number of pieces (documents, or pieces of long ones) that contain each id: [vocab_size]."""
    counts: NDArray[np.int64] = np.zeros(vocab_size, dtype=np.int64)
    for chunk in chunks:
        piece_of = np.repeat(np.arange(len(chunk.lengths), dtype=np.int64), chunk.lengths)
        pairs = np.unique(piece_of * vocab_size + chunk.input_ids.astype(np.int64))
        counts += np.bincount(pairs % vocab_size, minlength=vocab_size)
    return counts
