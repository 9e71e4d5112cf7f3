"""Comparing recipes: each trained at equal budget with the same seeds in turn, measured alike, and judged by pairs.

    OUT/compare.json     what was compared, and the looks that were taken; a folder with it holds a comparison
        data/            the text, prepared once for all, unless prepared data was given
        runs/NAME-SEED/  the runs; evaluation.json in each holds its figures or why it failed, and is written last
        result.json      figures, differences and the verdict
        result.svg       the deciding figure with its intervals

Runs go seed by seed, and within a seed each recipe once, beginning with another one each time: whatever else the
machine does falls on all of them. Stopped at any moment, the same call goes on, as long as recipes and files have not
changed.

One figure decides, and is named before the first run. A verdict on figures that were not judged before (more seeds, or
a run made again) is another look, and each look widens the intervals (`unmask.measure.uncertainty`). The number of
seeds is written down before the first run too: a verdict on fewer is a late look, since runs show their figures as they
end, and where to stop may have been chosen by these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from unmask.commands.many_runs import EVALUATION, RunPlan, begin, items_of, measured_run, state_of
from unmask.commands.recipe_files import Overrides
from unmask.core.errors import DivergedError, MemoryFullError, RunError, SettingsError
from unmask.core.files import ClaimedFolder, write_atomically
from unmask.core.remote import refused
from unmask.core.results import Reporter, Result, Sheet, Shown, usual_reporter
from unmask.masking.settings import STRATEGIES
from unmask.measure.uncertainty import PairedComparison, compare_figures, error_of_look, percent
from unmask.report.plots import comparison_plot

SEEDS = 3
STATE = "compare.json"
Figure = Literal["loss", "bits_per_byte", "pairs_error", "task_error"]
FIGURES: dict[str, str] = {
    "loss": "loss",
    "bits_per_byte": "bits per byte",
    "pairs_error": "share of wrong minimal pairs",
    "task_error": "error on the task",
}
Values = dict[str, dict[str, list[float | None]]]
"""By figure and recipe, one a seed."""


class Comparison(Result):
    """Which recipe is better on a text.

    Attributes:
        figure: The figure that the verdict is on.
        look: Its number: how often was looked, as chance counts.
        recipes: Name to mean, interval and values.
        differences: Of pairs: `first`, `second`, `mean`, `interval`, `better`.
        confidence: Of the differences' intervals.
        verdict: In words.
        exploratory: False.
        by_figure: The same for each of `loss`, `bits_per_byte` and, where they are measured, `pairs_error` and
            `task_error`; `exploratory` is True where a figure does not decide.
        runs: By recipe; with `failed`, the reason, in place of figures.
    """

    figure: str
    look: int
    recipes: dict[str, dict[str, Any]]
    differences: list[dict[str, Any]]
    confidence: float
    verdict: str
    by_figure: dict[str, dict[str, Any]]
    runs: dict[str, list[dict[str, Any]]]

    def shown(self) -> Iterator[Shown]:
        """The recipes' figures, their differences and the verdict."""
        yield by_recipe(self.by_figure)
        pairs = by_pair(self.by_figure)
        if pairs.rows:
            yield ""
            yield pairs
        yield f"\n{self.verdict}"


def compare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    recipes: Sequence[str],
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path = "runs/compared",
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int = SEEDS,
    base: str | None = None,
    rates: Sequence[float] = (0.15,),
    primary: Figure | None = None,
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Finds out which recipe or strategy is better on a text, at equal budgets, with intervals over seeds.

    Args:
        recipes: Names of recipes, .toml files, or masking strategies, each on top of `base`.
        data: Files, folders or patterns of text, or one prepared folder.
        out: Folder of the comparison; the same call goes on in it.
        minutes: Minutes of training of each run.
        steps: Steps of each run, instead of minutes.
        seeds: Runs of each recipe.
        base: Recipe under strategies. By default tiny.
        rates: Shares of hidden tokens at which all are measured; the loss is that of the first.
        primary: The figure that decides. By default the task's error where there is a task, else the loss.
        pairs: Minimal pairs in BLiMP's format.
        task: Fine-tune each model for it; see unmask finetune.
        train: File that the task is learned from.
        validation: File that chooses the best epoch.
        test: File that the task is measured on. By default the validation file.
        settings: `section.key=value` overrides of the recipe, or a dict of them. Those of finetune are for the task.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Something cannot be trained or measured, found before the first run; the folder holds something
            else; or every run failed.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    plan = RunPlan.of(data, minutes, steps, rates, base, settings, pairs, task=(task, train, validation, test))
    deciding = primary or ("loss" if task is None else "task_error")
    _check(recipes, plan, deciding, seeds)
    refused(out, "a comparison")
    root, reporter = Path(out), reporter or usual_reporter()
    loaded = {name: plan.request(name, seed=0).load() for name in recipes}
    items = items_of(plan)
    folder = ClaimedFolder(root=root, marker=STATE, what="a comparison", options=())
    prepared = begin(folder, plan, loaded, {"recipes": list(recipes), "primary": deciding}, loaded, reporter)
    most_seeds = _record_seeds(folder, seeds)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in recipes}
    for seed in range(seeds):
        turn = seed % len(recipes)
        for name in (*recipes[turn:], *recipes[:turn]):
            reporter.note(f"{name}, seed {seed}")
            run = root / "runs" / f"{_label(name)}-{seed}"
            try:
                figures = measured_run(name, plan, seed=seed, data=prepared, folder=run, reporter=reporter)
            except (DivergedError, MemoryFullError) as error:  # written down, so that it is not made again
                reporter.note(f"{name}, seed {seed} failed: {error} (remove {run} to try it again)")
                figures = {"name": name, "seed": seed, "failed": str(error)}
                run.mkdir(parents=True, exist_ok=True)
                write_atomically(run / EVALUATION, json.dumps(figures, indent=1) + "\n")
            runs[name].append(figures)
    if all("failed" in run for of_recipe in runs.values() for run in of_recipe):
        raise RunError(f"{root}: every run failed, the first because of this: {runs[recipes[0]][0]['failed']}")
    values = _values(runs, reporter)
    look = _look(folder, deciding, values, seeds=seeds, most_seeds=most_seeds, reporter=reporter)
    judged = _judged(deciding, values, look, items)
    by_figure = {name: _plain(each) | {"exploratory": name != deciding} for name, each in judged.items()}
    result = {"figure": deciding, "look": look, **by_figure[deciding], "by_figure": by_figure, "runs": runs}
    write_atomically(root / "result.svg", comparison_plot(result["recipes"], what=FIGURES[deciding]))
    write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return Comparison(result)


def _check(recipes: Sequence[str], plan: RunPlan, deciding: str, seeds: int) -> None:
    if len(recipes) < 2 or len(set(recipes)) < len(recipes):
        raise SettingsError("give two or more different recipes or strategies to compare")
    if len({_label(name) for name in recipes}) < len(recipes):
        raise SettingsError("recipes are named by their files; rename one of those that are alike")
    if plan.base is not None and not set(recipes) & set(STRATEGIES):
        raise SettingsError("there is no masking strategy among what is compared; leave the base out", options=["base"])
    if seeds < 1:
        raise SettingsError(f"seeds: a number from 1 on, not {seeds}")
    if deciding not in FIGURES:
        raise SettingsError(f"primary {deciding}: no such figure; known are {', '.join(FIGURES)}")
    if deciding == "pairs_error" and plan.pairs is None:
        raise SettingsError("primary pairs_error: no minimal pairs are given", options=["pairs"])
    if deciding == "task_error" and plan.task is None:
        raise SettingsError("primary task_error: no task is given", options=["task"])


def _label(name: str) -> str:
    """A recipe's name, or its file's, as a part of a path."""
    return Path(name).stem if name.endswith(".toml") else name


# --------------------------------------------------------------------------------------------------------------------
# Looks and the verdict


def _record_seeds(folder: ClaimedFolder, seeds: int) -> int:
    """Writes down how many seeds are asked for, before the first run; returns the most that ever were."""
    with folder.locked():
        state = state_of(folder)
        most = max(state.get("most_seeds", 0), seeds)
        if most > state.get("most_seeds", 0):
            folder.claim(json.dumps({**state, "most_seeds": most}, indent=1) + "\n")
    return most


def _look(
    folder: ClaimedFolder, deciding: str, values: Values, *, seeds: int, most_seeds: int, reporter: Reporter
) -> int:
    """The number of this look, from 1 on; one that is new is written down.

    To see the same figures again is the same look, also where others came between. Where no two seeds can be judged by
    the deciding figure, it is not counted yet.
    """
    pairs = combinations(values.get(deciding, {}).values(), 2)
    if max((sum(None not in pair for pair in zip(a, b, strict=True)) for a, b in pairs), default=0) < 2:
        return 1
    rounded = {  # measured again, the last digits may be others
        figure: {name: [None if value is None else f"{value:.6g}" for value in of] for name, of in by_name.items()}
        for figure, by_name in values.items()
    }
    sha256 = hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()
    with folder.locked():
        state = state_of(folder)
        looks = state.get("looks", [])
        same = (each["look"] for each in looks if (each["seeds"], each["figures"]) == (seeds, sha256))
        if (number := next(same, None)) is None:
            number = next_look([each["look"] for each in looks], seeds=seeds, most_seeds=most_seeds)
            looks.append({"look": number, "seeds": seeds, "figures": sha256})
            folder.claim(json.dumps({**state, "looks": looks}, indent=1) + "\n")
    if seeds < most_seeds:
        reporter.note(
            f"{most_seeds} seeds were asked for before, and runs show their figures as they end: a verdict on {seeds} "
            f"counts as look {number}"
        )
    return int(number)


def next_look(before: Sequence[int], *, seeds: int, most_seeds: int) -> int:
    """The number of a look at new figures.

    One on fewer seeds than were ever asked for may have been chosen by what runs printed. It counts as if every number
    of seeds up to it had been looked at, which leaves look 1 to the number that was asked for.
    """
    return max(max(before, default=0) + 1, seeds if seeds < most_seeds else 1)


def _values(runs: Mapping[str, Sequence[Mapping[str, Any]]], reporter: Reporter) -> Values:
    """The figures that some run has; in which run one is not defined is reported."""
    by_figure: Values = {}
    for figure, what in FIGURES.items():
        values = {name: [run.get(figure) for run in of_recipe] for name, of_recipe in runs.items()}
        for name, of_recipe in runs.items():
            for seed, run in enumerate(of_recipe):
                if figure in run and run[figure] is None:
                    reporter.note(f"{name}, seed {seed}: {what} is not defined; it is judged without this run")
        if any(value is not None for of_recipe in values.values() for value in of_recipe):
            by_figure[figure] = values
    return by_figure


def _judged(deciding: str, values: Values, look: int, items: Mapping[str, int]) -> dict[str, PairedComparison]:
    """All figures compared, the deciding one first: it opens the pairs for which the others may show a difference."""
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


def _plain(comparison: PairedComparison) -> dict[str, Any]:
    return {
        "recipes": {name: asdict(estimate) for name, estimate in comparison.recipes.items()},
        "differences": [
            {"first": each.first, "second": each.second, **asdict(each.estimate), "better": each.better}
            for each in comparison.differences
        ],
        "confidence": comparison.confidence,
        "verdict": comparison.verdict,
    }


def by_recipe(by_figure: dict[str, dict[str, Any]]) -> Sheet:
    """A line a recipe, a column a figure."""
    heads = (f">{figure.replace('_', ' ')} (95 %, over seeds)" for figure in by_figure)
    names = dict.fromkeys(name for judged in by_figure.values() for name in judged["recipes"])
    rows = [(name, *(_cell(judged["recipes"].get(name)) for judged in by_figure.values())) for name in names]
    return Sheet(("recipe", *heads), rows)


def by_pair(by_figure: dict[str, dict[str, Any]]) -> Sheet:
    """Paired differences over seeds: what the verdict is on, since recipes' own intervals do not distinguish them."""
    rows = []
    for figure, judged in by_figure.items():
        for pair in judged["differences"]:
            verdict = "no difference shown" if pair["better"] is None else f"{pair['better']} is better"
            verdict = f"exploratory: {verdict}" if judged["exploratory"] else verdict
            level = f"at {percent(judged['confidence'])}"
            names = f"{pair['first']} - {pair['second']}"
            rows.append((names, figure.replace("_", " "), _cell(pair), level, verdict))
    return Sheet(("pair", "figure", ">difference over seeds", "interval", "verdict"), rows)


def _cell(estimate: dict[str, Any] | None) -> str:
    if estimate is None:  # no run of the recipe has this figure
        return "-"
    if estimate["interval"] is None:
        return f"{estimate['mean']:.3f}"
    low, high = estimate["interval"]
    return f"{estimate['mean']:.3f} ({low:.3f} to {high:.3f})"
