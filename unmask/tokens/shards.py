"""Token shards: Arrow IPC stream files, a row a document or a piece of a long one.

They open with `datasets.Dataset.from_file` and are memory-mapped without copies. Columns:

    input_ids    list<uint16 or uint32>   tokens of the text, without special tokens
    word_starts  list<uint8>              1 where a word begins (boolean lists would need a copy to map)
    document     int64                    number of the document in the corpus
    offset       int64                    byte of the document's text at which the row begins
    num_bytes    int64                    UTF-8 bytes of the row's text
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmask.errors import DataError

SHARD_TOKENS = 1 << 26


@dataclass(frozen=True)
class TokenPiece:
    """One row of a shard; see the module's docstring."""

    input_ids: NDArray[np.int32]
    word_starts: NDArray[np.bool_]
    document: int
    offset: int
    num_bytes: int


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


def schema_for(vocab_size: int) -> pa.Schema:
    """The Arrow schema of shards over a vocabulary of this size."""
    ids = pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()
    return pa.schema(
        {
            "input_ids": pa.list_(ids),
            "word_starts": pa.list_(pa.uint8()),
            "document": pa.int64(),
            "offset": pa.int64(),
            "num_bytes": pa.int64(),
        }
    )


class ShardWriter:
    """Writes the shards of one split; a file has its name only once it is complete.

    Args:
        root: The data folder.
        split: Name of the split, a folder below `root`.
        vocab_size: Number of ids of the tokenizer.
        shard_tokens: A new file begins behind this many tokens.
    """

    def __init__(self, root: Path, split: str, *, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.root = root
        self.split = split
        self.schema = schema_for(vocab_size)
        self.shard_tokens = shard_tokens
        self.files: list[ShardFile] = []
        self._sink: pa.OSFile | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._pieces = self._tokens = 0
        (root / split).mkdir(parents=True, exist_ok=True)

    def write(self, pieces: Sequence[TokenPiece]) -> None:
        """Appends rows, as one record batch."""
        if not pieces:
            return
        if self._writer is None:
            self._sink = pa.OSFile(str(self._partial), "wb")
            self._writer = pa.ipc.new_stream(self._sink, self.schema)
        self._writer.write_batch(_record_batch(pieces, self.schema))
        self._pieces += len(pieces)
        self._tokens += sum(len(piece.input_ids) for piece in pieces)
        if self._tokens >= self.shard_tokens:
            self.close()

    def close(self) -> None:
        """Completes the file that is being written, if any."""
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        self._sink.close()
        name = f"{self.split}/{len(self.files):05d}.arrow"
        os.replace(self._partial, self.root / name)
        digest = file_sha256(self.root / name)
        self.files.append(ShardFile(name, self._pieces, self._tokens, digest))
        self._writer = self._sink = None
        self._pieces = self._tokens = 0

    @property
    def _partial(self) -> Path:
        return self.root / self.split / "unfinished.arrow"

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._sink is not None:
            self._sink.close()


def _record_batch(pieces: Sequence[TokenPiece], schema: pa.Schema) -> pa.RecordBatch:
    lengths = np.fromiter((len(piece.input_ids) for piece in pieces), dtype=np.int32, count=len(pieces))
    offsets = pa.array(np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)]))
    id_type = schema.field("input_ids").type.value_type
    ids = np.concatenate([piece.input_ids for piece in pieces]).astype(id_type.to_pandas_dtype())
    starts = np.concatenate([piece.word_starts for piece in pieces]).astype(np.uint8)
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(ids)),
        pa.ListArray.from_arrays(offsets, pa.array(starts)),
        pa.array([piece.document for piece in pieces], pa.int64()),
        pa.array([piece.offset for piece in pieces], pa.int64()),
        pa.array([piece.num_bytes for piece in pieces], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TokenStore:
    """All pieces of a split, memory-mapped.

    Attributes:
        lengths: [num_pieces], int64: tokens of each piece.
        document, offset, num_bytes: [num_pieces], int64: as in the shards.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        """Opens the shards of a split, in order.

        Raises:
            DataError: A file is missing or is not a token shard.
        """
        self._ids: list[NDArray[np.unsignedinteger]] = []
        self._starts: list[NDArray[np.uint8]] = []
        chunk_of, begin_of, columns = [], [], []
        for file in files:
            for batch in _read_batches(file):
                offsets = batch["input_ids"].offsets.to_numpy()
                self._ids.append(batch["input_ids"].values.to_numpy())
                self._starts.append(batch["word_starts"].values.to_numpy())
                chunk_of.append(np.full(len(batch), len(self._ids) - 1, dtype=np.int64))
                begin_of.append(offsets.astype(np.int64))
                columns.append([batch[name].to_numpy() for name in ("document", "offset", "num_bytes")])
        if not columns:
            raise DataError("the split holds no rows")
        self._chunk = np.concatenate(chunk_of)
        self._begin = np.concatenate([begin[:-1] for begin in begin_of])
        self.lengths: NDArray[np.int64] = np.concatenate([np.diff(begin) for begin in begin_of])
        self.document, self.offset, self.num_bytes = (np.concatenate(c) for c in zip(*columns, strict=True))

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


def _read_batches(file: Path) -> list[pa.RecordBatch]:
    try:
        with pa.memory_map(str(file)) as source:
            return list(pa.ipc.open_stream(source))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file}: not a readable token shard ({error}); prepare the data again") from error
