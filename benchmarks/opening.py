"""Time and memory until prepared data of many pieces is open, and until the first batch, now and as it was before.

    python benchmarks/opening.py [--pieces 1000000 10000000 100000000] [--before-up-to 10000000] [--table PAGE]

Synthetic shards of 100,000 pieces of 5 tokens in ten record batches, written to a temporary folder (47 bytes a piece).
Each figure is of a process of its own: seconds, and the most memory of its own that it takes meanwhile beside what it
had (anonymous pages, looked at every 5 ms; pages of mapped files are the system's, and shared by all processes).

Before, every shard was hashed and every record batch read when data was opened, and columns of 56 bytes a piece were
put together in each process; what that did is repeated here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from unmask.core.files import file_sha256
from unmask.core.hashing import GOLDEN, mix, permutation
from unmask.data.data_folder import Manifest, Split, open_split
from unmask.data.packing import WINDOW_TOKENS
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import ShardFile, ShardWriter, TokenBatch
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_tokenizer

PIECES_A_SHARD, BATCHES, TOKENS = 100_000, 10, 5
LIST = "split.json"


def write(root: Path, num_pieces: int) -> None:
    """Makes the shards, and the list of them."""
    rng = np.random.default_rng(0)
    size = PIECES_A_SHARD // BATCHES
    lengths = np.full(size, TOKENS)
    ids = rng.integers(5, 20, size * TOKENS).astype(np.int32)
    starts = np.ones(len(ids), dtype=bool)
    files = []
    for shard in range(num_pieces // PIECES_A_SHARD):
        writer = ShardWriter(root, f"train/{shard:05d}.arrow", vocab_size=1000)
        for batch in range(BATCHES):
            document = np.arange(size) + (shard * BATCHES + batch) * size
            writer.write(TokenBatch(ids, starts, lengths, document, np.zeros(size, np.int64), lengths * 4))
        file = writer.save()
        assert file is not None
        files.append(asdict(file))
    (root / LIST).write_text(json.dumps(files))


def split_of(root: Path) -> Split:
    files = tuple(ShardFile(**each) for each in json.loads((root / LIST).read_text()))
    pieces, tokens = (sum(getattr(file, name) for file in files) for name in ("pieces", "tokens"))
    return Split(pieces, pieces, tokens * 4, tokens, 0, files)


def manifest_of(split: Split) -> Manifest:
    empty = replace(split, documents=0, pieces=0, bytes=0, tokens=0, files=())
    return Manifest((), {}, "", "", 1000, split.documents, split.bytes, split.tokens, {}, 0, split, empty, ())


def small_tokenizer() -> Tokenizer:
    return train_tokenizer(lambda: iter(["some letters of a small alphabet"]), TokenizerSettings(kind="char"))


def now(root: Path, mark: Callable[[], None]) -> None:
    split = split_of(root)
    tokenizer = small_tokenizer()
    mark()
    store = open_split(root, manifest_of(split), split)
    stream = RowStream(store, tokenizer, length=128, seed=0)
    mark()
    assert stream.batch(Cursor(), 64).num_tokens > 1000
    mark()


def before(root: Path, mark: Callable[[], None]) -> None:
    """Hashing, then columns put together; then the order of the first epoch, and its windows."""
    split = split_of(root)
    mark()
    begins: list[Any] = []
    columns: list[list[Any]] = []
    kept: list[Any] = []
    for file in split.files:
        assert file_sha256(root / file.name) == file.sha256
    for number, file in enumerate(split.files):
        with pa.memory_map(str(root / file.name)) as source:
            for batch in pa.ipc.open_stream(source):
                kept.append((batch["input_ids"].values.to_numpy(), batch["word_starts"].values.to_numpy()))
                begins.append(batch["input_ids"].offsets.to_numpy().astype(np.int64))
                chunk = np.full(len(batch), number * BATCHES, dtype=np.int64)
                columns.append([chunk, *(batch[name].to_numpy() for name in ("document", "offset", "num_bytes"))])
    chunk, document, offset, num_bytes = (np.concatenate(each) for each in zip(*columns, strict=True))
    begin, lengths = np.concatenate([b[:-1] for b in begins]), np.concatenate([np.diff(b) for b in begins])
    draw = document.copy()
    key = mix(mix(document * np.int64(GOLDEN)) + offset)
    mark()
    order = permutation(len(lengths), 1, 0, 0)
    ends = np.cumsum(lengths[order]) - lengths[order]
    windows = np.split(order, np.flatnonzero(np.diff(ends // WINDOW_TOKENS)) + 1)
    assert sum(map(len, windows)) == len(begin) == len(num_bytes) == len(draw) == len(key) == len(chunk)
    mark()


def own_memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this needs Linux")


def measured(work: Callable[[Path, Callable[[], None]], None], root: Path) -> list[tuple[float, float]]:
    """From each mark to the next: seconds, and the most megabytes beside those at the first mark."""
    marks: list[tuple[float, int]] = []
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], own_memory())

    def mark() -> None:
        at = own_memory()
        marks.append((time.perf_counter(), max(peak[0], at) if marks else at))
        peak[0] = at

    thread = threading.Thread(target=watch)
    thread.start()
    work(root, mark)
    ended.set()
    thread.join()
    return [(b[0] - a[0], (b[1] - marks[0][1]) / 1e6) for a, b in pairwise(marks)]


WAYS = {"now": now, "before": before}


def table(sizes: list[int], before_up_to: int) -> list[str]:
    lines = [
        "| pieces | | open, s | its memory, MB | first batch, s | its memory, MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), size)
            for way in WAYS:
                if way == "before" and size > before_up_to:
                    continue
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", way, folder], check=True, capture_output=True, text=True
                )
                parts = [f"{seconds:.1f} | {mb:,.0f}" for seconds, mb in json.loads(done.stdout)]
                lines.append(f"| {size:,} | {way} | {' | '.join(parts)} |")
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", type=int, nargs="+", default=[10**6, 10**7, 10**8])
    parser.add_argument("--before-up-to", type=int, default=10**7, help="above it, the old way is left out")
    parser.add_argument("--table", type=Path, help="page whose table `opening` is rewritten")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help="one figure, as JSON")
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measured(WAYS[asked.measure[0]], Path(asked.measure[1]))))
        return
    lines = table(asked.pieces, asked.before_up_to)
    if asked.table:
        from tables import write_table

        write_table(asked.table, "opening", lines)


if __name__ == "__main__":
    main()
