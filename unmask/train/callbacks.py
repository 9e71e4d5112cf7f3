"""Callbacks of the trainer: progress, signals, metrics.jsonl, TensorBoard, Trackio, Weights & Biases, MLflow.

This file imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.core.errors import SettingsError, parse_json
from unmask.core.files import lasting_path, leaves, write_atomically, writing
from unmask.core.interruption import Interrupted, Interruption
from unmask.core.plugins import Table
from unmask.core.results import Progress, Reporter, amount, duration

log = logging.getLogger("unmask")
Trainer = Any  # `unmask.train.trainer.Trainer`, which imports this file
EVERY_STEPS = 10  # steps between lines of metrics.jsonl
_SMOOTHING = 0.05
BESIDE = 0.1  # largest share of the time that evaluations take, with a budget in minutes


@dataclass(frozen=True)
class StepReport:
    """The facts of a step. The trainer's state already includes the step when the report is handed out."""

    step: int  # counted from 1
    # Share of the budget used up after the step, in [0, 1]. 1 at the last step; with a budget in minutes a little less
    # if work between steps used up the rest.
    progress: float
    epoch: int  # of its rows
    figures: Any  # losses and the gradient's norm, which a GPU may still be computing (`Figures`)
    tokens: int  # of text in its rows
    predicted_tokens: int  # targets of the main objective
    micro_batches: int  # parts that the step was computed in; more than before if memory ran out
    learning_rate: float  # the peak rate of the settings, times the schedule
    length: int  # positions of its rows
    seconds: float  # as `TrainState.seconds`, this step included

    @property
    def loss(self) -> float:
        """Nats per target of the main objective, before the update. On a GPU this waits for the step.

        Raises a DivergedError if it is not finite.
        """
        return self.figures.read().loss

    @property
    def gradient_norm(self) -> float:
        """Before clipping; also waits."""
        return self.figures.read().gradient_norm

    @property
    def objectives(self) -> Mapping[str, Any]:
        """`loss` and `count` of the other objectives, by name, without their weights; also waits."""
        return self.figures.read().objectives


class Callback:
    """Base class of callbacks: override the methods you need. Each process calls its own callbacks.

    Callbacks are called in the order given. They may read `trainer.state` and call `trainer.request_save()`,
    `trainer.request_stop()` and `trainer.evaluated(...)`.
    """

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Called after a step. On a GPU its figures may still be pending: `report.loss` waits for them."""

    def on_figures(self, trainer: Trainer, report: StepReport) -> None:
        """Called when a step's figures are available, so nothing waits: before `on_step`, or on a GPU a step or two
        later. All are available before an evaluation, a checkpoint and the end."""

    def on_metrics(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """Called on rank 0 with each line on training that is added to `metrics.jsonl`: the figures of up to ten
        steps. Fine-tuning adds none."""

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """Called after an evaluation at step `trainer.state.step`, with the figures as in `metrics.jsonl`."""

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        """Called when a checkpoint is complete."""

    def on_end(self, trainer: Trainer) -> None:
        """Called when the training is over, was stopped, or failed with `trainer.error`."""

    def close(self) -> None:
        """Called, if a recipe names this callback, when the run is over and its last evaluation is done."""


class ShowProgress(Callback):
    """Shows the smoothed loss, the speed and the time left, both measured from the first step of this run."""

    def __init__(self, reporter: Reporter, what: str = "training", *, may_end_early: bool = False) -> None:
        self._reporter, self._what = reporter, what
        self._at_most = "at most " if may_end_early else ""
        self._loss: float | None = None
        self._tokens = 0  # since the first step
        self._first: StepReport | None = None

    def on_figures(self, trainer: Trainer, report: StepReport) -> None:
        if report.predicted_tokens:  # a step may have no target
            self._loss = report.loss if self._loss is None else self._loss + _SMOOTHING * (report.loss - self._loss)

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if self._first is None:
            self._first, self._begin, self._tokens = report, time.monotonic(), -report.tokens
        self._tokens += report.tokens
        if self._loss is None:
            return
        facts, seconds = f"step {report.step:,}, loss {self._loss:.3f}", report.seconds - self._first.seconds
        if seconds >= 1.0:
            left = (time.monotonic() - self._begin) * (1.0 - report.progress)  # with evaluations
            left /= max(report.progress - self._first.progress, 1e-9)
            facts += f", {amount(self._tokens / seconds, 'tokens')}/s, {self._at_most}{duration(left)} left"
        self._reporter.notify(Progress(self._what, share=report.progress, facts=facts))


class EvaluationTimes:
    """Decides when to evaluate: `times` times over the budget, and at its end.

    With a budget in minutes, evaluations take at most a tenth of the time. On a slow machine there are fewer of them,
    each after nine times as much training as the previous evaluation took. With a budget in steps or tokens all are
    made.
    """

    def __init__(self, times: int) -> None:
        self._times, self._made, self._earliest = times, 0, 0.0  # `_earliest` is in the trainer's clock

    def begin(self, trainer: Trainer) -> None:
        """Skips the evaluations that were due before a training was resumed."""
        self._made = int(trainer.state.progress(trainer.settings) * self._times)

    def is_due(self, trainer: Trainer, report: StepReport) -> bool:
        """Whether to evaluate after this step; rank 0's clock decides for all processes."""
        due = int(report.progress * self._times)
        is_due = due > self._made or report.progress >= 1.0
        if is_due and trainer.settings.minutes is not None:
            is_due = bool(trainer.group.all_gather([trainer.clock() >= self._earliest])[0][0])
        self._made = due if is_due else self._made
        return is_due

    @contextmanager
    def timed(self, trainer: Trainer) -> Iterator[None]:
        """Times an evaluation, which sets the earliest time of the next one."""
        begin = trainer.clock()
        with trainer.evaluating():
            yield
        self._earliest = begin + (trainer.clock() - begin) / BESIDE


class StopAtSignal(Callback):
    """Saves and ends the training in all processes if any of them gets a signal; rank 0 says how to resume."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        group = trainer.group
        signum = max(int(signum) for (signum,) in group.all_gather([self._interruption.signum or 0]))
        if signum:
            message = f"stopped and saved at step {report.step:,}", self._interruption.remark
            trainer.request_save()
            trainer.request_stop(Interrupted(signum, *(message if group.is_main else ("",))))


class MetricsFile(Callback):
    """Appends lines to a file, and passes those on training to all callbacks. A line covers the steps since the last
    one, and gives their mean loss.

    `step` is the step that the run resumes from. Lines of later steps, written before a kill, are removed. Raises a
    WriteError if the file cannot be written.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self.path = path
        self._gathered: list[StepReport] = []
        self._not_passed_on: list[dict[str, Any]] = []
        lines = [line for line in read_metrics(path) if line["step"] <= step and not line.get("final")] if step else []
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))

    def on_figures(self, trainer: Trainer, report: StepReport) -> None:
        self._gathered.append(report)
        if report.step % EVERY_STEPS == 0:
            self._write_gathered()
            self.pass_on(trainer)

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        self._write_gathered()
        self.pass_on(trainer)
        state = trainer.state
        self._write({"kind": "evaluation", "step": state.step, "seconds": round(state.seconds, 3), **figures})

    def sync(self) -> None:
        """Writes the gathered steps and forces the file to the disk, before a checkpoint that relies on it."""
        self._write_gathered()
        with writing(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def pass_on(self, trainer: Trainer) -> None:
        """Passes the lines on training since the last call to all callbacks, which may be slow."""
        lines, self._not_passed_on = self._not_passed_on, []
        for line in lines:
            for callback in trainer.callbacks:
                callback.on_metrics(trainer, line)

    def _write_gathered(self) -> None:
        reports, self._gathered = self._gathered, []
        if not reports:
            return
        last, predicted = reports[-1], sum(report.predicted_tokens for report in reports)
        tokens = sum(report.tokens for report in reports)
        means = {}  # losses of the other objectives that had targets
        for name in last.objectives:
            losses = [report.objectives[name] for report in reports]
            if count := sum(each.count for each in losses):
                means[name] = sum(each.loss * each.count for each in losses) / count
        line = {
            "kind": "train",
            "step": last.step,
            "epoch": last.epoch,
            "seconds": round(last.seconds, 3),
            "loss": sum(r.loss * r.predicted_tokens for r in reports) / predicted if predicted else None,
            "predicted_share": predicted / max(tokens, 1),
            "tokens": tokens,
            "learning_rate": last.learning_rate,
            "gradient_norm": last.gradient_norm,
            "sequence_length": last.length,
            **({"objectives": means} if means else {}),
        }
        self._write(line)
        self._not_passed_on.append(line)

    def _write(self, line: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, up to the first damaged one: a kill may have cut the last line short."""
    lines = []
    for text in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            line = parse_json(text)
        except ValueError:  # not JSON, or not UTF-8
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines


class Tracker(Callback):
    """Sends the figures of metrics.jsonl by name, with their step, to a service. If it fails, the log says so, the
    training goes on, and no more is sent. Its creator closes it, since figures may follow the training."""

    def __init__(self, send: Callable[[dict[str, float], int], object], close: Callable[[], object]) -> None:
        self._send, self._close, self._has_failed = send, close, False

    def close(self) -> None:
        self._attempt(self._close)

    def on_metrics(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        names = ("loss", "learning_rate", "gradient_norm", "sequence_length")
        numbers = {name: figures[name] for name in names if figures[name] is not None} | figures.get("objectives", {})
        sent = {f"train/{name}": float(value) for name, value in numbers.items()}
        self._attempt(lambda: self._send(sent, figures["step"]))

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """Sends all numbers, by path: `validation/loss`, `final/objectives/label/accuracy`."""
        prefix = "final" if figures.get("final") else "validation"
        numbers = {
            f"{prefix}/{path.removeprefix('validation_')}": float(value)
            for path, value in leaves(figures, between="/")
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._attempt(lambda: self._send(numbers, trainer.state.step))

    def _attempt(self, work: Callable[[], object]) -> None:
        if self._has_failed:  # a service that is gone may answer only after minutes, each time
            return
        try:
            work()
        except Exception as error:  # each service has its own exceptions
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("a tracker failed (%s); later figures are only in metrics.jsonl", reason)
            self._has_failed = True


def tensorboard(folder: Path, *, step: int) -> Tracker:
    """Writes TensorBoard files into a folder. `step` is the step that the run resumes from; later ones are hidden, and
    all if it begins anew."""
    from torch.utils.tensorboard import SummaryWriter  # slow to import

    writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else 0)

    def send(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return Tracker(send, writer.close)


def _identity(run: Path, config: dict[str, Any]) -> tuple[str, bool]:
    """What a service knows a run by, and whether the run resumes: then it continues its curves there."""
    digest = hashlib.sha256(f"{lasting_path(run)} {config['fingerprint']}".encode()).hexdigest()[:32]
    return digest, any(run.glob("checkpoints/step-*"))


def _mlflow(run: Path, config: dict[str, Any]) -> Tracker:
    module: Any = import_module("mlflow")
    digest, resumes = _identity(run, config)
    module.set_experiment("unmask")
    same = {"experiment_names": ["unmask"], "filter_string": f"tags.unmask = '{digest}'", "output_format": "list"}
    earlier = module.search_runs(**same) if resumes else []  # the latest first
    module.start_run(run_id=earlier[0].info.run_id if earlier else None, run_name=run.name, tags={"unmask": digest})
    module.log_dict(config, "config.json")
    return Tracker(lambda figures, step: module.log_metrics(figures, step=step), module.end_run)


def _wandb(run: Path, config: dict[str, Any], name: str = "wandb") -> Tracker:
    """W&B, or Trackio, which has its functions, but knows runs by their names."""
    module: Any = import_module(name)
    digest, resumes = _identity(run, config)
    named = {"id": digest, "name": run.name} if name == "wandb" else {"name": f"{run.name}-{digest[:6]}"}
    module.init(project="unmask", config=config, **named, **({"resume": "allow"} if resumes else {}))
    return Tracker(lambda figures, step: module.log(figures, step=step), module.finish)


# Callbacks that a recipe can name, each made from the folder of a run and its settings, with the run's `fingerprint`.
TRACKERS: Table[Callable[[Path, dict[str, Any]], Callback]] = Table(
    "callbacks", {"trackio": partial(_wandb, name="trackio"), "wandb": _wandb, "mlflow": _mlflow}
)


def check_trackers(names: Sequence[str]) -> None:
    """Checks that the trackers that a recipe names are installed."""
    for name in names:
        if name in ("trackio", "wandb", "mlflow") and find_spec(name) is None:
            raise SettingsError(f"evaluation.trackers: {name} is not installed; install it with: pip install {name}")
        TRACKERS[name]  # imports a plug-in
