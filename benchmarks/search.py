"""Speed and memory of vector search: ours, sentence-transformers and faiss.

    python benchmarks/search.py [--vectors 100000,1000000] [--rounds 3] [--table docs/explanation/benchmarks.md]

A file holds vectors of 256 numbers and length 1, around a thousand centres. In each round every system searches it in
turn, in its own process: 100 queries one at a time, then all of them at once, for the ten nearest of each. Reading the
file and a first query do not count. Memory is the process's peak, with mapped pages, which the system may reclaim. All
systems must return the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import head, parser_of, write_table

DIMENSION, CENTRES, QUERIES, TOP_K = 256, 1000, 100, 10
NAMES = {
    "ours": "unmask, exact",
    "semantic_search": "sentence_transformers.util.semantic_search",
    "faiss": "faiss.IndexFlatIP",
}
Search = Callable[[NDArray[np.float32]], NDArray[np.int64]]


def make_vectors(folder: Path, count: int) -> None:
    """Writes vectors and queries to files, the same in every run."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CENTRES, DIMENSION)).astype(np.float32)

    def draw(number: int) -> NDArray[np.float32]:
        points = centres[rng.integers(CENTRES, size=number)] + rng.normal(size=(number, DIMENSION)).astype(np.float32)
        return points / np.linalg.norm(points, axis=1, keepdims=True)

    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, (count, DIMENSION))
    for begin in range(0, count, 1 << 16):
        vectors[begin : begin + (1 << 16)] = draw(min(1 << 16, count - begin))
    vectors.flush()
    np.save(folder / "queries.npy", draw(QUERIES))


def ours(folder: Path) -> Search:
    from unmask.search.exact import blocks_of, search_exactly

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    blocks = list(blocks_of(vectors, np.arange(len(vectors))))
    return lambda queries: search_exactly(queries, blocks, TOP_K).documents_QK


def semantic_search(folder: Path) -> Search:
    import torch
    from sentence_transformers import util

    vectors = torch.from_numpy(np.load(folder / "vectors.npy"))

    def search(queries: NDArray[np.float32]) -> NDArray[np.int64]:
        answers = util.semantic_search(torch.from_numpy(queries), vectors, top_k=TOP_K, score_function=util.dot_score)
        return np.array([[hit["corpus_id"] for hit in hits] for hits in answers])

    return search


def faiss(folder: Path) -> Search:
    import faiss as library

    index = library.IndexFlatIP(DIMENSION)
    index.add(np.load(folder / "vectors.npy"))
    return lambda queries: index.search(queries, TOP_K)[1]


SYSTEMS: dict[str, Callable[[Path], Search]] = {"ours": ours, "semantic_search": semantic_search, "faiss": faiss}


def child(name: str, folder: Path) -> dict[str, Any]:
    queries = np.load(folder / "queries.npy")
    search = SYSTEMS[name](folder)
    search(queries[:1])
    begin = time.perf_counter()
    for number in range(len(queries)):
        search(queries[number : number + 1])
    between = time.perf_counter()
    hits = search(queries)
    end = time.perf_counter()
    return {
        "single": len(queries) / (between - begin),
        "together": len(queries) / (end - between),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "hits": hits.tolist(),
    }


def measure(count: int, names: list[str], rounds: int) -> list[str]:
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        make_vectors(Path(scratch), count)
        for _ in range(rounds):
            for name in names:
                command = [sys.executable, __file__, "--child", name, "--folder", scratch]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                results[name].append(json.loads(done.stdout.splitlines()[-1]))
    lines = []
    for name, runs in results.items():
        if any(set(a) != set(b) for a, b in zip(runs[0]["hits"], results["ours"][0]["hits"], strict=True)):
            raise SystemExit(f"{name} returns other vectors than ours")
        single, together, memory = (statistics.median(run[key] for run in runs) for key in list(runs[0])[:3])
        lines.append(f"| {count:,} | {NAMES[name]} | {single:,.0f} | {together:,.0f} | {memory:,.0f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = parser_of(__doc__, table="search")
    parser.add_argument("--vectors", default="100000,1000000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(options.child, options.folder)))
        return
    names = [name for name in SYSTEMS if name != "faiss" or find_spec("faiss")]
    lines = [
        f"Medians of {options.rounds} rounds; {DIMENSION} numbers a vector, the {TOP_K} nearest.",
        "",
        *head("vectors | search | queries a second, one by one | 100 at once | MB of memory"),
    ]
    for count in options.vectors.split(","):
        lines += measure(int(count), names, options.rounds)
    if options.table is not None:
        write_table(options.table, "search", lines)


if __name__ == "__main__":
    main()
