"""Approximate search in large indexes, by a graph of near vectors that usearch makes and maps into memory.

Exact search reads every vector for every query: a gigabyte for a million passages of 256 numbers. A graph finds nearly
all of the nearest in a thousandth of that. Its hits are rescored with the vectors themselves, so scores are those of
exact search; only a near passage may be missed. Threads add vectors in any order, so two graphs of the same vectors are
not quite the same.

Source: Malkov and Yashunin 2018 (Efficient and robust approximate nearest neighbor search using HNSW graphs).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import DataError
from unmask.core.files import writing
from unmask.search.blocks import IndexFacts, IndexFolder, StoredIndex
from unmask.search.exact import Block, Ranking, VectorBlock, search_exactly

_PASSAGES_A_DOCUMENT = 4  # a document may have several passages, so more of them are looked up
_LEAST_PASSAGES = 64
_MOST_PASSAGES = 0.125  # of all: from there on, looking at every passage takes less time


def why_missing() -> str | None:
    """Why there is no approximate search, with the way out; None: there is."""
    return None if find_spec("usearch") else "usearch is not installed: pip install 'unmask[search]'"


def write_neighbours(folder: IndexFolder, facts: IndexFacts) -> None:
    """Makes the graph of all blocks. Meanwhile memory holds it and all vectors in float16.

    Raises:
        WriteError: It cannot be written.
    """
    from usearch.index import Index

    first, graph = 0, None
    for number, block in enumerate(facts.blocks):
        vectors = np.load(folder.vectors(number), mmap_mode="r", allow_pickle=False)
        graph = graph or Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        graph.add(np.arange(first, first + block.passages, dtype=np.uint64), np.ascontiguousarray(vectors))
        first += block.passages
    assert graph is not None, "an index has a passage"
    partial = folder.neighbours.with_name(folder.neighbours.name + ".partial")
    with writing(folder.neighbours, RuntimeError):
        graph.save(str(partial))
        partial.replace(folder.neighbours)


def search_by_graph(stored: StoredIndex, queries_QD: NDArray[np.float32], top_k: int) -> Ranking:
    """The nearest documents among the passages that the graph finds; as `search_exactly`.

    Raises:
        DataError: The graph is damaged, or of other vectors.
    """
    from usearch.index import Index

    file, num_passages = stored.folder.neighbours, stored.facts.passages
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
        search_exactly(query_D[None], _enough(graph, stored, query_D, passages, top_k), top_k)
        for query_D, passages in zip(queries_QD, near, strict=True)
    ]
    return Ranking.joined(rankings)


def _enough(
    graph: Any, stored: StoredIndex, query_D: NDArray[np.float32], passages: NDArray[np.int64], top_k: int
) -> Iterator[Block]:
    """The passages that were found, each as a block of its own, so that it keeps its number. More are looked up where
    they are of fewer documents than `top_k`, since a long document may have all that are near; at last all are taken.
    """
    count = len(passages)
    while len(np.unique(stored.documents[passages])) < top_k:
        count *= 4
        if count > stored.facts.passages * _MOST_PASSAGES:
            yield from stored.blocks()
            return
        passages = graph.search(query_D, count).keys.astype(np.int64)
    passages = np.unique(passages)
    blocks = np.searchsorted(stored.firsts, passages, side="right") - 1
    for block in np.unique(blocks).tolist():
        vectors, first = stored.vectors(block), int(stored.firsts[block])
        for passage in passages[blocks == block].tolist():
            vector_PD = vectors[passage - first : passage - first + 1]
            yield VectorBlock(vector_PD, stored.documents[passage : passage + 1], passage)
