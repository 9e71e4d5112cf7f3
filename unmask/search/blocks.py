"""The folder of an index: passages and their vectors in blocks, and what they were made with.

    search.json            model, text, and how passages are cut and embedded; claims the folder
    stdin.txt, pipes/, given/    input that was no file, until the index is whole
    blocks/00000.npy       vectors [passages, dimension], float32, which are mapped into memory; or the posting lists
                           of sparse ones (`Postings.to_array`)
    blocks/00000.parquet   their passages: document, file, id, title, begin (in characters), text; written last of a
                           block
    neighbours.usearch     a graph of near vectors, for approximate search
    index.json             counts, and the size of each file; written last: a folder that has one is whole

The same text always gives the same blocks, so an index that was stopped goes on behind its last whole block. A hash in
the block says which passages it holds, and is compared then.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unmask.core.errors import DataError, SettingsError, parse_json
from unmask.core.files import ClaimedFolder, absence, write_atomically, writing
from unmask.core.settings import Settings, validated
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.model.pooling import SPLADE
from unmask.search.encoder import EncodingSettings
from unmask.search.exact import Block, PostingBlock, VectorBlock, Vectors
from unmask.search.passages import TextPassage
from unmask.tasks.embed import Postings, SparseVectors

BLOCK_PASSAGES = 4096
_ROWS_AT_ONCE = 256  # texts of a block that are read for one result
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


class IndexSettings(Settings):
    """`search.json`: what an index was begun with. `model` is where the model lies; what it is, `fingerprint` says."""

    version: Literal[1]
    model: str
    fingerprint: str
    dimension: int
    files: list[str]
    reading: dict[str, Any]
    encoding: EncodingSettings
    precision: str


class BlockFacts(Settings):
    """Passages of a block, and the sizes of its two files: vectors, passages."""

    passages: int
    bytes: tuple[int, int]


class IndexFacts(Settings):
    """`index.json`: what a whole index holds."""

    version: Literal[1]
    documents: int
    passages: int
    blocks: list[BlockFacts]
    skipped: dict[str, int]


Kind = TypeVar("Kind", bound=Settings)


def read_settings(kind: type[Kind], file: Path) -> Kind:
    """Reads `search.json` or `index.json`.

    Raises:
        DataError: It is damaged.
    """
    try:
        return validated(kind, parse_json(file.read_text(encoding="utf-8")), where="it")
    except (OSError, ValueError, SettingsError) as error:
        raise damaged(file, error) from error


def as_json(content: Settings) -> str:
    """The text of such a file."""
    return json.dumps(content.model_dump(mode="json"), indent=1) + "\n"


def damaged(file: Path, error: object) -> DataError:
    """The error that a file of an index cannot be used."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.errno is not None:  # it could not be read at all
        return DataError(f"{file}: cannot be read ({reason})")
    return DataError(f"{file}: damaged ({reason}); make the index anew", options=("overwrite",))


class IndexFolder:
    """Paths within an index's folder, and the writing of blocks; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun = root / "search.json"
        self.blocks = root / "blocks"
        self.neighbours = root / "neighbours.usearch"
        self.whole = root / "index.json"
        self.ours = {"search.json", "blocks", "neighbours.usearch", "index.json", STDIN_FILE, PIPES, GIVEN}
        self.claimed = ClaimedFolder(root=root, marker=self.begun.name, what="an index", ours=self.ours)

    def vectors(self, block: int) -> Path:
        """The vectors of a block."""
        return self.blocks / f"{block:05d}.npy"

    def passages(self, block: int) -> Path:
        """The passages of a block."""
        return self.blocks / f"{block:05d}.parquet"

    def remove_given(self) -> None:
        """Removes the copies of input that was no file: its passages are in the blocks."""
        for path in (self.root / STDIN_FILE, self.root / PIPES, self.root / GIVEN):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def num_whole_blocks(self) -> int:
        """Blocks that were written, one after the other."""
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
        content = io.BytesIO()
        if isinstance(vectors, SparseVectors):
            np.save(content, vectors.postings().to_array(), allow_pickle=False)
        else:
            np.save(content, np.ascontiguousarray(vectors, dtype="<f4"), allow_pickle=False)
        write_atomically(self.vectors(block), content.getbuffer())
        rows = [
            {
                "document": passage.part.document,
                "file": passage.part.file,
                "id": str(passage.part.id),
                "id_is_number": isinstance(passage.part.id, int),
                "title": passage.part.title,
                "begin": passage.part.begin + passage.begin,
                "text": passage.text,
            }
            for passage in passages
        ]
        table = pa.Table.from_pylist(rows, _SCHEMA).replace_schema_metadata({_HASH: hash_of(passages)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=_ROWS_AT_ONCE, compression="zstd")
        write_atomically(self.passages(block), memoryview(sink.getvalue()))

    def block_facts(self, block: int, num_passages: int) -> BlockFacts:
        """What `index.json` says of a block that was written."""
        sizes = self.vectors(block).stat().st_size, self.passages(block).stat().st_size
        return BlockFacts(passages=num_passages, bytes=sizes)

    def hash_of_block(self, block: int) -> str:
        """The hash of the passages that a block was made of.

        Raises:
            DataError: It is damaged.
        """
        try:
            return (pq.read_metadata(self.passages(block)).metadata or {})[_HASH].decode()
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise damaged(self.passages(block), error) from error


def hash_of(passages: Sequence[TextPassage]) -> str:
    """A hash of the passages' places and texts."""
    digest = hashlib.blake2b(digest_size=16)
    for passage in passages:
        part = passage.part
        place = [part.document, part.file, part.id, part.title, part.begin + passage.begin, passage.text]
        digest.update(json.dumps(place).encode())
    return digest.hexdigest()


class StoredIndex:
    """A whole index on the disk, opened: the blocks are mapped into memory while they are searched.

    Attributes:
        folder: Paths.
        settings: `search.json`.
        facts: `index.json`.
        firsts: [blocks + 1]: the number of the first passage of each block.

    Raises:
        DataError: There is none, it is not whole, or a file is missing, damaged or of another size than it says.
    """

    def __init__(self, root: Path) -> None:
        self.folder = IndexFolder(root)
        if not self.folder.begun.is_file():
            what = "no index is in it" if root.is_dir() else absence(root, "folder")
            raise DataError(f"{root}: {what}; make one with `unmask search index MODEL FILES --out {root}`")
        if not self.folder.whole.is_file():
            raise DataError(
                f"{root}: this index is not whole; finish it: run the same `unmask search index` command and resume",
                options=("resume",),
            )
        self.settings = read_settings(IndexSettings, self.folder.begun)
        self.facts = read_settings(IndexFacts, self.folder.whole)
        self.is_sparse = self.settings.encoding.pooling == SPLADE
        self.firsts = np.cumsum([0, *(block.passages for block in self.facts.blocks)])
        self._longest: dict[int, float] = {}
        for number, block in enumerate(self.facts.blocks):
            files = self.folder.vectors(number), self.folder.passages(number)
            for file, size in zip(files, block.bytes, strict=True):
                if not file.is_file():
                    raise DataError(
                        f"{file}: not there, so the index is not whole; make it anew", options=("overwrite",)
                    )
                if (actual := file.stat().st_size) != size:
                    raise damaged(file, f"{actual:,} bytes, not {size:,}")
            self._vectors(number)

    def vectors(self, block: int) -> NDArray[np.float32]:
        """Dense vectors of a block, mapped into memory."""
        vectors = self._vectors(block)
        assert isinstance(vectors, np.ndarray)
        return vectors

    def _vectors(self, block: int) -> NDArray[np.float32] | Postings:
        file, count, width = self.folder.vectors(block), self.facts.blocks[block].passages, self.settings.dimension
        try:
            array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
            if self.is_sparse:
                return Postings.of_array(array, width=width, count=count)
            if array.shape != (count, width) or array.dtype != np.float32:
                raise ValueError(f"{list(array.shape)} of {array.dtype}, not [{count}, {width}] of float32")
        except (OSError, ValueError, EOFError) as error:
            raise damaged(file, error) from error
        return array

    def blocks(self) -> Iterator[Block]:
        """All blocks in order. Each is mapped while it is searched, so few files are open at once."""
        for number, (first, end) in enumerate(pairwise(self.firsts.tolist())):
            vectors, documents_P = self._vectors(number), self.documents[first:end]
            if isinstance(vectors, Postings):
                yield PostingBlock(vectors, documents_P, first)
            else:
                block = VectorBlock(vectors, documents_P, first, self._longest.get(number))
                yield block
                self._longest[number] = block.longest

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """The document of each passage: eight bytes each, which stay in memory."""
        columns = [self._read(block, None, ["document"]).column(0).to_numpy() for block in range(len(self.firsts) - 1)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *columns])

    def passage(self, number: int) -> dict[str, Any]:
        """A passage by its number: `document`, `file`, `id`, `title`, `begin` and `text`, as in the table of a block.

        Raises:
            DataError: Its block is damaged.
        """
        block = int(np.searchsorted(self.firsts, number, side="right")) - 1
        group, place = divmod(number - int(self.firsts[block]), _ROWS_AT_ONCE)
        row: dict[str, Any] = self._group(block, group).slice(place, 1).to_pylist()[0]
        is_number = row.pop("id_is_number")
        return row | {"id": int(row["id"]) if is_number else row["id"]}

    @lru_cache(maxsize=64)  # noqa: B019  (an index lives as long as its process)
    def _group(self, block: int, group: int) -> pa.Table:
        return self._read(block, group, None)

    def _read(self, block: int, group: int | None, columns: list[str] | None) -> pa.Table:
        file = self.folder.passages(block)
        try:
            with pq.ParquetFile(file) as opened:
                return opened.read(columns) if group is None else opened.read_row_group(group, columns)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise damaged(file, error) from error
