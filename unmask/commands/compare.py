"""Comparing recipes: each trained at equal budget with the same seeds in turn, measured alike, and judged by pairs.

    OUT/compare.json     what was compared, and the verdicts so far; a folder with it holds a comparison
        data/            the text, prepared once for all, unless the data is prepared
        start/           of `--from`: the model with new words, which are looked for once
        data-NAME/       of `--from`: the text by the vocabulary of another start
        runs/NAME-SEED/  the runs; evaluation.json in each holds its figures or why it failed, and is written last
        report.html      all of it for the eye, with the curves of the runs
        result.json      figures, differences and the verdict
        result.svg       the deciding figure with its intervals

Runs go seed by seed, and within a seed each recipe once, beginning with another one each time: whatever else the
machine does falls on all of them. Stopped at any moment, the same call goes on, as long as recipes and files have not
changed.

One figure decides, and is named before the first run, as the number of seeds is. A verdict on figures that were not
judged before is another look, and each look widens the intervals (`unmask.measure.uncertainty`). Runs that are no
better than word frequencies are not judged.

`--from MODEL` compares four ways to begin a task ("Should I pretrain at all?"). They are recipes as well: `scratch`,
then `continued` and `new-words`, which have a checkpoint ([start]), each with a vocabulary of its own; and `as-is`,
which trains for no step: the model itself is fine-tuned. Held-out losses of different vocabularies do not compare, so
the task decides, and nothing else is measured.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from unmask.commands.evaluate import check_rates, evaluate, score
from unmask.commands.finetune import examples_given, finetune, settings_of
from unmask.commands.finetune_run import class_weights, read_files, selecting_metric
from unmask.commands.masking_tables import named_lexicon
from unmask.commands.pretrain import pretrain
from unmask.commands.recipe import Recipe, find_checkpoint, requested_recipe
from unmask.commands.recipe_files import Overrides, as_overrides, recipe_names
from unmask.commands.run_data import begin_from_checkpoint, check_data, check_tokenizer, is_prepared, prepare_by
from unmask.core.errors import DivergedError, MemoryFullError, RunError, SettingsError, unknown
from unmask.core.files import (
    ClaimedFolder,
    differences,
    file_sha256,
    read_object,
    typed,
    write_atomically,
    write_object,
)
from unmask.core.hub import lasting_name
from unmask.core.interruption import GOES_ON, Interrupted
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import ProgressReporter, Reporter, Result, Sheet, Shown, sentence, usual_reporter
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import load_lexicon
from unmask.data.sources import find_sources, find_split, is_stream
from unmask.masking.settings import STRATEGIES
from unmask.measure.questions import check_lengths, read_pairs
from unmask.measure.uncertainty import compare_figures, error_of_look, percent
from unmask.report.pages import write_shown
from unmask.report.plots import comparison_curves, comparison_plot
from unmask.tasks.kinds import task_named
from unmask.tasks.loaded_model import load
from unmask.tasks.task import LOWER_IS_BETTER
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.callbacks import read_metrics
from unmask.train.hardware import choose_device

SEEDS = 3
STATE = "compare.json"
Figure = Literal["loss", "bits_per_byte", "pairs_error", "task_error"]
FIGURES: dict[str, str] = {
    "loss": "loss",
    "bits_per_byte": "bits per byte",
    "pairs_error": "share of wrong minimal pairs",
    "task_error": "error on the task",
}
EVALUATION = "evaluation.json"
RATES = (0.15,)
SCRATCH, CONTINUED, NEW_WORDS, AS_IS = STARTS = ("scratch", "continued", "new-words", "as-is")
NUM_NEW_WORDS = 1_000


class Comparison(Result):
    """Which recipe is better on a text."""

    figure: str  # that the verdict is on
    look: int  # number of this verdict among those on the comparison, as chance counts: each has wider intervals
    recipes: dict[str, dict[str, Any]]  # by name `mean`, `interval` and `values`
    differences: list[dict[str, Any]]  # of pairs: `first`, `second`, `mean`, `interval`, `better`
    confidence: float  # of the differences' intervals
    verdict: str  # in words
    # The same for each of `loss`, `bits_per_byte` and, where they are measured, `pairs_error` and `task_error`;
    # `exploratory` is True where a figure does not decide.
    by_figure: dict[str, dict[str, Any]]
    # By recipe; with `failed`, the reason, in place of figures; `on_plateau` where the loss on held-out text is no
    # lower than that of word frequencies alone. Two recipes that only have such runs are not judged.
    runs: dict[str, list[dict[str, Any]]]
    # By recipe means over its runs, where there is a task: `pretraining_minutes` (None: it trains for no step) and
    # `finetuning_minutes`, both of training alone, and `num_parameters` of the encoder without a head.
    costs: dict[str, dict[str, float | None]]

    def shown(self) -> Iterator[Shown]:
        def cell(estimate: dict[str, Any] | None) -> str:
            if estimate is None:  # no run of the recipe has this figure
                return "-"
            interval = "" if estimate["interval"] is None else " ({:.3f} to {:.3f})".format(*estimate["interval"])
            return f"{estimate['mean']:.3f}{interval}"

        def cost(of_recipe: Mapping[str, float | None], name: str, form: str) -> str:
            return "-" if (value := of_recipe[name]) is None else f"{value:{form}}"

        # Recipes' own intervals do not distinguish them: the verdict is on paired differences over seeds. The loss has
        # its column where it is not measured, too.
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
        for figure, judged in by_figure.items():
            for pair in judged["differences"]:
                verdict = "no difference shown" if pair["better"] is None else f"{pair['better']} is better"
                verdict = f"exploratory: {verdict}" if judged["exploratory"] else verdict
                verdict = "not judged" if "no verdict" in judged["verdict"] else verdict
                level = f"at {percent(judged['confidence'])}"
                two = f"{pair['first']} - {pair['second']}"
                rows.append((two, figure.replace("_", " "), cell(pair), level, verdict))
        if rows:
            yield ""
            yield Sheet(("pair", "figure", ">difference over seeds", "interval", "verdict"), rows)
        yield f"\n{self.verdict}"

    def intervals(self) -> list[dict[str, Any]]:
        """What is drawn of it, each with a `title` and `estimates` by name: what the verdict is on, runs of the same
        seed beside each other, with a line at `zero`; then each figure by recipe."""
        deciding, what = self.by_figure[self.figure], "each seed, mean and {} interval"
        pairs = {f"{pair['first']} - {pair['second']}": pair for pair in deciding["differences"]}
        title = f"paired difference in {FIGURES[self.figure]}: {what.format(percent(deciding['confidence']))}"
        drawn: list[dict[str, Any]] = [{"title": title, "zero": True, "estimates": pairs}]
        for figure, of in self.by_figure.items():
            title = f"{FIGURES[figure]}: {what.format('95 %')}"
            drawn.append({"title": title, "zero": False, "estimates": of["recipes"]})
        return [each for each in drawn if each["estimates"]]


@public
def compare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    recipes: Sequence[str] = (),
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path = "runs/compared",
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int = SEEDS,
    base: str | None = None,
    from_: str | Path | None = None,
    extend_vocab: int | None = None,
    rates: Sequence[float] = RATES,
    primary: Figure | None = None,
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Compares recipes or strategies on a text, at equal budgets, with intervals over seeds.

    Args:
        recipes: Names of recipes, .toml files, or masking strategies, each on top of `base`. None with a starting
            model.
        data: Files, folders or patterns of text, or one prepared folder.
        out: Folder of the comparison; the same call resumes it.
        minutes: Training minutes of each run.
        steps: Steps of each run, instead of minutes.
        seeds: Runs of each recipe.
        base: Recipe for strategies, and for training from scratch. By default tiny.
        from_: Compare ways to start, on a task: a model trained from scratch, this model trained further on the text,
            the same with new words, and this model unchanged.
        extend_vocab: With a starting model: number of new words. By default 1,000.
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
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    files = {"train": train, "validation": validation, "test": test}
    files = {name: str(file) for name, file in files.items() if file is not None}
    measured = {"pairs": None if pairs is None else str(pairs), "task": task, "files": files}
    start = {"from_": from_, "extend_vocab": extend_vocab}
    plan = run_plan(data, rates, settings, minutes=minutes, steps=steps, base=base, **start, **measured)
    deciding = primary or ("loss" if task is None else "task_error")
    if plan.from_ is not None:
        recipes, plan = STARTS, _plan_of_starts(recipes, plan, deciding)
    labels = {name: label_of(name) for name in recipes}
    _check(labels, plan, deciding, number=len(recipes), seeds=seeds)
    refused(out, "a comparison")
    root, reporter = Path(out), reporter or usual_reporter()
    loaded = {name: requested_recipe(**plan.options(name, seed=0)) for name in recipes}
    folder = ClaimedFolder(root=root, marker=STATE, what="a comparison", options=())
    purpose = {"recipes": list(recipes), "primary": deciding}
    prepared, items = begin_runs(folder, plan, loaded, purpose, loaded, reporter)
    with folder.held(wait=-1):  # the number of seeds is written down before the first run
        state = read_state(folder)
        most_seeds = max(state.get("most_seeds", 0), seeds)
        write_object(root / STATE, {**state, "most_seeds": most_seeds})
        ways = dict.fromkeys(recipes, (plan, prepared)) | _prepare_starts(root, plan, loaded, reporter)

    if seeds < 3:
        reporter.note(
            ("one seed gives no verdict" if seeds == 1 else "two seeds show only very large differences")
            + "; five show a measured difference of 1.2 times its standard deviation between seeds"
        )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in recipes}
    is_told = False  # what the runs have in common: the first one that is made says it
    for seed in range(seeds):
        turn = seed % len(recipes)
        for name in (*recipes[turn:], *recipes[:turn]):
            reporter.note(f"{name}, seed {seed}")
            run = root / "runs" / f"{labels[name]}-{seed}"
            of_run = ProgressReporter(reporter) if is_told else reporter
            is_told = is_told or not (run / EVALUATION).is_file()
            runs[name].append(_run_of(name, *ways[name], seed=seed, folder=run, of_run=of_run, reporter=reporter))
    if all("failed" in run for of_recipe in runs.values() for run in of_recipe):
        raise RunError(f"{root}: every run failed, the first one with: {runs[recipes[0]][0]['failed']}")

    # By figure and recipe a value a seed, of the figures that some run has.
    values: dict[str, dict[str, list[float | None]]] = {}
    for figure in FIGURES:
        by_name = {name: [run.get(figure) for run in of_recipe] for name, of_recipe in runs.items()}
        if any(value is not None for of_name in by_name.values() for value in of_name):
            values[figure] = by_name
    look = _look(folder, deciding, values, seeds=seeds, most_seeds=most_seeds)
    if seeds < most_seeds:
        reporter.note(
            f"{most_seeds} seeds were planned, and figures of finished runs are visible: stopping at {seeds} seeds "
            f"counts as verdict {look}, with wider intervals"
        )
    by_figure = _judged(deciding, values, look, items, runs)
    result = {"figure": deciding, "look": look, **by_figure[deciding], "by_figure": by_figure, "runs": runs}
    result["costs"] = {} if task is None else {name: _cost(of_recipe) for name, of_recipe in runs.items()}
    budget = f"{steps:,} steps" if steps else f"{minutes:g} minutes"
    folders = {name: [root / "runs" / f"{labels[name]}-{seed}" for seed in range(seeds)] for name in recipes}
    return _written(root, result, folders, f"{', '.join(plan.data)}; seeds: {seeds}, each with {budget}")


# ----------------------------------------
# What is compared, the verdict, and how often there was one.


def label_of(recipe: str) -> str:
    """What runs of a recipe are called by, in the names of their folders."""
    return Path(recipe).stem if recipe.endswith(".toml") else recipe


def _check(labels: Mapping[str, str], plan: RunPlan, deciding: str, *, number: int, seeds: int) -> None:
    if number < 2 or len(labels) < number:
        raise SettingsError("give two or more different recipes or strategies to compare")
    if len(set(labels.values())) < number:
        raise SettingsError("two recipe files have the same name, by which results are listed; rename one")
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


def _written(root: Path, result: dict[str, Any], folders: Mapping[str, Sequence[Path]], about: str) -> Comparison:
    """The result, with its page, plot and file; `folders` are of the runs by recipe."""
    comparison = Comparison(result)
    drawn: list[Any] = comparison.intervals()
    if "loss" in comparison.by_figure:  # those of several vocabularies have no axis in common
        metrics = {name: [read_metrics(run / "metrics.jsonl") for run in of] for name, of in folders.items()}
        runs = [run for of_recipe in comparison.runs.values() for run in of_recipe]
        entropy = next((run["unigram_entropy"] for run in runs if "unigram_entropy" in run), None)
        drawn.append(comparison_curves(metrics, entropy))
    write_shown(
        root / "report.html",
        f"unmask compare: {', '.join(comparison.runs)}",
        about,
        [each for each in comparison.shown() if isinstance(each, Sheet)],
        [("Intervals and curves", drawn, None)],
        remark=sentence(comparison.verdict),
    )
    deciding = comparison.by_figure[comparison.figure]["recipes"]
    write_atomically(root / "result.svg", comparison_plot(deciding, what=FIGURES[comparison.figure]))
    write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return comparison


def _plan_of_starts(recipes: Sequence[str], plan: RunPlan, deciding: str) -> RunPlan:
    """The plan of `STARTS`, with a name of the model that always means the same."""
    if recipes:
        raise SettingsError(
            f"a starting model is compared in {len(STARTS)} ways, not with recipes; leave recipes out, or name "
            f"{recipes[0]} as the base, by which the model from scratch is trained",
            options=["base"],
        )
    if plan.task is None:
        raise SettingsError("ways to start are compared on a task; give one", options=["task", "train"])
    extra = {"primary": deciding != "task_error", "pairs": plan.pairs is not None, "rates": plan.rates != RATES}
    if unused := [name for name, is_extra in extra.items() if is_extra]:
        what = "ways to start differ in vocabulary, and one is not pretrained, so only the task is measured"
        raise SettingsError(f"{what}; leave this out", options=unused)
    if is_prepared(plan.data) or any(map(is_stream, plan.data)):
        raise SettingsError(f"{plan.data[0]}: each way to start has its own vocabulary; give files of text")
    name = lasting_name(str(plan.from_), find_checkpoint(str(plan.from_)))
    return replace(plan, from_=name, extend_vocab=NUM_NEW_WORDS if plan.extend_vocab is None else plan.extend_vocab)


def _prepare_starts(
    root: Path, plan: RunPlan, recipes: Mapping[str, Recipe], reporter: Reporter
) -> dict[str, tuple[RunPlan, tuple[str, ...]]]:
    """Of the starts that go on with a model, if any: what their runs do, and the text by their vocabulary.

    New words are looked for once, in the folder's `start`, with which the runs then begin.
    """
    ways: dict[str, tuple[RunPlan, tuple[str, ...]]] = {}
    for name in (CONTINUED, NEW_WORDS) if plan.from_ is not None else ():
        data, recipe = root / f"data-{name}", recipes[name]
        if name == NEW_WORDS:
            recipe, notes = begin_from_checkpoint(plan.data, root / "start", data, recipe)
            for line in notes:
                reporter.note(line)
            plan = replace(plan, from_=str(root / "start"), extend_vocab=None)
        else:
            recipe = recipe.model_copy(update={"tokenizer": _tokenizer_of(recipe)})
        prepare_by(recipe, plan.data, data, reporter)
        ways[name] = plan, (str(data),)
    return ways


def _cost(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What a recipe's runs took on the average; what no run has is None."""

    def mean(name: str, unit: float = 1.0) -> float | None:
        values = [run[name] / unit for run in runs if run.get(name) is not None]
        return fmean(values) if values else None

    return {
        "pretraining_minutes": mean("pretraining_seconds", 60.0),
        "finetuning_minutes": mean("finetuning_seconds", 60.0),
        "num_parameters": mean("num_parameters"),
    }


def _look(
    folder: ClaimedFolder,
    deciding: str,
    values: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    seeds: int,
    most_seeds: int,
) -> int:
    """The number of this look, from 1 on; one that is new is written down.

    The same figures again are the same look. It is not counted where no two seeds can be judged by the deciding figure.
    One on fewer seeds than were ever planned may have been chosen by what runs printed: it counts as if every number of
    seeds up to it had been looked at, which leaves look 1 to the number that was planned.
    """
    pairs = combinations(values.get(deciding, {}).values(), 2)
    if max((sum(None not in pair for pair in zip(a, b, strict=True)) for a, b in pairs), default=0) < 2:
        return 1
    rounded = {  # measured again, the last digits may be others
        figure: {name: [None if value is None else f"{value:.6g}" for value in of] for name, of in by_name.items()}
        for figure, by_name in values.items()
    }
    sha256 = hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()
    with folder.held(wait=-1):
        state = read_state(folder)
        looks = state.get("looks", [])
        for each in looks:
            if (each["seeds"], each["figures"]) == (seeds, sha256):
                return int(each["look"])
        number = max(max((each["look"] for each in looks), default=0) + 1, seeds if seeds < most_seeds else 1)
        looks.append({"look": number, "seeds": seeds, "figures": sha256})
        write_object(folder.root / STATE, {**state, "looks": looks})
    return int(number)


def _judged(
    deciding: str,
    values: Mapping[str, Mapping[str, Sequence[float | None]]],
    look: int,
    items: Mapping[str, int],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Any]]:
    """All figures compared, the deciding one first: it opens the pairs for which the others may show a difference.

    Models that say no more than word frequencies do are not compared, but by a task's error, after fine-tuning.
    """
    stuck = {name: [run.get("on_plateau", False) for run in of if "failed" not in run] for name, of in runs.items()}
    unlearned = {name for name, of_recipe in stuck.items() if all(of_recipe)}
    every = [run["on_plateau"] for of_recipe in runs.values() for run in of_recipe if "on_plateau" in run]
    verdict = f"no difference shown: no run has a value of {FIGURES[deciding]}"
    none = {"recipes": {}, "differences": [], "confidence": 1.0 - error_of_look(look), "verdict": verdict}
    judged: dict[str, dict[str, Any]] = {} if deciding in values else {deciding: {**none, "exploratory": False}}
    for figure in sorted(values, key=lambda figure: figure != deciding):
        what, first = FIGURES[figure], judged.get(deciding, none)
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
        if any(every) and (figure == "task_error" or not all(every)):
            judged[figure]["verdict"] += f"; {sum(every)} of {len(every)} runs are no better than word frequencies"
    return judged


# ----------------------------------------
# Runs that share text, budget and measures, of a comparison or a search: checked, trained and measured alike.


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What all runs share; the state of their folder spells it out. `files` are the task's: train, validation, test."""

    data: tuple[str, ...]
    minutes: float | None
    steps: int | None
    rates: tuple[float, ...]
    base: str | None
    settings: tuple[str, ...]
    pairs: str | None = None
    task: str | None = None
    files: dict[str, Any] = field(default_factory=dict)
    from_: str | None = None  # the checkpoint of `STARTS`
    extend_vocab: int | None = None

    @property
    def of_finetuning(self) -> tuple[str, ...]:
        return tuple(setting for setting in self.settings if setting.startswith("finetune."))

    def options(self, name: str, *, seed: int, overrides: Sequence[str] = ()) -> dict[str, Any]:
        """Options of `pretrain` for a run of a recipe, a masking strategy or a start, with overrides of this run alone.

        Those of `as-is` make the recipe by which the checkpoint is checked, and no run.
        """
        is_strategy, start, known = name in STRATEGIES, {}, (*recipe_names(), *STRATEGIES)
        if self.from_ is None and name not in known and not name.endswith(".toml"):
            raise SettingsError(unknown("recipe or strategy", name, known))
        recipe = self.base if is_strategy else name
        if self.from_ is not None:
            recipe = self.base if name == SCRATCH else None
        if self.from_ is not None and name != SCRATCH:
            start = {"from_": self.from_, "extend_vocab": self.extend_vocab if name == NEW_WORDS else None}
        return {
            **start,
            "recipe": recipe,
            "strategy": name if is_strategy else None,
            "minutes": self.minutes,
            "steps": self.steps,
            "seed": seed,
            "settings": (*(each for each in self.settings if each not in self.of_finetuning), *overrides),
        }


def run_plan(
    data: str | Path | Sequence[str | Path],
    rates: Sequence[float],
    settings: Overrides,
    **options: Any,
) -> RunPlan:
    """The plan of the options that `compare` and `tune` share, which are checked."""
    plan = RunPlan(
        data=(str(data),) if isinstance(data, str | Path) else tuple(map(str, data)),
        rates=tuple(rates),
        settings=as_overrides(settings),
        **options,
    )
    task = plan.task
    if (plan.files or task is not None) and (task is None or "train" not in plan.files):
        raise SettingsError("a task needs its kind and a training file", options=["task", "train"])
    if (plan.minutes is None) == (plan.steps is None):
        raise SettingsError("give either minutes or steps for each run", options=["minutes", "steps"])
    check_rates(plan.rates)
    if task is None and plan.of_finetuning:
        raise SettingsError(f"{plan.of_finetuning[0]}: there is no task to fine-tune for; name one", options=["task"])
    if seed := next((setting for setting in plan.settings if setting.startswith("training.seed=")), None):
        raise SettingsError(f"{seed}: runs have the seeds 0, 1, ...; leave it out")
    return plan


def read_state(folder: ClaimedFolder) -> dict[str, Any]:
    """What the folder of many runs is for, and what was done in it."""
    return read_object(folder.root / str(folder.marker), "give another folder", is_sealed=True)


def begin_runs(
    folder: ClaimedFolder,
    plan: RunPlan,
    recipes: Mapping[str, Recipe],
    purpose: Mapping[str, Any],
    every_recipe: Mapping[str, Recipe],
    reporter: Reporter,
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Checks everything that the runs will read, claims their folder, and prepares the text once for all.

    The folder, which several processes may share, is for this plan, these recipes and what else its purpose is;
    `every_recipe` are all that runs may have. Returns the prepared data, and the items of `_read_inputs`.
    """
    files, items = _read_inputs(every_recipe, plan)
    content = {
        "options": {**purpose, **asdict(plan)},
        "recipes": {name: recipe.model_dump(mode="json", exclude={"card"}) for name, recipe in recipes.items()},
        "files": files,
    }
    content = json.loads(json.dumps(content))
    data = plan.data
    with folder.held(wait=-1):
        if not folder.is_claimed:
            folder.check()
            write_object(folder.root / str(folder.marker), content)
        else:
            begun = read_state(folder)
            folder.check_same(begun["options"], content["options"])  # first, since the rest follows from it
            folder.check_same(begun["recipes"], content["recipes"], of="recipe ")
            for path, old, new in differences(begun["files"], content["files"]):
                change = "is new" if old is None else "is gone" if new is None else "has changed"
                raise folder.changed(f"that started with other files: {path} {change}")
        if not is_prepared(data):
            recipe = next(iter(recipes.values()))
            recipe = recipe.model_copy(update={"tokenizer": _tokenizer_of(recipe)})
            data = (str(folder.root / "data"),)
            prepare_by(recipe, plan.data, Path(data[0]), reporter)
    _check_pairs_fit(every_recipe, plan, data)
    return data, items


def _run_of(
    name: str,
    plan: RunPlan,
    data: Sequence[str],
    *,
    seed: int,
    folder: Path,
    of_run: Reporter,
    reporter: Reporter,
) -> dict[str, Any]:
    """The figures of a run, or why it failed."""
    try:
        figures = measured_run(name, plan, seed=seed, data=data, folder=folder, reporter=of_run)
    except (DivergedError, MemoryFullError) as error:  # written down, so that it is not made again
        figures = {"name": name, "seed": seed, "failed": str(error)}
        folder.mkdir(parents=True, exist_ok=True)
        write_object(folder / EVALUATION, figures)
    if "failed" in figures:
        reporter.note(f"{name}, seed {seed} failed: {figures['failed']} (remove {folder} to try it again)")
    elif known := [f"{what} {figures[key]:.3f}" for key, what in FIGURES.items() if figures.get(key) is not None]:
        reporter.note(f"{name}, seed {seed}: {', '.join(known)}")
    return figures


def measured_run(
    name: str,
    plan: RunPlan,
    *,
    seed: int,
    data: Sequence[str],
    folder: Path,
    reporter: Reporter,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """The figures of a run, which is made, or made to its end, where they are not known yet.

    They are written into its folder last: those of `evaluate`, with `name`, `seed`, the summary's `steps`,
    `unigram_entropy` and `on_plateau`, and, where they are measured, `pairs_error` and `task_error` (1 - the task's
    metric on the test file, else on the validation file; or the metric itself where less of it is better) with
    `task_metric`, `task_measured_on`, `pretraining_seconds`, `finetuning_seconds` and `num_parameters`. A start is not
    evaluated, and `as-is` not pretrained.
    """
    file = folder / EVALUATION
    if not file.is_file():
        content: dict[str, Any] = {"name": name, "seed": seed}
        source, seconds = plan.from_, None
        if plan.from_ is None or name != AS_IS:
            options = plan.options(name, seed=seed, overrides=overrides)
            try:
                run = pretrain(data, out=folder, resume=True, reporter=reporter, **options)
            except Interrupted as error:  # the run's own text says how it goes on by itself
                raise Interrupted(error.signum, "stopped", GOES_ON) from error
            source, seconds = str(run.folder / "model"), run.summary["seconds"]
            if plan.from_ is None:
                model = load(source)
                model.to(choose_device())
                content |= evaluate(model, data, rates=plan.rates, pseudo_tokens=0, notify=reporter.notify).to_dict()
            content |= {key: run.summary[key] for key in ("steps", "unigram_entropy", "on_plateau")}
            if plan.pairs is not None:
                content["pairs_error"] = 1.0 - score(model, plan.pairs, notify=reporter.notify)["accuracy"]
        if plan.task is not None and source is not None:
            tuned = folder / "finetuned"
            summary = finetune(
                source,
                task=plan.task,
                **plan.files,
                out=tuned,
                settings=(f"finetune.seed={seed}", *plan.of_finetuning),
                overwrite=tuned.exists(),
                intervals=False,
                reporter=reporter,
            ).summary
            shutil.rmtree(tuned / "model", ignore_errors=True)
            metric, measured_on = summary["metric"], "test" if "test" in plan.files else "validation"
            value = summary["test_mean" if measured_on == "test" else "mean"][metric]
            content["task_error"] = value if value is None or metric in LOWER_IS_BETTER else 1.0 - value
            content |= {"task_metric": metric, "task_measured_on": measured_on, "pretraining_seconds": seconds}
            content["finetuning_seconds"] = sum(each["seconds"] for each in summary["seeds"])
            content["num_parameters"] = summary["num_parameters"]
        write_object(file, content)
    return read_object(file, "remove it to measure the run again with the same command", is_sealed=True)


# What the runs depend on: read, checked and hashed before the first of them.


def _read_inputs(recipes: Mapping[str, Recipe], plan: RunPlan) -> tuple[dict[str, str], dict[str, int]]:
    """Reads all files that the runs will read, and finds out what does not fit; returns a hash of each by its path.

    And of how many items figures are shares, by the figure: of tags an item is a word, of entities a word that is in
    one, and with several seeds of fine-tuning each counts as often as it is judged.
    """
    hashes, items = _hash_text(recipes, plan), dict[str, int]()
    lexicons = {path for recipe in recipes.values() if (path := named_lexicon(recipe.masking)) is not None}
    hashes |= {str(path): load_lexicon(path).fingerprint for path in lexicons}
    if plan.pairs is not None:
        pairs = [[*pair.texts, pair.paradigm, pair.phenomenon] for pair in read_pairs(Path(plan.pairs))]
        hashes[plan.pairs] = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
        items["pairs_error"] = len(pairs)
    if plan.task is not None:
        kind, settings = task_named(plan.task), settings_of(plan.of_finetuning)
        with examples_given(plan.files["train"], plan.files.get("validation"), plan.files.get("test")) as paths:
            files, task = read_files(kind, paths, settings, lambda remark: None)  # every run reports it
            hashes |= {path: paths[name].sha256 for name, path in plan.files.items()}
        class_weights(files["train"], task, settings.class_weights)
        number = task.items(files.get("test", files["validation"]).records, selecting_metric(task, settings.metric))
        if number is not None:
            items["task_error"] = max(1, number) * settings.seeds
    if is_prepared(plan.data):
        _check_pairs_fit(recipes, plan, plan.data)
    return hashes, items


def _tokenizer_of(recipe: Recipe) -> TokenizerSettings:
    """What text is tokenized with for a recipe: a checkpoint brings its own tokenizer."""
    return recipe.tokenizer if recipe.start is None else TokenizerSettings(path=recipe.start.checkpoint)


def _check_pairs_fit(recipes: Mapping[str, Recipe], plan: RunPlan, data: Sequence[str]) -> None:
    """Makes sure that every model takes the minimal pairs, in tokens of the prepared data's tokenizer."""
    if plan.pairs is None:
        return
    lengths = (recipe.model.max_position_embeddings or recipe.training.sequence_length for recipe in recipes.values())
    check_lengths(read_pairs(Path(plan.pairs)), load_tokenizer(Path(data[0]) / "tokenizer"), longest=min(lengths))


def _hash_text(recipes: Mapping[str, Recipe], plan: RunPlan) -> dict[str, str]:
    """A hash of each file of text, or of the prepared data, which must fit all recipes."""
    data, are_starts = plan.data, plan.from_ is not None  # starts have tokenizers of their own
    manifest = load_manifest(Path(data[0])) if is_prepared(data) else None
    for name, recipe in recipes.items():
        if recipe.start is not None and recipe.start.extend_vocab is not None and not are_starts:
            raise SettingsError(
                f"{name}: start.extend_vocab gives each run its own tokenizer, but compared runs share one; add "
                f"the words first (unmask pretrain TEXT --from {typed(recipe.start.checkpoint)} --extend-vocab "
                f"{recipe.start.extend_vocab} --steps 1 --out RUN), and start from RUN/start"
            )
        check_data(recipe, manifest, Path(data[0]))
        if manifest is not None and recipe.start is not None:
            check_tokenizer(Path(data[0]), manifest, recipe.start.checkpoint, recipe.start.checkpoint)
    if manifest is not None:
        return {data[0]: manifest.fingerprint}

    (first_name, first), *others = recipes.items()
    for name, recipe in others:  # text is prepared once for all
        one, other = _tokenizer_of(first), _tokenizer_of(recipe)
        same_tokenizer = are_starts or one == other
        if not same_tokenizer and one.path is not None and other.path is not None:
            same_tokenizer = load_tokenizer(one.path).fingerprint == load_tokenizer(other.path).fingerprint
        is_same = {
            "corpus": first.corpus == recipe.corpus,
            "tokenizer": same_tokenizer,
            "annotation": first.annotation == recipe.annotation,
        }
        if section := next((name for name, same in is_same.items() if not same), None):
            raise SettingsError(
                f"{first_name} and {name} prepare text differently ([{section}]), but compared runs share it; "
                f"set {section}.KEY for all, or name a checkpoint's tokenizer for those without one (tokenizer.path)",
                options=["set"],
            )
    paths = [path for path in data if not is_stream(path)]  # a stream is read once, into the data
    split = find_split(paths, by_name=first.corpus.splits == "auto", announce=False) if paths else None
    sources = [] if split is None else [*split.train, *split.validation]
    if first.corpus.validation:
        sources = [*([] if split is None else split.train), *find_sources(first.corpus.validation, announce=False)]
    return {str(source.path): file_sha256(source.path) for source in sources}
