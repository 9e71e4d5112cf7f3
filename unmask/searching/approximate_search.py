"""Approximate search in large indexes, by a graph of near vectors that usearch makes and maps into memory.

Exact search reads every vector for every query: a gigabyte for a million passages of 256 numbers. A graph finds nearly
all of the nearest in thousandths of that. What it finds is scored anew with the vectors themselves, so that scores are
those of exact search; only a near passage may be missed. Threads add vectors to the graph in any order, so two graphs
of the same vectors are not quite the same.

Source: Malkov and Yashunin 2018 (Efficient and robust approximate nearest neighbor search using HNSW graphs).
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.files import writing
from unmask.searching.exact_search import Block, Ranking, VectorBlock, joined, search_exactly
from unmask.searching.index_folder import IndexFiles, StoredIndex

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
