"""Kills commands at random moments, single ones and pairs: `python benchmarks/torture.py`, or `make torture`.

Each command that writes is run once without interruption. Then it is started, ended at a random moment (by SIGKILL,
SIGTERM, or SIGINT to all of its processes, like Ctrl-C; sometimes after a stop of a second), resumed, ended again, and
so on; at last it may finish. In every second case two processes are started and ended together, of which one writes. No
process may end with a traceback, or live on for a minute after its signal. The final files must be bit for bit the same
as without interruption, except for times and places. Finished cases are not run again.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tables import append_lines, head, parser_of, read_lines, write_table

ROOT = Path(__file__).resolve().parent.parent
# Files that contain times, places or process details; all others are compared.
FREE = ("summary.json", "report.html", "metrics.jsonl", "state.json", "README.md", "runs.jsonl", "sources.json")
WORDS = ("cat", "dog", "king", "queen", "sea", "garden", "winter", "sleeps", "sees", "the", "a", "in", "under", "and")
UNMASK = [sys.executable, "-m", "unmask"]
SMALL = [
    "--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "model.num_heads=2",
    "--set", "training.sequence_length=32", "--set", "training.batch_tokens=256",
]  # fmt: skip


class Command(NamedTuple):
    """A command that writes."""

    options: list[str]  # all but `--out`
    again: str = "--resume"  # option for restarts after a kill; empty: the command resumes by itself
    out: str = "out"  # name of its output
    of_base: bool = True  # whether it reads the run of `make_base`


def commands(work: Path) -> dict[str, Command]:
    """All commands, on files that are made once; `make_base` makes the run that some of them read."""
    text, labelled = work / "corpus.txt", work / "labelled.csv"
    if not labelled.is_file():
        work.mkdir(parents=True, exist_ok=True)
        rng = random.Random(0)
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 30))) + "." for _ in range(6000)]
        text.write_text("\n".join(lines), encoding="utf-8")
        rows = [f'"{line}",{"sea" if "sea" in line else "garden"}' for line in lines[:200]]
        labelled.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    base, data = str(work / "base" / "model"), str(work / "base" / "data")
    tuned = ["--set", "finetune.epochs=2", "--set", "finetune.precision=float32", "--seeds", "2"]
    tuned += ["--train", str(labelled), "--validation", str(labelled)]
    embedder = ["--steps", "60", "--set", "embedder.batch_size=16", "--set", "embedder.checkpoint.every_steps=10"]
    embedder += ["--set", "embedder.first_lengths=[4,16]", "--set", "embedder.second_lengths=[8,24]"]
    trained = ["--steps", "150", "--vocab-size", "200", *SMALL, "--set", "checkpoint.every_steps=20"]
    return {
        "prepare": Command(["prepare", str(text), "--vocab-size", "300", "--workers", "2"], of_base=False),
        "pretrain": Command(["pretrain", str(text), *trained], of_base=False),
        "finetune": Command(["finetune", base, "--task", "classify", *tuned]),
        "lexicon": Command(["lexicon", data, "--min-count", "3"], "--overwrite", "out.safetensors"),
        "embed": Command(["embed", base, str(text), "--long-texts", "truncate"], "--overwrite", "out.parquet"),
        "export": Command(["export", base], "--overwrite"),
        "search index": Command(["search", "index", base, str(text)]),
        "embedder": Command(["embedder", base, str(text), *embedder]),
        "compare": Command(["compare", "random", "span", "--data", data, "--seeds", "2", "--steps", "40", *SMALL], ""),
    }


def make_base(work: Path) -> None:
    if not (work / "base" / "summary.json").is_file():
        small = ["--steps", "20", "--vocab-size", "200", *SMALL, "--overwrite"]
        process = begin(Command(["pretrain", str(work / "corpus.txt"), *small]), work / "base")
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"torture: the run that commands read could not be made\n{errors[-3000:]}")


def begin(command: Command, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*UNMASK, *command.options, "--out", str(out), *more],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def content(out: Path) -> dict[str, str]:
    files = [out] if out.is_file() else [path for path in sorted(out.rglob("*")) if path.is_file()]
    compared = [path for path in files if path.name not in FREE and not path.name.startswith((".lock", "events.out"))]
    return {str(path.relative_to(out.parent)): hashlib.sha256(path.read_bytes()).hexdigest() for path in compared}


def kills_of(name: str, number: int) -> tuple[random.Random, int, int]:
    """The generator of a case's moments, how often its command is killed, and the number of processes at a time."""
    rng = random.Random(f"{name}:{number}")
    return rng, rng.randint(1, 4), 1 + number % 2


def one_case(
    name: str, command: Command, seconds: float, expected: dict[str, str], work: Path, number: int
) -> str | None:
    """Kills a command, or a pair of it, several times, then lets it finish. Returns what was wrong, or None."""
    rng, times, processes = kills_of(name, number)
    folder = work / f"{name}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out = folder / command.out
    try:
        for _ in range(times):
            written = out.is_file() or (
                out.is_dir() and any(not path.name.startswith(".lock") for path in out.iterdir())
            )
            more = [command.again] if command.again and (written or command.again == "--resume") else []
            pair = [begin(command, out, *more) for _ in range(processes)]
            time.sleep(rng.uniform(0.2, 1.1) * seconds)
            for process in pair:
                end = rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
                if rng.random() < 0.2:
                    os.killpg(process.pid, signal.SIGSTOP)
                    time.sleep(1)
                    os.killpg(process.pid, signal.SIGCONT)
                if end == signal.SIGINT:
                    os.killpg(process.pid, end)
                else:
                    process.send_signal(end)
                try:
                    _, errors = process.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    return f"alive a minute after {end.name}: {process.communicate()[1][-2000:]}"
                if "Traceback" in errors:
                    return f"{end.name}: {errors[-2000:]}"
        last = begin(command, out, *filter(None, [command.again]))
        _, errors = last.communicate(timeout=600)
        if last.returncode != 0:
            return f"exit {last.returncode}: {errors[-2000:]}"
        if (files := content(out)) != expected:
            wrong = sorted(key for key in {*files, *expected} if files.get(key) != expected.get(key))
            return f"not the same: {', '.join(wrong)[:1500]}"
        if left := [path.name for path in folder.iterdir() if path != out]:
            return f"left behind: {left}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def torture(name: str, kills: int, work: Path) -> list[dict[str, Any]]:
    """Runs cases of a command until they have `kills` kills in all, with those that were run before."""
    command = commands(work)[name]
    if command.of_base:
        make_base(work)
    results = work / f"{name}.jsonl"
    done = read_lines(results)
    whole = work / f"{name}-whole"
    seconds = 0.0
    for _ in range(2):  # the second run is timed, with everything compiled
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        start = time.monotonic()
        process = begin(command, whole / command.out)
        _, errors = process.communicate()
        seconds = time.monotonic() - start
        if process.returncode:
            raise SystemExit(f"torture: {name} cannot be run\n{errors[-3000:]}")
    expected = content(whole / command.out)
    shutil.rmtree(whole)
    while sum(case["kills"] for case in done) < kills:
        number = len(done)
        _, times, processes = kills_of(name, number)
        wrong = one_case(name, command, seconds, expected, work, number)
        done.append({"number": number, "kills": times * processes, "wrong": wrong})
        append_lines(results, done[-1])
        if wrong:
            print(f"{name}:{number}: {wrong}", flush=True)
    return done


def main() -> None:
    parser = parser_of(__doc__, table="torture")
    parser.add_argument("--kills", type=int, default=100, help="kills of each command, in cases of one to eight")
    parser.add_argument("--commands", help="comma-separated; all by default")
    parser.add_argument("--work", type=Path, default=Path("runs/torture"), help="folder of results, to be continued")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    names = options.commands.split(",") if options.commands else list(commands(work))
    failed = 0
    lines = head("command | cases | ended | failed")
    for name in names:
        cases = torture(name, options.kills, work)
        wrong = sum(case["wrong"] is not None for case in cases)
        kills = sum(case["kills"] for case in cases)
        print(f"{name}: {kills} kills in {len(cases)} cases, {wrong} failed", flush=True)
        lines.append(f"| `{name}` | {len(cases)} | {kills} | {wrong} |")
        failed += wrong
    if options.table is not None:
        write_table(options.table, "torture", lines)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
