"""Preparation by one process and by several, each of which reads its own part of the text; alone on the machine.

    python benchmarks/readers.py TEXT --tokenizer DIR [--processes 2] [--rounds 3] [--table PAGE]

The same tasks, in turns: the survey (reading, splitting, prints of what is held out), and
the shards (reading once more, comparing with what is held out, tokenizing, writing). Every process has one thread. The
text must be plain, of some hundred MB (workers take a second to start): what is compressed is read by one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from tables import write_table

from unmask.data.data_folder import DataFolder
from unmask.data.executors import WorkerProcesses
from unmask.data.prepare import Preparation, PreparationInput
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.tokenizer.settings import TokenizerSettings

PASSES = ("survey", "shards")


def seconds(text: str, tokenizer: str, processes: int) -> dict[str, float]:
    """Of each pass; workers are started before."""
    given = PreparationInput([text], CorpusSettings(), TokenizerSettings(path=tokenizer), AnnotationSettings())
    with tempfile.TemporaryDirectory() as out, WorkerProcesses(processes) as executor:
        executor.start()
        folder = DataFolder(Path(out))
        made = Preparation(folder, given, [text], notify=lambda progress: None, note=lambda line: None, before=None)
        if len(made.tasks) < processes:
            raise SystemExit(f"{text} is read in {len(made.tasks)} tasks, too few for {processes} processes")
        made.decide()
        begin = time.perf_counter()
        made.run(executor, "survey", made.tasks)
        read = time.perf_counter()
        made.settle()
        settled = time.perf_counter()
        made.run(executor, "shards", made.tasks)
        return {"survey": read - begin, "shards": time.perf_counter() - settled}


def main() -> None:
    os.environ |= dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path, help="page whose table `readers` is rewritten")
    asked = parser.parse_args()
    size = Path(asked.text).stat().st_size / 1e6
    found: dict[int, list[dict[str, float]]] = {1: [], asked.processes: []}
    for number in range(asked.rounds):
        for processes, turns in found.items():
            turns.append(seconds(asked.text, asked.tokenizer, processes))
            print(f"round {number + 1}: {processes} processes, {turns[-1]}", flush=True)
    lines = [
        "| pass | processes | MB a second | ratio, turn by turn | least to most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in PASSES:
        for processes, turns in found.items():
            speed = size / statistics.median(turn[name] for turn in turns)
            ratios = [one[name] / turn[name] for one, turn in zip(found[1], turns, strict=True)]
            spread = "" if processes == 1 else f"{min(ratios):.2f} to {max(ratios):.2f}"
            lines.append(f"| {name} | {processes} | {speed:,.1f} | {statistics.median(ratios):.2f} | {spread} |")
    print(*lines, sep="\n")
    if asked.table:
        write_table(asked.table, "readers", lines)


if __name__ == "__main__":
    main()
