"""Comparing recipes: each trained at equal budget with the same seeds in turn, measured alike, and judged by pairs.

OUT/compare.json     what was asked for; a folder with it holds a comparison
    data/            the text, prepared once for all, unless prepared data was given
    runs/NAME-SEED/  the runs; evaluation.json in each says what it came to or why it failed, and is written last
    result.json      figures, differences and the verdict
    result.svg       figures with their intervals

Turns go seed by seed, and within a seed each recipe once, beginning with another one each time: so what the machine
does beside falls on all of them. Stopped at any moment, the same command goes on, as long as recipes and files are what
they were. A run that diverges or does not fit into memory has failed, and the others are judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.comparing.folder import claim, common_data
from unmask.comparing.inputs import check_pairs_fit, read_inputs
from unmask.comparing.trials import Protocol, failed_run, measured_run
from unmask.errors import DivergedError, MemoryFullError, RunError, SettingsError
from unmask.evaluation.comparing import Comparison, compare_figures
from unmask.files import write_atomically
from unmask.masking.settings import STRATEGIES
from unmask.pretraining.reporter import LogReporter, Reporter
from unmask.report.comparison import comparison_plot

FIGURES = {
    "loss": "loss",
    "bits_per_byte": "bits per byte",
    "pairs_error": "share of wrong minimal pairs",
    "task_error": "error on the task",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared.

    Attributes:
        recipes: Names of recipes or files; or of masking strategies, each on top of the protocol's base.
        data: Files, folders or patterns of text, or one prepared folder.
        protocol: Budget and measures; the verdict is on the first of its rates.
        seeds: How many; 0, 1, ... are taken.
    """

    recipes: tuple[str, ...]
    data: tuple[str, ...]
    protocol: Protocol
    seeds: int = 3

    def __post_init__(self) -> None:
        """Raises: SettingsError: Something is missing, out of range or twice there."""
        if len(self.recipes) < 2 or len(set(self.recipes)) < len(self.recipes):
            raise SettingsError("give two or more different recipes or strategies to compare")
        if len({_label(name) for name in self.recipes}) < len(self.recipes):
            raise SettingsError(
                "recipes are told apart by the names of their files; rename one of those that are alike"
            )
        if self.protocol.base is not None and not set(self.recipes) & set(STRATEGIES):
            raise SettingsError("--base is the recipe under masking strategies, and none is compared; leave it out")
        if self.seeds < 1:
            raise SettingsError(f"seeds: a number from 1 on, not {self.seeds}")


def compare(plan: Plan, out: str | Path, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Trains what is missing, measures it, and judges.

    Args:
        plan: What is compared.
        out: Folder of the comparison; one that is there goes on, where it has the same plan (seeds may be more), and
            recipes, text, minimal pairs and files of the task are what they were.
        reporter: Told of the progress; None logs.

    Returns:
        `figure` (what the verdict is on), `recipes` (name to mean, interval and values), `differences` (first, second,
        mean, interval), `verdict`, `by_figure` (the same for each of `loss`, `bits_per_byte` and, where they are
        measured, `pairs_error` and `task_error`), `runs` (by recipe; with `failed`, the reason, in place of figures).

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first run; the folder holds
            something else; every run failed; or as `pretrain` and `evaluate`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    root, reporter = Path(out), reporter or LogReporter()
    recipes = {name: plan.protocol.request(name, seed=0).load() for name in plan.recipes}
    content = {
        "asked": {key: value for key, value in asdict(plan).items() if key != "seeds"},
        "recipes": {name: recipe.model_dump(mode="json") for name, recipe in recipes.items()},
        "files": read_inputs(recipes, plan.protocol, plan.data),
    }
    claim(root, "compare.json", content, what="comparison")
    data = common_data(plan.data, root, recipes[plan.recipes[0]], reporter)
    if data != plan.data:  # it was prepared just now
        check_pairs_fit(recipes, plan.protocol, data)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.recipes}
    for seed in range(plan.seeds):
        turn = seed % len(plan.recipes)
        for name in (*plan.recipes[turn:], *plan.recipes[:turn]):
            reporter.note(f"{name}, seed {seed}")
            folder = root / "runs" / f"{_label(name)}-{seed}"
            found[name].append(_measured(name, plan.protocol, seed, data, folder, reporter))
    if all("failed" in run for runs in found.values() for run in runs):
        first = found[plan.recipes[0]][0]["failed"]
        raise RunError(f"{root}: every run failed, the first because of this: {first}")
    by_figure = _judged(found, reporter)
    result = {
        "figure": "loss",
        **_plain(by_figure["loss"]),
        "by_figure": {figure: _plain(comparison) for figure, comparison in by_figure.items()},
        "runs": found,
    }
    write_atomically(root / "result.svg", comparison_plot(result["recipes"], what=FIGURES["loss"]))
    write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return result


def _measured(
    name: str, protocol: Protocol, seed: int, data: tuple[str, ...], folder: Path, reporter: Reporter
) -> dict[str, Any]:
    """What a run came to, or that it failed."""
    try:
        return measured_run(name, protocol, seed=seed, data=data, folder=folder, reporter=reporter)
    except (DivergedError, MemoryFullError) as error:
        reporter.note(f"{name}, seed {seed} failed: {error} (remove {folder} to try it again)")
        return failed_run(name, seed, folder, str(error))


def _judged(found: Mapping[str, Sequence[Mapping[str, Any]]], reporter: Reporter) -> dict[str, Comparison]:
    """The figures that some run has, compared; in which run one is not defined is said."""
    by_figure: dict[str, Comparison] = {}
    for figure, what in FIGURES.items():
        values = {name: [run.get(figure) for run in runs] for name, runs in found.items()}
        for name, runs in found.items():
            for seed, run in enumerate(runs):
                if figure in run and run[figure] is None:
                    reporter.note(f"{name}, seed {seed}: {what} is not defined; it is judged without this run")
        if any(value is not None for of_recipe in values.values() for value in of_recipe):
            without = "failed" if figure == "loss" else f"failed or have no {what}"
            by_figure[figure] = compare_figures(values, what=what, without=without)
    return by_figure


def _label(name: str) -> str:
    """A recipe's name, or its file's, as a part of a path."""
    return Path(name).stem if name.endswith(".toml") else name


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {
        "recipes": {name: asdict(estimate) for name, estimate in comparison.recipes.items()},
        "differences": [
            {"first": d.first, "second": d.second, **asdict(d.estimate), "better": d.better}
            for d in comparison.differences
        ],
        "verdict": comparison.verdict,
    }
