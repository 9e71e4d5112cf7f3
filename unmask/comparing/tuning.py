"""Searching a recipe's numbers: many short runs, each with numbers that the runs before it speak for.

OUT/tune.json       what was asked for; a folder with it holds a search
    data/           the text, prepared once for all, unless prepared data was given
    study.db        all trials, Optuna's: several processes with the same command share the search
    trials/NUMBER/  the trials' runs; only the best one keeps its model
    best.toml       the recipe with the best numbers
    result.json     all trials and the best
    result.svg      the loss over each number

Optuna does the searching. Source: Bergstra et al. 2011 (tree-structured Parzen estimators).
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.claimed import ClaimedFolder
from unmask.comparing.comparison_folder import claim, common_data, folder_of_runs
from unmask.comparing.comparison_inputs import check_pairs_fit, read_inputs
from unmask.comparing.search_space import (
    Dimension,
    DimensionChoice,
    as_override,
    check_apart,
    own_value,
    read_dimension,
    usual_dimensions,
)
from unmask.comparing.trials import Protocol, measured_run
from unmask.errors import DivergedError, MemoryFullError, RunError, SettingsError
from unmask.files import write_atomically
from unmask.pretraining.run_reporter import Reporter, usual_reporter
from unmask.pretraining.training_run import Interrupted
from unmask.recipe.recipe import Recipe
from unmask.report.plots import search_plot
from unmask.staged import refused

if TYPE_CHECKING:
    import optuna

HEARTBEAT = 60  # seconds; a process that was silent for twice as long is taken for dead, and its trial made again
BEST = "best.toml"
_SEARCHED = ("training", "masking", "model", "objectives")


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """What is searched.

    Attributes:
        recipe: Name of a recipe or its file; or of a masking strategy, on top of the protocol's base.
        data: Files, folders or patterns of text, or one prepared folder.
        protocol: Budget and measures of each trial; the first of its rates is what the search goes by.
        search: `KEY=LOW..HIGH` or `KEY=A,B,...`; empty: see `usual_dimensions`.
        trials: How many, those of other processes included.
        seed: Of all trials' runs and of the search; one process alone, with a budget of steps, asks for the same
            numbers again.
    """

    recipe: str
    data: tuple[str, ...]
    protocol: Protocol
    search: tuple[str, ...] = ()
    trials: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: SettingsError: A number is out of range, or a key is searched twice."""
        if self.trials < 1:
            raise SettingsError(f"trials: a number from 1 on, not {self.trials}")
        check_apart([read_dimension(text) for text in self.search])

    def load(self, values: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe that is begun with, or with these values by key.

        Raises:
            SettingsError: As `load_recipe`.
        """
        overrides = [as_override(key, value) for key, value in (values or {}).items()]
        return self.protocol.request(self.recipe, seed=self.seed, overrides=overrides).load()


def tune(plan: TunePlan, out: str | Path, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Makes trials until there are as many as asked for, and writes the best recipe.

    The search begins with the recipe's own numbers, as far as they lie in what is searched. A trial that diverges or
    does not fit into memory counts as made; one that was interrupted is made again.

    Args:
        plan: What is searched.
        out: Folder of the search; one that is there goes on, where it has the same plan (trials may be more), and
            recipe, text, minimal pairs and files of the task are what they were.
        reporter: Told of the progress; None logs.

    Returns:
        `best` (number, loss, parameters, recipe: the file), `own` (number, loss, parameters of the trial that has the
        recipe's own numbers; None where some of these lie outside of what is searched, or that trial failed), `trials`
        (number, state, loss, parameters), `verdict`.

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first trial; the folder holds
            something else, no trial succeeded, Optuna is missing, or as `measured_run`.
        Interrupted: SIGINT or SIGTERM; the trial is made again when the search goes on.
    """
    recipe = plan.load()
    dimensions = tuple(read_dimension(text) for text in plan.search) or usual_dimensions(recipe)
    _check_optuna()
    import optuna

    refused(out, "a search")
    root, reporter = Path(out), reporter or usual_reporter()
    folder = folder_of_runs(root, "tune.json", "a search")
    data = _begin(plan, folder, recipe, dimensions, reporter)
    study = _study(folder)
    own = {dimension.key: own_value(recipe, dimension.key) for dimension in dimensions}
    outside = [dimension.key for dimension in dimensions if not dimension.holds(own[dimension.key])]
    if within := {key: value for key, value in own.items() if key not in outside}:
        study.enqueue_trial(within, skip_if_exists=True)

    def objective(trial: optuna.Trial) -> float:
        study.sampler = _sampler(plan.seed, trial.number)
        values = {dimension.key: _suggest(trial, dimension) for dimension in dimensions}
        said = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()]
        reporter.note(f"trial {trial.number}: {', '.join(said)}")
        try:
            plan.load(values)
        except SettingsError as error:  # each is allowed by itself, but not together, or not between the ends
            reporter.note(f"trial {trial.number}: {error}")
            raise optuna.TrialPruned from error
        try:
            measured = measured_run(
                plan.recipe,
                plan.protocol,
                seed=plan.seed,
                data=data,
                folder=_folder(root, trial.number),
                reporter=reporter,
                overrides=[as_override(key, value) for key, value in values.items()],
            )
        except (DivergedError, MemoryFullError) as error:
            reporter.note(f"trial {trial.number}: {error}")
            raise optuna.TrialPruned from error
        except (Interrupted, KeyboardInterrupt):  # the latter while a model is measured
            study.enqueue_trial(trial.params)
            raise
        reporter.note(f"trial {trial.number}: loss {measured['loss']:.4f}")
        return float(measured["loss"])

    made = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    if len(study.get_trials(deepcopy=False, states=made)) < plan.trials:
        enough = optuna.study.MaxTrialsCallback(plan.trials, states=made)
        study.optimize(objective, callbacks=[enough, lambda study, _: _keep_best(study, root)])
    return _result(study, plan, folder, own=own, outside=outside)


def _begin(
    plan: TunePlan, folder: ClaimedFolder, recipe: Recipe, dimensions: Sequence[Dimension], reporter: Reporter
) -> tuple[str, ...]:
    """Finds out before any trial what cannot be, claims the folder, and prepares the text."""
    recipes = {plan.recipe: recipe} | dict(end for dimension in dimensions for end in _ends(plan, dimension))
    content = {
        "asked": {key: value for key, value in asdict(plan).items() if key != "trials"},
        "recipes": {plan.recipe: recipe.model_dump(mode="json", exclude={"card"})},
        "files": read_inputs(recipes, plan.protocol, plan.data),
    }
    claim(folder, content)
    data = common_data(plan.data, folder, recipe, reporter)
    if data != plan.data:  # it was prepared just now
        check_pairs_fit(recipes, plan.protocol, data)
    return data


def _ends(plan: TunePlan, dimension: Dimension) -> Iterator[tuple[str, Recipe]]:
    """The recipe with either end of a range or each value of a choice, by a name for it.

    Raises:
        SettingsError: There is no such key, or a value is not allowed.
    """
    if dimension.key.split(".")[0] not in _SEARCHED:
        raise SettingsError(
            f"--search {dimension.key}: only {', '.join(_SEARCHED)} are searched; other sections change the text or "
            "what is measured"
        )
    for end in dimension.values if isinstance(dimension, DimensionChoice) else (dimension.low, dimension.high):
        yield f"{plan.recipe} with {as_override(dimension.key, end)}", plan.load({dimension.key: end})


def _check_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("searching takes Optuna; install it with pip install 'unmask[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _study(folder: ClaimedFolder) -> optuna.Study:
    """The search that the folder holds; begun where there is none."""
    import optuna

    with warnings.catch_warnings(), folder.locked():  # two processes must not both make the tables
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{folder.root / 'study.db'}",
            engine_kwargs={"connect_args": {"timeout": 60}},
            heartbeat_interval=HEARTBEAT,
            heartbeat_stale_trial_callback=lambda study, trial: study.enqueue_trial(trial.params),
        )
        return optuna.create_study(study_name="unmask", storage=storage, load_if_exists=True)


def _sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """One for each trial, by its number: the same in a search that goes on, another in each process that shares it."""
    import optuna

    return optuna.samplers.TPESampler(seed=int(np.random.SeedSequence((seed, number)).generate_state(1)[0]))


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    if isinstance(dimension, DimensionChoice):
        return trial.suggest_categorical(dimension.key, dimension.values)
    if dimension.whole:
        return trial.suggest_int(dimension.key, int(dimension.low), int(dimension.high), log=dimension.log)
    return trial.suggest_float(dimension.key, dimension.low, dimension.high, log=dimension.log)


def _folder(root: Path, number: int) -> Path:
    return root / "trials" / str(number)


def _keep_best(study: optuna.Study, root: Path) -> None:
    """Removes the weights of finished trials that are not the best."""
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    best = min((trial for trial in finished if trial.value is not None), key=_loss, default=None)
    for trial in finished:
        if best is None or trial.number != best.number:
            for part in ("model", "checkpoints"):
                shutil.rmtree(_folder(root, trial.number) / part, ignore_errors=True)


def _loss(trial: optuna.trial.FrozenTrial) -> float:
    assert trial.value is not None, "a trial that succeeded"
    return trial.value


def _result(
    study: optuna.Study, plan: TunePlan, folder: ClaimedFolder, *, own: dict[str, Any], outside: list[str]
) -> dict[str, Any]:
    """Writes the best recipe and what all trials came to.

    Args:
        study: With all trials.
        plan: What was searched.
        folder: Of the search.
        own: The recipe's own numbers.
        outside: Keys of those that do not lie in what is searched.
    """
    root = folder.root
    trials = [_plain(trial) for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    succeeded = [trial for trial in trials if trial["loss"] is not None]
    if not succeeded:
        raise RunError(f"{root}: none of {len(trials)} trials succeeded; search lower learning rates, or other numbers")
    best = min(succeeded, key=lambda trial: trial["loss"])
    file = root / BEST
    # Found by what it was made with: a trial that was interrupted is made again under another number.
    baseline = next((trial for trial in succeeded if trial["parameters"] == own), None) if not outside else None
    result = {
        "best": {**best, "recipe": str(file)},
        "own": baseline,
        "trials": trials,
        "verdict": _verdict(best, baseline, len(succeeded), outside),
    }
    with folder.locked():  # processes that share a search may end it at the same time
        write_atomically(file, plan.load(best["parameters"]).to_toml())
        write_atomically(root / "result.svg", search_plot(succeeded))
        write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return result


def _plain(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {"number": trial.number, "state": trial.state.name, "loss": trial.value, "parameters": trial.params}


def _verdict(best: dict[str, Any], baseline: dict[str, Any] | None, count: int, outside: list[str]) -> str:
    """One seed, and the best of many: the figure flatters, and the text says so."""
    found = f"trial {best['number']} has the lowest loss of {count}: {best['loss']:.4f}"
    if baseline is not None:
        found += f", against {baseline['loss']:.4f} of the recipe's own numbers"
    elif outside:
        found += f" (the recipe's own {', '.join(outside)} is not in what is searched, so there is no baseline)"
    else:
        found += " (no trial of the recipe's own numbers succeeded, so there is no baseline)"
    return f"{found}; it is the best of one seed each: compare it with the recipe over seeds before trusting it"
