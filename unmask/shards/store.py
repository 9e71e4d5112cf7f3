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
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.files import write_atomically
from unmask.shards.gather_loops import gather
from unmask.shards.mapped import COLUMNS, DRAW, GROUP, LABEL, MappedShard, OpenShards, ShardCounts
from unmask.shards.pieces import GatheredPieces, TokenChunk

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
        lengths, document, offset, num_bytes = (
            column[rows] for column in (self.lengths, self.document, self.offset, self.num_bytes)
        )
        return TokenBatch(
            self.input_ids[tokens],
            self.word_starts[tokens],
            lengths,
            document,
            offset,
            num_bytes,
            {name: values[tokens] for name, values in self.annotations.items()},
            None if self.label is None else self.label[rows],
            None if self.group is None else self.group[rows],
        )


@dataclass(frozen=True)
class ShardFile:
    """A finished shard, as the manifest lists it.

    Attributes:
        name: Path relative to the data folder.
        pieces: Number of rows.
        tokens: Number of tokens.
        sha256: Of the file's bytes.
    """

    name: str
    pieces: int
    tokens: int
    sha256: str


def schema_for(
    vocab_size: int, annotations: Widths | None = None, *, labelled: bool = False, grouped: bool = False
) -> pa.Schema:
    """The Arrow schema of shards over a vocabulary of this size, with these columns of annotation, labels, groups."""
    ids = pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()
    return pa.schema(
        {
            "input_ids": pa.list_(ids),
            "word_starts": pa.list_(pa.uint8()),
            "document": pa.int64(),
            "offset": pa.int64(),
            "num_bytes": pa.int64(),
            **({LABEL: pa.int64()} if labelled else {}),
            **({GROUP: pa.int64()} if grouped else {}),
            **{name: pa.list_(pa.from_numpy_dtype(width)) for name, width in (annotations or {}).items()},
        }
    )


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
        self.schema = schema_for(vocab_size, annotations, labelled=labelled, grouped=grouped)
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, self.schema)
        self._pieces = self._tokens = 0

    def write(self, batch: TokenBatch) -> None:
        """Appends rows, as one record batch."""
        if not len(batch.lengths):
            return
        self._writer.write_batch(_record_batch(batch, self.schema))
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


def _record_batch(batch: TokenBatch, schema: pa.Schema) -> pa.RecordBatch:
    offsets = np.zeros(len(batch.lengths) + 1, dtype=np.int32)  # of Arrow's lists; a batch is far below 2^31 tokens
    np.cumsum(batch.lengths, out=offsets[1:])
    id_type = schema.field("input_ids").type.value_type
    columns = [
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(batch.input_ids.astype(id_type.to_pandas_dtype()))),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(batch.word_starts.view(np.uint8))),
        *(pa.array(column) for column in (batch.document, batch.offset, batch.num_bytes)),
    ]
    if LABEL in schema.names:
        columns.append(pa.array(batch.label))
    if GROUP in schema.names:
        columns.append(pa.array(batch.document if batch.group is None else batch.group))
    for name in schema.names[len(columns) :]:
        width = schema.field(name).type.value_type.to_pandas_dtype()
        columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(batch.annotations[name].astype(width))))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TokenStore:
    """All pieces of a split. Shards are mapped when something of them is wanted (see `unmask.shards.mapped`).

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
        ahead: Callable[[Sequence[int]], None] = lambda numbers: None,
    ) -> None:
        """Opens the shards of a split, in order.

        Args:
            files: Their paths.
            entries: What the manifest says of them; None: all are opened at once.
            ready: Called with the number of a shard before it is first opened: waits for it and checks it.
            ahead: Told which shards are wanted next, so that they may be fetched.

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
        self.ahead = ahead
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
        """Whether all pieces are of one document. Documents are numbered as they come."""
        ends = self.gather(np.array([0, len(self) - 1])).document
        return bool(ends[0] == ends[1])

    def _in_order(self) -> Iterator[MappedShard]:
        return (self._shards.to_read(number) for number in range(len(self._shards)))

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
            for name, values in numbers.items():
                values[located.pieces] = located.number(name)
            for name, parts in tokens.items():
                parts.append(_gathered(located.addresses(name), begin, length, self._first.types[name]))
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


def _gathered(
    address: NDArray[np.int64], begin: NDArray[np.int64], lengths: NDArray[np.int64], dtype: np.dtype[np.generic]
) -> NDArray[np.unsignedinteger]:
    """So many values from some addresses and places behind them on, one behind another."""
    size = dtype.itemsize
    found: NDArray[np.unsignedinteger] = np.empty(int(lengths.sum()), dtype=dtype)
    gather(address + begin * size, lengths * size, found.view(np.uint8))
    return found


CHUNK_TOKENS = 1 << 24


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
