"""Compares recipes: trained with the same budget and seeds, measured the same way, and judged in pairs.

    OUT/compare.json     the compared recipes and the verdicts so far; marks the folder as a comparison
        data/            the text, prepared once for all runs, unless the data is prepared already
        start/           with `--from`: the model with new words, which are chosen once
        data-NAME/       with `--from`: the text in the vocabulary of the start NAME
        recipes/NAME     if the budget chooses the model's size: the recipe with the size that all runs share
        runs/NAME-SEED/  the runs; evaluation.json in each, written last, holds its figures or why it failed
        report.html      verdict, tables and curves, for reading
        result.json      figures, differences and the verdict

Runs are made seed by seed. Within a seed each recipe runs once, starting with a different one each time, so that other
load on the machine affects all recipes alike. docs/how-to/measuring.md says how figures are judged. With `--from`,
ways to start are compared; they are recipes, too, each with its own vocabulary.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from unmask.commands.recipe import Recipe, find_checkpoint, requested_recipe
from unmask.commands.recipe_files import Overrides
from unmask.commands.run_data import begin_from_checkpoint, open_prepared, prepare_by
from unmask.commands.run_plan import (
    AS_IS,
    CONTINUED,
    EVALUATION,
    NEW_WORDS,
    SCRATCH,
    STARTS,
    RunPlan,
    begin_runs,
    folder_of_runs,
    measured_run,
    plain_name,
    read_state,
    run_plan,
)
from unmask.commands.sizing import sized_recipe, sizes_of, with_sizes
from unmask.core.errors import DivergedError, MemoryFullError, RunError, SettingsError
from unmask.core.files import ClaimedFolder, write_atomically, write_object
from unmask.core.hub import lasting_name
from unmask.core.public import public
from unmask.core.remote import lasting_source, refused
from unmask.core.results import (
    ProgressReporter,
    Reporter,
    Result,
    Sheet,
    Shown,
    decimals,
    duration,
    sentence,
    usual_reporter,
)
from unmask.data.data_folder import is_prepared
from unmask.data.sources import is_stream
from unmask.masking.settings import STRATEGIES, followed_scores
from unmask.measure.uncertainty import compare_figures, error_of_look, percent
from unmask.report.pages import write_shown
from unmask.report.plots import comparison_curves
from unmask.tokenizer.extension import check_extensible
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.callbacks import read_metrics

Way = tuple[RunPlan, tuple[str, ...]]  # plan and data of a recipe's runs
SEEDS = 3
STATE = "compare.json"
Figure = Literal["loss", "bits_per_byte", "pairs_error", "task_error"]
FIGURES: dict[str, str] = {
    "loss": "loss",
    "bits_per_byte": "bits per byte",
    "pairs_error": "share of wrong minimal pairs",
    "task_error": "error on the task",
}
RATES = (0.15,)
NUM_NEW_WORDS = 1_000


class Comparison(Result):
    """Which recipe is better on a text."""

    figure: str  # the deciding one
    look: int  # number of this verdict in the comparison (see `_look_number`); each has wider intervals
    recipes: dict[str, dict[str, Any]]  # by name: `mean`, `interval` and `values`
    differences: list[dict[str, Any]]  # of pairs: `first`, `second`, `mean`, `interval`, `better`
    confidence: float  # of the differences' intervals
    verdict: str  # in words
    # The same for each of `loss`, `bits_per_byte` and, if measured, `pairs_error` and `task_error`; `exploratory` is
    # True for figures that do not decide.
    by_figure: dict[str, dict[str, Any]]
    # By recipe. A failed run has `failed`, the reason, instead of figures. `on_plateau` is True if the held-out loss is
    # no lower than that of word frequencies alone; two recipes with only such runs are not judged.
    runs: dict[str, list[dict[str, Any]]]
    # With a task, means over each recipe's runs: `pretraining_minutes` (None: it is not pretrained) and
    # `finetuning_minutes`, both of training alone (evaluations count against a budget in minutes), and `num_parameters`
    # of the encoder without a head.
    costs: dict[str, dict[str, float | None]]

    def shown(self) -> Iterator[Shown]:
        def cell(estimate: dict[str, Any] | None) -> str:
            if estimate is None:  # no run of the recipe has this figure
                return "-"
            between = "" if estimate["interval"] is None else f" ({' to '.join(map(decimals, estimate['interval']))})"
            return f"{decimals(estimate['mean'])}{between}"

        def cost(of_recipe: Mapping[str, float | None], name: str, form: str) -> str:
            return "-" if (value := of_recipe[name]) is None else f"{value:{form}}"

        # Intervals of single recipes do not show whether they differ: the verdict is on paired differences over seeds.
        # The loss always has a column, measured or not.
        by_figure = self.by_figure
        estimates = {figure: judged["recipes"] for figure, judged in by_figure.items()}
        estimates.setdefault("loss", {})
        heads = [f">{figure.replace('_', ' ')} (95 %, over seeds)" for figure in estimates]
        names = dict.fromkeys(name for of_figure in estimates.values() for name in of_figure)
        rows = [(name, *(cell(of_figure.get(name)) for of_figure in estimates.values())) for name in names]
        forms = {"pretraining_minutes": ".1f", "finetuning_minutes": ".1f", "num_parameters": ",.0f"}
        if self.costs:
            heads += [">pretraining, minutes", ">fine-tuning, minutes", ">parameters"]
            rows = [(*row, *(cost(self.costs[row[0]], *form) for form in forms.items())) for row in rows]
        yield Sheet(("recipe", *heads), rows)
        rows = []
        decided = {(pair["first"], pair["second"]) for pair in self.differences if pair["better"] is not None}
        for figure, judged in by_figure.items():
            for pair in judged["differences"]:
                verdict = "no difference shown" if pair["better"] is None else f"{pair['better']} is better"
                if judged["exploratory"]:  # judged only for pairs in which the deciding figure differs
                    is_judged = (pair["first"], pair["second"]) in decided
                    verdict = f"exploratory: {verdict if is_judged else 'not judged'}"
                verdict = "not judged" if "no verdict" in judged["verdict"] else verdict
                level = f"at {percent(judged['confidence'])}"
                two = f"{pair['first']} - {pair['second']}"
                rows.append((two, figure.replace("_", " "), cell(pair), level, verdict))
        if rows:
            yield ""
            yield Sheet(("pair", "figure", ">difference over seeds", "interval", "verdict"), rows)
        yield f"\n{self.verdict}"

    def intervals(self) -> list[dict[str, Any]]:
        """Plots of the result, each with a `title` and `estimates` by name: first the paired differences of the
        deciding figure, with a line at `zero`; then each figure by recipe."""
        deciding, what = self.by_figure[self.figure], "each seed, mean and {} interval"
        pairs = {f"{pair['first']} - {pair['second']}": pair for pair in deciding["differences"]}
        title = f"paired difference in {FIGURES[self.figure]}: {what.format(percent(deciding['confidence']))}"
        plots: list[dict[str, Any]] = [{"title": title, "zero": True, "estimates": pairs}]
        for figure, judged in self.by_figure.items():
            title = f"{FIGURES[figure]}: {what.format('95 %')}"
            plots.append({"title": title, "zero": False, "estimates": judged["recipes"]})
        return [each for each in plots if each["estimates"]]


@public
def compare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    recipes: str | Path | Sequence[str | Path] = (),
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path = "runs/compared",
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int = SEEDS,
    base: str | Path | None = None,
    from_: str | Path | None = None,
    extend_vocab: int | None = None,
    rates: float | Sequence[float] = RATES,
    primary: Figure | None = None,
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Compares recipes or strategies over several seeds. They train on the same text, at equal budgets.

    Args:
        recipes: Names of recipes, .toml files, or masking strategies, each on top of `base`. None with a starting
            model.
        data: Files, folders or patterns of text, or one prepared folder.
        out: Folder of the comparison; the same call resumes it.
        minutes: Training minutes of each run.
        steps: Steps of each run, instead of minutes.
        seeds: Runs of each recipe.
        base: Recipe for strategies, and for training from scratch. By default tiny; with minutes and without
            tune, what they allow on this machine, chosen once for all runs.
        from_: Compare ways to start, on a task: a model trained from scratch, this model trained further on the text,
            the same with new words, and this model unchanged.
        extend_vocab: With a starting model: number of new words. By default 1,000; 0 leaves out the start with new
            words.
        rates: Shares of hidden tokens to measure at; the loss is taken at the first.
        primary: The figure that decides. By default the task's error, or the loss if there is no task.
        pairs: Minimal pairs in BLiMP's format, to score each model on.
        task: Task to fine-tune each model for; see unmask finetune.
        train: Training file of the task.
        validation: File by which the best epoch is chosen. By default as for finetune.
        test: File to measure the task on. By default the validation file.
        settings: `section.key=value` overrides of the recipe, or a dict of them; finetune.key is for the task.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Something cannot be trained or measured (checked before the first run); the folder holds something
            else; or every run failed.
        KeyboardInterrupt: SIGINT or SIGTERM; the run's state was saved.
    """
    names: Sequence[str] = [str(each) for each in ([recipes] if isinstance(recipes, str | Path) else recipes)]
    files = {"train": train, "validation": validation, "test": test}
    files = {name: plain_name(file) for name, file in files.items() if file is not None}
    measured = {"pairs": None if pairs is None else plain_name(pairs), "task": task, "files": files}
    start = {"from_": from_, "extend_vocab": extend_vocab}
    plan = run_plan(data, rates, settings, minutes=minutes, steps=steps, base=base and str(base), **start, **measured)
    deciding = primary or ("loss" if task is None else "task_error")
    if plan.from_ is not None:
        plan = _plan_of_starts(names, plan, deciding)
        names = [name for name in STARTS if name != NEW_WORDS or plan.extend_vocab]
    labels = {name: label_of(name) for name in names}
    _check(labels, plan, deciding, number=len(names), seeds=seeds)
    refused(out, "a comparison")
    root, reporter = Path(out), reporter or usual_reporter()
    loaded = {name: requested_recipe(**plan.options(name, seed=0)) for name in names}
    folder = folder_of_runs(root, STATE, "a comparison")
    purpose = {"recipes": list(names), "primary": deciding}
    prepared, items = begin_runs(folder, plan, loaded, purpose, reporter)
    with folder.held(wait=-1):
        ways = dict.fromkeys(names, (plan, prepared)) | _prepare_starts(root, plan, loaded, reporter)
        ways |= _sized_ways(root, loaded, ways, reporter)

    if seeds < 3:
        few = "one seed gives no verdict" if seeds == 1 else "two seeds show only very large differences"
        reporter.note(f"{few}; five find a difference of twice its standard deviation between seeds in 4 of 5 cases")
    runs = _make_runs(root, labels, ways, seeds, reporter)
    if all("failed" in run for of_recipe in runs.values() for run in of_recipe):
        raise RunError(f"{root}: every run failed, the first one with: {runs[names[0]][0]['failed']}")

    # By figure and recipe, one value per seed; figures that no run has are left out.
    values: dict[str, dict[str, list[float | None]]] = {}
    for figure in FIGURES:
        by_name = {name: [run.get(figure) for run in of_recipe] for name, of_recipe in runs.items()}
        if any(value is not None for of_name in by_name.values() for value in of_name):
            values[figure] = by_name
    look = _look_number(folder, values.get(deciding, {}), seeds=seeds)
    by_figure = _judge_figures(deciding, values, look, items, runs)
    for name, masking in ((name, each.masking) for name, each in loaded.items() if followed_scores(each.masking)):
        if 0 < max(run.get("steps", 0) for run in runs[name]) <= masking.refresh_steps:
            by_figure[deciding]["verdict"] += f"; masks of {name} never followed the model (masking.refresh_steps)"
    on_few = next((run for of_recipe in runs.values() for run in of_recipe if run.get("warning")), None)
    if on_few is not None and seeds > 1 and deciding in ("loss", "bits_per_byte"):
        what = f"few {on_few['unit']} were measured ({on_few['predicted_documents']})"
        by_figure[deciding]["verdict"] += f"; {what}, and intervals over seeds do not show how texts differ"
    result = {"figure": deciding, "look": look, **by_figure[deciding], "by_figure": by_figure, "runs": runs}
    result["costs"] = {} if task is None else {name: _mean_costs(of_recipe) for name, of_recipe in runs.items()}
    budget = f"{steps:,} steps" if steps else f"{minutes:g} minutes"
    folders = {name: [root / "runs" / f"{labels[name]}-{seed}" for seed in range(seeds)] for name in names}
    about = f"{', '.join(map(lasting_source, plan.data))}; seeds: {seeds}, each with {budget}"
    return _write_result(root, result, folders, about)


# ----------------------------------------
# The runs.


def _make_runs(
    root: Path, labels: Mapping[str, str], ways: Mapping[str, Way], seeds: int, reporter: Reporter
) -> dict[str, list[dict[str, Any]]]:
    """Makes all runs, seed by seed, starting with a different recipe each time; returns their figures by recipe."""
    names = list(labels)
    order = [(seed, name) for seed in range(seeds) for name in (names * 2)[seed % len(names) :][: len(names)]]
    folders = {(seed, name): root / "runs" / f"{labels[name]}-{seed}" for seed, name in order}
    to_make = [each for each in order if not (folders[each] / EVALUATION).is_file()]
    if minutes := sum(ways[name][0].minutes or 0.0 for _, name in to_make if name != AS_IS):
        reporter.note(f"{len(to_make)} runs: {duration(60 * minutes)} of pretraining in all, and time to measure them")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    begin, made = time.monotonic(), 0
    for number, (seed, name) in enumerate(order, 1):
        left = "" if (seed, name) in to_make else ", made before"
        if made >= len(names) and not left:  # a whole round first: recipes may take different times
            left = f"; about {duration((time.monotonic() - begin) / made * (len(to_make) - made))} left"
        reporter.note(f"run {number} of {len(order)}: {name}, seed {seed}{left}")
        run_reporter = ProgressReporter(reporter) if made else reporter  # only the first prints shared notes
        (plan, data), folder = ways[name], folders[seed, name]
        try:
            figures = measured_run(name, plan, seed=seed, data=data, folder=folder, reporter=run_reporter)
        except (DivergedError, MemoryFullError) as error:  # recorded, so that it is not repeated
            figures = {"name": name, "seed": seed, "failed": str(error)}
            folder.mkdir(parents=True, exist_ok=True)
            write_object(folder / EVALUATION, figures)
        made += (seed, name) in to_make
        runs[name].append(figures)
        if "failed" in figures:
            again = f"remove {folder / EVALUATION} to try it again"  # the run resumes from what it has saved
            reporter.note(f"{name}, seed {seed} failed: {figures['failed']} ({again})")
        elif known := [
            f"{what} {decimals(figures[key])}" for key, what in FIGURES.items() if figures.get(key) is not None
        ]:
            steps = f"; {figures['steps']:,} steps" if "steps" in figures else ""
            warning = f"; {figures['task_warning'].partition(';')[0]}" if "task_warning" in figures else ""
            reporter.note(f"{name}, seed {seed}: {', '.join(known)}{steps}{warning}")
    return runs


# ----------------------------------------
# Checks, verdicts, and the number of looks.


def label_of(recipe: str) -> str:
    return Path(recipe).stem if recipe.endswith(".toml") else recipe


def _check(labels: Mapping[str, str], plan: RunPlan, deciding: str, *, number: int, seeds: int) -> None:
    if number < 2 or len(set(labels.values())) < number:
        raise SettingsError("give two or more recipes or strategies with different names, by which results are listed")
    if plan.base is not None and plan.from_ is None and not set(labels) & set(STRATEGIES):
        raise SettingsError("base is for masking strategies, but none is compared; leave it out", options=["base"])
    if seeds < 1:
        raise SettingsError(f"seeds must be at least 1, not {seeds}")
    if deciding not in FIGURES:
        raise SettingsError(f"primary: there is no figure {deciding}; known are {', '.join(FIGURES)}")
    for figure, option in (("pairs_error", "pairs"), ("task_error", "task")):
        if deciding == figure and getattr(plan, option) is None:
            raise SettingsError(f"primary {figure} needs the option {option}", options=[option])
    if plan.extend_vocab is not None and plan.from_ is None:
        raise SettingsError("new words are added to a starting model; name one", options=["from_"])


def _write_result(root: Path, result: dict[str, Any], folders: Mapping[str, Sequence[Path]], about: str) -> Comparison:
    comparison = Comparison(result)
    plots: list[Any] = comparison.intervals()
    if "loss" in comparison.by_figure:  # losses with different vocabularies share no axis
        metrics = {name: [read_metrics(run / "metrics.jsonl") for run in of] for name, of in folders.items()}
        runs = [run for of_recipe in comparison.runs.values() for run in of_recipe]
        entropy = next((run["unigram_entropy"] for run in runs if "unigram_entropy" in run), None)
        plots.append(comparison_curves(metrics, entropy))
    write_shown(
        root / "report.html",
        f"unmask compare: {', '.join(comparison.runs)}",
        about,
        [each for each in comparison.shown() if isinstance(each, Sheet)],
        [("Intervals and curves", plots, None)],
        remark=sentence(comparison.verdict),
    )
    write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return comparison


def _plan_of_starts(recipes: Sequence[str], plan: RunPlan, deciding: str) -> RunPlan:
    """Checks the options that go with `--from`; returns the plan for `STARTS`, with a lasting name of the model."""
    if recipes:
        way_out = f"leave recipes out, or name {recipes[0]} as the base, the recipe of the model from scratch"
        raise SettingsError(f"a starting model is not compared with recipes; {way_out}", options=["base"])
    if plan.task is None:
        raise SettingsError("ways to start are compared on a task; give one", options=["task", "train"])
    extra = {"primary": deciding != "task_error", "pairs": plan.pairs is not None, "rates": plan.rates != RATES}
    if unused := [name for name, is_extra in extra.items() if is_extra]:
        what = "ways to start differ in vocabulary, and one is not pretrained, so only the task is measured"
        raise SettingsError(f"{what}; leave this out", options=unused)
    if is_prepared(plan.data) or any(map(is_stream, plan.data)):
        raise SettingsError(f"{plan.data[0]}: each way to start has its own vocabulary; give files of text")
    folder = find_checkpoint(str(plan.from_))
    name = lasting_name(str(plan.from_), folder)
    if plan.extend_vocab != 0:  # before text is prepared for the other starts
        check_extensible(load_tokenizer(folder))
    return replace(plan, from_=name, extend_vocab=NUM_NEW_WORDS if plan.extend_vocab is None else plan.extend_vocab)


def _prepare_starts(root: Path, plan: RunPlan, recipes: Mapping[str, Recipe], reporter: Reporter) -> dict[str, Way]:
    """Prepares the text for each start that continues a model, in its vocabulary; returns the plans and data.

    New words are chosen once; the runs start from the extended model in the folder's `start`.
    """
    ways: dict[str, Way] = {}
    if plan.from_ is None:
        return ways
    if not any(key == "finetune.max_length" for key, _ in plan.settings):
        lengths = {name: recipes[name].positions for name in (SCRATCH, CONTINUED, AS_IS)}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} on {length:,}" for name, length in lengths.items())
            reporter.note(
                f"the starts see different lengths of each text in fine-tuning ({shown}); to give all the same, "
                f"set finetune.max_length={min(lengths.values())}, or training.sequence_length to train longer rows"
            )
    for name in (each for each in (CONTINUED, NEW_WORDS) if each in recipes):
        data, recipe = root / f"data-{name}", recipes[name]
        if name == NEW_WORDS:
            recipe = begin_from_checkpoint(
                plan.data, root / "start", recipe, note=reporter.note, notify=reporter.notify
            )
            plan = replace(plan, from_=str(root / "start"), extend_vocab=None)
        prepare_by(recipe, plan.data, data, reporter)
        ways[name] = plan, (str(data),)
    return ways


def _sized_ways(
    root: Path, recipes: Mapping[str, Recipe], ways: Mapping[str, Way], reporter: Reporter
) -> dict[str, Way]:
    """Chooses the size of recipes sized by their budget, once for all runs: on a busier machine it could differ."""
    files = {name: root / "recipes" / f"{label_of(name)}.toml" for name in recipes if recipes[name].sizing is not None}
    if not all(file.is_file() for file in files.values()):
        first = next(iter(files))
        sizes = sizes_of(sized_recipe(recipes[first], open_prepared(Path(ways[first][1][0])), reporter))
        for name, file in files.items():
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, with_sizes(recipes[name], sizes).to_toml())
    return {name: (replace(ways[name][0], sized={name: str(file)}), ways[name][1]) for name, file in files.items()}


def _mean_costs(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    def mean(name: str, unit: float = 1.0) -> float | None:
        values = [run[name] / unit for run in runs if run.get(name) is not None]
        return fmean(values) if values else None

    return {
        "pretraining_minutes": mean("pretraining_seconds", 60.0),
        "finetuning_minutes": mean("finetuning_seconds", 60.0),
        "num_parameters": mean("num_parameters"),
    }


def _look_number(folder: ClaimedFolder, values: Mapping[str, Sequence[float | None]], *, seeds: int) -> int:
    """The number of this look, from 1 on: each number of seeds is one, if two of them can be judged by `values`."""
    pairs = combinations(values.values(), 2)
    if max((sum(None not in pair for pair in zip(a, b, strict=True)) for a, b in pairs), default=0) < 2:
        return 1
    with folder.held(wait=-1):
        state = read_state(folder)
        looks = list(dict.fromkeys([*state.get("looks", []), seeds]))
        write_object(folder.root / STATE, {**state, "looks": looks})
    return looks.index(seeds) + 1


def _judge_figures(
    deciding: str,
    values: Mapping[str, Mapping[str, Sequence[float | None]]],
    look: int,
    items: Mapping[str, int],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Any]]:
    """Compares recipes by all figures, the deciding one first: the others are judged only for pairs that it separates.

    Recipes that are no better than word frequencies are compared with each other only by a task's error.
    """
    stuck = {name: [run.get("on_plateau", False) for run in of if "failed" not in run] for name, of in runs.items()}
    unlearned = {name for name, of_recipe in stuck.items() if all(of_recipe)}
    flags = [run["on_plateau"] for of_recipe in runs.values() for run in of_recipe if "on_plateau" in run]
    verdict = f"no difference shown: no run has a value of {FIGURES[deciding]}"
    no_verdict = {"recipes": {}, "differences": [], "confidence": 1.0 - error_of_look(look), "verdict": verdict}
    judged: dict[str, dict[str, Any]] = {} if deciding in values else {deciding: {**no_verdict, "exploratory": False}}
    for figure in sorted(values, key=lambda figure: figure != deciding):
        what, first = FIGURES[figure], judged.get(deciding, no_verdict)
        judged[figure] = compare_figures(
            values[figure],
            what=what,
            without="failed" if figure == "loss" else f"failed or have no {what}",
            look=look,
            items=items.get(figure),
            exploratory=0 if figure == deciding else len(values.keys() - {deciding}),
            open_pairs={(pair["first"], pair["second"]) for pair in first["differences"] if pair["better"]},
            unlearned=unlearned if figure != "task_error" else (),
        )
        if any(flags) and (figure == "task_error" or not all(flags)):
            judged[figure]["verdict"] += f"; {sum(flags)} of {len(flags)} runs are no better than word frequencies"
    return judged
