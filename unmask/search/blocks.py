"""The folder of an index: immutable files, and one small file that says which of them are the index.

    search.json          settings of the index and its blocks so far; claims the folder
    stdin.txt, pipes/, given/    input that came from no file, until the index is complete
    blocks/NAME.npy      vectors [passages, dimension], float32, mapped into memory; for sparse ones, posting lists
                         (see `stored_postings`)
    blocks/NAME.npy      word counts of the passages (see `words.py`)
    blocks/NAME.parquet  the passages: file, id, title, begin (in characters), text
    blocks/NAME.npy      one for all blocks: the document of each passage [passages], int64; -1: it was removed
    blocks/NAME.usearch  a graph of near vectors, for approximate search
    index.json           the whole state: as search.json, with counts; replaced last, atomically

NAME is the SHA-256 of the content (its first 32 hexadecimal digits). So a file never changes; the next state can only
leave it out. A reader keeps one state, or opens the next one, and checks each file against its name before the first
use. The same text always gives the same blocks, so an interrupted index resumes after its last block.

Documents are added in new blocks and removed by their numbers (`changes.py`). The graph covers the first blocks;
passages of later blocks are scanned one by one.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt
from scipy.sparse import csc_array

from unmask.core.errors import DataError, SettingsError, parse_json, unsealed
from unmask.core.files import ClaimedFolder, absence, file_sha256, write_atomically, write_object, writing
from unmask.core.settings import Settings, validated
from unmask.data.settings import DocumentUnit
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.data.tables import TableColumns
from unmask.model.pooling import SPLADE
from unmask.search.encoder import EncodingSettings
from unmask.search.exact import Ranking, VectorBlock, Vectors, joined, search_exactly
from unmask.search.passages import TextPassage
from unmask.search.words import WordSearch, word_line

BLOCK_PASSAGES = 4096
_PASSAGES_A_DOCUMENT = 4  # passages fetched from the graph per document, since a document may have several
_LEAST_PASSAGES = 64
_ONE_THREAD_UP_TO = 4096  # passages; later ones are added to the graph by all threads
_MOST_PASSAGES = 0.125  # share of all passages above which scanning every one is faster
_ROWS_AT_ONCE = 256  # rows per parquet row group: reading one passage's text reads its group
SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("id", pa.string()),
        ("id_is_number", pa.bool_()),
        ("is_counted", pa.bool_()),
        ("title", pa.string()),
        ("begin", pa.int64()),
        ("text", pa.string()),
    ]
)
_NAME_DIGITS = 32
FileName = Annotated[str, Field(pattern=r"^[0-9a-f]{32}\.(npy|parquet|usearch)$")]


class IndexSettings(Settings):
    model: str  # its name on the hub, or its path; `fingerprint` identifies it
    fingerprint: str
    dimension: PositiveInt
    files: list[str]
    folder: str  # the working directory in which it was built
    reading: dict[str, Any]  # the options for reading files, as the user gave them
    tables: list[TableColumns]  # the columns chosen by these options; defaults for added tables
    unit: DocumentUnit | None = None  # likewise what a document is in text files; None: there were none
    encoding: EncodingSettings
    precision: str

    @property
    def base(self) -> str:
        """The folder where relative names of files start: that of the build or, if it was moved, the current one."""
        return self.folder if os.path.isdir(self.folder) else os.getcwd()


class IndexBlock(Settings):
    """Consecutive passages: how many, a hash of them, and their files."""

    passages: PositiveInt
    hash: str
    vectors: FileName
    words: FileName
    table: FileName
    bytes: NonNegativeInt  # of all files

    @property
    def names(self) -> list[str]:
        return [self.vectors, self.words, self.table]


class IndexState(Settings):
    """Content of `index.json`, and of `search.json` while the index is built."""

    version: Literal[4] = 4
    settings: IndexSettings
    blocks: list[IndexBlock] = Field(default_factory=list)
    documents: NonNegativeInt = 0
    skipped: dict[str, int] = Field(default_factory=dict)
    numbers: FileName | None = None  # the document of each passage; None: the index is incomplete
    graph: FileName | None = None
    linked: NonNegativeInt = 0  # number of blocks in the graph: always the first ones
    removed: NonNegativeInt = 0  # passages without a document
    changes: NonNegativeInt = 0  # number of additions and removals since the index was built

    @property
    def passages(self) -> int:
        return sum(block.passages for block in self.blocks)

    @property
    def names(self) -> list[str]:
        shared = [name for name in (self.numbers, self.graph) if name is not None]
        return [name for block in self.blocks for name in block.names] + shared


def read_state(file: Path) -> IndexState:
    try:
        return validated(IndexState, unsealed(parse_json(file)), where="it")
    except (OSError, ValueError, SettingsError) as error:
        raise damaged(file, error) from error


def damaged(file: Path, error: object) -> DataError:
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.errno is not None:  # the system could not read it
        return DataError(f"{file}: cannot be read ({reason})")
    return DataError(f"{file}: damaged, or of another version ({reason}); rebuild the index", options=("overwrite",))


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turns errors of libraries into `DataError`, except for a missing file: a newer state may have removed it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, pa.ArrowException) as error:
        raise damaged(file, error) from error


# Sparse vectors are stored as posting lists in one int32 array: where each token's list begins [dimension + 1], the
# numbers of the vectors in the lists [Z], ascending within a list, and the float32 bits of their values [Z].


def stored_postings(vectors: Any) -> NDArray[np.int32]:
    lists = vectors.tocsc()
    return np.concatenate([lists.indptr, lists.indices, lists.data.view(np.int32)], dtype="<i4", casting="same_kind")


def read_postings(array: NDArray[np.int32], *, width: int, count: int) -> Any:
    """Such an array as a `csc_array` of `count` vectors. The array may be mapped from a file and is not copied."""
    begins, owners, bits = np.split(np.asarray(array), [width + 1, width + 1 + int(array[width])])
    return csc_array((bits.view(np.float32), owners, begins), shape=(count, width))


def hash_of(passages: Sequence[TextPassage]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for passage in passages:
        part = passage.part
        place = [part.document, part.file, part.id, part.title, part.begin + passage.begin, passage.text]
        digest.update(json.dumps(place).encode())
    return digest.hexdigest()


class IndexFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun, self.whole, self.blocks = root / "search.json", root / "index.json", root / "blocks"
        self.inputs = {STDIN_FILE, PIPES, GIVEN}
        self.claimed = ClaimedFolder(
            root=root, marker=self.begun.name, what="an index", last=self.whole.name,
            ours={self.begun.name, self.whole.name, self.blocks.name, *self.inputs}, early=self.inputs,
        )  # fmt: skip

    def write_state(self, file: Path, state: IndexState) -> None:
        write_object(file, state.model_dump(mode="json"))

    def written(self) -> tuple[int, int] | None:
        """Modification time and inode of `index.json`, which change when it is replaced; None if it is missing."""
        with suppress(OSError):
            facts = self.whole.stat()
            return facts.st_mtime_ns, facts.st_ino
        return None

    def is_intact(self, name: str) -> bool:
        """Whether a file's content matches the hash in its name. Raises `FileNotFoundError` if it is missing."""
        with _reading(self.blocks / name):
            return file_sha256(self.blocks / name).startswith(Path(name).stem)

    def has(self, *names: str) -> bool:
        with suppress(FileNotFoundError):
            return all(map(self.is_intact, names))
        return False

    def write(self, content: memoryview, suffix: str) -> str:
        name = hashlib.sha256(content).hexdigest()[:_NAME_DIGITS] + suffix
        with writing(self.blocks):
            self.blocks.mkdir(exist_ok=True)
        write_atomically(self.blocks / name, content)
        return name

    def write_array(self, array: NDArray[Any]) -> str:
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        return self.write(content.getbuffer(), ".npy")

    def write_block(self, passages: Sequence[TextPassage], vectors: Vectors) -> IndexBlock:
        parts = [passage.part for passage in passages]
        columns = {
            "file": [part.file for part in parts],
            "id": [str(part.id) for part in parts],
            "id_is_number": [isinstance(part.id, int) for part in parts],
            "is_counted": [part.is_counted for part in parts],
            "title": [part.title for part in parts],
            "begin": [passage.part.begin + passage.begin for passage in passages],
            "text": [passage.text for passage in passages],
        }
        words = word_line([passage.counted for passage in passages])
        return self.write_files(vectors, words, pa.Table.from_pydict(columns, SCHEMA), hash_of(passages))

    def write_files(
        self, vectors: Vectors, words: NDArray[np.uint32], table: pa.Table, hash_: str | None = None
    ) -> IndexBlock:
        """Writes a block. `hash_` lets a resumed build recognise its text; joined blocks need none."""
        is_dense = isinstance(vectors, np.ndarray)
        array = np.ascontiguousarray(vectors, dtype="<f4") if is_dense else stored_postings(vectors)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=_ROWS_AT_ONCE, compression="zstd")
        content = memoryview(sink.getvalue())
        name = self.write(content, ".parquet")
        return IndexBlock(
            passages=len(table),
            hash=hash_ or name,
            vectors=self.write_array(array),
            words=self.write_array(words),
            table=name,
            bytes=array.nbytes + words.nbytes + content.nbytes,
        )

    def write_graph(self, state: IndexState) -> str:
        """Builds the graph of all vectors. Building keeps the graph and all vectors, in float16, in memory."""
        from usearch.index import Index

        first, graph = 0, Index(ndim=state.settings.dimension, metric="ip", dtype="f16")
        stored = StoredIndex(self.root, state=state)
        for number, block in enumerate(state.blocks):
            vectors = np.ascontiguousarray(stored.vectors(number))
            # Threads that add to a small graph at once leave passages out of reach (in a third of graphs of 64).
            threads = 1 if first < _ONE_THREAD_UP_TO else 0
            graph.add(np.arange(first, first + block.passages, dtype=np.uint64), vectors, threads=threads)
            first += block.passages
        partial = self.blocks / "graph.partial"
        try:
            with writing(partial, RuntimeError):
                graph.save(str(partial))
                with partial.open("rb+") as file:
                    os.fsync(file.fileno())
                if (size := partial.stat().st_size) != graph.serialized_length:  # usearch does not check its writes
                    raise OSError(errno.ENOSPC, f"{size:,} bytes were written, not {graph.serialized_length:,}")
                name = file_sha256(partial)[:_NAME_DIGITS] + ".usearch"
                partial.replace(self.blocks / name)
        finally:
            partial.unlink(missing_ok=True)
        return name

    def finish(self, state: IndexState) -> None:
        """Makes this the state of the index, and removes all other files."""
        self.write_state(self.begun, state)
        self.write_state(self.whole, state)
        names = set(state.names)
        for path in self.blocks.iterdir():
            if path.name not in names:
                with suppress(OSError):  # some systems cannot remove an open file
                    path.unlink()


@lru_cache(maxsize=64)
def _rows(file: Path, group: int) -> pa.Table:
    with _reading(file), pq.ParquetFile(file) as opened:
        return opened.read_row_group(group)


class StoredIndex:
    """One state of an index on disk. Blocks are mapped into memory only while they are searched, so few files are open.

    Args:
        state: The state. By default the one in `index.json`.
        before: A state of this index that was opened before: files that it has checked are not checked again.

    Its methods raise `DataError` if a file is damaged, and `FileNotFoundError` if it is missing, perhaps because the
    index has a newer state by now.
    """

    def __init__(self, root: Path, *, state: IndexState | None = None, before: StoredIndex | None = None) -> None:
        self.folder = IndexFolder(root)
        if state is None and not self.folder.whole.is_file():
            if self.folder.begun.is_file():
                text = "this index is unfinished; run the same `unmask search index` command again, with resume"
                raise DataError(f"{root}: {text}")
            what = "it holds no index" if root.is_dir() else absence(root, "folder")
            raise DataError(f"{root}: {what}; make one with `unmask search index MODEL FILES --out {root}`")
        self.written = self.folder.written()
        self.state = state or read_state(self.folder.whole)
        # [blocks + 1]: the number of the first passage of each block.
        self._firsts = np.cumsum([0, *(block.passages for block in self.state.blocks)])
        self._longest: dict[int, float | None] = {}
        self._intact: set[str] = set() if before is None else before._intact & {*self.state.names}

    def _file(self, name: str) -> Path:
        """Path of a file, which is checked against its name on first use."""
        if name not in self._intact:
            if not self.folder.is_intact(name):
                raise damaged(self.folder.blocks / name, "its content does not match its name")
            self._intact.add(name)
        return self.folder.blocks / name

    def _array(self, name: str, *, mapped: bool = True) -> NDArray[Any]:
        file = self._file(name)
        with _reading(file):
            array: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
        return array

    def vectors(self, number: int) -> Any:
        block, width = self.state.blocks[number], self.state.settings.dimension
        array = self._array(block.vectors)
        is_sparse = self.state.settings.encoding.pooling == SPLADE
        return read_postings(array, width=width, count=block.passages) if is_sparse else array

    def blocks(self, begin: int = 0) -> Iterator[VectorBlock]:
        for number, (first, end) in islice(enumerate(pairwise(self._firsts.tolist())), begin, None):
            vectors_PD, passages_P, longest = self.vectors(number), np.arange(first, end), self._longest.get(number)
            block = VectorBlock(vectors_PD, self.documents[first:end], passages_P, longest)
            yield block
            self._longest[number] = block.longest

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """The document of each passage, eight bytes each; stays in memory."""
        array = self._array(self.state.numbers or "", mapped=False)
        if array.shape != (self.state.passages,):
            raise damaged(self.folder.whole, f"it has documents for {len(array)} passages, not {self.state.passages}")
        return array

    def words(self, number: int) -> NDArray[np.uint32]:
        return self._array(self.state.blocks[number].words)

    @cached_property
    def by_words(self) -> WordSearch:
        return WordSearch(self.documents, lambda: map(self.words, range(len(self.state.blocks))))

    def table(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        file = self._file(self.state.blocks[number].table)
        with _reading(file):
            return pq.read_table(file, columns=columns)

    def passage(self, number: int) -> dict[str, Any]:
        """A passage by its number: `document`, and the columns of its block's table (`id` in its own type)."""
        block = int(np.searchsorted(self._firsts, number, side="right")) - 1
        group, place = divmod(number - int(self._firsts[block]), _ROWS_AT_ONCE)
        row: dict[str, Any] = _rows(self._file(self.state.blocks[block].table), group).slice(place, 1).to_pylist()[0]
        id_ = int(row["id"]) if row.pop("id_is_number") else row["id"]
        return row | {"document": int(self.documents[number]), "id": id_}

    # Approximate search in large indexes, by a graph of near vectors that usearch builds and maps into memory.
    #
    # Exact search reads every vector for every query: a gigabyte for a million passages of 256 dimensions. A graph
    # finds nearly all of the nearest while reading a thousandth of that. Its hits are rescored with the stored vectors,
    # so scores equal those of exact search; only a near passage may be missed. Threads add vectors in any order, so two
    # graphs of the same vectors differ slightly.
    #
    # Source: Malkov and Yashunin 2018 (Efficient and robust approximate nearest neighbor search using HNSW graphs).

    def search_by_graph(self, queries_QD: NDArray[np.float32], top_k: int) -> Ranking:
        """As `search_exactly`, among the passages that the graph proposes and those of blocks that are not in it."""
        from usearch.index import Index

        assert self.state.graph is not None
        file, num_passages = self._file(self.state.graph), int(self._firsts[self.state.linked])
        if not file.is_file():
            raise FileNotFoundError(errno.ENOENT, "not there", str(file))
        try:
            graph = Index.restore(str(file), view=True)
        except (RuntimeError, OSError, ValueError) as error:
            raise damaged(file, error) from error
        if graph is None:
            raise damaged(file, "not a graph that this usearch can read")
        count = min(num_passages, max(_LEAST_PASSAGES, _PASSAGES_A_DOCUMENT * top_k))
        matches: Any = graph.search(queries_QD, count)
        matches_Q = matches if len(queries_QD) > 1 else [matches]
        rankings = []
        for query_D, near in zip(queries_QD, matches_Q, strict=True):
            linked = self._near(graph, query_D, near.keys.astype(np.int64), top_k)
            rankings.append(search_exactly(query_D[None], chain(linked, self.blocks(self.state.linked)), top_k))
        return joined(rankings)

    def _near(
        self, graph: Any, query_D: NDArray[np.float32], passages: NDArray[np.int64], top_k: int
    ) -> Iterator[VectorBlock]:
        """The passages that the graph proposes. If they belong to fewer than `top_k` documents (to one long document,
        or to removed ones), more are fetched; beyond an eighth of the graph, all passages that it covers."""
        count = len(passages)
        while len(np.setdiff1d(self.documents[passages], [-1])) < top_k:
            count *= 4
            if count > len(graph) * _MOST_PASSAGES:
                yield from islice(self.blocks(), self.state.linked)
                return
            passages = graph.search(query_D, count).keys.astype(np.int64)
        passages = np.unique(passages)
        blocks = np.searchsorted(self._firsts, passages, side="right") - 1
        for block in np.unique(blocks).tolist():
            passages_P = passages[blocks == block]
            vectors_PD = self.vectors(block)[passages_P - self._firsts[block]]
            yield VectorBlock(vectors_PD, self.documents[passages_P], passages_P)


def why_no_graph() -> str | None:
    """Why approximate search is unavailable, with the way out; None if it is available."""
    return None if find_spec("usearch") else "usearch is not installed: pip install 'unmask[search]'"
