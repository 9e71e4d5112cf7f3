"""Progress on the terminal: a bar with rate and time left, or a plain line now and then where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich import progress as rich_progress
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from unmask.commands.cli.show import stderr_console, visible
from unmask.commands.reporting import Line, StepPace, evaluation_line
from unmask.core.errors import printable
from unmask.core.results import Pace, Progress
from unmask.measure.held_out import HeldOut
from unmask.train.loop import StepReport

LINE_SECONDS = 15.0


class ConsoleBar:
    """A bar on stderr, or nothing where that is no terminal; what reporters of all commands draw with."""

    def __init__(self, first: str | None = None) -> None:
        """Begins.

        Args:
            first: What is done before there is anything to count; None waits for what is told.
        """
        self.console = stderr_console()
        self.progress = rich_progress.Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._what = ""
        self._pace = Pace()
        self._begin = self._last_line = time.monotonic()
        if first is not None:
            self.begin_task(first)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def note(self, text: str) -> None:
        """Prints it on a line of its own."""
        self.console.print(visible(text), soft_wrap=True)

    def begin_task(self, what: str) -> None:
        """Draws a new bar in the place of the last one, unless that is of the same thing."""
        if what == self._what:
            return
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._what = what
        self._begin = time.monotonic()
        self._task = self.progress.add_task(printable(what), total=None, facts="")

    def show(self, share: float | None, facts: str) -> None:
        """Moves the bar, or prints a line now and then where there is no terminal.

        Args:
            share: Of the task that is done, from 0 to 1; None where nobody knows.
            facts: What stands beside it.
        """
        if self._task is not None and not self.progress.disable:
            self.progress.update(
                self._task, total=1.0 if share is not None else None, completed=share, facts=printable(facts)
            )
        now = time.monotonic()
        if self.progress.disable and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            percent = f" {share:.0%}" if share is not None else ""
            self.note(f"{self._what}{percent}: {facts}")

    def notify(self, progress: Progress) -> None:
        """Shows how far work has come: how much of how much, how fast, and the time left."""
        self.begin_task(progress.what)
        self.show(*self._pace.facts(progress))


class ConsoleReporter(ConsoleBar):
    """Draws the progress of a training on stderr, or of several in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self, what: str = "training", *, may_end_early: bool = False) -> None:
        """A new bar, whose loss, speed and time left are of this training alone."""
        self._training, self._pace_of_steps = what, StepPace(may_end_early=may_end_early)
        self._what = ""

    def step(self, report: StepReport) -> None:
        """Loss, smoothed; the speed of the last seconds; and the time left."""
        self.begin_task(self._training)
        if (facts := self._pace_of_steps.facts(report)) is not None:
            self.show(report.progress, facts)

    def evaluation(self, step: int, result: HeldOut) -> None:
        """Prints a line."""
        self.note(f"  {evaluation_line(step, result)}")

    def predictions(self, step: int, lines: Sequence[Line]) -> None:
        """Prints the lines, what is predicted right in green and what is wrong in red."""
        for line in lines:
            text = Text("          ")
            for token in line:
                text.append(" " * token.space_before)
                if token.predicted is None:
                    text.append(visible(token.token, "dim"))
                else:
                    text.append(
                        visible(token.predicted, "bold green" if token.predicted == token.token else "bold red")
                    )
            self.console.print(text, soft_wrap=True)
