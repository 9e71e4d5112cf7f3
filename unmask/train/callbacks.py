"""What a trainer calls as it trains, progress and signals among them. Nothing heavy is imported here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.core.files import typed
from unmask.core.interruption import Interrupted, Interruption
from unmask.core.results import Progress, Reporter, duration

Trainer = Any  # `unmask.train.trainer.Trainer`, which stands behind this file in the flow


@dataclass(frozen=True)
class StepReport:
    """What one step did. The state that it leads to is already in place when the report is handed out.

    Attributes:
        step: Its number, counted from 1.
        progress: Share of the budget used up after it, in [0, 1]; 1 at the last step, or by the clock a
            little less where what was done between steps used up the rest.
        epoch: Of its rows.
        figures: Its losses and the gradient's norm, which a GPU may still be computing.
        tokens: Tokens of text in its rows.
        learning_rate: The peak rate of the settings, times the schedule.
        length: Positions of its rows.
        seconds: Training time so far, this step included.
    """

    step: int
    progress: float
    epoch: int
    figures: Any
    tokens: int
    learning_rate: float
    length: int
    seconds: float

    @property
    def predicted_tokens(self) -> int:
        """Targets of the main objective."""
        return int(self.figures.predicted_tokens)

    @property
    def micro_batches(self) -> int:
        """Parts that it was computed in; more than before where memory ran out."""
        return int(self.figures.micro_batches)

    @property
    def loss(self) -> float:
        """Nats per target of the main objective, before the update. On a GPU this waits for the step.

        Raises:
            DivergedError: It is not finite.
        """
        return self.figures.read().loss

    @property
    def gradient_norm(self) -> float:
        """Before clipping; waits likewise."""
        return self.figures.read().gradient_norm

    @property
    def objectives(self) -> Mapping[str, Any]:
        """`loss` and `count` of the other objectives, by name, without their weights; waits likewise."""
        return self.figures.read().objectives


class Callback:
    """A base class of callbacks: override what you need. Each of several processes calls its own.

    Callbacks are called in their order. They may look at `trainer.state`, and ask for something with
    `trainer.request_save()`, `trainer.request_stop()` and `trainer.evaluated(...)`.
    """

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """A step was made. On a GPU its figures may still be computed: `report.loss` waits for them."""

    def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        """The model was evaluated behind step `trainer.state.step`; figures are as `metrics.jsonl` has them."""

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        """A checkpoint is whole."""

    def on_end(self, trainer: Trainer) -> None:
        """The training is over, was stopped, or has failed with `trainer.error`."""


class Arrivals:
    """Reports in their order, each out when its figures are there.

    A GPU may still be computing a step when it is reported. To read each report at once would let the GPU wait for the
    host; taken from here they come a step or two later, and on a CPU at once.
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


_SMOOTHING = 0.05
_RATE_SECONDS = 15.0  # over which the speed is taken, evaluations included


class ShowProgress(Callback):
    """Tells a reporter of the steps: loss, smoothed; the speed of the last seconds; and the time left.

    Args:
        reporter: Draws a bar, or logs.
        what: Name of the training.
        may_end_early: Whether it may end before its budget is used up.
    """

    def __init__(self, reporter: Reporter, what: str = "training", *, may_end_early: bool = False) -> None:
        self._reporter, self._what = reporter, what
        self._at_most = "at most " if may_end_early else ""
        self._begin, self._begin_progress = time.monotonic(), 0.0
        self._loss: float | None = None
        self._arrivals = Arrivals()
        self._tokens = 0
        self._marks: deque[tuple[float, int]] = deque()  # seconds of training and tokens at the latest steps
        self._micro_tokens: int | None = None

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if not self._marks:  # of a run that goes on, or behind the first step
            self._begin_progress, self._begin = report.progress, time.monotonic()
            self._micro_tokens = parts = trainer.first_micro_tokens
            if parts is not None and parts != trainer.settings.micro_batch_tokens:
                self._reporter.note(f"steps are made in parts of {parts:,} positions, which fit the GPU by calculation")
        if (parts := trainer.state.micro_tokens) != self._micro_tokens:
            self._micro_tokens = parts
            self._reporter.note(
                f"memory ran out: steps are made in parts of {parts:,} positions from now on (the same result, more "
                "slowly)"
            )
        for arrived in self._arrivals.add(report):
            self._loss = arrived.loss if self._loss is None else self._loss + _SMOOTHING * (arrived.loss - self._loss)
        self._tokens += report.tokens
        self._marks.append((report.seconds, self._tokens))
        while len(self._marks) > 2 and self._marks[-1][0] - self._marks[1][0] > _RATE_SECONDS:
            self._marks.popleft()
        seconds = self._marks[-1][0] - self._marks[0][0]
        if seconds <= 0.0 or self._loss is None:
            return
        rate = (self._marks[-1][1] - self._marks[0][1]) / seconds
        gone = time.monotonic() - self._begin
        left = gone * (1.0 - report.progress) / max(report.progress - self._begin_progress, 1e-9)
        facts = (
            f"step {report.step:,}, loss {self._loss:.3f}, {rate:,.0f} tokens/s, {self._at_most}{duration(left)} left"
        )
        self._reporter.notify(Progress(self._what, share=report.progress, facts=facts))


class StopAtSignal(Callback):
    """Saves and ends the training in all processes, whichever was sent the signal; rank 0 says so.

    Args:
        interruption: Notes signals.
        out: Folder of the run, for the way on.
    """

    def __init__(self, interruption: Interruption, out: Path) -> None:
        self._interruption, self._out = interruption, out

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        group = trainer.group
        signum = max(int(signum) for (signum,) in group.all_gather([self._interruption.signum or 0]))
        if signum:
            way_on = f"go on with --out {typed(self._out)} --resume"
            text = f"stopped and saved at step {report.step:,}; {way_on}" if group.is_main else ""
            trainer.request_save()
            trainer.request_stop(Interrupted(signum, text))
