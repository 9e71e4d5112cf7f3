"""Comparing recipes: each trained at equal budget with the same seeds in turn, measured alike, and judged by pairs.

OUT/compare.json     what was asked for, and the looks that were taken; a folder with it holds a comparison
    data/            the text, prepared once for all, unless prepared data was given
    runs/NAME-SEED/  the runs; evaluation.json in each says what it came to or why it failed, and is written last
    result.json      figures, differences and the verdict
    result.svg       the deciding figure with its intervals

Turns go seed by seed, and within a seed each recipe once, beginning with another one each time: so what the machine
does beside falls on all of them. Stopped at any moment, the same command goes on, as long as recipes and files are what
they were. A run that diverges or does not fit into memory has failed, and the others are judged.

One figure decides, and is named before the first run. A verdict on figures that were not judged before (more seeds, or
a run made again) is another look, and each look widens the intervals; `unmask.measuring.paired_comparison` says how
far. The number of seeds is written down before the first run too: a verdict on fewer of them is a late look, since runs
tell their figures as they end, and where to stop may have been chosen by these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from unmask.claimed import ClaimedFolder
from unmask.comparing.comparison_folder import ask_for_seeds, claim, common_data, folder_of_runs, look_number
from unmask.comparing.comparison_inputs import check_pairs_fit, items_of, read_inputs
from unmask.comparing.trials import Protocol, failed_run, measured_run
from unmask.errors import DivergedError, MemoryFullError, RunError, SettingsError
from unmask.files import write_atomically
from unmask.masking.settings import STRATEGIES
from unmask.measuring.paired_comparison import PairedComparison, compare_figures, error_of_look
from unmask.pretraining.run_reporter import Reporter, usual_reporter
from unmask.report.plots import comparison_plot
from unmask.staged import refused

ASKED = "compare.json"
FIGURES = {
    "loss": "loss",
    "bits_per_byte": "bits per byte",
    "pairs_error": "share of wrong minimal pairs",
    "task_error": "error on the task",
}

Values = dict[str, dict[str, list[float | None]]]
"""By figure and recipe, one a seed."""


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """What is compared.

    Attributes:
        recipes: Names of recipes or files; or of masking strategies, each on top of the protocol's base.
        data: Files, folders or patterns of text, or one prepared folder.
        protocol: Budget and measures; the verdict is on the first of its rates.
        seeds: How many; 0, 1, ... are taken.
        primary: The figure that decides, of `FIGURES`; None: the task's error where there is a task, else the loss.
    """

    recipes: tuple[str, ...]
    data: tuple[str, ...]
    protocol: Protocol
    seeds: int = 3
    primary: str | None = None

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
        if self.deciding not in FIGURES:
            raise SettingsError(f"--primary {self.primary}: no such figure; known are {', '.join(FIGURES)}")
        if self.deciding == "pairs_error" and self.protocol.pairs is None:
            raise SettingsError("--primary pairs_error: no minimal pairs are given; name them with --pairs")
        if self.deciding == "task_error" and self.protocol.task is None:
            raise SettingsError("--primary task_error: no task is given; name one with --task")

    @property
    def deciding(self) -> str:
        """The figure that the verdict is on."""
        return self.primary or self.usual

    @property
    def usual(self) -> str:
        """The figure that decides where none is named."""
        return "loss" if self.protocol.task is None else "task_error"


def compare(plan: ComparisonPlan, out: str | Path, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Trains what is missing, measures it, and judges.

    Args:
        plan: What is compared.
        out: Folder of the comparison; one that is there goes on, where it has the same plan (seeds may be more or
            fewer, which is another look, and a late one where they are fewer), and recipes, text, minimal pairs and
            files of the task are what they were.
        reporter: Told of the progress; None logs.

    Returns:
        `figure` (what the verdict is on), `look` (its number), `recipes` (name to mean, interval and values),
        `differences` (first, second, mean, interval, better), `confidence` (of the differences' intervals), `verdict`,
        `exploratory` (False), `by_figure` (the same for each of `loss`, `bits_per_byte` and, where they are measured,
        `pairs_error` and `task_error`; `exploratory` is True where a figure does not decide), `runs` (by recipe; with
        `failed`, the reason, in place of figures).

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first run; the folder holds
            something else; every run failed; or as `pretrain` and `evaluate`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    refused(out, "a comparison")
    root, reporter = Path(out), reporter or usual_reporter()
    recipes = {name: plan.protocol.request(name, seed=0).load() for name in plan.recipes}
    content = {
        "asked": {key: value for key, value in asdict(plan).items() if key != "seeds"} | {"primary": plan.deciding},
        "recipes": {name: recipe.model_dump(mode="json", exclude={"card"}) for name, recipe in recipes.items()},
        "files": read_inputs(recipes, plan.protocol, plan.data),
    }
    items = items_of(plan.protocol)
    folder = folder_of_runs(root, ASKED, "a comparison")
    claim(folder, content, unsaid={"primary": plan.usual})
    data = common_data(plan.data, folder, recipes[plan.recipes[0]], reporter)
    if data != plan.data:  # it was prepared just now
        check_pairs_fit(recipes, plan.protocol, data)
    most_seeds = ask_for_seeds(folder, plan.seeds)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.recipes}
    for seed in range(plan.seeds):
        turn = seed % len(plan.recipes)
        for name in (*plan.recipes[turn:], *plan.recipes[:turn]):
            reporter.note(f"{name}, seed {seed}")
            run = root / "runs" / f"{_label(name)}-{seed}"
            found[name].append(_measured(name, plan.protocol, seed, data, run, reporter))
    if all("failed" in run for runs in found.values() for run in runs):
        first = found[plan.recipes[0]][0]["failed"]
        raise RunError(f"{root}: every run failed, the first because of this: {first}")
    values = _values(found, reporter)
    look = _look(folder, plan, values, most_seeds, reporter)
    judged = _judged(plan.deciding, values, look, items)
    by_figure = {name: _plain(each) | {"exploratory": name != plan.deciding} for name, each in judged.items()}
    result = {"figure": plan.deciding, "look": look, **by_figure[plan.deciding], "by_figure": by_figure, "runs": found}
    write_atomically(root / "result.svg", comparison_plot(result["recipes"], what=FIGURES[plan.deciding]))
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


def _values(found: Mapping[str, Sequence[Mapping[str, Any]]], reporter: Reporter) -> Values:
    """The figures that some run has, by recipe and seed; in which run one is not defined is said."""
    by_figure: Values = {}
    for figure, what in FIGURES.items():
        values = {name: [run.get(figure) for run in runs] for name, runs in found.items()}
        for name, runs in found.items():
            for seed, run in enumerate(runs):
                if figure in run and run[figure] is None:
                    reporter.note(f"{name}, seed {seed}: {what} is not defined; it is judged without this run")
        if any(value is not None for of_recipe in values.values() for value in of_recipe):
            by_figure[figure] = values
    return by_figure


def _look(folder: ClaimedFolder, plan: ComparisonPlan, values: Values, most_seeds: int, reporter: Reporter) -> int:
    """The number of this look; where no two seeds can be judged by the deciding figure, it is not counted yet."""
    deciding = list(values.get(plan.deciding, {}).values())
    both = (sum(None not in pair for pair in zip(a, b, strict=True)) for a, b in combinations(deciding, 2))
    if max(both, default=0) < 2:
        return 1
    seen = {  # measured again, the last digits may be others
        figure: {name: [None if value is None else f"{value:.6g}" for value in of] for name, of in by_recipe.items()}
        for figure, by_recipe in values.items()
    }
    look = look_number(folder, seen, seeds=plan.seeds, most_seeds=most_seeds)
    if plan.seeds < most_seeds:
        reporter.note(
            f"{most_seeds} seeds were asked for before, and runs tell their figures as they end: a verdict on "
            f"{plan.seeds} counts as look {look}"
        )
    return look


def _judged(deciding: str, values: Values, look: int, items: Mapping[str, int]) -> dict[str, PairedComparison]:
    """All figures compared, the deciding one first: it tells of which pairs the others may show a difference."""
    judged: dict[str, PairedComparison] = {}
    for figure in sorted(values, key=lambda figure: figure != deciding):
        what = FIGURES[figure]
        judged[figure] = compare_figures(
            values[figure],
            what=what,
            without="failed" if figure == "loss" else f"failed or have no {what}",
            look=look,
            items=items.get(figure),
            exploratory=0 if figure == deciding else len(values.keys() - {deciding}),
            open_pairs=judged[deciding].told_apart if deciding in judged else (),
        )
    if deciding not in judged:
        verdict = f"no difference shown: no run has a value of {FIGURES[deciding]}"
        judged[deciding] = PairedComparison({}, (), 1.0 - error_of_look(look), verdict)
    return judged


def _label(name: str) -> str:
    """A recipe's name, or its file's, as a part of a path."""
    return Path(name).stem if name.endswith(".toml") else name


def _plain(comparison: PairedComparison) -> dict[str, Any]:
    return {
        "recipes": {name: asdict(estimate) for name, estimate in comparison.recipes.items()},
        "differences": [
            {"first": d.first, "second": d.second, **asdict(d.estimate), "better": d.better}
            for d in comparison.differences
        ],
        "confidence": comparison.confidence,
        "verdict": comparison.verdict,
    }
