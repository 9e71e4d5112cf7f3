"""One run of many: trained at the common budget, and measured as all others are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unmask.errors import SettingsError
from unmask.files import read_object, write_atomically
from unmask.finetuning.finetuning import finetune
from unmask.masking.settings import STRATEGIES, Strategy
from unmask.pretraining.pretraining import pretrain
from unmask.pretraining.run_folder import RunRequest
from unmask.pretraining.run_reporter import Reporter
from unmask.pretraining.training_run import GOES_ON, Interrupted
from unmask.tasks.task import LOWER_IS_BETTER
from unmask.training.hardware import choose_device
from unmask.using.evaluation import check_rates, evaluate
from unmask.using.loaded_model import load
from unmask.using.scoring import score

EVALUATION = "evaluation.json"
_FINETUNE, _SEED = "finetune.", "training.seed="


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """A task that models are fine-tuned for, to be compared by it.

    Attributes:
        kind: `classify`, `regress`, `pairs`, `tag` or `answer`.
        train, validation: As for `unmask.finetune`.
        test: What the models are compared by; None: the validation file, by which the best epoch is told too.
    """

    kind: str
    train: str
    validation: str
    test: str | None = None

    @property
    def paths(self) -> dict[str, str]:
        """The files that there are, by what they are for."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: path for name, path in given.items() if path is not None}


def task_files(
    kind: str | None, train: str | None, validation: str | None, test: str | None = None
) -> TaskFiles | None:
    """A task as the options name it; None where they name none.

    Raises:
        SettingsError: Some of the options are given, and not all of the first three.
    """
    if kind is None and train is None and validation is None and test is None:
        return None
    if kind is None or train is None or validation is None:
        raise SettingsError("a task to fine-tune for takes all of --task, --train and --validation")
    return TaskFiles(kind=kind, train=train, validation=validation, test=test)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What all runs share.

    Attributes:
        minutes, steps: Budget of each run; one of them.
        rates: Shares of hidden tokens at which all are measured.
        pairs: Minimal pairs; None leaves them out.
        task: A task that each model is fine-tuned for; None leaves it out.
        base: Recipe of masking strategies; None is the default.
        settings: `section.key=value` overrides for all; those of `finetune` are for the task.
    """

    minutes: float | None = None
    steps: int | None = None
    rates: tuple[float, ...] = (0.15,)
    pairs: str | None = None
    task: TaskFiles | None = None
    base: str | None = None
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises: SettingsError: The budget is missing or given twice, a rate is out of range, there is no task to
        fine-tune for, or all seeds would be the same."""
        if (self.minutes is None) == (self.steps is None):
            raise SettingsError("give either minutes or steps for each run")
        check_rates(self.rates)
        if self.task is None and self.of_finetuning:
            raise SettingsError(f"--set {self.of_finetuning[0]}: no task is given; name one with --task")
        if seed := next((setting for setting in self.settings if setting.startswith(_SEED)), None):
            raise SettingsError(f"--set {seed}: runs differ by their seeds, which are 0, 1, ...; leave it out")

    def request(self, name: str, *, seed: int, overrides: Sequence[str] = ()) -> RunRequest:
        """What is asked of `pretrain` for a run.

        Args:
            name: Of a recipe or a masking strategy, or a recipe's file.
            seed: Of the run.
            overrides: Settings of this run alone, above those of all.
        """
        is_strategy = name in STRATEGIES
        return RunRequest(
            recipe=self.base if is_strategy else name,
            strategy=name if is_strategy else None,
            minutes=self.minutes,
            steps=self.steps,
            seed=seed,
            settings=(*self.of_pretraining, *overrides),
        )

    @property
    def of_finetuning(self) -> tuple[str, ...]:
        """The overrides for the task."""
        return tuple(setting for setting in self.settings if setting.startswith(_FINETUNE))

    @property
    def of_pretraining(self) -> tuple[str, ...]:
        """The overrides for the recipe."""
        return tuple(setting for setting in self.settings if not setting.startswith(_FINETUNE))


def measured_run(
    name: str,
    protocol: Protocol,
    *,
    seed: int,
    data: Sequence[str],
    folder: Path,
    reporter: Reporter,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """What a run came to; it is made, or made to its end, where that is not known yet.

    Args:
        name: Of a recipe or a masking strategy, or a recipe's file.
        protocol: Budget and measures.
        seed: Of the run.
        data: Files, folders or patterns of text, or one prepared folder.
        folder: Of the run; what it came to is written into it last.
        reporter: Told of the progress.
        overrides: Settings of this run alone, above those of all.

    Returns:
        What `evaluate` returns, with `name`, `seed`, `steps` and, where they are measured, `pairs_error` and
        `task_error` (1 - the task's metric on the test file, else on the validation file; or the metric itself where
        less of it is better) with `task_metric` and `task_measured_on`; or what `failed_run` wrote down.

    Raises:
        UnmaskError: As `pretrain`, `evaluate`, `score` and `finetune`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    file = folder / EVALUATION
    if not file.is_file():
        asked = protocol.request(name, seed=seed, overrides=overrides)
        try:
            run = pretrain(
                data,
                out=folder,
                recipe=asked.recipe,
                strategy=cast(Strategy | None, asked.strategy),
                minutes=asked.minutes,
                steps=asked.steps,
                seed=seed,
                settings=asked.settings,
                resume=True,
                reporter=reporter,
            )
        except Interrupted as error:  # it says how the run goes on by itself
            raise Interrupted(error.signum, f"stopped; {GOES_ON}") from error
        model = load(run.folder / "model")
        model.to(choose_device())
        measured = evaluate(model, data, rates=protocol.rates, pseudo_tokens=0, notify=reporter.notify)
        content = {"name": name, "seed": seed, **measured.to_dict(), "steps": run.summary["steps"]}
        if protocol.pairs is not None:
            content["pairs_error"] = 1.0 - score(model, protocol.pairs, notify=reporter.notify)["accuracy"]
        if protocol.task is not None:
            content |= _task_error(run.folder, protocol, protocol.task, seed, reporter)
        write_atomically(file, json.dumps(content, indent=1) + "\n")
    return read_object(file, "take it away, and the same command measures the run again")


def failed_run(name: str, seed: int, folder: Path, reason: str) -> dict[str, Any]:
    """Writes down that a run has no figures, so that it is not made again. Removing its folder forgets that.

    Args:
        name, seed: Of the run.
        folder: Of the run.
        reason: Why.

    Returns:
        What `measured_run` returns from then on: `name`, `seed` and `failed` (the reason).
    """
    content = {"name": name, "seed": seed, "failed": reason}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / EVALUATION, json.dumps(content, indent=1) + "\n")
    return content


def _task_error(run: Path, protocol: Protocol, task: TaskFiles, seed: int, reporter: Reporter) -> dict[str, Any]:
    out = run / "finetuned"
    settings = (f"finetune.seed={seed}", *protocol.of_finetuning)
    summary = finetune(
        run / "model",
        task=task.kind,
        train=task.train,
        validation=task.validation,
        test=task.test,
        out=out,
        settings=settings,
        overwrite=out.exists(),
        reporter=reporter,
    ).summary
    metric = summary["metric"]
    value = summary["mean" if task.test is None else "test_mean"][metric]
    shutil.rmtree(out / "model", ignore_errors=True)
    error = None if value is None else value if metric in LOWER_IS_BETTER else 1.0 - value
    measured_on = "validation" if task.test is None else "test"
    return {"task_error": error, "task_metric": metric, "task_measured_on": measured_on}
