"""Cells of a benchmark, each measured in a process of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypeVar

from tables import append_lines

Cell = TypeVar("Cell")


def run_cells(
    measure: Callable[[Cell], dict[str, Any]],
    cells: Mapping[str, Cell],
    results: Path,
    *,
    jobs: int,
    figures_of: Callable[[dict[str, Any]], Mapping[str, float]],
) -> int:
    """Measures cells, `jobs` at a time, and appends the line of each to the results; returns how many failed.

    A process that is killed fails only its own cell. Progress shows the names of the cells, and figures of their lines.
    """

    def alone(cell: Cell) -> dict[str, Any]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measure, cell).result()

    began, failed = time.monotonic(), 0
    threads = ThreadPoolExecutor(jobs)
    running = {threads.submit(alone, cell): name for name, cell in cells.items()}
    try:
        for number, ended in enumerate(as_completed(running), 1):
            try:
                line = ended.result()
            except Exception as error:  # the other cells go on
                failed, reached = failed + 1, f"failed: {error!r}"
            else:
                append_lines(results, line)
                reached = ", ".join(f"{name} {value:.4f}" for name, value in figures_of(line).items())
            taken = time.monotonic() - began
            left = taken / number * (len(cells) - number) / 60
            progress = f"[{number}/{len(cells)}] {taken:.0f} s, {left:.0f} min left"
            print(f"{progress}: {running[ended]}: {reached}", file=sys.stderr, flush=True)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in running):  # interrupted; a process may only be starting
            for process in active_children():
                process.kill()
            time.sleep(0.1)
    return failed
