"""Tunes a recipe's numbers with Optuna: many short runs, each with numbers that the runs before it suggest.

    OUT/tune.json       the search space; marks the folder as a search
        data/           the text, prepared once for all, unless the data is prepared
        study.db        all trials, written by Optuna: several processes with the same call share the search
        trials/NUMBER/  the trials' runs; only the best one keeps its model
        best.toml       the recipe with the best numbers
        result.json     all trials and the best

Source: Bergstra et al. 2011 (tree-structured Parzen estimators).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.commands.recipe import Recipe, requested_recipe
from unmask.commands.recipe_files import DEFAULT, Overrides, toml_value
from unmask.commands.run_plan import RunPlan, begin_runs, folder_of_runs, measured_run, run_plan
from unmask.core.errors import DivergedError, MemoryFullError, RunError, SettingsError, shortened
from unmask.core.files import typed, write_atomically
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import Hint, Reporter, Result, Sheet, Shown, usual_reporter
from unmask.masking.settings import STRATEGIES

if TYPE_CHECKING:
    import optuna

TRIALS = 20
SHOWN_TRIALS = 5
SEARCHED = ("training", "masking", "model", "objectives")  # other sections change the text or what is measured
LOG_FROM = 4.0  # a range whose ends are this many times apart is searched on a log scale


class Tuning(Result):
    """Which numbers of a recipe are better on a text."""

    best: dict[str, Any]  # `number`, `loss`, `parameters`, and `recipe`, its file
    # The same, without a file, of the trial with the recipe's own numbers; None if some of these are outside the search
    # space, or that trial failed.
    own: dict[str, Any] | None
    trials: list[dict[str, Any]]  # `number`, `state`, `loss`, `parameters`
    verdict: str  # in words

    def shown(self) -> Iterator[Shown]:
        succeeded = sorted((each for each in self.trials if each["loss"] is not None), key=lambda each: each["loss"])
        heads = (">trial", ">loss", *(f">{name}" for name in succeeded[0]["parameters"]))
        rows = [
            (str(each["number"]), f"{each['loss']:.4f}", *map(_number, each["parameters"].values()))
            for each in succeeded[:SHOWN_TRIALS]
        ]
        yield Sheet(heads, rows)
        recipe = self.best["recipe"]
        yield f"\n{self.verdict}\nrecipe  {recipe}"
        yield Hint(
            f"unmask pretrain FILE --recipe {typed(recipe)} --out DIR",
            f'unmask.pretrain("FILE", recipe={recipe!r}, out="DIR")',
        )


@public
def tune(  # noqa: PLR0913, PLR0915  (as for compare; the search, whole)
    recipe: str | Path,
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path = "runs/compared",
    minutes: float | None = None,
    steps: int | None = None,
    trials: int = TRIALS,
    search: Sequence[str] = (),
    base: str | Path | None = None,
    rates: float | Sequence[float] = (0.15,),
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Tuning:
    """Tunes the numbers of one recipe with Optuna instead.

    The first trial uses the recipe's own numbers if they lie in the search space. A trial that diverges or runs out
    of memory counts; an interrupted one is repeated. With a budget in steps, a single process always suggests the same
    numbers. Other parameters are those of `compare`.

    Args:
        recipe: Name of a recipe, a .toml file, or a masking strategy, on top of `base`.
        trials: Number of runs, including those of other processes on the same folder.
        search: Range (KEY=LOW..HIGH) or choices (KEY=A,B,...) of a number. By default learning rate, tokens per step,
            layers and mask rate.

    Raises:
        UnmaskError: As for `compare`; or no trial succeeded, or Optuna is missing.
        KeyboardInterrupt: SIGINT or SIGTERM; the trial is repeated when the search resumes.
    """
    recipe = str(recipe)
    plan = run_plan(data, rates, settings, minutes=minutes, steps=steps, base=str(base or DEFAULT))
    if trials < 1:
        raise SettingsError(f"trials must be at least 1, not {trials}")
    own_recipe = _load(plan, recipe, {})
    if base is not None and recipe not in STRATEGIES:
        raise SettingsError("base is for masking strategies, but none is tuned; leave it out", options=["base"])
    if own_recipe.sizing is not None:
        raise SettingsError(f"{recipe}: each trial would choose its own size; give a recipe with a size, like tiny")
    dimensions = tuple(map(read_dimension, search)) or usual_dimensions(own_recipe)
    ends: dict[str, Recipe] = {}  # each must be allowed, and fit the text
    for place, dimension in enumerate(dimensions):
        key = dimension.key
        for other in dimensions[:place]:
            if f"{other.key}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other.key}."):
                raise SettingsError(f"search: {other.key} and {key} cannot both be searched")
        if key.split(".")[0] not in SEARCHED:
            raise SettingsError(f"search {key}: only {', '.join(SEARCHED)} are searched")
        for end in dimension.values:
            ends[f"{recipe} with {key}={end}"] = _load(plan, recipe, {key: end})
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("tuning needs Optuna; install it with pip install 'unmask[optuna]'") from error

    refused(out, "a search")
    root, reporter = Path(out), reporter or usual_reporter()
    folder = folder_of_runs(root, "tune.json", "a search")
    purpose = {"recipe": recipe, "search": list(search)}
    prepared, _ = begin_runs(folder, plan, {recipe: own_recipe, **ends}, purpose, reporter)
    with _storing(root / "study.db"):
        with folder.held(wait=-1):  # two processes must not both make the tables
            storage = f"sqlite:///{root / 'study.db'}?timeout=60"  # seconds to wait for another process
            study = optuna.create_study(study_name="unmask", storage=storage, load_if_exists=True)
        own = {dimension.key: _value_of(own_recipe, dimension.key) for dimension in dimensions}
        if all(dimension.holds(own[dimension.key]) for dimension in dimensions):
            study.enqueue_trial(own, skip_if_exists=True)

        def objective(trial: optuna.Trial) -> float:
            # A sampler for each trial, seeded by its number: the same in a resumed search, another in each process.
            seed = int(np.random.SeedSequence((0, trial.number)).generate_state(1)[0])
            study.sampler = optuna.samplers.TPESampler(seed=seed)
            values = {dimension.key: dimension.suggest(trial) for dimension in dimensions}
            numbers = ", ".join(f"{key} {_number(value)}" for key, value in values.items())
            reporter.note(f"trial {trial.number}: {numbers}")
            run, overrides = root / "trials" / str(trial.number), tuple(values.items())
            shutil.rmtree(run, ignore_errors=True)  # of a study.db that was removed: its figures are of other numbers
            try:
                _load(plan, recipe, values)  # each value is allowed by itself, but perhaps not all together
                figures = measured_run(
                    recipe, plan, seed=0, data=prepared, folder=run, reporter=reporter, overrides=overrides
                )
            except (SettingsError, DivergedError, MemoryFullError) as error:
                reporter.note(f"trial {trial.number}: {error}")
                raise optuna.TrialPruned from error
            except KeyboardInterrupt:
                study.enqueue_trial(trial.params)
                raise
            reporter.note(f"trial {trial.number}: loss {figures['loss']:.4f}")
            return float(figures["loss"])

        def remove_weights(study: optuna.Study, _: optuna.trial.FrozenTrial) -> None:
            finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
            losses = {trial.number: trial.value for trial in finished if trial.value is not None}
            best = min(losses, key=lambda number: losses[number], default=None)
            for trial in finished:
                for part in ("model", "checkpoints") if trial.number != best else ():
                    shutil.rmtree(root / "trials" / str(trial.number) / part, ignore_errors=True)

        made = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
        if len(study.get_trials(deepcopy=False, states=made)) < trials:
            study.optimize(objective, callbacks=[optuna.study.MaxTrialsCallback(trials, states=made), remove_weights])

        trials_made = [
            {"number": trial.number, "state": trial.state.name, "loss": trial.value, "parameters": trial.params}
            for trial in study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]
    result = _result(trials_made, root, own)
    with folder.held(wait=-1):  # processes that share a search may end it at the same time
        write_atomically(root / "best.toml", _load(plan, recipe, result["best"]["parameters"]).to_toml())
        write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return Tuning(result)


@contextmanager
def _storing(file: Path) -> Iterator[None]:
    """Names the file of a search in the error, if SQLite cannot read or write it. Optuna logs only errors meanwhile."""
    from optuna import logging
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        text = f"{file}: cannot be read or written ({reason}); make room, or give another folder"
        raise RunError(text, options=("out",)) from error
    finally:
        logging.set_verbosity(level)


def _result(trials: Sequence[dict[str, Any]], root: Path, own: dict[str, Any]) -> dict[str, Any]:
    """The best trial, that of the recipe's own numbers, if there is one, and the verdict."""
    succeeded = [trial for trial in trials if trial["loss"] is not None]
    if not succeeded:
        raise RunError(f"{root}: none of {len(trials)} trials succeeded; search lower learning rates, or other numbers")
    best = min(succeeded, key=lambda trial: trial["loss"])
    # Found by its parameters: a trial that was interrupted is repeated under another number.
    baseline = next((trial for trial in succeeded if trial["parameters"] == own), None)
    verdict = f"trial {best['number']} has the lowest loss of {len(succeeded)}: {best['loss']:.4f}"
    if baseline is not None:
        verdict += f", against {baseline['loss']:.4f} of the recipe's own numbers"
    else:
        verdict += " (the recipe's own numbers were not tried, or their trial failed, so there is no baseline)"
    # With one seed, the best of many trials looks better than it is.
    verdict += "; each trial has one seed, so compare it with the recipe over several seeds before relying on it"
    return {"best": {**best, "recipe": str(root / "best.toml")}, "own": baseline, "trials": trials, "verdict": verdict}


def _load(plan: RunPlan, recipe: str, values: Mapping[str, Any]) -> Recipe:
    return requested_recipe(**plan.options(recipe, seed=0, overrides=tuple(values.items())))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _value_of(recipe: Recipe, key: str) -> Any:
    value: Any = recipe.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


# ----------------------------------------
# The search space: numbers with ranges or choices, `KEY=LOW..HIGH` or `KEY=A,B,C`.


@dataclass(frozen=True)
class Dimension:
    key: str  # section.key
    values: tuple[Any, ...]  # the choices, or the ends of a range, inclusive: whole ends mean whole numbers
    is_range: bool = False  # whether `values` are the ends of a range

    def holds(self, value: Any) -> bool:
        if not self.is_range:
            return value in self.values
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = self.values
        return bool(low <= value <= high and (isinstance(low, float) or float(value).is_integer()))

    def suggest(self, trial: optuna.Trial) -> Any:
        if not self.is_range:
            return trial.suggest_categorical(self.key, self.values)
        low, high = self.values
        suggest = trial.suggest_float if isinstance(low, float) else trial.suggest_int
        return suggest(self.key, low, high, log=low > 0 and high / low >= LOG_FROM)


def read_dimension(text: str) -> Dimension:
    malformed = SettingsError(
        f"search {shortened(text)}: expected KEY=LOW..HIGH (the lower number first) or KEY=A,B,..., for example "
        "training.learning_rate=0.001..0.02 or model.num_layers=2,4,6",
        options=["search"],
    )
    key, sign, values = (part.strip() for part in text.partition("="))
    if not sign or "." not in key:
        raise malformed
    low, dots, high = values.partition("..")
    try:
        ends = [toml_value(part.strip()) for part in ((low, high) if dots else values.split(","))]
    except ValueError as error:
        raise malformed from error
    if not dots:
        if any(isinstance(each, list | dict) for each in ends) or len(ends) < 2 or len(set(ends)) < len(ends):
            raise malformed
        return Dimension(key, tuple(ends))
    if any(isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end) for end in ends):
        raise malformed
    if ends[0] >= ends[1]:
        raise malformed
    return Dimension(key, tuple(ends if all(isinstance(end, int) for end in ends) else map(float, ends)), is_range=True)


def usual_dimensions(recipe: Recipe) -> tuple[Dimension, ...]:
    """The default search space: learning rate, tokens per step, layers (not of a checkpoint) and the mask rate."""
    training, layers = recipe.training, recipe.model.num_layers
    rate, tokens = training.learning_rate, training.batch_tokens
    smaller = max(training.sequence_length, tokens // 2)
    key = "masking.rate" if _value_of(recipe, "masking.rate.start") is None else "masking.rate.start"
    depth = [Dimension("model.num_layers", (max(1, layers // 2), layers * 2), is_range=True)]
    lowest = max(0.1, recipe.masking.prediction_rate or 0.0)  # a rate below that would be refused
    return (
        Dimension("training.learning_rate", (rate / 4.0, rate * 4.0), is_range=True),
        Dimension("training.batch_tokens", tuple(sorted({smaller, tokens, tokens * 2}))),
        *(depth if recipe.start is None else ()),
        *((Dimension(key, (lowest, 0.5), is_range=True),) if lowest < 0.5 else ()),
    )
