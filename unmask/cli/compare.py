"""`unmask compare`, and with `--tune` the search for a recipe's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.progress import ConsoleReporter, console
from unmask.comparing.compare import Plan, compare
from unmask.comparing.trials import Protocol
from unmask.comparing.tune import TunePlan, tune
from unmask.errors import SettingsError
from unmask.evaluation.comparing import percent
from unmask.pretraining.interrupt import GOES_ON, Interruption

SEEDS, TRIALS = 3, 20
_SHOWN = 5  # trials of a search


@dataclass(frozen=True)
class Asked:
    """The options, those that only one of both knows not yet looked at."""

    recipes: tuple[str, ...]
    data: tuple[str, ...]
    protocol: Protocol
    out: Path
    seeds: int | None = None
    primary: str | None = None
    trials: int | None = None
    search: tuple[str, ...] = ()


def run_compare(asked: Asked) -> dict[str, Any]:
    """Compares, and shows the recipes' figures, their differences and the verdict.

    Raises:
        UnmaskError: As `unmask.comparing.compare.compare`, or an option is for searching.
    """
    if asked.trials is not None or asked.search:
        raise SettingsError("--trials and --search are for searching a recipe's numbers; add --tune")
    seeds = SEEDS if asked.seeds is None else asked.seeds
    plan = Plan(recipes=asked.recipes, data=asked.data, protocol=asked.protocol, seeds=seeds, primary=asked.primary)
    with Interruption(GOES_ON), ConsoleReporter() as reporter:
        result = compare(plan, asked.out, reporter=reporter)
    console().print(_by_recipe(result))
    if (differences := _by_pair(result)).row_count:
        console().print()
        console().print(differences)
    console().print(f"\n{result['verdict']}", markup=False, soft_wrap=True)
    return result


def run_tune(asked: Asked) -> dict[str, Any]:
    """Searches, and shows the best trials and how to go on.

    Raises:
        UnmaskError: As `unmask.comparing.tune.tune`, or an option is for comparing.
    """
    if len(asked.recipes) != 1:
        raise SettingsError("--tune searches the numbers of one recipe; name one")
    if asked.seeds is not None:
        raise SettingsError("--seeds is for comparing; a search gives every trial the same seed")
    if asked.primary is not None:
        raise SettingsError("--primary is for comparing; a search goes by the loss")
    trials = TRIALS if asked.trials is None else asked.trials
    plan = TunePlan(
        recipe=asked.recipes[0], data=asked.data, protocol=asked.protocol, search=asked.search, trials=trials
    )
    with Interruption(GOES_ON), ConsoleReporter() as reporter:
        result = tune(plan, asked.out, reporter=reporter)
    console().print(_best_trials(result))
    best = result["best"]["recipe"]
    console().print(f"\n{result['verdict']}\nrecipe  {best}", markup=False, soft_wrap=True)
    console().print(f"Try it: unmask pretrain FILE --recipe {best} --out DIR", markup=False, soft_wrap=True)
    return result


def _by_recipe(result: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe")
    for figure in result["by_figure"]:
        table.add_column(Text(f"{figure.replace('_', ' ')} (95 %, over seeds)"), justify="right")
    for name in dict.fromkeys(name for found in result["by_figure"].values() for name in found["recipes"]):
        table.add_row(Text(name), *(_cell(found["recipes"].get(name)) for found in result["by_figure"].values()))
    return table


def _by_pair(result: dict[str, Any]) -> Table:
    """Paired differences over seeds: what the verdict is on, since recipes' own intervals do not tell them apart."""
    table = Table(box=None, pad_edge=False)
    table.add_column("pair")
    table.add_column("figure")
    table.add_column("difference\nover seeds", justify="right")  # narrow, so that pairs fit beside it
    table.add_column("interval", no_wrap=True)
    table.add_column("verdict")
    for figure, found in result["by_figure"].items():
        for pair in found["differences"]:
            verdict = "no difference shown" if pair["better"] is None else f"{pair['better']} is better"
            names = Text(f"{pair['first']} - {pair['second']}")
            verdict = f"exploratory: {verdict}" if found["exploratory"] else verdict
            level = f"at {percent(found['confidence'])}"
            table.add_row(names, Text(figure.replace("_", " ")), _cell(pair), level, Text(verdict))
    return table


def _best_trials(result: dict[str, Any]) -> Table:
    succeeded = sorted((trial for trial in result["trials"] if trial["loss"] is not None), key=lambda t: t["loss"])
    table = Table(box=None, pad_edge=False)
    for column in ("trial", "loss", *succeeded[0]["parameters"]):
        table.add_column(Text(column), justify="right")
    for trial in succeeded[:_SHOWN]:
        values = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in trial["parameters"].values()]
        table.add_row(str(trial["number"]), f"{trial['loss']:.4f}", *map(Text, values))
    return table


def _cell(estimate: dict[str, Any] | None) -> str:
    if estimate is None:  # no run of the recipe has this figure
        return "-"
    if estimate["interval"] is None:
        return f"{estimate['mean']:.3f}"
    low, high = estimate["interval"]
    return f"{estimate['mean']:.3f} ({low:.3f} to {high:.3f})"
