"""Who is told about fine-tuning while it goes on."""

from __future__ import annotations

import logging
from typing import Protocol

from unmask.finetuning.fitting import Evaluated
from unmask.tasks.task import Metrics
from unmask.training.loop import StepReport

log = logging.getLogger("unmask")


class FinetuneReporter(Protocol):
    """Receives what happens."""

    def note(self, text: str) -> None:
        """A decision or a fact, in one line."""

    def begin(self, seed: int, number: int, runs: int) -> None:
        """A run begins, the so-manieth of so many."""

    def step(self, report: StepReport) -> None:
        """A training step."""

    def evaluation(self, evaluated: Evaluated) -> None:
        """An evaluation on the validation file."""


class FinetuneLog:
    """Writes notes and evaluations to the log `unmask`."""

    def note(self, text: str) -> None:
        """Logs it."""
        log.info(text)

    def begin(self, seed: int, number: int, runs: int) -> None:
        """Logs it."""
        log.info("run %d of %d, seed %d", number, runs, seed)

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, evaluated: Evaluated) -> None:
        """Logs it."""
        log.info(line_of(evaluated))


def line_of(evaluated: Evaluated) -> str:
    """`epoch  1.0: loss 0.413, accuracy 0.913`."""
    return f"epoch {evaluated.epoch:>4.1f}: loss {evaluated.loss:.3f}, {in_words(evaluated.metrics)}"


def in_words(metrics: Metrics) -> str:
    """`accuracy 0.913, macro_f1 0.902`."""
    return ", ".join(f"{name} {'undefined' if value is None else f'{value:.3f}'}" for name, value in metrics.items())
