"""What the host can feed a GPU: batches of packed rows a second and core, and the slowest of them.

    python benchmarks/stream.py TEXT [--rounds 3] [--table docs/benchmarks.md]

The text is prepared twice, with documents of some 27 and of some 450 tokens. Of each, batches of 131,072 positions are
taken, on one core: rows of 512 without masks, the same with whole-word masks, and rows of sentence pairs. The slowest
batch is the one that a new window is packed for; beside a GPU a thread makes windows before they are wanted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

from tables import write_table

from unmask.commands.run_data import PreparedData, open_prepared
from unmask.data.prepare import prepare
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.settings import CorpusSettings
from unmask.masking.masker import Masker
from unmask.tokenizer.settings import TokenizerSettings

POSITIONS, LENGTH, WARM = 131_072, 512, 2
WORDS = (20, 330)  # of a document


class Speed(NamedTuple):
    """Tokens of text a second, and seconds of the slowest batch."""

    tokens: float
    slowest: float


def prepared(text: Path, words: int, folder: Path) -> PreparedData:
    """The text cut into documents of so many words."""
    every = text.read_text(encoding="utf-8").split()
    lines = (" ".join(every[begin : begin + words]) for begin in range(0, len(every), words))
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    corpus, tokenizer = CorpusSettings(documents="line"), TokenizerSettings(vocab_size=8192)
    prepare([folder / "lines.txt"], folder / "data", corpus=corpus, tokenizer=tokenizer)
    return open_prepared(folder / "data")


def speed(stream: RowStream, then: Callable[[Rows], object], batches: int) -> Speed:
    """Of so many batches, after the first ones, for which loops are compiled."""
    cursor, tokens, seconds = Cursor(), 0, []
    for number in range(WARM + batches):
        begin = time.perf_counter()
        batch = stream.batch(cursor, POSITIONS // LENGTH)
        then(batch.rows)
        cursor = batch.cursor
        if number >= WARM:
            seconds.append(time.perf_counter() - begin)
            tokens += batch.num_tokens
    return Speed(tokens / sum(seconds), max(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="some ten megabytes of plain text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--table", type=Path, help="page whose table `stream` is rewritten")
    asked = parser.parse_args()
    lines = [
        f"Medians of {asked.rounds} rounds of {asked.batches} batches.",
        "",
        "| documents | batches | million tokens a second | slowest batch, ms |",
        "| --- | --- | --- | --- |",
    ]
    for words in WORDS:
        with tempfile.TemporaryDirectory() as folder:
            data = prepared(asked.text, words, Path(folder))
            masker = Masker.from_tokenizer(data.tokenizer, strategy="whole_word", rate=0.3)
            kinds: dict[str, tuple[RowStream, Callable[[Rows], object]]] = {
                "packed": (RowStream(data.train, data.tokenizer, length=LENGTH, seed=0), id),
                "packed and masked": (RowStream(data.train, data.tokenizer, length=LENGTH, seed=0), masker),
                "sentence pairs": (
                    RowStream(data.train, data.tokenizer, length=LENGTH, seed=0, pairs="next_sentence"), id,
                ),
            }  # fmt: skip
            found: dict[str, list[Speed]] = {kind: [] for kind in kinds}
            for _ in range(asked.rounds):
                for kind, (stream, then) in kinds.items():
                    found[kind].append(speed(stream, then, asked.batches))
            size = data.train.lengths.mean()
        for kind, speeds in found.items():
            tokens, slowest = (statistics.median(values) for values in zip(*speeds, strict=True))
            lines.append(f"| {size:.0f} tokens | {kind} | {tokens / 1e6:.1f} | {1e3 * slowest:.0f} |")
    if asked.table is not None:
        write_table(asked.table, "stream", lines)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
