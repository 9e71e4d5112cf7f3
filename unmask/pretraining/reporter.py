"""Who is told of a training and of what is around it. The command line draws bars; a library user gets log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from unmask.evaluation.held_out import HeldOut
from unmask.pretraining.predictions import Line, plain_line
from unmask.progress import Progress
from unmask.training.loop import StepReport

log = logging.getLogger("unmask")


class Reporter(Protocol):
    """Receives what happens."""

    def note(self, text: str) -> None:
        """A decision or a fact, in one line."""

    def notify(self, progress: Progress) -> None:
        """How far what comes before a training, or after it, has come."""

    def begin(self, what: str = "training", *, may_end_early: bool = False) -> None:
        """A training begins, or goes on; one reporter may be told of several in turn.

        Args:
            what: Its name.
            may_end_early: Whether it may end before its budget is used up.
        """

    def step(self, report: StepReport) -> None:
        """A training step."""

    def evaluation(self, step: int, result: HeldOut) -> None:
        """A held-out evaluation."""

    def predictions(self, step: int, lines: Sequence[Line]) -> None:
        """What the model makes of the recipe's lines."""


class LogReporter:
    """Writes notes and evaluations to the log `unmask`."""

    def note(self, text: str) -> None:
        """Logs it."""
        log.info(text)

    def notify(self, progress: Progress) -> None:
        """Nothing."""

    def begin(self, what: str = "training", *, may_end_early: bool = False) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, step: int, result: HeldOut) -> None:
        """Logs it."""
        log.info("step %d: held-out loss %.3f, accuracy %.3f", step, result.loss, result.accuracy)
        for name, figures in result.objectives.items():
            log.info("step %d: %s loss %.3f, accuracy %.3f", step, name, figures.loss, figures.accuracy)

    def predictions(self, step: int, lines: Sequence[Line]) -> None:
        """Logs them, with what is predicted in brackets."""
        for line in lines:
            log.info("step %d: %s", step, plain_line(line))
