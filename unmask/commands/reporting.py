"""What is told of a run while it goes on: what the model makes of some lines, notes, progress, evaluations.

The command line draws bars; a library user gets log lines.

Shape suffixes: T = all positions of a batch in a line, D = hidden size.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from unmask.core.errors import parse_json
from unmask.core.files import write_atomically, writing
from unmask.core.results import NotebookLine, Progress, duration, in_notebook, legible
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.measure.held_out import HeldOut
from unmask.model.encoder import MaskedLM
from unmask.model.fused import predicted_positions
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.loop import StepReport
from unmask.train.runner import evaluating, hidden_states, logits_at

# ----------------------------------------
# Curves of a run: metrics.jsonl, and TensorBoard's where it is installed.
#
# metrics.jsonl has a line every few steps, and one for each evaluation.


class Arrivals:
    """Reports of a training in their order, each handed on when its figures are there.

    A GPU may still be computing a step when it is reported. Who reads each report at once would let the GPU wait for
    the host; who takes them from here sees them a step or two later, and on a CPU at once.
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


EVERY_STEPS = 10


class MetricsFile:
    """Appends lines to the file. Steps are gathered: a line gives the mean loss over the steps since the last.

    Args:
        path: The file.
        step: The step from which the run goes on; lines of later steps, written before a kill, are removed.

    Raises:
        WriteError: When it is made, and when lines are written: the file cannot be written.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self.path = path
        self._gathered: list[StepReport] = []
        self._arrivals = Arrivals()
        lines = read_metrics(path) if step else []
        kept = [line for line in lines if line["step"] <= step and not line.get("final")]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    def step(self, report: StepReport) -> None:
        """Takes a step; writes a line when enough have gathered."""
        self._gather(self._arrivals.add(report))

    def flush(self) -> None:
        """Writes the line of the steps gathered so far, if any. On a GPU it waits for them.

        Raises:
            DivergedError: One of them diverged.
        """
        self._gather(self._arrivals.rest())
        if self._gathered:
            self._write_gathered()

    def _gather(self, reports: list[StepReport]) -> None:
        for report in reports:
            self._gathered.append(report)
            if report.step % EVERY_STEPS == 0:
                self._write_gathered()

    def _write_gathered(self) -> None:
        last = self._gathered[-1]
        predicted = sum(report.predicted_tokens for report in self._gathered)
        tokens = sum(report.tokens for report in self._gathered)
        self._write(
            {
                "kind": "train",
                "step": last.step,
                "epoch": last.epoch,
                "seconds": round(last.seconds, 3),
                "loss": sum(r.loss * r.predicted_tokens for r in self._gathered) / max(predicted, 1),
                "predicted_share": predicted / max(tokens, 1),
                "tokens": tokens,
                "learning_rate": last.learning_rate,
                "gradient_norm": last.gradient_norm,
                **_mean_losses(self._gathered),
            }
        )
        self._gathered = []

    def evaluation(self, step: int, seconds: float, result: HeldOut, *, final: bool) -> None:
        """Writes the line of an evaluation; the final one is made on more tokens than the others."""
        self.flush()
        self._write(
            {
                "kind": "evaluation",
                "step": step,
                "seconds": round(seconds, 3),
                "validation_loss": result.loss,
                "validation_loss_stderr": result.loss_stderr,
                "validation_loss_interval": result.loss_interval,
                "validation_accuracy": result.accuracy,
                "bits_per_token_byte": result.bits_per_token_byte,
                "predicted_tokens": result.predicted_tokens,
                "documents": result.documents,
                "final": final,
                **({"objectives": {n: asdict(f) for n, f in result.objectives.items()}} if result.objectives else {}),
            }
        )

    def other(self, line: dict[str, Any]) -> None:
        """Writes a line of another kind, behind what has gathered; it names its step."""
        self.flush()
        self._write(line)

    def sync(self) -> None:
        """Writes what has gathered and forces the file to the disk, before a checkpoint that relies on it."""
        self.flush()
        with writing(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def _write(self, line: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class NoMetrics:
    """Writes nothing: of several processes the first one writes curves."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, *figures: object, **named: object) -> None:
        """Nothing."""

    def other(self, line: dict[str, Any]) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _mean_losses(reports: list[StepReport]) -> dict[str, dict[str, float]]:
    """Mean losses of other objectives over some steps, of those that had any target."""
    means = {}
    for name in reports[-1].objectives:
        losses = [report.objectives[name] for report in reports]
        if count := sum(each.count for each in losses):
            means[name] = sum(each.loss * each.count for each in losses) / count
    return {"objectives": means} if means else {}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, up to the first that is damaged: a kill may have cut the last one short."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_bytes().splitlines():
        try:
            line = parse_json(text)
        except ValueError:  # no JSON, or no UTF-8
            break
        if not isinstance(line, dict) or "step" not in line:
            break
        lines.append(line)
    return lines


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


LONGEST_LINE = 48  # tokens


@dataclass(frozen=True)
class PredictedToken:
    """A token of a line.

    Attributes:
        token: What the text says, without marks.
        space_before: Whether a space stands before it.
        predicted: What the model says, where the token was hidden; None elsewhere.
        probability: That the model gives to the right token, where it was hidden.
    """

    token: str
    space_before: bool = True
    predicted: str | None = None
    probability: float | None = None


Line = list[PredictedToken]


def predict_lines(
    model: MaskedLM, tokenizer: Tokenizer, rows: Rows, masked: MaskedRows, *, most: int | None = None
) -> list[Line]:
    """Predictions for the segments of some rows, a line each.

    Args:
        model: Any state of the model; it is in evaluation mode meanwhile.
        tokenizer: Its tokenizer.
        rows: The text.
        masked: What is hidden of it.
        most: How many lines at most.

    Returns:
        The lines in which something is hidden, each without its special tokens and cut at `LONGEST_LINE` tokens.
    """
    positions = predicted_positions(masked.labels)
    with evaluating(model):
        hidden_TD = hidden_states(model, masked.input_ids, rows.segment_ids, rows.position_ids)
        logits = torch.cat([part.cpu() for part in logits_at(model, hidden_TD, positions)])
    probability = torch.softmax(logits, -1)
    targets = masked.labels.flatten()[positions]
    right = probability.gather(1, targets[:, None])[:, 0].tolist()
    found = dict(zip(positions.tolist(), zip(probability.argmax(-1).tolist(), right, strict=True), strict=True))

    lines: list[Line] = []
    ids, segments = rows.input_ids.flatten().tolist(), rows.segment_ids.flatten().tolist()
    length = rows.shape[1]
    line: Line = []
    for place, (token_id, segment) in enumerate(zip(ids, segments, strict=True)):
        if place % length == 0 or segment != segments[place - 1]:
            _keep(lines, line)
            line = []
        if len(lines) == most:
            return lines
        if segment >= 0 and token_id not in tokenizer.special.around:
            predicted, chance = found.get(place, (None, None))
            guess = None if predicted is None else legible(tokenizer.text(predicted))
            text = tokenizer.text(token_id)
            visible = text if predicted is None and text == " " else legible(text)
            line.append(PredictedToken(visible, tokenizer.space_before(token_id), guess, chance))
    _keep(lines, line)
    return lines


def _keep(lines: list[Line], line: Line) -> None:
    """Keeps a line in which something is predicted."""
    short = line[:LONGEST_LINE]
    if any(token.predicted is not None for token in short):
        lines.append(short)


def plain_line(line: Line) -> str:
    """A line as text, with what is predicted in brackets."""
    return "".join(
        f"{' ' if token.space_before else ''}{token.token if token.predicted is None else f'[{token.predicted}]'}"
        for token in line
    ).strip()


def to_plain(lines: list[Line]) -> list[list[dict[str, Any]]]:
    """The lines as JSON takes them."""
    return [[asdict(token) for token in line] for line in lines]


def from_plain(lines: list[list[dict[str, Any]]]) -> list[Line]:
    """The inverse of `to_plain`."""
    return [[PredictedToken(**token) for token in line] for line in lines]


log = logging.getLogger("unmask")


class Reporter(Protocol):
    """Is told of a training and of what is around it."""

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


SMOOTHING = 0.05
RATE_SECONDS = 15.0  # over which the speed is taken, evaluations included


class StepPace:
    """What is told of a training's steps: loss, smoothed; the speed of the last seconds; and the time left.

    Args:
        may_end_early: Whether it may end before its budget is used up.
    """

    def __init__(self, *, may_end_early: bool = False) -> None:
        self._at_most = "at most " if may_end_early else ""
        self._begin = time.monotonic()
        self._begin_progress: float | None = None
        self._loss: float | None = None
        self._arrivals = Arrivals()
        self._tokens = 0
        self._marks: deque[tuple[float, int]] = deque()  # seconds of training and tokens at the latest steps

    def facts(self, report: StepReport) -> str | None:
        """In words; None as long as there is no speed yet."""
        if self._begin_progress is None:  # of a run that goes on, or behind the first step
            self._begin_progress, self._begin = report.progress, time.monotonic()
        for arrived in self._arrivals.add(report):
            self._loss = arrived.loss if self._loss is None else self._loss + SMOOTHING * (arrived.loss - self._loss)
        self._tokens += report.tokens
        self._marks.append((report.seconds, self._tokens))
        while len(self._marks) > 2 and self._marks[-1][0] - self._marks[1][0] > RATE_SECONDS:
            self._marks.popleft()
        seconds = self._marks[-1][0] - self._marks[0][0]
        if seconds <= 0.0 or self._loss is None:
            return None
        rate = (self._marks[-1][1] - self._marks[0][1]) / seconds
        gone = time.monotonic() - self._begin
        left = gone * (1.0 - report.progress) / max(report.progress - self._begin_progress, 1e-9)
        return (
            f"step {report.step:,}, loss {self._loss:.3f}, {rate:,.0f} tokens/s, {self._at_most}{duration(left)} left"
        )


def evaluation_line(step: int, result: HeldOut) -> str:
    """What is told of a held-out evaluation."""
    return (
        f"step {step:>6,}: held-out loss {result.loss:.3f}, accuracy {result.accuracy:.1%}, "
        f"{result.bits_per_token_byte:.3f} bits per token byte"
        + "".join(f"; {name} {figures.accuracy:.1%}" for name, figures in result.objectives.items())
    )


def usual_reporter() -> Reporter:
    """Who is told, where nobody says whom: a notebook, where this is one; else the log."""
    return NotebookReporter() if in_notebook() else LogReporter()


class NotebookReporter:
    """Draws the progress of a training in a notebook, or of several in turn; notes and evaluations stand below."""

    def __init__(self) -> None:
        self._line, self._what, self._pace = NotebookLine(), "training", StepPace()

    def note(self, text: str) -> None:
        """Prints it."""
        print(text)

    def notify(self, progress: Progress) -> None:
        """Moves the bar."""
        self._line.notify(progress)

    def begin(self, what: str = "training", *, may_end_early: bool = False) -> None:
        """A new bar, below what was said before."""
        self._line, self._what, self._pace = NotebookLine(), what, StepPace(may_end_early=may_end_early)

    def step(self, report: StepReport) -> None:
        """Moves the bar."""
        if (facts := self._pace.facts(report)) is not None:
            self._line.show(self._what, report.progress, facts)

    def evaluation(self, step: int, result: HeldOut) -> None:
        """Prints a line."""
        self.note(evaluation_line(step, result))

    def predictions(self, step: int, lines: Sequence[Line]) -> None:
        """Prints them, with what is predicted in brackets."""
        for line in lines:
            self.note(f"             {plain_line(line)}")


class SilentReporter:
    """Says nothing: of several processes the first one says it."""

    def note(self, text: str) -> None:
        """Nothing."""

    def notify(self, progress: Progress) -> None:
        """Nothing."""

    def begin(self, what: str = "training", *, may_end_early: bool = False) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, step: int, result: HeldOut) -> None:
        """Nothing."""

    def predictions(self, step: int, lines: Sequence[Line]) -> None:
        """Nothing."""


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
