"""`unmask score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.progress import ConsoleBar, console
from unmask.inference.scorable import load_scorable
from unmask.inference.score import score
from unmask.training.hardware import choose_device


def run_score(model: str, pairs: Path, *, form: str, pairs_per_paradigm: int | None) -> dict[str, Any]:
    """Scores the pairs and shows a line a phenomenon.

    Raises:
        UnmaskError: As `unmask.inference.score.score`, or the model cannot be loaded.
    """
    loaded = load_scorable(model)
    loaded.network.to(choose_device())
    console().print("scoring both sentences of every pair, each token hidden in turn", style="dim")
    with ConsoleBar("reading the pairs") as bar:
        result = score(loaded, pairs, form=form, pairs_per_paradigm=pairs_per_paradigm, notify=bar.notify)
    table = Table(box=None, pad_edge=False)
    table.add_column("phenomenon")
    table.add_column("accuracy", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("over")
    for name, accuracy in result["phenomena"].items():
        found = result["by_phenomenon"][name]
        table.add_row(Text(name), f"{accuracy:.1%}", _interval(found["interval"]), _over(found))
    table.add_row("all", f"{result['accuracy']:.1%}", _interval(result["interval"]), _over(result), style="bold")
    console().print(table)
    console().print(
        f"{result['pairs']:,} pairs, {result['ties']:,} ties (one half each); 50 % is chance", style="dim", markup=False
    )
    if result["warning"] is not None:
        console().print(result["warning"], style="yellow", markup=False, soft_wrap=True)
    return result


def _over(found: dict[str, Any]) -> str:
    """What an interval takes as drawn, and how many of it."""
    number = found["num_paradigms" if found["interval_over"] == "paradigms" else "pairs"]
    return f"{number:,} {found['interval_over']}"


def _interval(interval: list[float]) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"
