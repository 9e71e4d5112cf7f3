"""Curves of a run: metrics.jsonl, and TensorBoard's where it is installed.

metrics.jsonl has a line every few steps, and one for each evaluation.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.files import write_atomically, writing
from unmask.measuring.held_out import HeldOut
from unmask.training.loop import StepReport
from unmask.values import parse_json


class Arrivals:
    """Reports of a training in their order, each handed on when its figures are there.

    A GPU may still be computing a step when it is reported. Who reads each report at once would let the GPU wait for
    the host; who takes them from here sees them a step or two later, and on a CPU at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[StepReport] = deque()

    def add(self, report: StepReport) -> list[StepReport]:
        """Takes a report, and gives those whose figures have come, in order."""
        self._waiting.append(report)
        here = []
        while self._waiting and self._waiting[0].figures.arrived:
            here.append(self._waiting.popleft())
        return here

    def rest(self) -> list[StepReport]:
        """All that are left; reading their figures waits."""
        here = list(self._waiting)
        self._waiting.clear()
        return here


EVERY_STEPS = 10


class MetricsFile:
    """Appends lines to the file. Steps are gathered: a line gives the mean loss over the steps since the last.

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
        lines = read_metrics(path) if step else []
        kept = [line for line in lines if line["step"] <= step and not line.get("final")]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    def step(self, report: StepReport) -> None:
        """Takes a step; writes a line when enough have gathered."""
        self._gather(self._arrivals.add(report))

    def flush(self) -> None:
        """Writes the line of the steps gathered so far, if any. On a GPU it waits for them.

        Raises:
            DivergedError: One of them diverged.
        """
        self._gather(self._arrivals.rest())
        if self._gathered:
            self._write_gathered()

    def _gather(self, reports: list[StepReport]) -> None:
        for report in reports:
            self._gathered.append(report)
            if report.step % EVERY_STEPS == 0:
                self._write_gathered()

    def _write_gathered(self) -> None:
        last = self._gathered[-1]
        predicted = sum(report.predicted_tokens for report in self._gathered)
        tokens = sum(report.tokens for report in self._gathered)
        self._write(
            {
                "kind": "train",
                "step": last.step,
                "epoch": last.epoch,
                "seconds": round(last.seconds, 3),
                "loss": sum(r.loss * r.predicted_tokens for r in self._gathered) / max(predicted, 1),
                "predicted_share": predicted / max(tokens, 1),
                "tokens": tokens,
                "learning_rate": last.learning_rate,
                "gradient_norm": last.gradient_norm,
                **_mean_losses(self._gathered),
            }
        )
        self._gathered = []

    def evaluation(self, step: int, seconds: float, result: HeldOut, *, final: bool) -> None:
        """Writes the line of an evaluation; the final one is made on more tokens than the others."""
        self.flush()
        self._write(
            {
                "kind": "evaluation",
                "step": step,
                "seconds": round(seconds, 3),
                "validation_loss": result.loss,
                "validation_loss_stderr": result.loss_stderr,
                "validation_loss_interval": result.loss_interval,
                "validation_accuracy": result.accuracy,
                "bits_per_token_byte": result.bits_per_token_byte,
                "predicted_tokens": result.predicted_tokens,
                "documents": result.documents,
                "final": final,
                **({"objectives": {n: asdict(f) for n, f in result.objectives.items()}} if result.objectives else {}),
            }
        )

    def other(self, line: dict[str, Any]) -> None:
        """Writes a line of another kind, behind what has gathered; it names its step."""
        self.flush()
        self._write(line)

    def sync(self) -> None:
        """Writes what has gathered and forces the file to the disk, before a checkpoint that relies on it."""
        self.flush()
        with writing(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def _write(self, line: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class NoMetrics:
    """Writes nothing: of several processes the first one writes curves."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, *figures: object, **named: object) -> None:
        """Nothing."""

    def other(self, line: dict[str, Any]) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _mean_losses(reports: list[StepReport]) -> dict[str, dict[str, float]]:
    """Mean losses of other objectives over some steps, of those that had any target."""
    means = {}
    for name in reports[-1].objectives:
        losses = [report.objectives[name] for report in reports]
        if count := sum(each.count for each in losses):
            means[name] = sum(each.loss * each.count for each in losses) / count
    return {"objectives": means} if means else {}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, up to the first that is damaged: a kill may have cut the last one short."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_bytes().splitlines():
        try:
            line = parse_json(text)
        except ValueError:  # no JSON, or no UTF-8
            break
        if not isinstance(line, dict) or "step" not in line:
            break
        lines.append(line)
    return lines


class Board:
    """Writes scalars, or nothing where TensorBoard is not installed.

    Args:
        folder: Where its files stand.
        step: From which the run goes on; what was written of later steps is hidden.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        self._writer: Any = None
        self._arrivals = Arrivals()
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def step(self, report: StepReport) -> None:
        """Takes a step; every tenth is written."""
        if self._writer is None:
            return
        for each in self._arrivals.add(report):
            self._write_step(each)

    def _write_step(self, report: StepReport) -> None:
        if report.step % EVERY_STEPS:
            return
        self._write(
            report.step,
            {
                "train/loss": report.loss,
                "train/learning_rate": report.learning_rate,
                "train/gradient_norm": report.gradient_norm,
                "train/sequence_length": report.length,
                **{f"train/{name}": mean.loss for name, mean in report.objectives.items() if mean.count},
            },
        )

    def evaluation(self, step: int, result: HeldOut) -> None:
        """Takes a held-out evaluation."""
        self._write(
            step,
            {
                "validation/loss": result.loss,
                "validation/accuracy": result.accuracy,
                "validation/bits_per_token_byte": result.bits_per_token_byte,
                **{f"validation/{name}": figures.loss for name, figures in result.objectives.items()},
                **{f"validation/{name}_accuracy": figures.accuracy for name, figures in result.objectives.items()},
            },
        )

    def close(self) -> None:
        """Completes the files."""
        if self._writer is not None:
            for report in self._arrivals.rest():
                self._write_step(report)
            self._writer.close()

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
