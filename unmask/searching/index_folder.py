"""The folder of an index: passages and their vectors in blocks, and what they were made with.

    search.json            what it was begun with: model, text, how passages are cut and embedded; claims the folder
    stdin.txt, pipes/, given/    what was no file, until the index is whole
    blocks/00000.npy       vectors [passages, dimension], float32, which are mapped into memory; or posting lists of
                           sparse ones in a line (`Postings.to_array`)
    blocks/00000.parquet   the passages: document, file, id, title, begin (in characters), text; written last of a block
    neighbours.usearch     a graph of near vectors, for approximate search
    index.json             counts, and the size of each file; written last: a folder that has one is whole

A block holds the same passages whenever the same text is indexed, so an index that was stopped goes on behind its last
whole block. Which passages these are is told by a hash in the block, which is compared when it goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unmask.claimed import ClaimedFolder
from unmask.errors import DataError
from unmask.files import absence, write_atomically, writing
from unmask.folders.sentence_files import SPLADE
from unmask.searching.exact_search import Block, PostingBlock, VectorBlock, Vectors
from unmask.searching.passage_cutting import TextPassage
from unmask.text.given import GIVEN
from unmask.text.pipes import PIPES, STDIN_FILE
from unmask.using.sparse_vectors import Postings, SparseVectors
from unmask.values import parse_json

VERSION = 1
BLOCK_PASSAGES = 4096
_ROWS_AT_ONCE = 256  # of a block's texts that are read for one result
_SCHEMA = pa.schema(
    [
        ("document", pa.int64()),
        ("file", pa.string()),
        ("id", pa.string()),
        ("id_is_number", pa.bool_()),
        ("title", pa.string()),
        ("begin", pa.int64()),
        ("text", pa.string()),
    ]
)
_HASH = b"unmask_passages"
_BEGUN: dict[str, type] = {"model": str, "fingerprint": str, "files": list, "encoding": dict}  # of `search.json`


class IndexFiles:
    """Paths within an index's folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun = root / "search.json"
        self.blocks = root / "blocks"
        self.neighbours = root / "neighbours.usearch"
        self.whole = root / "index.json"
        ours = {path.name for path in vars(self).values() if path != root} | {STDIN_FILE, PIPES, GIVEN}
        self.given = [root / name for name in (STDIN_FILE, PIPES, GIVEN)]
        self.claimed = ClaimedFolder(root=root, marker=self.begun.name, what="an index", ours=ours)
        self.ours = ours

    def vectors(self, block: int) -> Path:
        """The vectors of a block."""
        return self.blocks / f"{block:05d}.npy"

    def passages(self, block: int) -> Path:
        """The passages of a block."""
        return self.blocks / f"{block:05d}.parquet"

    def remove_given(self) -> None:
        """Removes what was no file, since the passages are in the blocks."""
        for path in self.given:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def num_whole_blocks(self) -> int:
        """How many blocks were written, one after the other."""
        number = 0
        while self.passages(number).is_file():
            number += 1
        return number

    def write_block(self, block: int, passages: Sequence[TextPassage], vectors: Vectors) -> None:
        """Writes a block, its passages last.

        Raises:
            WriteError: It cannot be written.
        """
        with writing(self.blocks):
            self.blocks.mkdir(exist_ok=True)
        array = io.BytesIO()
        if isinstance(vectors, SparseVectors):
            np.save(array, vectors.postings().to_array(), allow_pickle=False)
        else:
            np.save(array, np.ascontiguousarray(vectors, dtype="<f4"), allow_pickle=False)
        write_atomically(self.vectors(block), array.getbuffer())
        sink = pa.BufferOutputStream()
        table = _table(passages).replace_schema_metadata({_HASH: hash_of(passages)})
        pq.write_table(table, sink, row_group_size=_ROWS_AT_ONCE, compression="zstd")
        write_atomically(self.passages(block), memoryview(sink.getvalue()))

    def hash_of_block(self, block: int) -> str:
        """Which passages a block was made of, and that it is the same block still.

        Raises:
            DataError: It is damaged.
        """
        try:
            metadata = pq.read_metadata(self.passages(block)).metadata or {}
            return metadata[_HASH].decode()
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise damaged(self.passages(block), error) from error


def hash_of(passages: Sequence[TextPassage]) -> str:
    """A hash of the passages' places and texts."""
    found = hashlib.blake2b(digest_size=16)
    for passage in passages:
        part = passage.part
        told = [part.document, part.file, part.id, part.title, part.begin + passage.begin, passage.text]
        found.update(json.dumps(told).encode())
    return found.hexdigest()


def _table(passages: Sequence[TextPassage]) -> pa.Table:
    parts = [passage.part for passage in passages]
    columns = [
        [part.document for part in parts],
        [part.file for part in parts],
        [str(part.id) for part in parts],
        [isinstance(part.id, int) for part in parts],
        [part.title for part in parts],
        [part.begin + passage.begin for part, passage in zip(parts, passages, strict=True)],
        [passage.text for passage in passages],
    ]
    return pa.table([pa.array(values, kind.type) for values, kind in zip(columns, _SCHEMA, strict=True)], _SCHEMA)


def _two_sizes(vectors: int, passages: int) -> tuple[int, int]:
    return int(vectors), int(passages)


def damaged(file: Path, error: object) -> DataError:
    """The error that a file of an index cannot be used."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.errno is not None:  # what is in it was not seen
        return DataError(f"{file}: cannot be read ({reason})")
    return DataError(f"{file}: damaged ({reason}); make the index anew with --overwrite")


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """A passage as an index has it.

    Attributes:
        document: Number of its document in the index, counted from 0.
        file, id, title: What the document is called; see `DocumentPart`.
        begin: Character of the document at which it begins.
        text: Its characters.
    """

    document: int
    file: str
    id: str | int
    title: str | None
    begin: int
    text: str


class StoredIndex:
    """A whole index on the disk.

    Args:
        root: Its folder.

    Attributes:
        files: Paths.
        begun: What it was begun with, as `search.json` says.
        facts: Counts, as `index.json` says.
        dimension: Numbers of a vector.
        num_passages, num_documents: That it holds.
        is_sparse: Whether its vectors are sparse.

    Raises:
        DataError: There is none, it is not whole, a file is missing, has another size or is damaged, or its vectors are
            not as wide as it says.
    """

    def __init__(self, root: Path) -> None:
        self.files = IndexFiles(root)
        if not self.files.begun.is_file():
            what = "no index is in it" if root.is_dir() else absence(root, "folder")
            raise DataError(f"{root}: {what}; make one with `unmask search index MODEL FILES --out {root}`")
        if not self.files.whole.is_file():
            raise DataError(
                f"{root}: this index is not whole; finish it: run the same `unmask search index` command with --resume"
            )
        self.begun, self.facts = (read_facts(file) for file in (self.files.begun, self.files.whole))
        try:
            self.dimension, self.num_passages = int(self.begun["dimension"]), int(self.facts["passages"])
            self.is_sparse = self.begun["encoding"]["pooling"] == SPLADE
            lacking = [f"{name!r}" for name in _BEGUN if not isinstance(self.begun.get(name), _BEGUN[name])]
            sizes = [(int(block["passages"]), _two_sizes(*block["bytes"])) for block in self.facts["blocks"]]
            self.num_documents = int(self.facts["documents"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(self.files.whole, repr(error)) from error
        if lacking:
            raise damaged(self.files.begun, f"{lacking[0]} is not as it was written")
        self.firsts = np.cumsum([0, *(count for count, _ in sizes)])
        self._longest: dict[int, float] = {}
        for number, (count, wanted) in enumerate(sizes):
            self._check_block(number, count, wanted)

    def _check_block(self, number: int, count: int, wanted: tuple[int, int]) -> None:
        for file, size in zip((self.files.vectors(number), self.files.passages(number)), wanted, strict=True):
            if not file.is_file():
                raise DataError(f"{file}: not there, so the index is not whole; make it anew with --overwrite")
            if (found := file.stat().st_size) != size:
                raise damaged(file, f"{found:,} bytes, not {size:,}")
        if self.is_sparse:
            self._postings(number, count)
            return
        vectors = self.vectors_of(number)
        if vectors.shape != (count, self.dimension) or vectors.dtype != np.float32:
            raise DataError(
                f"{self.files.vectors(number)}: vectors {list(vectors.shape)} of {vectors.dtype}, where the index has "
                f"[{count}, {self.dimension}] of float32; make it anew with --overwrite"
            )

    def vectors_of(self, block: int) -> NDArray[Any]:
        """The vectors of a block, mapped into memory; of sparse ones their posting lists in a line."""
        file = self.files.vectors(block)
        try:
            found: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise damaged(file, error) from error
        return found

    def _postings(self, block: int, count: int) -> Postings:
        """The vectors of a block with so many passages, where they are sparse."""
        try:
            return Postings.of_array(self.vectors_of(block), width=self.dimension, count=count)
        except ValueError as error:
            raise damaged(self.files.vectors(block), error) from error

    def blocks(self) -> Iterator[Block]:
        """All vectors with the documents that they are of, block by block. Each is mapped while it is looked at: files
        that are open at once are few.
        """
        for number, (first, end) in enumerate(pairwise(self.firsts.tolist())):
            documents_P = self.documents[first:end]
            if self.is_sparse:
                yield PostingBlock(self._postings(number, end - first), documents_P, first)
            else:
                block = VectorBlock(self.vectors_of(number), documents_P, first, self._longest.get(number))
                yield block
                self._longest[number] = block.longest

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """The document of each passage, eight bytes each, which are kept."""
        columns = (self._read(block, None, ["document"]).column(0).to_numpy() for block in range(len(self.firsts) - 1))
        return np.concatenate([np.zeros(0, dtype=np.int64), *columns])

    def passage(self, number: int) -> StoredPassage:
        """A passage by its number.

        Raises:
            DataError: Its block is damaged.
        """
        block = int(np.searchsorted(self.firsts, number, side="right")) - 1
        group, row = divmod(number - int(self.firsts[block]), _ROWS_AT_ONCE)
        table = self._group(block, group).slice(row, 1).to_pylist()[0]
        id_ = int(table["id"]) if table["id_is_number"] else table["id"]
        return StoredPassage(table["document"], table["file"], id_, table["title"], table["begin"], table["text"])

    @lru_cache(maxsize=64)  # noqa: B019  (an index lives as long as its process)
    def _group(self, block: int, group: int) -> pa.Table:
        return self._read(block, group, None)

    def _read(self, block: int, group: int | None, columns: list[str] | None) -> pa.Table:
        file = self.files.passages(block)
        try:
            opened = pq.ParquetFile(file)
            with opened:
                return opened.read(columns) if group is None else opened.read_row_group(group, columns)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise damaged(file, error) from error


def read_facts(file: Path) -> dict[str, Any]:
    """What `search.json` or `index.json` says.

    Raises:
        DataError: It is damaged, or of another version.
    """
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no object")
    except (OSError, ValueError) as error:
        raise damaged(file, error) from error
    if content.get("version") != VERSION:
        raise DataError(f"{file}: made by another version of unmask; make the index anew with --overwrite")
    return content
