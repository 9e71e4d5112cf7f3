"""Who is told about a run while it goes on. The command line draws bars; a library user gets log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from unmask.evaluation.held_out import HeldOut
from unmask.pretraining.predictions import Line, plain_line
from unmask.training.loop import StepReport

log = logging.getLogger("unmask")


class Reporter(Protocol):
    """Receives what happens."""

    def note(self, text: str) -> None:
        """A decision or a fact, in one line."""

    def stage(self, what: str, done: int, total: int | None) -> None:
        """Preparation: bytes of text done, of how many (None: not known)."""

    def begin(self) -> None:
        """A training begins, or goes on; one reporter may be told of several in turn."""

    def step(self, report: StepReport) -> None:
        """A training step."""

    def evaluation(self, step: int, result: HeldOut) -> None:
        """A held-out evaluation."""

    def predictions(self, step: int, lines: Sequence[Line]) -> None:
        """What the model makes of the recipe's lines."""

    def notify(self, what: str, done: int, total: int) -> None:
        """A model is measured: what is done, how many tokens of it, of how many."""


class LogReporter:
    """Writes notes and evaluations to the log `unmask`."""

    def note(self, text: str) -> None:
        """Logs it."""
        log.info(text)

    def stage(self, what: str, done: int, total: int | None) -> None:
        """Nothing."""

    def begin(self) -> None:
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

    def notify(self, what: str, done: int, total: int) -> None:
        """Nothing."""
