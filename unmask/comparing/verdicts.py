"""Comparing recipes and searching a recipe's numbers, as verbs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.comparing.comparison import ComparisonPlan
from unmask.comparing.comparison import compare as compare_plan
from unmask.comparing.trials import Protocol, task_files
from unmask.comparing.tuning import TunePlan
from unmask.comparing.tuning import tune as tune_plan
from unmask.files import typed
from unmask.measuring.paired_comparison import percent
from unmask.pretraining.run_reporter import Reporter
from unmask.recipe.overrides import Overrides, as_overrides
from unmask.results import Result, Sheet, Shown

SEEDS, TRIALS = 3, 20
_SHOWN = 5  # trials of a search


class Comparison(Result):
    """Which recipe is better on a text.

    Attributes:
        figure: What the verdict is on.
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
        differences = by_pair(self.by_figure)
        if differences.rows:
            yield ""
            yield differences
        yield f"\n{self.verdict}"


class Search(Result):
    """Which numbers of a recipe are better on a text.

    Attributes:
        best: `number`, `loss`, `parameters`, and `recipe`, the file.
        own: The same of the trial with the recipe's own numbers; None where some of these lie outside of what is
            searched, or that trial failed.
        trials: `number`, `state`, `loss`, `parameters`.
        verdict: In words.
    """

    best: dict[str, Any]
    own: dict[str, Any] | None
    trials: list[dict[str, Any]]
    verdict: str

    def shown(self) -> Iterator[Shown]:
        """The best trials, and how to go on."""
        yield best_trials(self.trials)
        recipe = self.best["recipe"]
        yield f"\n{self.verdict}\nrecipe  {recipe}"
        yield f"Try it: unmask pretrain FILE --recipe {typed(recipe)} --out DIR"


def compare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    recipes: Sequence[str],
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int = SEEDS,
    base: str | None = None,
    rates: Sequence[float] = (0.15,),
    primary: str | None = None,
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Trains recipes in turn at equal budgets on the same data, measures all on the same hidden tokens, and judges.

    Args:
        recipes: Names of recipes or files; or of masking strategies, each on top of `base`.
        data: Files, folders or patterns of text, or one prepared folder.
        out: Folder of the comparison; one that is there goes on, where recipes, data and files are what they were.
        minutes, steps: Budget of each run; one of them.
        seeds: How many runs of each recipe.
        base: Recipe under strategies; None: the default.
        rates: Shares of hidden tokens at which all are measured; the loss is that of the first.
        primary: The figure that decides: `loss`, `bits_per_byte`, `pairs_error` or `task_error`; None: the task's error
            where there is a task, else the loss.
        pairs: Minimal pairs in BLiMP's format.
        task, train, validation, test: What each model is fine-tuned for, as for `unmask.finetune`.
        settings: `section.key=value` overrides for all, or a dict of them; those of `finetune` are for the task.
        reporter: Told of the progress; None logs.

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first run; the folder holds
            something else; or every run failed.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    protocol = _protocol(minutes, steps, rates, pairs, (task, train, validation, test), base, settings)
    plan = ComparisonPlan(recipes=tuple(recipes), data=_paths(data), protocol=protocol, seeds=seeds, primary=primary)
    return Comparison(compare_plan(plan, out, reporter=reporter))


def tune(  # noqa: PLR0913  (as for compare)
    recipe: str,
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    minutes: float | None = None,
    steps: int | None = None,
    trials: int = TRIALS,
    search: Sequence[str] = (),
    base: str | None = None,
    rates: Sequence[float] = (0.15,),
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Search:
    """Searches the numbers of a recipe.

    Args:
        recipe: Name of a recipe or its file; or of a masking strategy, on top of `base`.
        trials: How many, those of other processes included.
        search: `KEY=LOW..HIGH` or `KEY=A,B,...`; empty: learning rate, tokens a step, layers and mask rate.
        data, out, minutes, steps, base, rates, pairs, task, train, validation, test, settings, reporter: As for
            `compare`.

    Raises:
        UnmaskError: As for `compare`; or no trial succeeded, or Optuna is missing.
        Interrupted: SIGINT or SIGTERM; the trial is made again when the search goes on.
    """
    protocol = _protocol(minutes, steps, rates, pairs, (task, train, validation, test), base, settings)
    plan = TunePlan(recipe=recipe, data=_paths(data), protocol=protocol, search=tuple(search), trials=trials)
    return Search(tune_plan(plan, out, reporter=reporter))


def _protocol(
    minutes: float | None,
    steps: int | None,
    rates: Sequence[float],
    pairs: str | Path | None,
    task: tuple[str | Path | None, ...],
    base: str | None,
    settings: Overrides,
) -> Protocol:
    return Protocol(
        minutes=minutes,
        steps=steps,
        rates=tuple(rates),
        pairs=None if pairs is None else str(pairs),
        task=task_files(*(None if each is None else str(each) for each in task)),
        base=base,
        settings=as_overrides(settings),
    )


def _paths(data: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    return (str(data),) if isinstance(data, str | Path) else tuple(map(str, data))


def by_recipe(by_figure: dict[str, dict[str, Any]]) -> Sheet:
    """A line a recipe, a column a figure."""
    heads = (f">{figure.replace('_', ' ')} (95 %, over seeds)" for figure in by_figure)
    rows = [
        (name, *(_cell(found["recipes"].get(name)) for found in by_figure.values()))
        for name in dict.fromkeys(name for found in by_figure.values() for name in found["recipes"])
    ]
    return Sheet(("recipe", *heads), rows)


def by_pair(by_figure: dict[str, dict[str, Any]]) -> Sheet:
    """Paired differences over seeds: what the verdict is on, since recipes' own intervals do not distinguish them."""
    rows = []
    for figure, found in by_figure.items():
        for pair in found["differences"]:
            verdict = "no difference shown" if pair["better"] is None else f"{pair['better']} is better"
            verdict = f"exploratory: {verdict}" if found["exploratory"] else verdict
            level = f"at {percent(found['confidence'])}"
            names = f"{pair['first']} - {pair['second']}"
            rows.append((names, figure.replace("_", " "), _cell(pair), level, verdict))
    return Sheet(("pair", "figure", ">difference over seeds", "interval", "verdict"), rows)


def best_trials(trials: Sequence[dict[str, Any]]) -> Sheet:
    """The best trials of a search, with their numbers."""
    succeeded = sorted((trial for trial in trials if trial["loss"] is not None), key=lambda trial: trial["loss"])
    rows = [
        (
            str(trial["number"]),
            f"{trial['loss']:.4f}",
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in trial["parameters"].values()),
        )
        for trial in succeeded[:_SHOWN]
    ]
    return Sheet(tuple(f">{head}" for head in ("trial", "loss", *succeeded[0]["parameters"])), rows)


def _cell(estimate: dict[str, Any] | None) -> str:
    if estimate is None:  # no run of the recipe has this figure
        return "-"
    if estimate["interval"] is None:
        return f"{estimate['mean']:.3f}"
    low, high = estimate["interval"]
    return f"{estimate['mean']:.3f} ({low:.3f} to {high:.3f})"
