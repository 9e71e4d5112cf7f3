"""Callbacks that keep the figures of a training: metrics.jsonl, TensorBoard, Trackio, Weights & Biases, MLflow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.core.errors import SettingsError, parse_json
from unmask.core.files import write_atomically, writing
from unmask.train.callbacks import Arrivals, Callback, StepReport, Trainer

EVERY_STEPS = 10


class MetricsFile(Callback):
    """Appends lines to a file. Steps are gathered: a line gives the mean loss over the steps since the last.

    Args:
        path: The file.
        step: The step from which the run goes on; lines of later steps, written before a kill, are removed.

    Raises:
        WriteError: When it is made, and when lines are written: the file cannot be written.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self.path = path
        self._gathered: list[StepReport] = []
        self._arrivals = Arrivals()
        before = [line for line in read_metrics(path) if line["step"] <= step and not line.get("final")] if step else []
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in before))

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Takes a step; writes a line when enough have gathered."""
        self._gather(self._arrivals.add(report))

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """Writes a line, behind what has gathered."""
        self._gather(self._arrivals.rest(), is_all=True)
        state = trainer.state
        self._append({"kind": "evaluation", "step": state.step, "seconds": round(state.seconds, 3), **figures})

    def sync(self) -> None:
        """Writes what has gathered and forces the file to the disk, before a checkpoint that relies on it.

        Raises:
            DivergedError: A step that a GPU was still computing diverged.
        """
        self._gather(self._arrivals.rest(), is_all=True)
        with writing(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def _gather(self, arrived: Sequence[StepReport], *, is_all: bool = False) -> None:
        """Writes a line at every tenth step; at the last one of these, too, where they are all for now."""
        for report in arrived:
            self._gathered.append(report)
            if report.step % EVERY_STEPS == 0:
                self._write_gathered()
        if is_all and self._gathered:
            self._write_gathered()

    def _write_gathered(self) -> None:
        reports, self._gathered = self._gathered, []
        last, predicted = reports[-1], sum(report.predicted_tokens for report in reports)
        tokens = sum(report.tokens for report in reports)
        means = {}  # of other objectives, where they had any target
        for name in last.objectives:
            losses = [report.objectives[name] for report in reports]
            if count := sum(each.count for each in losses):
                means[name] = sum(each.loss * each.count for each in losses) / count
        self._append(
            {
                "kind": "train",
                "step": last.step,
                "epoch": last.epoch,
                "seconds": round(last.seconds, 3),
                "loss": sum(r.loss * r.predicted_tokens for r in reports) / max(predicted, 1),
                "predicted_share": predicted / max(tokens, 1),
                "tokens": tokens,
                "learning_rate": last.learning_rate,
                "gradient_norm": last.gradient_norm,
                **({"objectives": means} if means else {}),
            }
        )

    def _append(self, line: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, up to the first that is damaged: a kill may have cut the last one short."""
    lines = []
    for text in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            line = parse_json(text)
        except ValueError:  # no JSON, or no UTF-8
            break
        if not isinstance(line, dict) or "step" not in line:
            break
        lines.append(line)
    return lines


class Tracker(Callback):
    """Sends figures elsewhere: every tenth step, and each evaluation.

    Args:
        log: Takes figures by name, and their step.
        close: Ends the sending. It is for its maker to call, since figures may follow the training.
    """

    def __init__(self, log: Callable[[dict[str, float], int], object], close: Callable[[], object]) -> None:
        self._log, self.close, self._arrivals = log, close, Arrivals()

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self._send(self._arrivals.add(report))

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """Sends what is a number, by path: `validation/loss`, `final/objectives/label/accuracy`."""
        numbers: dict[str, float] = {}
        tables: list[tuple[str, Mapping[str, Any]]] = [("final" if figures.get("final") else "validation", figures)]
        for path, table in tables:
            for name, value in table.items():
                here = f"{path}/{name.removeprefix('validation_')}"
                if isinstance(value, Mapping):
                    tables.append((here, value))
                elif isinstance(value, int | float) and not isinstance(value, bool):
                    numbers[here] = float(value)
        self._log(numbers, trainer.state.step)

    def on_end(self, trainer: Trainer) -> None:
        if trainer.error is None:
            self._send(self._arrivals.rest())

    def _send(self, reports: Sequence[StepReport]) -> None:
        for report in reports:
            if report.step % EVERY_STEPS == 0:
                figures = {
                    "loss": report.loss,
                    "learning_rate": report.learning_rate,
                    "gradient_norm": report.gradient_norm,
                    "sequence_length": float(report.length),
                    **{name: mean.loss for name, mean in report.objectives.items() if mean.count},
                }
                self._log({f"train/{name}": value for name, value in figures.items()}, report.step)


def tensorboard(folder: Path, *, step: int) -> Tracker:
    """TensorBoard's files in a folder; what was written of steps behind the one that the run goes on from is hidden."""
    from torch.utils.tensorboard import SummaryWriter  # slow to import

    writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, writer.close)


def service(name: str, *, project: str = "unmask", run: str | None = None, config: Any = None) -> Tracker:
    """Trackio, Weights & Biases or MLflow, whichever is named; the package must be installed.

    Args:
        name: `trackio`, `wandb` or `mlflow`.
        project: Its project, or MLflow's experiment.
        run: Name of the run.
        config: Settings to show with it.

    Raises:
        SettingsError: The package is not installed.
    """
    if find_spec(name) is None:
        raise SettingsError(f"evaluation.trackers: {name} is not installed; install it with: pip install {name}")
    module: Any = import_module(name)
    if name == "mlflow":
        module.set_experiment(project)
        module.start_run(run_name=run)
        module.log_dict(config or {}, "config.json")
        return Tracker(lambda figures, step: module.log_metrics(figures, step=step), module.end_run)
    module.init(project=project, name=run, config=config)
    return Tracker(lambda figures, step: module.log(figures, step=step), module.finish)
