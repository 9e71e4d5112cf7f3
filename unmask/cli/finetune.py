"""`unmask finetune`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import TaskID
from rich.table import Table

from unmask.cli.progress import LINE_SECONDS, ConsoleBar, console, duration
from unmask.finetuning.finetune import finetune
from unmask.finetuning.fitting import Evaluated
from unmask.finetuning.reporter import in_words
from unmask.training.loop import StepReport


def run_finetune(model: Path, *, out: Path, settings: Sequence[str], **options: Any) -> dict[str, Any]:
    """Fine-tunes and shows the metrics; `options` are those of `unmask.finetune`.

    Raises:
        UnmaskError: As `unmask.finetune`.
    """
    with _Console() as reporter:
        result = finetune(model, out=out, settings=settings, reporter=reporter, **options)
    _show(result.summary, result.folder)
    return result.summary


class _Console(ConsoleBar):
    """Draws the progress on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._task: TaskID | None = None
        self._what = "training"
        self._last_line = time.monotonic()

    def begin(self, seed: int, number: int, runs: int) -> None:
        """A new bar."""
        if runs > 1:
            self._what = f"seed {seed} ({number} of {runs})"
            self.note(self._what)
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._task = self.progress.add_task(self._what, total=1.0, facts="")

    def step(self, report: StepReport) -> None:
        """Loss, and the time that is left at most."""
        left = report.seconds * (1.0 - report.progress) / report.progress
        facts = f"step {report.step:,}, loss {report.loss:.3f}, at most {duration(left)} left"
        if self._task is not None and not self.progress.disable:
            self.progress.update(self._task, completed=report.progress, facts=facts)
        now = time.monotonic()
        if self.progress.disable and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            self.note(f"{self._what} {report.progress:.0%}: {facts}")

    def evaluation(self, evaluated: Evaluated) -> None:
        """Prints a line."""
        self.note(f"  epoch {evaluated.epoch:>4.1f}: loss {evaluated.loss:.3f}, {in_words(evaluated.metrics)}")


def _show(summary: dict[str, Any], folder: Path) -> None:
    out = console()
    several = len(summary["seeds"]) > 1
    table = Table(box=None, pad_edge=False)
    for name in ("", "best model", *(["mean", "deviation"] if several else []), *(["test"] * ("test_mean" in summary))):
        table.add_column(name, justify="left" if not name else "right")
    for name, value in summary["metrics"].items():
        spread = [summary["mean"][name], summary["deviation"][name]] if several else []
        test = [summary["test_metrics"][name]] if "test_metrics" in summary else []
        shown = ["undefined" if number is None else f"{number:.3f}" for number in (value, *spread, *test)]
        table.add_row(name.replace("_", " "), *shown)
    out.print()
    out.print(table)
    out.print(f"\nmodel   {summary['model']}", markup=False, soft_wrap=True)
    out.print(f"report  {folder / 'report.html'}", markup=False, soft_wrap=True)
    out.print(f"\nTry it: unmask predict {summary['model']} FILE", markup=False, soft_wrap=True)
