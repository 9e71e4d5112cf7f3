"""Callbacks that keep the figures of a training: metrics.jsonl, TensorBoard, Trackio, Weights & Biases, MLflow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
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
        self._flush()
        state = trainer.state
        self._append({"kind": "evaluation", "step": state.step, "seconds": round(state.seconds, 3), **figures})

    def sync(self) -> None:
        """Writes what has gathered and forces the file to the disk, before a checkpoint that relies on it.

        Raises:
            DivergedError: A step that a GPU was still computing diverged.
        """
        self._flush()
        with writing(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def _flush(self) -> None:
        self._gather(self._arrivals.rest())
        if self._gathered:
            self._write_gathered()

    def _gather(self, reports: list[StepReport]) -> None:
        for report in reports:
            self._gathered.append(report)
            if report.step % EVERY_STEPS == 0:
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
    """A base class of callbacks that send figures elsewhere: every tenth step, and each evaluation."""

    def __init__(self) -> None:
        self._arrivals = Arrivals()

    def log(self, figures: dict[str, float], step: int) -> None:
        """Takes figures by name."""

    def close(self) -> None:
        """The training is over."""

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Sends every tenth step."""
        self._send(self._arrivals.add(report))

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """Sends what is a number."""
        self.log(dict(_numbers("validation", figures)), trainer.state.step)

    def on_end(self, trainer: Trainer) -> None:
        """Sends what is left."""
        if trainer.error is None:
            self._send(self._arrivals.rest())
        self.close()

    def _send(self, reports: list[StepReport]) -> None:
        for report in reports:
            if report.step % EVERY_STEPS == 0:
                figures = {
                    "loss": report.loss,
                    "learning_rate": report.learning_rate,
                    "gradient_norm": report.gradient_norm,
                    "sequence_length": float(report.length),
                    **{name: mean.loss for name, mean in report.objectives.items() if mean.count},
                }
                self.log({f"train/{name}": value for name, value in figures.items()}, report.step)


def _numbers(path: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers by path: `validation/loss`, `validation/objectives/label/accuracy`."""
    for name, value in figures.items():
        here = f"{path}/{name.removeprefix('validation_')}"
        if isinstance(value, Mapping):
            yield from _numbers(here, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here, float(value)


class TensorBoard(Tracker):
    """Writes scalars for TensorBoard.

    Args:
        folder: Of its files.
        step: From which the run goes on; what was written of later steps is hidden.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        super().__init__()
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(self, figures: dict[str, float], step: int) -> None:
        """Writes them."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Completes the files."""
        self._writer.close()


class Service(Tracker):
    """Trackio, Weights & Biases or MLflow, whichever is named; the package must be installed.

    Args:
        name: `trackio`, `wandb` or `mlflow`.
        project: Its project, or MLflow's experiment.
        run: Name of the run.
        config: Settings to show with it.

    Raises:
        SettingsError: The package is not installed.
    """

    def __init__(self, name: str, *, project: str = "unmask", run: str | None = None, config: Any = None) -> None:
        super().__init__()
        if find_spec(name) is None:
            raise SettingsError(f"evaluation.trackers: {name} is not installed; install it with: pip install {name}")
        self._name, self._module = name, import_module(name)
        if name == "mlflow":
            self._module.set_experiment(project)
            self._module.start_run(run_name=run)
            self._module.log_dict(config or {}, "config.json")
        else:
            self._module.init(project=project, name=run, config=config)

    def log(self, figures: dict[str, float], step: int) -> None:
        """Sends them."""
        log = self._module.log_metrics if self._name == "mlflow" else self._module.log
        log(figures, step=step)

    def close(self) -> None:
        """Ends the run there."""
        if self._name == "mlflow":
            self._module.end_run()
        else:
            self._module.finish()
