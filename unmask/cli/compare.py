"""`unmask compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.progress import ConsoleReporter, console
from unmask.pretraining.compare import Plan, compare


def run_compare(plan: Plan, out: Path) -> dict[str, Any]:
    """Compares, and shows a table and the verdict.

    Raises:
        UnmaskError: As `unmask.pretraining.compare.compare`.
    """
    with ConsoleReporter() as reporter:
        result = compare(plan, out, reporter=reporter)
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe")
    for figure in result["by_figure"]:
        table.add_column(figure.replace("_", " "), justify="right")
    for name in result["recipes"]:
        table.add_row(name, *(_cell(found["recipes"][name]) for found in result["by_figure"].values()))
    console().print(table)
    console().print(f"\n{result['verdict']}", markup=False, soft_wrap=True)
    return result


def _cell(estimate: dict[str, Any]) -> str:
    if estimate["interval"] is None:
        return f"{estimate['mean']:.3f}"
    low, high = estimate["interval"]
    return f"{estimate['mean']:.3f} ({low:.3f} to {high:.3f})"
