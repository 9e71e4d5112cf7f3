"""Who is told about a run while it goes on. The command line draws bars; a library user gets log lines."""

from __future__ import annotations

import logging
from typing import Protocol

from unmask.evaluation.held_out import HeldOut
from unmask.training.loop import StepReport

log = logging.getLogger("unmask")


class Reporter(Protocol):
    """Receives what happens."""

    def note(self, text: str) -> None:
        """A decision or a fact, in one line."""

    def stage(self, what: str, done: int, total: int | None) -> None:
        """Preparation: bytes of text done, of how many (None: not known)."""

    def step(self, report: StepReport) -> None:
        """A training step."""

    def evaluation(self, step: int, result: HeldOut) -> None:
        """A held-out evaluation."""


class LogReporter:
    """Writes notes and evaluations to the log `unmask`."""

    def note(self, text: str) -> None:
        """Logs it."""
        log.info(text)

    def stage(self, what: str, done: int, total: int | None) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, step: int, result: HeldOut) -> None:
        """Logs it."""
        log.info("step %d: held-out loss %.3f, accuracy %.3f", step, result.loss, result.accuracy)
