"""The folder of an index: passages and their vectors in blocks, and what they were made with.

    search.json            model, text, and how passages are cut and embedded; claims the folder
    stdin.txt, pipes/, given/    input that was no file, until the index is whole
    blocks/00000.npy       vectors [passages, dimension], float32, which are mapped into memory; or the posting lists
                           of sparse ones (see `stored_postings`)
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
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from importlib.util import find_spec
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
from unmask.search.exact import Ranking, VectorBlock, Vectors, joined, search_exactly
from unmask.search.passages import TextPassage

BLOCK_PASSAGES = 4096
_PASSAGES_A_DOCUMENT = 4  # a document may have several passages, so more of them are looked up
_LEAST_PASSAGES = 64
_MOST_PASSAGES = 0.125  # of all: from there on, looking at every passage takes less time
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
    """Reads `search.json` or `index.json`; raises `DataError` where it is damaged."""
    try:
        return validated(kind, parse_json(file), where="it")
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


# Of sparse vectors a block holds posting lists, in a line of int32: where the list of each token begins
# [dimension + 1], the vectors in the lists [Z], ascending within a list, and the float32 bits of their numbers [Z].


def stored_postings(vectors: Any) -> NDArray[np.int32]:
    """Posting lists of a `csr_array`, in a line."""
    lists = vectors.tocsc()
    return np.concatenate([lists.indptr, lists.indices, lists.data.view(np.int32)], dtype="<i4", casting="same_kind")


def read_postings(array: NDArray[np.int32], *, width: int, count: int) -> Any:
    """Such a line as `csc_array` of `count` vectors, which may be mapped from a file and is not copied. Raises
    `ValueError` where it is of other vectors, or damaged."""
    from scipy.sparse import csc_array

    if array.ndim != 1 or array.dtype != np.int32 or len(array) <= width:
        raise ValueError(f"no posting lists of {width:,} numbers")
    size = int(array[width])
    if len(array) != width + 1 + 2 * size:
        raise ValueError(f"{len(array):,} numbers, not {width + 1 + 2 * size:,}")
    if array[0] != 0 or (np.diff(array[: width + 1]) < 0).any():
        raise ValueError("posting lists that do not begin one behind the other")
    begins, owners, bits = np.split(np.asarray(array), [width + 1, width + 1 + size])
    return csc_array((bits.view(np.float32), owners, begins), shape=(count, width))


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

    def files(self, block: int) -> tuple[Path, Path]:
        """Vectors and passages of a block."""
        return self.blocks / f"{block:05d}.npy", self.blocks / f"{block:05d}.parquet"

    def write_block(self, block: int, passages: Sequence[TextPassage], vectors: Vectors) -> None:
        """Writes a block, its passages last; raises `WriteError` where it cannot be written."""
        vectors_file, passages_file = self.files(block)
        with writing(self.blocks):
            self.blocks.mkdir(exist_ok=True)
        is_dense, content = isinstance(vectors, np.ndarray), io.BytesIO()
        array = np.ascontiguousarray(vectors, dtype="<f4") if is_dense else stored_postings(vectors)
        np.save(content, array, allow_pickle=False)
        write_atomically(vectors_file, content.getbuffer())
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
        write_atomically(passages_file, memoryview(sink.getvalue()))

    def hash_of_block(self, block: int) -> str:
        """The hash of the passages that a block was made of; raises `DataError` where it is damaged."""
        file = self.files(block)[1]
        try:
            return (pq.read_metadata(file).metadata or {})[_HASH].decode()
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise damaged(file, error) from error


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
        # [blocks + 1]: the number of the first passage of each block.
        self._firsts = np.cumsum([0, *(block.passages for block in self.facts.blocks)])
        self._longest: dict[int, float | None] = {}
        for number, block in enumerate(self.facts.blocks):
            for file, size in zip(self.folder.files(number), block.bytes, strict=True):
                if not file.is_file():
                    raise DataError(
                        f"{file}: not there, so the index is not whole; make it anew", options=("overwrite",)
                    )
                if (actual := file.stat().st_size) != size:
                    raise damaged(file, f"{actual:,} bytes, not {size:,}")
            self._vectors(number)

    def _vectors(self, block: int) -> Any:
        """Vectors of a block, mapped into memory: an array, or a `csc_array`."""
        file, count, width = self.folder.files(block)[0], self.facts.blocks[block].passages, self.settings.dimension
        try:
            array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
            if self.settings.encoding.pooling == SPLADE:
                return read_postings(array, width=width, count=count)
            if array.shape != (count, width) or array.dtype != np.float32:
                raise ValueError(f"{list(array.shape)} of {array.dtype}, not [{count}, {width}] of float32")
        except (OSError, ValueError, EOFError) as error:
            raise damaged(file, error) from error
        return array

    def blocks(self) -> Iterator[VectorBlock]:
        """All blocks in order. Each is mapped while it is searched, so few files are open at once."""
        for number, (first, end) in enumerate(pairwise(self._firsts.tolist())):
            block = VectorBlock(self._vectors(number), self.documents[first:end], first, self._longest.get(number))
            yield block
            self._longest[number] = block.longest

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """The document of each passage: eight bytes each, which stay in memory."""
        numbers = range(len(self.facts.blocks))
        columns = [self._read(block, None, ["document"]).column(0).to_numpy() for block in numbers]
        return np.concatenate([np.zeros(0, dtype=np.int64), *columns])

    def passage(self, number: int) -> dict[str, Any]:
        """A passage by its number: `document`, `file`, `id`, `title`, `begin` and `text`, as in the table of a block.

        Raises:
            DataError: Its block is damaged.
        """
        block = int(np.searchsorted(self._firsts, number, side="right")) - 1
        group, place = divmod(number - int(self._firsts[block]), _ROWS_AT_ONCE)
        row: dict[str, Any] = self._group(block, group).slice(place, 1).to_pylist()[0]
        is_number = row.pop("id_is_number")
        return row | {"id": int(row["id"]) if is_number else row["id"]}

    @lru_cache(maxsize=64)  # noqa: B019  (an index lives as long as its process)
    def _group(self, block: int, group: int) -> pa.Table:
        return self._read(block, group, None)

    def _read(self, block: int, group: int | None, columns: list[str] | None) -> pa.Table:
        file = self.folder.files(block)[1]
        try:
            with pq.ParquetFile(file) as opened:
                return opened.read(columns) if group is None else opened.read_row_group(group, columns)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise damaged(file, error) from error

    # Approximate search in large indexes, by a graph of near vectors that usearch makes and maps into memory.
    #
    # Exact search reads every vector for every query: a gigabyte for a million passages of 256 numbers. A graph finds
    # nearly all of the nearest in a thousandth of that. Its hits are rescored with the vectors themselves, so scores
    # are those of exact search; only a near passage may be missed. Threads add vectors in any order, so two graphs of
    # the same vectors are not quite the same.
    #
    # Source: Malkov and Yashunin 2018 (Efficient and robust approximate nearest neighbor search using HNSW graphs).

    def search_by_graph(self, queries_QD: NDArray[np.float32], top_k: int) -> Ranking:
        """The nearest documents among the passages that the graph finds; as `search_exactly`. Raises `DataError` where
        the graph is damaged, or of other vectors."""
        from usearch.index import Index

        file, num_passages = self.folder.neighbours, self.facts.passages
        try:
            graph = Index.restore(str(file), view=True)
        except (RuntimeError, OSError, ValueError) as error:
            raise DataError(f"{file}: damaged ({error}); remove it to search exactly") from error
        if graph is None or graph.ndim != queries_QD.shape[1] or len(graph) != num_passages:
            what = "no graph" if graph is None else f"{len(graph):,} vectors of {graph.ndim} numbers"
            raise DataError(f"{file}: damaged ({what}, not {num_passages:,} vectors); remove it to search exactly")
        count = min(num_passages, max(_LEAST_PASSAGES, _PASSAGES_A_DOCUMENT * top_k))
        near = np.atleast_2d(graph.search(queries_QD, count).keys).astype(np.int64)
        rankings = [
            search_exactly(query_D[None], self._near(graph, query_D, passages, top_k), top_k)
            for query_D, passages in zip(queries_QD, near, strict=True)
        ]
        return joined(rankings)

    def _near(
        self, graph: Any, query_D: NDArray[np.float32], passages: NDArray[np.int64], top_k: int
    ) -> Iterator[VectorBlock]:
        """The passages of a graph, each as a block of its own, so that it keeps its number. More are looked up where
        they are of fewer documents than `top_k`, since a long document may have all that are near; at last all are.
        """
        count = len(passages)
        while len(np.unique(self.documents[passages])) < top_k:
            count *= 4
            if count > self.facts.passages * _MOST_PASSAGES:
                yield from self.blocks()
                return
            passages = graph.search(query_D, count).keys.astype(np.int64)
        passages = np.unique(passages)
        blocks = np.searchsorted(self._firsts, passages, side="right") - 1
        for block in np.unique(blocks).tolist():
            vectors, first = self._vectors(block), int(self._firsts[block])
            for passage in passages[blocks == block].tolist():
                vector_PD = vectors[passage - first : passage - first + 1]
                yield VectorBlock(vector_PD, self.documents[passage : passage + 1], passage)


def why_no_graph() -> str | None:
    """Why there is no approximate search, with the way out; None: there is."""
    return None if find_spec("usearch") else "usearch is not installed: pip install 'unmask[search]'"


def write_graph(folder: IndexFolder, facts: IndexFacts) -> None:
    """Makes the graph of all blocks. Meanwhile memory holds it and all vectors in float16. Raises `WriteError` where it
    cannot be written."""
    from usearch.index import Index

    first, graph = 0, None
    for number, block in enumerate(facts.blocks):
        vectors = np.load(folder.files(number)[0], mmap_mode="r", allow_pickle=False)
        graph = graph or Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        graph.add(np.arange(first, first + block.passages, dtype=np.uint64), np.ascontiguousarray(vectors))
        first += block.passages
    assert graph is not None, "an index has a passage"
    partial = folder.neighbours.with_name(folder.neighbours.name + ".partial")
    with writing(folder.neighbours, RuntimeError):
        graph.save(str(partial))
        partial.replace(folder.neighbours)
