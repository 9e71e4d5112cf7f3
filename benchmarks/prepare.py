"""How much of the tokenizer's own speed is left in a whole preparation.

    python benchmarks/prepare.py FILE [--documents line] [--rounds 5]

In alternation, each in a process of its own, on the same text and with the same WordPiece tokenizer (trained first,
8,192 entries):

    raw        `encode_batch_fast` of the tokenizers library on all cores, over a list of the documents' texts that is
               in memory already, 1,000 documents a call; the result is thrown away
    prepare    `prepare()` with that tokenizer: reading, unpacking, holding out, tokenizing, word starts, shards,
               checksums, manifest

Imports are not in the times; `whole` is the time of the `prepare` process with them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RAW = """
import sys, time
from unmask.corpus.corpus import Corpus
from unmask.corpus.settings import CorpusSettings
from tokenizers import Tokenizer
file, unit, folder = sys.argv[1:4]
texts = [piece.text for piece, _ in Corpus([file], CorpusSettings(documents=unit)).pieces()]
tokenizer = Tokenizer.from_file(folder + "/tokenizer/tokenizer.json")
begin = time.perf_counter()
for n in range(0, len(texts), 1000):
    tokenizer.encode_batch_fast(texts[n : n + 1000], add_special_tokens=False)
print(time.perf_counter() - begin)
"""
PREPARE = """
import sys, time
from pathlib import Path
from unmask.corpus.settings import CorpusSettings
from unmask.tokens.prepare import prepare
from unmask.tokens.settings import TokenizerSettings
file, unit, folder, out = sys.argv[1:5]
begin = time.perf_counter()
prepare(
    [file], Path(out), corpus=CorpusSettings(documents=unit), tokenizer=TokenizerSettings(path=folder + "/tokenizer")
)
print(time.perf_counter() - begin)
"""
TRAIN = """
import sys
from pathlib import Path
from unmask.corpus.settings import CorpusSettings
from unmask.tokens.prepare import prepare
from unmask.tokens.settings import TokenizerSettings
file, unit, folder = sys.argv[1:4]
manifest = prepare(
    [file], Path(folder), corpus=CorpusSettings(documents=unit), tokenizer=TokenizerSettings(vocab_size=8192)
)
print(manifest.bytes)
"""


def run(code: str, *arguments: str) -> tuple[float, float]:
    """What the code prints, and the seconds that its process took."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout), time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--documents", default="line")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    ratios, speeds = [], []
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (asked.file, asked.documents, f"{scratch}/trained")
        num_bytes, _ = run(TRAIN, *arguments)
        for number in range(asked.rounds):
            raw, _ = run(RAW, *arguments)
            prepared, whole = run(PREPARE, *arguments, str(Path(scratch) / str(number)))
            speeds.append([num_bytes / seconds / 1e6 for seconds in (raw, prepared, whole)])
            ratios.append(raw / prepared)
            print(
                "raw {:.2f} MB/s, prepare {:.2f} MB/s, whole {:.2f} MB/s".format(*speeds[-1])
                + f", ratio {ratios[-1]:.3f}, load {os.getloadavg()[0]:.2f}",
                flush=True,
            )
    medians = [statistics.median(column) for column in zip(*speeds, strict=True)]
    print("medians: raw {:.2f}, prepare {:.2f}, whole {:.2f} MB/s".format(*medians), end="")
    print(f", ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
