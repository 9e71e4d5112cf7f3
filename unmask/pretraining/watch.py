"""What is looked at while a model trains: held-out loss, the best so far, the plateau, the recipe's lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from unmask.errors import DataError, DivergedError, TokenizerError
from unmask.masking.plain_rows import rows_from_ids
from unmask.masking.settings import span_units
from unmask.measuring.held_out import HeldOut, HeldOutSet, ObjectiveSet, fixed_masker, unigram_entropy
from unmask.measuring.plateau import explain_plateau, is_stuck, on_plateau
from unmask.network.encoder import MaskedLM
from unmask.pretraining.run_data import PreparedData
from unmask.pretraining.run_metrics import Board, MetricsFile, NoMetrics
from unmask.pretraining.run_reporter import Line, Reporter, predict_lines
from unmask.recipe.recipe import Recipe
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.checkpoints import Best, TrainState
from unmask.training.group import ALONE, Group
from unmask.training.objectives import extra_objectives


class Prompts:
    """Some lines under masks that stay the same.

    Args:
        lines: Texts; what is longer than a row is cut.
        tokenizer: Of the model.
        length: Positions of a row.

    Raises:
        TokenizerError: A tokenizer without `[UNK]` does not know a character of theirs.
    """

    def __init__(self, lines: Sequence[str], tokenizer: Tokenizer, *, length: int) -> None:
        self.tokenizer = tokenizer
        cls, sep = ([] if id_ is None else [id_] for id_ in (tokenizer.special.cls, tokenizer.special.sep))
        room = length - len(cls) - len(sep)
        encoded = tokenizer.encode_corpus(lines)
        self.rows = rows_from_ids([[*cls, *line.input_ids.tolist()[:room], *sep] for line in encoded], tokenizer)
        self.masked = fixed_masker(tokenizer)(self.rows)

    def predict(self, model: MaskedLM) -> list[Line]:
        """The lines with predictions at what is hidden; lines in which nothing is hidden are left out."""
        return predict_lines(model, self.tokenizer, self.rows, self.masked)


class Watch:
    """Evaluates a model as it trains, and tells everybody.

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
        self.prompts = self._prompts()
        self.entropy = self.entropy_of(self.held_out)
        self._losses: list[float] = []
        self._told_of_plateau = False

    def begin(self, metrics: MetricsFile | NoMetrics, board: Board | NoMetrics, *, progress: float) -> None:
        """Where results are written, and how far the training has come by now."""
        self.metrics, self.board = metrics, board
        self._number = int(progress * self.settings.times)

    def held_out_set(self, max_tokens: int) -> HeldOutSet:
        """Validation rows of the training's length."""
        length = self.training.sequence_length
        return HeldOutSet(self.data.validation, self.data.tokenizer, length=length, max_tokens=max_tokens)

    def objective_set(self, max_tokens: int) -> ObjectiveSet | None:
        """Validation rows for the objectives beside masked tokens; None where the recipe has none of them."""
        objectives = extra_objectives(self.recipe.objectives)
        if not objectives:
            return None
        pairs = self.recipe.objectives.pairs
        try:
            found = ObjectiveSet(
                self.data.validation,
                self.data.tokenizer,
                objectives=objectives,
                length=self.training.sequence_length,
                max_tokens=max_tokens,
                pairs=None if pairs is None else pairs.kind,
                spans=span_units(self.recipe.masking) if self.recipe.objectives.span_boundary else None,
            )
        except DataError as error:
            self.reporter.note(f"the other objectives are not evaluated on the held-out text: {error}")
            return None
        for name in found.without_targets():
            self.reporter.note(f"{name} is not evaluated on the held-out text: nothing of it is to be told there")
        return found

    def measure(
        self,
        model: MaskedLM,
        held_out: HeldOutSet,
        objectives: ObjectiveSet | None,
        *,
        group: Group = ALONE,
    ) -> HeldOut:
        """Evaluates on these rows, shared out over the processes of a group."""
        result = held_out.evaluate(model, group=group)
        return result if objectives is None else replace(result, objectives=objectives.evaluate(model))

    def entropy_of(self, held_out: HeldOutSet) -> float:
        """Of the token frequencies of the training text, on the hidden tokens of some rows; in nats per token."""
        return unigram_entropy(held_out.targets(), self.data.frequencies, self.data.tokenizer.ordinary)

    def due(self, progress: float) -> bool:
        """Whether it is time for the next evaluation; a budget in steps or tokens ends with one."""
        number = int(progress * self.settings.times)
        if number > self._number or progress >= 1.0:
            self._number = number
            return True
        return False

    def evaluate(self, state: TrainState, *, progress: float) -> bool:
        """Evaluates on the small set and tells what comes of it.

        Returns:
            Whether the held-out loss is the lowest of the training so far.

        Raises:
            DivergedError: The held-out loss is not finite.
        """
        model = state.whole_model()
        result = self.measure(model, self.held_out, self.objectives, group=state.optimizer.group)
        if not math.isfinite(result.loss):
            raise DivergedError(f"the held-out loss behind step {state.step} is {result.loss}")
        self.record(state, result, final=False)
        if self.prompts is not None:
            self.reporter.predictions(state.step, self.prompts.predict(model))
        self._look_at_plateau(result.loss, state.step, progress)
        if state.step == 0 or (state.best is not None and result.loss >= state.best.loss):
            return False
        state.best = Best(state.step, result.loss)
        return True

    def record(self, state: TrainState, result: HeldOut, *, final: bool) -> None:
        """Writes and shows the result of an evaluation."""
        self.metrics.evaluation(state.step, state.seconds, result, final=final)
        self.board.evaluation(state.step, result)
        self.reporter.evaluation(state.step, result)

    def _look_at_plateau(self, loss: float, step: int, progress: float) -> None:
        self._losses.append(loss)
        if not self._told_of_plateau and is_stuck(self._losses, self.entropy, progress=progress, step=step):
            rate = self.training.learning_rate
            self.reporter.note(explain_plateau(loss, self.entropy, step=step, learning_rate=rate))
            self._told_of_plateau = True
        elif self._told_of_plateau and not on_plateau(loss, self.entropy):
            self.reporter.note(f"the plateau of token frequencies is left behind ({loss:.2f}, {self.entropy:.2f})")
            self._told_of_plateau = False

    def _prompts(self) -> Prompts | None:
        lines, length = self.settings.prompts, self.training.sequence_length
        if not lines:
            return None
        try:
            return Prompts(lines, self.data.tokenizer, length=length)
        except TokenizerError as error:  # lines of a recipe that is used on another text
            self.reporter.note(f"the recipe's lines (evaluation.prompts) are not shown: {error}")
            return None
