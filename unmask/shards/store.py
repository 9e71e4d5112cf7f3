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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.files import write_atomically
from unmask.shards.gather_loops import gather

Widths = Mapping[str, type[np.unsignedinteger]]
_COLUMNS = ("input_ids", "word_starts", "document", "offset", "num_bytes")
_LABEL, _GROUP = "label", "group"


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
            **({_LABEL: pa.int64()} if labelled else {}),
            **({_GROUP: pa.int64()} if grouped else {}),
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
    if _LABEL in schema.names:
        columns.append(pa.array(batch.label))
    if _GROUP in schema.names:
        columns.append(pa.array(batch.document if batch.group is None else batch.group))
    for name in schema.names[len(columns) :]:
        width = schema.field(name).type.value_type.to_pandas_dtype()
        columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(batch.annotations[name].astype(width))))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TokenChunk(NamedTuple):
    """Some pieces, one behind another, without a copy.

    Attributes:
        input_ids: [num_tokens].
        word_starts: [num_tokens].
        lengths: [num_pieces], int64: tokens of each.
    """

    input_ids: NDArray[np.generic]
    word_starts: NDArray[np.uint8]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class GatheredPieces:
    """Some pieces, copied one behind another.

    Attributes:
        piece: [num_pieces], int64: their numbers, in order.
        begin: [num_pieces], int64: where each begins.
        input_ids: [num_tokens].
        word_starts: [num_tokens], uint8.
        annotations: By column, [num_tokens].
    """

    piece: NDArray[np.int64]
    begin: NDArray[np.int64]
    input_ids: NDArray[np.unsignedinteger]
    word_starts: NDArray[np.uint8]
    annotations: Mapping[str, NDArray[np.unsignedinteger]]

    def places(self, piece: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a token of each of some pieces stands here: the one with the number `start` of its piece."""
        return self.begin[np.searchsorted(self.piece, piece)] + start


class _Column:
    """One column of tokens in all record batches: the memory that each begins at."""

    def __init__(self, values: Sequence[NDArray[np.unsignedinteger]]) -> None:
        self.dtype = values[0].dtype
        if any(each.dtype != self.dtype for each in values):
            raise DataError("shards of one split have columns of different widths; prepare the data again")
        self._address = np.array([each.__array_interface__["data"][0] for each in values], dtype=np.int64)

    def gather(
        self, chunk: NDArray[np.int64], begin: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.unsignedinteger]:
        """So many values of each of some record batches, from their places on, one behind another."""
        size = self.dtype.itemsize
        found = np.empty(int(lengths.sum()), dtype=self.dtype)
        gather(self._address[chunk] + begin * size, lengths * size, found.view(np.uint8))
        return found


class TokenStore:
    """All pieces of a split, memory-mapped.

    Attributes:
        lengths: [num_pieces], int64: tokens of each piece.
        document, offset, num_bytes: [num_pieces], int64: as in the shards.
        annotations: Names of the columns of annotation.
        label: [num_pieces], int64: number of each piece's class, -1 where it has none; None where the data was
            prepared without classes.
        draw: [num_pieces], int64: what each piece is a draw of: its group where groups were held out, else its
            document.
        grouped: Whether groups were held out.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        """Opens the shards of a split, in order.

        Raises:
            DataError: A file is missing or is not a token shard.
        """
        self._ids: list[NDArray[np.unsignedinteger]] = []
        self._starts: list[NDArray[np.uint8]] = []
        self._annotations: list[dict[str, NDArray[np.unsignedinteger]]] = []
        chunk_of, begin_of, columns = [], [], []
        labels: list[NDArray[np.int64]] = []
        draws: list[NDArray[np.int64]] = []
        self.grouped = False
        for file in files:
            for batch in _read_batches(file):
                offsets = batch["input_ids"].offsets.to_numpy()
                self._ids.append(batch["input_ids"].values.to_numpy())
                self._starts.append(batch["word_starts"].values.to_numpy())
                names = [name for name in batch.schema.names if name not in (*_COLUMNS, _LABEL, _GROUP)]
                self._annotations.append({name: batch[name].values.to_numpy() for name in names})
                chunk_of.append(np.full(len(batch), len(self._ids) - 1, dtype=np.int64))
                begin_of.append(offsets.astype(np.int64))
                columns.append([batch[name].to_numpy() for name in ("document", "offset", "num_bytes")])
                if _LABEL in batch.schema.names:
                    labels.append(batch[_LABEL].to_numpy())
                self.grouped |= _GROUP in batch.schema.names
                draws.append(batch[_GROUP if _GROUP in batch.schema.names else "document"].to_numpy())
        if not columns:
            raise DataError("the split holds no rows")
        self.annotations: tuple[str, ...] = tuple(self._annotations[0])
        self._chunk = np.concatenate(chunk_of)
        self._begin = np.concatenate([begin[:-1] for begin in begin_of])
        self.lengths: NDArray[np.int64] = np.concatenate([np.diff(begin) for begin in begin_of])
        self.document, self.offset, self.num_bytes = (np.concatenate(c) for c in zip(*columns, strict=True))
        self.label: NDArray[np.int64] | None = np.concatenate(labels) if labels else None
        self.draw: NDArray[np.int64] = np.concatenate(draws)
        self._columns = {
            "input_ids": _Column(self._ids),
            "word_starts": _Column(self._starts),
            **{name: _Column([each[name] for each in self._annotations]) for name in self.annotations},
        }

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return int(self.lengths.sum())

    def read(self, piece: int, start: int, length: int) -> tuple[NDArray[np.generic], NDArray[np.uint8]]:
        """The ids and word starts of `length` tokens of a piece from token `start` on, without a copy."""
        chunk, begin = self._chunk[piece], self._begin[piece] + start
        return self._ids[chunk][begin : begin + length], self._starts[chunk][begin : begin + length]

    def gather(self, pieces: NDArray[np.int64]) -> GatheredPieces:
        """Copies of some pieces, whose order does not matter."""
        pieces = np.sort(pieces)
        lengths = self.lengths[pieces]
        found = {
            name: column.gather(self._chunk[pieces], self._begin[pieces], lengths)
            for name, column in self._columns.items()
        }
        input_ids, word_starts = found.pop("input_ids"), found.pop("word_starts")
        return GatheredPieces(pieces, np.cumsum(lengths) - lengths, input_ids, word_starts, found)

    def chunks(self, num_tokens: int) -> Iterator[TokenChunk]:
        """All pieces in order, some at a time: as many as have `num_tokens` tokens together, or one that has more."""
        pieces = np.flatnonzero(np.diff(self._chunk, prepend=-1))
        for first, end in zip(pieces, [*pieces[1:], len(self)], strict=True):
            chunk = int(self._chunk[first])
            ends = np.cumsum(self.lengths[first:end])
            done = 0
            while done < len(ends):
                before = int(ends[done - 1]) if done else 0
                upto = max(done + 1, int(np.searchsorted(ends, before + num_tokens, side="right")))
                tokens = slice(int(self._begin[first + done]), int(self._begin[first]) + int(ends[upto - 1]))
                lengths = self.lengths[first + done : first + upto]
                yield TokenChunk(self._ids[chunk][tokens], self._starts[chunk][tokens], lengths)
                done = upto

    def read_annotation(self, name: str, piece: int, start: int, length: int) -> NDArray[np.unsignedinteger]:
        """A column of annotation at `length` tokens of a piece from token `start` on, without a copy."""
        begin = self._begin[piece] + start
        return self._annotations[self._chunk[piece]][name][begin : begin + length]


def _read_batches(file: Path) -> list[pa.RecordBatch]:
    try:
        with pa.memory_map(str(file)) as source:
            return list(pa.ipc.open_stream(source))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file}: not a readable token shard ({error}); prepare the data again") from error


CHUNK_TOKENS = 1 << 24


def document_frequencies(store: TokenStore, vocab_size: int) -> NDArray[np.int64]:
    """In how many rows of the shards (documents, or pieces of long ones) each id stands: [vocab_size].

    Only some strategies need it. Memory is bounded: rows are taken in groups of some million tokens.
    """
    counts: NDArray[np.int64] = np.zeros(vocab_size, dtype=np.int64)
    ends = np.cumsum(store.lengths)
    cuts = np.flatnonzero(np.diff(ends // CHUNK_TOKENS, prepend=0)).tolist()
    for begin, end in zip([0, *cuts], [*cuts, len(store)], strict=True):
        if begin == end:
            continue
        ids = np.concatenate([store.read(piece, 0, int(store.lengths[piece]))[0] for piece in range(begin, end)])
        piece_of = np.repeat(np.arange(end - begin, dtype=np.int64), store.lengths[begin:end])
        pairs = np.unique(piece_of * vocab_size + ids.astype(np.int64))
        counts += np.bincount(pairs % vocab_size, minlength=vocab_size)
    return counts
