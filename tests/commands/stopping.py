"""A training that is stopped behind a step, as by `kill`."""

from __future__ import annotations

import os
import signal

import unmask
from unmask.train.callbacks import StepReport


class Stopping(unmask.Callback):
    """Sends this process a signal behind a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
        if report.step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)
