"""Damaged files for the readers of the package: `python benchmarks/fuzz.py --cases 10000`, or `make fuzz`.

    target, number ──▶ a valid file ──▶ damaged by the number's draws ──▶ read, in a child process ──▶ outcome

A case is a pure function of its target and its number, so these two reproduce a failure: `--only model:4711`. A case
fails if it ends with neither a result nor an `UnmaskError`: with another exception, a signal, or more than `SECONDS` or
`MEGABYTES`. Case -1 is undamaged, and fails if it is not read. Finished cases are in the results, and are not run
again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tables import append_lines, head, parser_of, read_lines, write_table
from turns import own_output

SECONDS, WAITS, MEGABYTES = 20, 6, 1500
WHOLE = -1  # number of the undamaged case, which must be read
DAMAGES = ("flip", "cut", "drop", "repeat", "nasty", "swap", "number", "nothing")
NASTY: tuple[bytes, ...] = (
    b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 5000, b'{"a":' * 5000, b"9" * 5000, b"-1", b"1e999", b"NaN",
    b"null", b"2147483648", b"18446744073709551616", "²".encode(), b"\r", b"\t", b'"', b"'", b",", b"=",
    b"../../etc/passwd",
    b"\x1b[31m", b"<script>", b"=cmd()", "\u202e".encode(), b"true", b'""', b"{}", b"[]", b"\n\n\n",
    b"\\u0000", b"\\ud800",
)  # fmt: skip


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Applies one to eight damages in turn, each at its own place."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place, size = rng.randrange(len(data) + 1), min(len(data), rng.choice((1, 1, 4, 17, 200)))
        match rng.choice(DAMAGES):
            case "flip" if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            case "cut":
                del data[place:]
            case "drop":
                del data[place : place + size]
            case "repeat":
                data[place:place] = data[place : place + size] * rng.choice((1, 2, 50))
            case "nasty":
                data[place : place + rng.choice((0, 0, size))] = rng.choice(NASTY)
            case "swap":
                other = rng.randrange(len(data) + 1)
                data[place : place + size], data[other : other + size] = (
                    data[other : other + size], data[place : place + size],
                )  # fmt: skip
            case "number":
                digits = [n for n, byte in enumerate(data[place : place + 500], place) if 48 <= byte < 58]
                if digits:
                    data[digits[0] : digits[0] + 1] = rng.choice(
                        (b"-1", b"0", b"99999999999", b"1e400", b"0.5", b'"x"')
                    )
            case "nothing" if rng.random() < 0.2:
                data.clear()
    return bytes(data)


Case = tuple[str, int]


def child(cases: list[Case], work: Path) -> None:
    out = own_output()
    logging.disable(logging.CRITICAL)
    from fuzz_targets import targets  # loads all libraries

    run_cases(cases, targets(work), out)


def run_cases(cases: list[Case], targets: Mapping[str, Any], out: TextIO) -> None:
    """Runs cases and prints a line before and after each, so that the parent knows which case crashed."""
    with tempfile.TemporaryDirectory(prefix="unmask-fuzz-", ignore_cleanup_errors=True) as scratch:
        for target, number in cases:
            print(json.dumps({"begin": [target, number]}), file=out, flush=True)
            faulthandler.dump_traceback_later(2 * SECONDS * WAITS, exit=True)  # a library's loop hears no signal
            outcome = one_case(target, targets[target], number, Path(scratch) / str(number))
            print(json.dumps(outcome), file=out, flush=True)
    faulthandler.cancel_dump_traceback_later()


def too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s of the processor, or {WAITS} times as long in all")


def one_case(target: str, chosen: Any, number: int, folder: Path) -> dict[str, Any]:
    from unmask.core.errors import UnmaskError

    rng = random.Random(f"{target}:{number}")
    if chosen.beside is not None:
        left_out = shutil.ignore_patterns("checkpoints", "data", "given", ".lock*")
        shutil.copytree(chosen.beside, folder, ignore=left_out)
    folder.mkdir(exist_ok=True)
    for name, content in chosen.files.items() if chosen.is_folder else ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    names = sorted(chosen.files)
    name = names[rng.randrange(len(names))]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    content = chosen.files[name]
    (folder / name).write_bytes(content if number == WHOLE else damaged(content, rng))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome: dict[str, Any] = {"target": target, "number": number, "file": name}
    signal.signal(signal.SIGPROF, too_long)
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # other work on the machine does not count
    signal.alarm(SECONDS * WAITS)
    try:
        chosen.read(folder, name, number)
        outcome["outcome"] = "read"
    except UnmaskError as error:
        outcome["outcome"] = "refused"
        if "\n" in str(error) or len(str(error)) > 1200 or (number == WHOLE and chosen.is_whole):
            outcome |= {"outcome": "failed", "error": str(error)[:3000]}
    except BaseException:
        outcome |= {"outcome": "failed", "error": traceback.format_exc()[-3000:]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if grown > MEGABYTES:
        outcome |= {"outcome": "failed", "error": f"{grown:,.0f} MB for one case"}
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def run_batch(cases: list[Case], work: Path) -> list[dict[str, Any]]:
    """The outcomes of cases. If the child dies, its current case has failed, and a new child runs the rest."""
    outcomes: list[dict[str, Any]] = []
    left = [(target, number) for target, number in cases]
    while left:
        command = [sys.executable, __file__, "--child", json.dumps(left), "--work", str(work)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        done = [line for line in lines if "outcome" in line]
        outcomes += done
        begun = [tuple(line["begin"]) for line in lines if "begin" in line]
        left = left[len(done) :]
        if left:
            if not begun or begun[-1] != left[0]:
                raise SystemExit(f"fuzz: the child process did not start\n{ended.stderr[-3000:]}")
            target, number = left.pop(0)
            error = f"ended with {ended.returncode}\n{ended.stderr[-2500:]}"
            outcomes.append({"target": target, "number": number, "outcome": "failed", "error": error})
    return outcomes


def fuzz(target: str, cases: int, work: Path, *, batch: int = 500) -> Counter[str]:
    """Runs the remaining cases of a target, and counts the outcomes of all."""
    results = work / f"{target}.jsonl"
    done = read_lines(results)
    known = {outcome["number"] for outcome in done}
    left = [number for number in range(WHOLE, cases) if number not in known]
    for begin in range(0, len(left), batch):
        outcomes = run_batch([(target, number) for number in left[begin : begin + batch]], work)
        append_lines(results, *outcomes)
        done += outcomes
        failed = sum(outcome["outcome"] == "failed" for outcome in done)
        print(f"{target}: {len(known) + begin + len(outcomes):,} of {cases + 1:,}, {failed} failed", flush=True)
    return Counter(outcome["outcome"] for outcome in done if outcome["number"] < cases)


def main() -> None:
    parser = parser_of(__doc__, table="fuzz")
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases for each target")
    parser.add_argument("--targets", help="comma-separated; all by default")
    parser.add_argument("--work", type=Path, default=Path("runs/fuzz"), help="folder of results, to be continued")
    parser.add_argument("--only", help="TARGET:NUMBER, a case to run and show")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work.resolve()
    if options.child:
        child(json.loads(options.child), work)
        return
    work.mkdir(parents=True, exist_ok=True)
    if options.only:
        target, number = options.only.split(":")
        print(run_batch([(target, int(number))], work)[0].get("error", "no failure"))
        return
    from fuzz_targets import targets

    names = options.targets.split(",") if options.targets else list(targets(work))
    begin, failed = time.monotonic(), 0
    lines = head("target | cases | read | refused | failed")
    for name in names:
        counts = fuzz(name, options.cases, work)
        failed += counts["failed"]
        print(f"{name}: {counts['read']:,} read, {counts['refused']:,} refused, {counts['failed']:,} failed")
        figures = (counts.total(), *(counts[outcome] for outcome in ("read", "refused", "failed")))
        lines.append(" | ".join([f"| {name}", *(f"{figure:,}" for figure in figures)]) + " |")
    if options.table is not None:
        write_table(options.table, "fuzz", lines)
    print(f"{failed} failures in {time.monotonic() - begin:,.0f} s; reproduce one with --only TARGET:NUMBER")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
