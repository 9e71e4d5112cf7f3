"""From the command to the end of the first training step, on prepared data.

    python benchmarks/startup.py DATA [--rounds 3] [--table PAGE]

The time from starting the process `python -m unmask pretrain DATA --steps 1` to the moment at which its first step is
done, as the line of its metrics says; imports, opening the data, building the model and compiling are in it, what
follows the step (evaluation, writing the model) is not.

    compiled          the loops have been compiled on this machine before: every run but the first
    not yet compiled  with an empty cache of compiled loops: the first run after installing
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

from tables import write_table

GOAL = 10.0
# Wraps the step, so that the end of the first is known to the clock of all processes.
WATCH = """
import sys, time
import unmask.train.trainer as loop
step = loop.training_step
def watched(*arguments, **named):
    result = step(*arguments, **named)
    sys.stderr.write(f"first step {time.time()}\\n")
    loop.training_step = step
    return result
loop.training_step = watched
from unmask.commands.cli import main
main()
"""


def first_step(data: str, cache: Path) -> float:
    """Seconds from the start of the process to the end of its first step."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", WATCH, "pretrain", data, "--steps", "1", "--out", f"{out}/run"]
        begin = time.time()
        done = subprocess.run(
            command, env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, capture_output=True, text=True, check=True
        )
    end = next(line.split()[-1] for line in done.stderr.splitlines() if line.startswith("first step "))
    return float(end) - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path, help="page whose table `startup` is rewritten")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"not yet compiled": [], "compiled": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for kind, seconds in times.items():  # the first fills the cache for the second
                seconds.append(first_step(options.data, Path(cache)))
                print(f"{kind}: {seconds[-1]:.1f} s", flush=True)
    lines = ["| loops | first step after, s | least to most | goal, s |", "| --- | --- | --- | --- |"]
    for kind, seconds in times.items():
        median = statistics.median(seconds)
        goal = f"{GOAL:g}, {'met' if median <= GOAL else 'missed'}"
        lines.append(f"| {kind} | {median:.1f} | {min(seconds):.1f} to {max(seconds):.1f} | {goal} |")
    print(*lines, sep="\n")
    if options.table:
        write_table(options.table, "startup", lines)


if __name__ == "__main__":
    main()
