"""Curves for TensorBoard, in the run's folder, where the package is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.evaluation.held_out import HeldOut
from unmask.pretraining.arrivals import Arrivals
from unmask.training.loop import StepReport

EVERY_STEPS = 10


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
