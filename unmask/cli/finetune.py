"""`unmask finetune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.dry_run import memory_line, show_lines
from unmask.cli.progress import ConsoleBar, console, duration
from unmask.finetuning.finetune import finetune, forecast_finetune
from unmask.finetuning.fitting import Evaluated
from unmask.finetuning.reporter import line_of
from unmask.pretraining.arrivals import Arrivals
from unmask.pretraining.interrupt import Interruption
from unmask.training.loop import StepReport


def run_finetune(model: str, *, out: Path, settings: Sequence[str], **options: Any) -> dict[str, Any]:
    """Fine-tunes and shows the metrics; `options` are those of `unmask.finetune`.

    Raises:
        UnmaskError: As `unmask.finetune`.
        Interrupted: SIGINT or SIGTERM; what was finished is kept.
    """
    with Interruption(), _Console() as reporter:
        result = finetune(model, out=out, settings=settings, reporter=reporter, **options)
    _show(result.summary, result.folder)
    return result.summary


def show_forecast(model: str, **options: Any) -> dict[str, Any]:
    """Shows what a fine-tuning would do; `options` are those of `forecast_finetune`.

    Raises:
        UnmaskError: As `unmask.finetune`.
    """
    with _Console() as reporter:
        result = forecast_finetune(model, reporter=reporter, **options)
    labels = f", {len(result['labels'])} labels" if result["labels"] else ""
    lines = [
        (name, f"{counts['records']:,} examples, {counts['inputs']:,} inputs, {counts['truncated']:,} cut")
        for name, counts in result["examples"].items()
    ]
    several = f" for each of {result['seeds']} seeds" if result["seeds"] > 1 else ""
    lines += [
        ("model", f"{result['task']}{labels}; {result['num_parameters']:,} parameters without the head"),
        (
            "training",
            f"at most {result['steps']:,} steps{several} at a learning rate of {result['learning_rate']:.2g}, "
            f"{duration(result['seconds'])} in all on {result['device']}",
        ),
        memory_line(result["memory_bytes"]),
    ]
    show_lines(lines)
    return result


class _Console(ConsoleBar):
    """Draws the progress on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._arrivals = Arrivals()

    def begin(self, seed: int, number: int, runs: int) -> None:
        """A new bar."""
        what = "training" if runs == 1 else f"seed {seed} ({number} of {runs})"
        if runs > 1:
            self.note(what)
        self._arrivals = Arrivals()
        self.begin_task(what)

    def step(self, report: StepReport) -> None:
        """Loss, and the time that is left at most."""
        for arrived in self._arrivals.add(report):
            left = arrived.seconds * (1.0 - arrived.progress) / arrived.progress
            self.show(
                arrived.progress, f"step {arrived.step:,}, loss {arrived.loss:.3f}, at most {duration(left)} left"
            )

    def evaluation(self, evaluated: Evaluated) -> None:
        """Prints a line."""
        self.note(f"  {line_of(evaluated)}")


def _show(summary: dict[str, Any], folder: Path) -> None:
    out = console()
    several = len(summary["seeds"]) > 1
    table = Table(box=None, pad_edge=False)
    mean = ["mean (± 95 %, over seeds)"] if several else []
    for name in ("", "best model", *mean, *(["test"] * ("test_mean" in summary))):
        table.add_column(name, justify="left" if not name else "right")
    for name, value in summary["metrics"].items():
        test = [_number(summary["test_metrics"][name])] if "test_metrics" in summary else []
        means = [_mean(summary, name)] if several else []
        table.add_row(Text(name.replace("_", " ")), _number(value), *means, *test)
    out.print()
    out.print(table)
    out.print(f"\nmodel   {summary['model']}", markup=False, soft_wrap=True)
    out.print(f"report  {folder / 'report.html'}", markup=False, soft_wrap=True)
    out.print(f"\nTry it: unmask predict {summary['model']} FILE", markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _mean(summary: dict[str, Any], name: str) -> str:
    """Of the seeds, with half the width of its interval where they differ."""
    margin = summary["margin"][name]
    return _number(summary["mean"][name]) + ("" if margin is None else f" ± {margin:.3f}")
