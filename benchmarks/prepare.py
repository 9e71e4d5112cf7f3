"""Speed of a whole preparation, as a share of the tokenizer's own, and compared with `datasets.map`.

    python benchmarks/prepare.py FILE [--rounds 5] [--table PAGE]

They alternate, each in its own process, on the same text and with the same WordPiece tokenizer (trained first, 8,192
entries):

    raw        `encode_batch_fast` of the tokenizers library on all cores, over a list of the documents' texts in
               memory, 1,000 documents a call; the result is discarded
    map        `datasets.map` with the same tokenizer in transformers, batched, in two processes, over a data set of the
               documents in memory; only ids, which it writes to its cache
    prepare    `prepare()` with that tokenizer: reading, unpacking, holding out, tokenizing, word starts, shards,
               checksums, manifest

Times do not include imports; `whole` is the time of the `prepare` process with them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import head, parser_of, write_table

GOALS = {"raw": 0.9, "map": 2.0}
HEAD = """
import sys, time
from pathlib import Path
from unmask.data.corpus import Corpus
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.tokenizer.trainers import TokenizerSettings
file, folder, *more = sys.argv[1:]
corpus = CorpusSettings(documents="line")
def texts():
    return [piece.text for piece, _ in Corpus([file], corpus).pieces()]
"""
TRAIN = f"""{HEAD}
print(prepare([file], Path(folder), corpus=corpus, tokenizer=TokenizerSettings(vocab_size=8192)).bytes)
"""
RAW = f"""{HEAD}
from tokenizers import Tokenizer
documents, tokenizer = texts(), Tokenizer.from_file(folder + "/tokenizer/tokenizer.json")
begin = time.perf_counter()
for n in range(0, len(documents), 1000):
    tokenizer.encode_batch_fast(documents[n : n + 1000], add_special_tokens=False)
print(time.perf_counter() - begin)
"""
MAP = f"""{HEAD}
import datasets
from transformers import PreTrainedTokenizerFast
data = datasets.Dataset.from_dict({{"text": texts()}})
tokenizer = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer/tokenizer.json")
options = {{"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}}
def ids(batch):
    return {{"input_ids": tokenizer(batch["text"], **options)["input_ids"]}}
datasets.disable_progress_bars()
begin = time.perf_counter()
data.map(ids, batched=True, num_proc=2, remove_columns="text", cache_file_name=more[0] + ".arrow")
print(time.perf_counter() - begin)
"""
PREPARE = f"""{HEAD}
begin = time.perf_counter()
prepare([file], Path(more[0]), corpus=corpus, tokenizer=TokenizerSettings(path=folder + "/tokenizer"))
print(time.perf_counter() - begin)
"""


def run(code: str, *arguments: str) -> tuple[float, float]:
    """The number that the code prints, and the seconds that its process took."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout), time.perf_counter() - begin


def main() -> None:
    parser = parser_of(__doc__, table="prepare")
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"raw": [], "map": [], "prepare": [], "whole": []}
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (options.file, f"{scratch}/trained")
        num_bytes, _ = run(TRAIN, *arguments)
        for number in range(options.rounds):
            seconds["raw"].append(run(RAW, *arguments)[0])
            seconds["map"].append(run(MAP, *arguments, f"{scratch}/map{number}")[0])
            prepared, whole = run(PREPARE, *arguments, str(Path(scratch) / str(number)))
            seconds["prepare"].append(prepared)
            seconds["whole"].append(whole)
            speeds = ", ".join(f"{name} {num_bytes / times[-1] / 1e6:.2f} MB/s" for name, times in seconds.items())
            print(f"{speeds}, load {os.getloadavg()[0]:.2f}", flush=True)
    lines = head("what | MB/s | prepare / this | goal")
    for name, times in seconds.items():
        ratios = sorted(other / mine for other, mine in zip(times, seconds["prepare"], strict=True))
        ratio = statistics.median(ratios)
        goal = f"{GOALS[name]:g}, {'met' if ratio >= GOALS[name] else 'missed'}" if name in GOALS else ""
        speed = num_bytes / statistics.median(times) / 1e6
        lines.append(f"| {name} | {speed:.2f} | {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {goal} |")
    print(*lines, sep="\n")
    if options.table:
        write_table(options.table, "prepare", [f"{num_bytes / 1e6:.1f} MB of text:", "", *lines])


if __name__ == "__main__":
    main()
