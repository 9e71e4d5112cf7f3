"""What is told of a run while it goes on: what the model makes of some lines, notes, progress, evaluations.

The command line draws bars; a library user gets log lines.

Shape suffixes: T = all positions of a batch in a line, D = hidden size.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from unmask.errors import addressed
from unmask.masking.masker import MaskedRows
from unmask.measuring.held_out import HeldOut
from unmask.network.encoder import MaskedLM
from unmask.network.loss import predicted_positions
from unmask.notebook import NotebookLine, in_notebook
from unmask.pretraining.run_metrics import Arrivals
from unmask.progress import Progress, duration
from unmask.results import legible
from unmask.rows.rows import Rows
from unmask.runner import evaluating, hidden_states, logits_at
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.loop import StepReport

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
        print(addressed(text))

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
        log.info(addressed(text))

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
