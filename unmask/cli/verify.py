"""`unmask verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.progress import console
from unmask.exporting.check import Check
from unmask.exporting.verify import verify


def run_verify(model: str, onnx: Path | None) -> dict[str, Any]:
    """Checks and shows a table, a line a check.

    Raises:
        UnmaskError: As `unmask.verify`.
    """
    console().print("loading the model in each of its forms", style="dim")
    result = verify(model, onnx=onnx)
    table = Table(box=None, pad_edge=False)
    table.add_column("check")
    table.add_column("")
    table.add_column("difference", justify="right")
    table.add_column("", overflow="fold")
    for name, check in result.checks.items():
        verdict = Text("passed", "green") if check.passed else Text("FAILED", "bold red")
        table.add_row(_words(name), verdict, _difference(check), Text(check.detail))
    for name, reason in result.skipped.items():
        table.add_row(_words(name), Text("not made", "yellow"), "", Text(reason))
    console().print(table)
    failed = sum(not check.passed for check in result.checks.values())
    console().print(_outcome(failed, len(result.checks), len(result.skipped)))
    return result.plain()


def _outcome(failed: int, made: int, skipped: int) -> str:
    if failed:
        return f"{failed} of {made} checks failed"
    return f"all {made} checks passed" + (f", {skipped} not made" if skipped else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _difference(check: Check) -> str:
    if check.largest_difference is None:
        return "none"
    return f"{check.largest_difference:.1e}" if check.largest_difference else "0"
