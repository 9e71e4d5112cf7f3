"""What is looked at while a model pretrains: held-out loss, the best so far, the plateau, predictions of some lines.

Shape suffixes: T = all positions of a batch in a line, D = hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from unmask.commands.recipe import Recipe
from unmask.commands.run_data import PreparedData
from unmask.core.errors import DataError, DivergedError, TokenizerError
from unmask.core.results import Reporter, Styled, legible
from unmask.data.rows import Rows
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import MaskedRows
from unmask.masking.settings import span_units
from unmask.measure.held_out import (
    HeldOut,
    HeldOutSet,
    ObjectiveSet,
    explain_plateau,
    fixed_masker,
    is_stuck,
    on_plateau,
    unigram_entropy,
)
from unmask.model.encoder import MaskedLM
from unmask.model.fused import predicted_positions
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Callback, StepReport
from unmask.train.distributed import ALONE, Group
from unmask.train.objectives import extra_objectives
from unmask.train.runner import evaluating, hidden_states, logits_at
from unmask.train.step import Best
from unmask.train.trainer import Trainer

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

    def styled(self) -> Styled:
        """As it is shown: what is predicted in brackets, green where it is right and red where it is wrong."""
        space = " " * self.space_before
        if self.predicted is None:
            return Styled(space + self.token, "dim")
        return Styled(f"{space}[{self.predicted}]", "bold green" if self.predicted == self.token else "bold red")


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
    guesses = dict(zip(positions.tolist(), zip(probability.argmax(-1).tolist(), right, strict=True), strict=True))

    lines: list[Line] = []
    ids, segments = rows.input_ids.flatten().tolist(), rows.segment_ids.flatten().tolist()
    length = rows.shape[1]
    line: Line = []
    for place, (token_id, segment) in enumerate(zip(ids, segments, strict=True)):
        if place % length == 0 or segment != segments[place - 1]:
            lines.append(line[:LONGEST_LINE])
            line = []
        if segment >= 0 and token_id not in tokenizer.special.around:
            predicted, chance = guesses.get(place, (None, None))
            guess = None if predicted is None else legible(tokenizer.text(predicted))
            text = tokenizer.text(token_id)
            visible = text if predicted is None and text == " " else legible(text)
            line.append(PredictedToken(visible, tokenizer.space_before(token_id), guess, chance))
    lines.append(line[:LONGEST_LINE])
    return [line for line in lines if any(token.predicted is not None for token in line)][:most]


def figures_of(result: HeldOut, *, final: bool = False) -> dict[str, Any]:
    """An evaluation as `metrics.jsonl` has it; the final one is made on more tokens than the others."""
    return {
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


class Watch(Callback):
    """Evaluates a model as it trains, asks for a checkpoint where it is the best so far, and says what comes of it.

    Args:
        recipe: How often, on how much, with which lines.
        data: The validation split.
        reporter: Told of evaluations, predictions and the plateau.
    """

    def __init__(self, recipe: Recipe, data: PreparedData, reporter: Reporter) -> None:
        self.settings, self.training, self.recipe = recipe.evaluation, recipe.training, recipe
        self.data, self.reporter = data, reporter
        self.held_out = self.held_out_set(self.settings.max_tokens)
        self.objectives = self.objective_set(self.settings.max_tokens)
        self.lines = self._lines()
        self.entropy = self.entropy_of(self.held_out)
        self._number: int | None = None  # of the evaluations so far
        self._losses: list[float] = []
        self._is_stuck = False

    def held_out_set(self, max_tokens: int) -> HeldOutSet:
        """Validation rows of the training's length."""
        length = self.training.sequence_length
        return HeldOutSet(self.data.validation, self.data.tokenizer, length=length, max_tokens=max_tokens)

    def objective_set(self, max_tokens: int) -> ObjectiveSet | None:
        """Validation rows for the objectives beside masked tokens; None where the recipe has none of them."""
        settings = self.recipe.objectives
        objectives = extra_objectives(settings)
        if not objectives:
            return None
        try:
            held_out = ObjectiveSet(
                self.data.validation,
                self.data.tokenizer,
                objectives=objectives,
                length=self.training.sequence_length,
                max_tokens=max_tokens,
                pairs=None if settings.pairs is None else settings.pairs.kind,
                spans=span_units(self.recipe.masking) if settings.span_boundary else None,
            )
        except DataError as error:
            self.reporter.note(f"the other objectives are not evaluated on the held-out text: {error}")
            return None
        for name in held_out.without_targets():
            self.reporter.note(f"{name} is not evaluated on the held-out text: nothing of it is to be told there")
        return held_out

    def measure(
        self, model: MaskedLM, held_out: HeldOutSet, objectives: ObjectiveSet | None, *, group: Group = ALONE
    ) -> HeldOut:
        """Evaluates on these rows, shared out over the processes of a group."""
        result = held_out.evaluate(model, group=group)
        return result if objectives is None else replace(result, objectives=objectives.evaluate(model))

    def entropy_of(self, held_out: HeldOutSet) -> float:
        """Of the token frequencies of the training text, on the hidden tokens of some rows; in nats per token."""
        return unigram_entropy(held_out.targets(), self.data.frequencies, self.data.tokenizer.ordinary)

    def begin(self, progress: float) -> None:
        """Sets how far the training has come by now."""
        self._number = int(progress * self.settings.times)

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Evaluates where it is time; a budget in steps or tokens ends with an evaluation."""
        number = int(report.progress * self.settings.times)
        if number > (self._number or 0) or report.progress >= 1.0:
            self._number = number
            self.evaluate(trainer, progress=report.progress)

    def evaluate(self, trainer: Trainer, *, progress: float) -> None:
        """Evaluates on the small set.

        Raises:
            DivergedError: The held-out loss is not finite.
        """
        state = trainer.state
        result = self.measure(state.model, self.held_out, self.objectives, group=trainer.group)
        if not math.isfinite(result.loss):
            raise DivergedError(f"the held-out loss behind step {state.step} is {result.loss}")
        trainer.evaluated(figures_of(result))
        self.say(state.step, result)
        for line in predict_lines(state.model, self.data.tokenizer, *self.lines) if self.lines else ():
            self.reporter.note(("         ", *(token.styled() for token in line)))
        self._look_at_plateau(result.loss, state.step, progress)
        if state.step and (state.best is None or result.loss < state.best.loss):
            state.best = Best(state.step, result.loss)
            trainer.request_save()

    def say(self, step: int, result: HeldOut) -> None:
        """An evaluation in a line."""
        self.reporter.note(
            f"  step {step:>6,}: held-out loss {result.loss:.3f}, accuracy {result.accuracy:.1%}, "
            f"{result.bits_per_token_byte:.3f} bits per token byte"
            + "".join(f"; {name} {figures.accuracy:.1%}" for name, figures in result.objectives.items())
        )

    def _look_at_plateau(self, loss: float, step: int, progress: float) -> None:
        self._losses.append(loss)
        if not self._is_stuck and is_stuck(self._losses, self.entropy, progress=progress, step=step):
            rate = self.training.learning_rate
            self.reporter.note(explain_plateau(loss, self.entropy, step=step, learning_rate=rate))
            self._is_stuck = True
        elif self._is_stuck and not on_plateau(loss, self.entropy):
            self.reporter.note(f"the plateau of token frequencies is left behind ({loss:.2f}, {self.entropy:.2f})")
            self._is_stuck = False

    def _lines(self) -> tuple[Rows, MaskedRows] | None:
        """The recipe's lines under masks that stay the same; what is longer than a row is cut."""
        tokenizer, prompts = self.data.tokenizer, self.settings.prompts
        if not prompts:
            return None
        cls, sep = ([] if id_ is None else [id_] for id_ in (tokenizer.special.cls, tokenizer.special.sep))
        room = self.training.sequence_length - len(cls) - len(sep)
        try:
            encoded = tokenizer.encode_corpus(prompts)
        except TokenizerError as error:  # lines of a recipe that is used on another text
            self.reporter.note(f"the recipe's lines (evaluation.prompts) are not shown: {error}")
            return None
        rows = rows_from_ids([[*cls, *line.input_ids.tolist()[:room], *sep] for line in encoded], tokenizer)
        return rows, fixed_masker(tokenizer)(rows)


def lines_to_plain(lines: Sequence[Line]) -> list[list[dict[str, Any]]]:
    """The lines as JSON takes them."""
    return [[asdict(token) for token in line] for line in lines]


def lines_from_plain(lines: Sequence[Sequence[dict[str, Any]]]) -> list[Line]:
    """The inverse of `lines_to_plain`."""
    return [[PredictedToken(**token) for token in line] for line in lines]
