"""An index as users hold it: made of documents, opened, asked.

index = unmask.Index.build("runs/mine/model", ["docs/"], out="runs/docs")
found = unmask.Index("runs/docs").query(["how memory is allocated"], top_k=3)
found.queries[0]["hits"][0]["title"]
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unmask.core.errors import DataError, ModelError, RunError, SettingsError, UnmaskError, parse_json, shown
from unmask.core.files import ClaimedFolder, absence, write_atomically, writing
from unmask.core.hub import hub_name
from unmask.core.results import Notify, Progress, Readable, Result, Shown, Styled, usual_notify
from unmask.data.settings import DocumentUnit
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE, Texts, is_stream, keep_given, told_apart
from unmask.data.tables import AskedColumn
from unmask.model.sentence_files import SPLADE
from unmask.search.encoder import (
    AskedEncoding,
    DocumentFiles,
    DocumentPart,
    PassageCutter,
    SearchEncoder,
    Similarity,
    TextPassage,
    open_encoder,
)
from unmask.search.exact import Block, PostingBlock, Ranking, VectorBlock, Vectors, joined, search_exactly
from unmask.search.snippets import Snippet, find_snippet
from unmask.tasks.embed import Postings, SparseVectors
from unmask.tasks.loaded_model import Model, Precision

# ----------------------------------------
# The folder of an index: passages and their vectors in blocks, and what they were made with.
#
#     search.json            what it was begun with: model, text, how passages are cut and embedded; claims the folder
#     stdin.txt, pipes/, given/    what was no file, until the index is whole
#     blocks/00000.npy       vectors [passages, dimension], float32, which are mapped into memory; or posting lists of
#                            sparse ones in a line (`Postings.to_array`)
#     blocks/00000.parquet   the passages: document, file, id, title, begin (in characters), text; written last of a
#     block
#     neighbours.usearch     a graph of near vectors, for approximate search
#     index.json             counts, and the size of each file; written last: a folder that has one is whole
#
# A block holds the same passages whenever the same text is indexed, so an index that was stopped goes on behind its
# last
# whole block. Which passages these are is told by a hash in the block, which is compared when it goes on.

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


# ----------------------------------------
# Approximate search in large indexes, by a graph of near vectors that usearch makes and maps into memory.
#
# Exact search reads every vector for every query: a gigabyte for a million passages of 256 numbers. A graph finds
# nearly
# all of the nearest in thousandths of that. What it finds is scored anew with the vectors themselves, so that scores
# are
# those of exact search; only a near passage may be missed. Threads add vectors to the graph in any order, so two graphs
# of the same vectors are not quite the same.
#
# Source: Malkov and Yashunin 2018 (Efficient and robust approximate nearest neighbor search using HNSW graphs).

_PASSAGES_A_DOCUMENT = 4  # more are looked for than documents are wanted, since a document may have several
_LEAST_FOUND = 64
_MOST_FOUND = 0.125  # of all passages: looking at all takes less time from there on


def why_missing() -> str | None:
    """Why there is no approximate search, with the way out; None: there is."""
    return None if find_spec("usearch") else "usearch is not installed: pip install 'unmask[search]'"


def write_neighbours(files: IndexFiles, facts: dict[str, Any]) -> None:
    """Makes the graph of all blocks. Meanwhile memory holds it and all vectors in float16.

    Raises:
        WriteError: It cannot be written.
    """
    from usearch.index import Index

    first, graph = 0, None
    for number, block in enumerate(facts["blocks"]):
        vectors = np.load(files.vectors(number), mmap_mode="r")
        graph = graph or Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        graph.add(np.arange(first, first + block["passages"], dtype=np.uint64), np.ascontiguousarray(vectors))
        first += block["passages"]
    assert graph is not None, "an index has a passage"
    partial = files.neighbours.with_name(files.neighbours.name + ".partial")
    with writing(files.neighbours, RuntimeError):
        graph.save(str(partial))
        partial.replace(files.neighbours)


def search_by_graph(stored: StoredIndex, queries_QD: NDArray[np.float32], top_k: int) -> Ranking:
    """The nearest documents among the passages that the graph finds; as `search_exactly`.

    Raises:
        DataError: The graph is damaged, or of other vectors.
    """
    graph = _open(stored.files.neighbours)
    if graph.ndim != queries_QD.shape[1] or len(graph) != stored.num_passages:
        raise DataError(
            f"{stored.files.neighbours}: it is of {len(graph):,} vectors of {graph.ndim} numbers, and the index has "
            f"{stored.num_passages:,} of {queries_QD.shape[1]}; remove it to search exactly"
        )
    count = min(stored.num_passages, max(_LEAST_FOUND, _PASSAGES_A_DOCUMENT * top_k))
    found = np.atleast_2d(graph.search(queries_QD, count).keys).astype(np.int64)
    return joined(
        [
            search_exactly(query_D[None], _enough(graph, stored, query_D, passages, top_k), top_k)
            for query_D, passages in zip(queries_QD, found, strict=True)
        ]
    )


def _enough(
    graph: Any, stored: StoredIndex, query_D: NDArray[np.float32], passages: NDArray[np.int64], top_k: int
) -> Iterable[Block]:
    """The passages that were found, or more, where they are of fewer documents than are wanted: a long document may
    have all that are near. At last all passages.
    """
    count = len(passages)
    while len(np.unique(stored.documents[passages])) < top_k:
        count *= 4
        if count > stored.num_passages * _MOST_FOUND:
            return stored.blocks()
        passages = graph.search(query_D, count).keys.astype(np.int64)
    return _found_blocks(stored, np.unique(passages))


def _found_blocks(stored: StoredIndex, passages: NDArray[np.int64]) -> Iterable[VectorBlock]:
    """Each passage as a block of its own, so that it keeps its number."""
    blocks = np.searchsorted(stored.firsts, passages, side="right") - 1
    for block in np.unique(blocks).tolist():
        vectors, first = stored.vectors_of(block), int(stored.firsts[block])
        for passage in passages[blocks == block].tolist():
            vector_PD = vectors[passage - first : passage - first + 1]
            yield VectorBlock(vector_PD, stored.documents[passage : passage + 1], passage)


def _open(file: Path) -> Any:
    from usearch.index import Index

    try:
        graph = Index.restore(str(file), view=True)
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error}); remove it to search exactly") from error
    if graph is None:
        raise DataError(f"{file}: damaged (no graph); remove it to search exactly")
    return graph


# ----------------------------------------
# Making an index: documents are cut into passages, embedded block by block, and written as each block is done.
#
# DocumentFiles ──▶ PassageCutter ──▶ blocks of passages ──skip those that are there──▶ vectors ──▶ blocks/00000.npy

APPROXIMATE_FROM = 1_000_000  # passages
_MAY_DIFFER = ("model",)  # where it lies; what it is is compared by its fingerprint


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How an index is made.

    Attributes:
        name: By which the model is found again.
        reading: Options of `DocumentFiles`.
        resume, overwrite: Go on with what is there, or replace it.
        approximate: Whether a graph for approximate search is made; None: above a million passages, if usearch is
            there.
    """

    name: str
    reading: dict[str, Any]
    resume: bool = False
    overwrite: bool = False
    approximate: bool | None = None


def build_index(
    encoder: SearchEncoder,
    texts: Any,
    out: Path,
    *,
    options: BuildOptions,
    note: Callable[[str], None],
    notify: Notify,
) -> None:
    """Makes an index in a folder, or goes on with one.

    Args:
        encoder: What embeds.
        texts: As a user gives them; see `told_apart`.
        out: The folder.
        options: How.
        note, notify: Told of decisions and of progress.

    Raises:
        UnmaskError: As `ClaimedFolder`, `DocumentFiles`; the text has changed since the index was begun; or the graph
            is asked for and usearch is not installed, or vectors are sparse.
    """
    files = IndexFiles(out)
    if options.approximate and encoder.is_sparse:
        raise SettingsError("--approximate: a graph is made of dense vectors; sparse ones have posting lists instead")
    if options.approximate and (missing := why_missing()) is not None:
        raise RunError(f"--approximate: {missing}")
    named = told_apart(texts) or []
    inputs = [path for path in named if isinstance(path, str | Path) and not is_stream(path)]
    files.claimed.check(resume=options.resume, overwrite=options.overwrite, inputs=map(Path, inputs))
    with files.claimed.held():
        if options.overwrite:
            files.claimed.clear(files.ours)
        paths = list(keep_given(named, files.root, kept=options.resume, notify=notify))
        documents = DocumentFiles(paths, **options.reading, within=files.root)
        _claim(files, encoder, documents, options)
        if files.whole.is_file():
            note(f"{out}: the index is complete already")
            if options.approximate and not files.neighbours.is_file():
                _write_graph(files, read_facts(files.whole), True, note)
            files.remove_given()
            return
        note(documents.describe())
        if there := files.num_whole_blocks():
            note(f"goes on behind {there:,} blocks of {BLOCK_PASSAGES:,} passages, which are there")
        facts = _write_blocks(files, encoder, documents, notify)
        if not encoder.is_sparse:
            _write_graph(files, facts, options.approximate, note)
        write_atomically(files.whole, json.dumps({"version": VERSION, **facts}, indent=1) + "\n")
        files.remove_given()
    for reason, count in documents.skipped.items():
        note(f"passed over: {count:,} {reason}")


def _claim(files: IndexFiles, encoder: SearchEncoder, documents: DocumentFiles, options: BuildOptions) -> None:
    """Writes what the index is begun with, or compares it."""
    wanted = {
        "version": VERSION,
        "model": options.name,
        "fingerprint": encoder.fingerprint(),
        "dimension": encoder.width,
        "files": [documents.name_of(source) for source in documents.sources],
        "reading": {**options.reading, "column": _plain(options.reading["column"])},
        "encoding": asdict(encoder.settings),
        "precision": encoder.model.precision,
    }
    if files.claimed.is_claimed:
        files.claimed.check_same(read_facts(files.begun), wanted, but_for=_MAY_DIFFER)
    else:
        files.claimed.claim(json.dumps(wanted, indent=1) + "\n")


def _plain(column: AskedColumn) -> Any:
    return column if column is None or isinstance(column, str | int) else list(column)


def _write_blocks(
    files: IndexFiles, encoder: SearchEncoder, documents: DocumentFiles, notify: Notify
) -> dict[str, Any]:
    there = files.num_whole_blocks()
    counts: dict[str, Any] = {"documents": 0, "passages": 0, "blocks": []}
    done, total = 0, documents.num_bytes

    def counted() -> Iterator[DocumentPart]:
        nonlocal done
        for part in documents.read():
            counts["documents"] = part.document + 1
            done += len(part.text)
            yield part

    notify(Progress("embedding", 0, total, "characters"))
    cutter = PassageCutter(encoder.model.tokenizer, encoder.settings)
    for number, passages in enumerate(_in_blocks(cutter.cut(counted()))):
        if number < there:
            if files.hash_of_block(number) != hash_of(passages):
                raise files.claimed.changed(f"begun on other text: block {number} of it holds other passages")
        else:
            names = [passage.part.name for passage in passages]
            vectors = encoder.embed_documents([passage.embedded for passage in passages], names)
            files.write_block(number, passages, vectors)
        sizes = [path(number).stat().st_size for path in (files.vectors, files.passages)]
        counts["blocks"].append({"name": f"{number:05d}", "passages": len(passages), "bytes": sizes})
        counts["passages"] += len(passages)
        notify(Progress("embedding", done, total if total is not None and total > done else None, "characters"))
    if there > len(counts["blocks"]):
        raise files.claimed.changed("begun on more text")
    return {**counts, "skipped": dict(documents.skipped)}


def _in_blocks(passages: Iterable[TextPassage]) -> Iterator[list[TextPassage]]:
    rest = iter(passages)
    while block := list(islice(rest, BLOCK_PASSAGES)):
        yield block


def _write_graph(
    files: IndexFiles, facts: dict[str, Any], approximate: bool | None, note: Callable[[str], None]
) -> None:
    """Makes what approximate search needs, where it is asked for or worth it."""
    if approximate is False or (approximate is None and facts["passages"] <= APPROXIMATE_FROM):
        return
    if (missing := why_missing()) is not None:
        note(f"every query goes through all of the {facts['passages']:,} passages: {missing}")
        return
    note(f"approximate search: linking {facts['passages']:,} passages")
    write_neighbours(files, facts)


log = logging.getLogger("unmask")


class Hits(Result):
    """What queries found.

    Attributes:
        index, model: That were asked.
        approximate: Whether a graph was followed, which may miss something, or all passages were looked at.
        queries: Of each `query` its `hits`, the nearest first: `rank` from 1 on, `score` (cosine or inner product),
            `document` (number in the index, from 0), `file`, `id`, `title` (None: it has none), and of its nearest
            passage `begin` (character of the document), `passage` (the text), `snippet` and `marks` (where words of the
            query stand in the snippet).
        seconds: That embedding and searching took.
    """

    index: str
    model: str
    approximate: bool
    queries: list[dict[str, Any]]
    seconds: float

    def shown(self) -> Iterator[Shown]:
        """Of each hit its score and name, and below it the snippet."""
        for number, found in enumerate(self.queries):
            if len(self.queries) > 1:
                yield from [""] * (number > 0)
                yield Styled(found["query"], "bold underline")
            if not found["hits"]:
                yield Styled("    nothing is found: no text shares a token with it", "dim")
            for hit in found["hits"]:
                yield _head(hit)
                yield _marked(hit["snippet"], hit["marks"])


def _head(hit: dict[str, Any]) -> tuple[Styled | str, ...]:
    title = (Styled(f"  {hit['title']}", "bold"),) if hit["title"] else ()
    where = f"  {hit['file']}, {_called(hit['id'])}, character {hit['begin']:,}"
    return (Styled(f"{hit['rank']:>2}  {hit['score']:.3f}", "cyan"), *title, Styled(where, "dim"))


def _called(id_: str | int) -> str:
    return f"document {id_:,}" if isinstance(id_, int) else id_


def _marked(snippet: str, marks: Sequence[Sequence[int]]) -> tuple[Styled | str, ...]:
    parts: list[Styled | str] = ["    "]
    place = 0
    for begin, end in marks:
        parts += [snippet[place:begin], Styled(snippet[begin:end], "bold yellow")]
        place = end
    return (*parts, snippet[place:])


class Index(Readable):
    """An index of documents.

    Args:
        folder: That `Index.build` or `unmask search index` has made.
        model: The model that it was made with, where that lies elsewhere now; None: as the index says.
        precision, strict: Of a model that is loaded here; see `unmask.load`.

    Raises:
        DataError: There is no index, it is not whole, or it is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path | Model | None = None,
        precision: Precision = "float32",
        strict: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._stored = StoredIndex(self.folder)
        self._model, self._precision, self._strict = model, precision, strict
        self._encoder: SearchEncoder | None = None

    @classmethod
    def build(  # noqa: PLR0913  (the options of the command line, each a name that users know)
        cls,
        model: str | Path | Model,
        texts: Texts,
        *,
        out: str | Path,
        column: AskedColumn = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
        passage_tokens: int | None = None,
        overlap_tokens: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        pooling: str | None = None,
        similarity: Similarity | None = None,
        precision: Precision = "float32",
        strict: bool = False,
        approximate: bool | None = None,
        resume: bool = False,
        overwrite: bool = False,
        note: Callable[[str], None] = log.info,
        notify: Notify | None = None,
    ) -> Index:
        """Makes an index of documents. Memory does not grow with them, but for the graph of approximate search, of
        which it holds all while it is made (some 2 bytes a number, and 300 a passage).

        Args:
            model: A model, its folder, or its name on the hub.
            texts: Files, folders or patterns of documents; or texts in memory (see `unmask.data.sources`).
            out: The index's folder.
            column, id_column, title_column, documents: As for `unmask.search.encoder.DocumentFiles`.
            passage_tokens: Of the passages that long documents are embedded in, with special tokens and the prompt;
                None: what the model takes, and sentence-transformers gives it, at most 512. Passages longer than the
                model are seen in windows.
            overlap_tokens: That a passage shares with the one before it; None: an eighth.
            query_prompt, document_prompt: What stands before queries and passages; None: what the model's folder says.
            pooling: As for `Model.embed_settings`.
            similarity: `cosine` or `dot`; None: what the model's folder says, and else `cosine` (of sparse
                vectors `dot`).
            precision, strict: As for `unmask.load`.
            approximate: Whether a graph for approximate search is made, which takes usearch; None: above a million
                passages, if it is there. Of sparse vectors none is made.
            resume: Go on with an index that was stopped, or say that it is complete (which is not compared with the
                text again).
            overwrite: Replace the one that is there.
            note: Told what was decided, in lines.
            notify: Told of the progress.

        Raises:
            UnmaskError: As `open_encoder` and `build_index`.
        """
        asked = AskedEncoding(
            pooling=pooling,
            similarity=similarity,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            passage_tokens=passage_tokens,
            overlap_tokens=overlap_tokens,
        )
        encoder = open_encoder(model, asked, precision=precision, strict=strict)
        reading = {
            "column": column,
            "id_column": id_column,
            "title_column": title_column,
            "documents": documents,
        }
        options = BuildOptions(
            name=_name_of(model), reading=reading, resume=resume, overwrite=overwrite, approximate=approximate
        )
        build_index(encoder, texts, Path(out), options=options, note=note, notify=notify or usual_notify())
        made = cls(out, model=encoder.model)
        made._encoder = encoder
        return made

    def to_dict(self) -> dict[str, Any]:
        """What it holds: `documents`, `passages`, `skipped`, `approximate`, and what it was made with."""
        begun, facts = self._stored.begun, self._stored.facts
        return {
            "folder": str(self.folder),
            **{name: begun[name] for name in ("model", "fingerprint", "files", "dimension")},
            **begun["encoding"],
            **{name: facts[name] for name in ("documents", "passages", "skipped")},
            "bytes": sum(size for block in facts["blocks"] for size in block["bytes"]),
            "approximate": self._stored.files.neighbours.is_file(),
        }

    def shown(self) -> Iterator[Shown]:
        """A line, and what to do with it."""
        facts = self.to_dict()
        prompt = f", after {facts['document_prompt']!r}" if facts["document_prompt"] else ""
        yield (
            f"{facts['documents']:,} documents in {facts['passages']:,} passages of up to {facts['passage_tokens']} "
            f"tokens{prompt}; vectors of {facts['dimension']} by {facts['model']}; {facts['bytes'] / 1e6:,.1f} MB"
        )
        yield Styled(f'Ask it: unmask search query {self.folder} "..."', "dim")

    def query(self, texts: str | Sequence[str], *, top_k: int = 10, exact: bool = False) -> Hits:
        """The documents that are nearest to each text.

        Args:
            texts: Queries, or a single one.
            top_k: Documents of each at most.
            exact: Whether all passages are looked at, although there is a graph.

        Raises:
            SettingsError: There is no query, one is empty, or `top_k` is none.
            ModelError: The model is not that of the index.
            DataError: A file of the index is damaged.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        for text in queries:
            if not isinstance(text, str):
                raise SettingsError(f"a query is a text, and not {shown(text)}")
        if not queries or not any(text.strip() for text in queries):
            raise SettingsError("the query is empty; say what is looked for")
        top_k = min(top_k, self._stored.num_documents)
        begin = time.perf_counter()
        vectors_QD = self.encoder.embed_queries(queries)
        has_graph = not exact and self._stored.files.neighbours.is_file()
        if has_graph and (missing := why_missing()) is not None:
            log.warning("%s: all passages are searched, since %s", self.folder, missing)
            has_graph = False
        if has_graph and not isinstance(vectors_QD, SparseVectors):
            ranking = search_by_graph(self._stored, vectors_QD, top_k)
        else:
            ranking = self._search_exactly(vectors_QD, top_k)
        found = [{"query": query, "hits": self._hits(query, ranking, n)} for n, query in enumerate(queries)]
        return Hits(
            {
                "index": str(self.folder),
                "model": str(self.encoder.model.folder),
                "approximate": has_graph,
                "queries": found,
                "seconds": time.perf_counter() - begin,
            }
        )

    def _search_exactly(self, vectors_QD: Vectors, top_k: int) -> Ranking:
        try:
            return search_exactly(vectors_QD, self._stored.blocks(), top_k)
        except UnmaskError:
            raise
        except ValueError as error:
            raise damaged(self._stored.files.blocks, error) from error

    def _hits(self, query: str, ranking: Ranking, number: int) -> list[dict[str, Any]]:
        hits = []
        for place, passage in enumerate(ranking.passages_QK[number].tolist()):
            if passage < 0:
                break
            stored = self._stored.passage(passage)
            score = float(ranking.scores_QK[number, place])
            hits.append({"rank": place + 1, "score": score} | _as_dict(stored, find_snippet(stored.text, query)))
        return hits

    @property
    def encoder(self) -> SearchEncoder:
        """The model, loaded when it is first used, and compared with the one that the index was made with.

        Raises:
            UnmaskError: It is not there, or is another.
        """
        if self._encoder is None:
            begun = self._stored.begun
            model = begun["model"] if self._model is None else self._model
            try:
                asked = AskedEncoding(**begun["encoding"])
            except TypeError as error:
                raise DataError(f"{self._stored.files.begun}: damaged ({error}); make the index anew") from error
            try:
                encoder = open_encoder(model, asked, precision=self._precision, strict=self._strict)
            except ModelError as error:
                if self._model is not None:
                    raise
                way_out = "where the model lies elsewhere now, name its folder with --model"
                raise ModelError(f"{self.folder} was made with {model}: {error.args[0]}; {way_out}") from error
            self._check_model(encoder)
            self._encoder = encoder
        return self._encoder

    def _check_model(self, encoder: SearchEncoder) -> None:
        begun, folder = self._stored.begun, encoder.model.folder
        if encoder.width != self._stored.dimension:
            raise ModelError(
                f"{self.folder} holds vectors of {self._stored.dimension} numbers, but {folder} makes {encoder.width}; "
                f"ask it with the model that it was made with ({begun['model']}), or index the documents anew"
            )
        if encoder.fingerprint() != begun["fingerprint"]:
            raise ModelError(
                f"{self.folder} was made with another model than {folder} is now ({begun['model']}, whose weights, "
                "configuration or tokenizer have changed since, perhaps); ask it with that one, or index the documents "
                "anew"
            )


def _as_dict(stored: StoredPassage, snippet: Snippet) -> dict[str, Any]:
    return {
        **{name: getattr(stored, name) for name in ("document", "file", "id", "title", "begin")},
        "passage": stored.text,
        "snippet": snippet.text,
        "marks": [list(mark) for mark in snippet.marks],
    }


def _name_of(model: str | Path | Model) -> str:
    """By which a model is found again: its name on the hub, or its whole path."""
    if isinstance(model, Model):
        return str(model.folder.absolute()) if model.hub is None else str(model.hub)
    return str(model) if hub_name(model) is not None else str(Path(model).absolute())
