"""Training by one process with some threads, and by several with one each; alone on the machine or beside busy others.

    python benchmarks/processes.py DATA [--steps 60] [--rounds 3] [--neighbours 3] [--recipe tiny] [--table PAGE]

The same steps on the same prepared data, in turns; tokens a second of the run, as its summary says (steps, evaluation
at their beginning and their end included). `--neighbours` processes count as fast as they can meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tables import write_table

BUSY = "while True: pass"


def speed(data: str, *, processes: int, threads: int, recipe: str, steps: int, more: list[str]) -> float:
    """Tokens a second."""
    launcher = (
        [] if processes == 1 else ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    )
    with tempfile.TemporaryDirectory() as out:
        options = ["--recipe", recipe, "--steps", str(steps), "--set", "evaluation.times=1", *more, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "unmask", "pretrain", data, "--out", f"{out}/run", *options],
            env=os.environ | {"OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(done.stdout)["tokens_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", type=Path, help="page whose table `processes` is rewritten")
    asked = parser.parse_args()
    cores = os.cpu_count() or 1
    found: dict[tuple[int, int], list[float]] = {(1, cores): [], (cores, 1): [], (1, 1): []}
    more = [part for setting in asked.settings for part in ("--set", setting)]
    for _ in range(asked.rounds):
        for (processes, threads), speeds in found.items():
            with ExitStack() as beside:
                for _ in range(asked.neighbours):
                    neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
                    beside.callback(neighbour.wait)
                    beside.callback(neighbour.kill)
                speeds.append(
                    speed(
                        asked.data,
                        processes=processes,
                        threads=threads,
                        recipe=asked.recipe,
                        steps=asked.steps,
                        more=more,
                    )
                )
            print(f"{processes} x {threads}: {speeds[-1]:,.0f} tokens a second", flush=True)
    usual = found[1, cores]
    lines = [
        "| processes x threads | tokens a second | least to most | ratio to the first, turn by turn |",
        "| --- | --- | --- | --- |",
    ]
    for (processes, threads), speeds in found.items():
        ratio = statistics.median(speed / base for speed, base in zip(speeds, usual, strict=True))
        lines.append(
            f"| {processes} x {threads} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} "
            f"| {ratio:.2f} |"
        )
    print(*lines, sep="\n")
    if asked.table:
        write_table(asked.table, "processes", lines)


if __name__ == "__main__":
    main()
