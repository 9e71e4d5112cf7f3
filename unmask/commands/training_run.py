"""One training run: its parts, put together, and what is done with the reports of the training loop.

At SIGINT and SIGTERM it saves and leaves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch

from unmask.commands.from_checkpoint import FACTS, open_old_text, start_model
from unmask.commands.masking_tables import masking_tables, score_board
from unmask.commands.recipe import Recipe, new_model
from unmask.commands.reporting import (
    Board,
    Line,
    MetricsFile,
    NoMetrics,
    Reporter,
    from_plain,
    predict_lines,
    read_metrics,
    to_plain,
)
from unmask.commands.run_data import PreparedData
from unmask.commands.run_folder import START_ANEW, RunFolder
from unmask.core.compiled import is_compiled
from unmask.core.errors import DataError, DivergedError, EndedElsewhereError, TokenizerError
from unmask.core.files import read_object, typed, whole_folder, write_atomically, writing
from unmask.core.interruption import Interrupted, Interruption
from unmask.data.rows import RowStream
from unmask.masking.masker import Masker, rows_from_ids
from unmask.masking.settings import span_units
from unmask.measure.held_out import (
    HeldOut,
    HeldOutSet,
    ObjectiveSet,
    explain_plateau,
    few_draws,
    fixed_masker,
    is_stuck,
    on_plateau,
    unigram_entropy,
)
from unmask.measure.uncertainty import plain_interval
from unmask.model.encoder import MaskedLM, compile_model
from unmask.model.folder import save_model
from unmask.model.initial_weights import initialise
from unmask.model.loops import losses
from unmask.model.stored_weights import write_checksums
from unmask.report.cards import write_card
from unmask.report.pages import write_report
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.checkpoints import (
    Best,
    Budget,
    CheckpointWriter,
    TrainState,
    begun_dtype,
    clear_parts,
    list_checkpoints,
    load_checkpoint,
)
from unmask.train.distributed import ALONE, Group, by_first
from unmask.train.hardware import choose_device, choose_dtype, why_not_compiled, works_on_its_own
from unmask.train.loop import StepReport, begin_with_parts, train
from unmask.train.objectives import extra_objectives
from unmask.train.optimizer import Optimizer
from unmask.train.step import in_smaller_parts

# ----------------------------------------
# What is looked at while a model trains: held-out loss, the best so far, the plateau, the recipe's lines.


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


# ----------------------------------------
# A training from a checkpoint, measured before and after, on the new text and on the old, under the same masks.

_FIGURES = (
    "loss", "loss_stderr", "loss_interval", "accuracy", "perplexity", "bits_per_token_byte",
    "bits_per_token_byte_interval", "predicted_tokens", "documents",
)  # fmt: skip
_EARLIER = {"bits_per_byte": "bits_per_token_byte", "bits_per_byte_interval": "bits_per_token_byte_interval"}


class BeforeAfter:
    """The two evaluations. Where words were added, both are those of the model and tokenizer that have them.

    Args:
        folder: Of the run; `old/` is there.
        watch: Has the rows of the new text.
    """

    def __init__(self, folder: RunFolder, watch: Watch) -> None:
        self.folder, self.watch = folder, watch
        self.max_tokens = watch.settings.final_max_tokens

    def look_before(self, state: TrainState) -> None:
        """Evaluates the model that the training begins with, and keeps the figures."""
        self.watch.reporter.note("evaluating the model before the training")
        new = self.watch.held_out_set(self.max_tokens).evaluate(state.model)
        self._keep({"new": _plain(new), "old": self._on_old_text(state)})

    def summary(self, state: TrainState, new: HeldOut) -> dict[str, Any]:
        """What the summary says of it.

        Args:
            state: After the training.
            new: The result on the new text.

        Returns:
            `start`: what was done to the checkpoint; `domains`: by `new` and `old` the figures `before` and `after`;
            `old` is None where there is no old text.
        """
        before = {
            name: found and {_EARLIER.get(key, key): value for key, value in found.items()}  # of a run that goes on
            for name, found in read_object(self.folder.before, START_ANEW).items()
        }
        after = {"new": _plain(new), "old": self._on_old_text(state)}
        return {
            "start": read_object(self.folder.start / FACTS, START_ANEW),
            "domains": {
                name: None if before[name] is None else {"before": before[name], "after": after[name]}
                for name in ("new", "old")
            },
        }

    def _on_old_text(self, state: TrainState) -> dict[str, Any] | None:
        store = open_old_text(self.folder.old)
        if store is None:
            return None
        length = self.watch.training.sequence_length
        held_out = HeldOutSet(store, self.watch.data.tokenizer, length=length, max_tokens=self.max_tokens)
        return _plain(held_out.evaluate(state.model))

    def _keep(self, figures: dict[str, Any]) -> None:
        write_atomically(self.folder.before, json.dumps(figures, indent=1) + "\n")


def _plain(result: HeldOut) -> dict[str, Any]:
    """The figures as JSON takes them."""
    values = {name: getattr(result, name) for name in _FIGURES}
    values |= {name: plain_interval(values[name]) for name in ("loss_interval", "bits_per_token_byte_interval")}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


# ----------------------------------------
# What a finished run leaves: the model's folder, predictions, the summary and the report.

NUM_LINES = 8  # of held-out text, predicted before training and after it


def look_before(folder: RunFolder, state: TrainState, watch: Watch) -> None:
    """Keeps what the untrained model, which is whole, makes of some lines."""
    write_atomically(folder.predictions, json.dumps({"before": _predicted(state, watch)}))


def write_result(
    folder: RunFolder, recipe: Recipe, data: PreparedData, state: TrainState, watch: Watch
) -> dict[str, Any]:
    """Evaluates on the large set, and writes the model, the predictions, the report and, last, the summary.

    Args:
        folder, recipe, data: Of the run.
        state: Its last, with a whole model.
        watch: Has the held-out text.

    Returns:
        The summary.

    Raises:
        WriteError: A file cannot be written; the checkpoints are there, and the run goes on from the last.
    """
    held_out = watch.held_out_set(recipe.evaluation.final_max_tokens)
    result = watch.measure(state.model, held_out, watch.objective_set(recipe.evaluation.final_max_tokens))
    watch.record(state, result, final=True)
    _write_model(folder, state, data)
    predictions = read_object(folder.predictions, START_ANEW)
    predictions["after"] = _predicted(state, watch)
    write_atomically(folder.predictions, json.dumps(predictions))
    summary = _summary(folder, data, state, result, watch.entropy_of(held_out))
    if recipe.start is not None:
        summary |= BeforeAfter(folder, watch).summary(state, result)
    stuck = None
    if summary["on_plateau"]:
        rate = recipe.training.learning_rate
        stuck = explain_plateau(result.loss, summary["unigram_entropy"], step=state.step, learning_rate=rate)
        watch.reporter.note(stuck)
    _write_pages(folder, recipe, data, summary, predictions, remark=stuck)
    write_atomically(folder.summary, json.dumps(summary, indent=1) + "\n")
    return summary


def _write_pages(
    folder: RunFolder,
    recipe: Recipe,
    data: PreparedData,
    summary: dict[str, Any],
    predictions: dict[str, Any],
    *,
    remark: str | None,
) -> None:
    """The report for who trained the model, and the card for whom it goes to."""
    write_report(
        folder.report,
        recipe=recipe.model_dump(),
        manifest=data.manifest,
        summary=summary,
        metrics=read_metrics(folder.metrics),
        before=from_plain(predictions["before"]),
        after=from_plain(predictions["after"]),
        remark=remark,
    )
    write_card(
        folder.model,
        recipe=recipe.model_dump(),
        manifest=data.manifest,
        summary=summary,
        mask_token=data.tokenizer.token(data.tokenizer.special.mask),
        remark=remark,
    )


def _predicted(state: TrainState, watch: Watch) -> list[list[dict[str, Any]]]:
    rows, masked = watch.held_out.batches[0]
    return to_plain(predict_lines(state.model, watch.data.tokenizer, rows, masked, most=NUM_LINES))


def _write_model(folder: RunFolder, state: TrainState, data: PreparedData) -> None:
    config = state.model.config
    with writing(folder.model), whole_folder(folder.model) as partial:
        save_model(state.model, partial)
        data.tokenizer.save(partial, max_length=config.max_position_embeddings, with_types=config.num_types > 1)
        write_checksums(partial)


def _summary(
    folder: RunFolder, data: PreparedData, state: TrainState, result: HeldOut, entropy: float
) -> dict[str, Any]:
    return {
        "model": str(folder.model),
        "num_parameters": state.model.num_parameters,
        "vocab_size": state.model.config.vocab_size,
        "steps": state.step,
        "tokens_seen": state.tokens_seen,
        "epochs": state.tokens_seen / data.manifest.train.tokens,
        "seconds": state.seconds,
        "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
        "validation_loss": result.loss,
        "validation_loss_stderr": result.loss_stderr,
        "validation_loss_interval": plain_interval(result.loss_interval),
        "validation_accuracy": result.accuracy,
        "validation_perplexity": result.perplexity,
        "predicted_tokens": result.predicted_tokens,
        "validation_documents": result.documents,
        "validation_unit": result.unit,
        "validation_warning": few_draws(result.documents, result.unit),
        "unigram_entropy": entropy,
        "on_plateau": on_plateau(result.loss, entropy),
        "bits_per_token_byte": result.bits_per_token_byte,
        "bits_per_token_byte_interval": plain_interval(result.bits_per_token_byte_interval),
        "objectives": {name: asdict(figures) for name, figures in result.objectives.items()},
        "best_step": None if state.best is None else state.best.step,
        "data_fingerprint": data.manifest.fingerprint,
        "near_duplicates": data.manifest.near_duplicates and data.manifest.near_duplicates.plain(),
        "torch": torch.__version__,
        "device": next(state.model.parameters()).device.type,
    }


SETTLE_SECONDS = 60.0  # in which a checkpoint that is being written may be named as the latest
CHECKPOINT_SECONDS = 120.0


class TrainingRun:
    """From opened data to a finished folder, or to an interruption.

    Args:
        folder: Of the run.
        recipe: Its settings.
        data: What it trains on.
        reporter: Called with the progress.
        interruption: Asked after every step.
        group: The processes that train together; the first writes into the folder.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        data: PreparedData,
        reporter: Reporter,
        interruption: Interruption,
        group: Group = ALONE,
    ) -> None:
        self.group = group
        self.folder, self.recipe, self.data = folder, recipe, data
        self.reporter, self.interruption = reporter, interruption
        training = recipe.training
        tables, lexicon = masking_tables(recipe.masking, data, own_lexicon=folder.lexicon, reporter=reporter)
        made_of = recipe.fingerprinted() + data.manifest.fingerprint + ("" if lexicon is None else lexicon.fingerprint)
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
        self.device = choose_device()
        # A run that goes on keeps its type; weights that are shared out must know it before they are.
        dtype = begun_dtype(folder.checkpoints) or choose_dtype(training.precision, self.device)
        model = self._model().to(self.device)
        model.encoder.compute_dtype = dtype
        model.encoder.gradient_checkpointing = training.gradient_checkpointing
        self._uncompiled = why_not_compiled(
            training.compile_blocks, self.device, minutes=training.minutes, steps=training.known_steps
        )
        if group.share.world_size > 1 and training.sharding == "full" and self.device.type != "cpu":
            self._uncompiled = "their weights are shared out (training.sharding = 'full')"
        if self._uncompiled is None:
            compile_model(model, tuned=training.tuned_products)
        self.state = TrainState(model, Optimizer(model, training, dtype=dtype, group=group))
        pairs = recipe.objectives.pairs
        self.objectives = extra_objectives(recipe.objectives)
        self.stream = RowStream(
            data.train,
            data.tokenizer,
            length=training.sequence_length,
            seed=training.seed,
            pairs=None if pairs is None else pairs.kind,
            with_labels=recipe.objectives.label is not None,
            ahead=works_on_its_own(self.device),
        )
        self.masker = Masker(
            recipe.masking,
            data.tokenizer,
            seed=training.seed,
            tables=tables,
            with_boundaries=recipe.objectives.span_boundary is not None,
        )
        self.state.board = score_board(recipe.masking, data, self.device)
        self.watch = Watch(recipe, data, reporter)

    def _model(self) -> MaskedLM:
        """The model as the training begins, in memory of the CPU."""
        recipe, tokenizer, labels = self.recipe, self.data.tokenizer, tuple(self.data.manifest.labels)
        if recipe.start is None:
            model = new_model(recipe, tokenizer, labels)
            initialise(model, seed=recipe.training.seed, method=recipe.model.initialisation)
            return model
        model, notes = start_model(recipe, self.folder.start, tokenizer, labels)
        for note in notes:
            self.reporter.note(note)
        return model

    def run(self) -> dict[str, Any]:
        """Trains from the last checkpoint on, writes everything, and returns the summary.

        Raises:
            DivergedError: The loss is not finite; the text names the latest checkpoint.
            Interrupted: A signal came; the state was saved.
            RunError: A checkpoint cannot be written or read.
            MemoryFullError: Not even one row fits into memory.
        """
        model, ledger = self.state.model, self.data.manifest
        self.reporter.note(
            f"{ledger.train.tokens:,} tokens to train on, {ledger.validation.tokens:,} held out, "
            f"vocabulary {ledger.vocab_size:,}; model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {self.device.type}"
        )
        if (note := self._on_compiling()) is not None:
            self.reporter.note(note)
        self._resume()
        self.metrics: MetricsFile | NoMetrics = NoMetrics()
        self.board: Board | NoMetrics = NoMetrics()
        if self.group.is_first:
            self.metrics = MetricsFile(self.folder.metrics, step=self.state.step)
            self.board = Board(self.folder.tensorboard, step=self.state.step)
        progress = Budget.of(self.recipe.training).progress(self.state.spent)
        self.watch.begin(self.metrics, self.board, progress=progress)
        if self.state.step == 0:
            whole = self._whole()
            if self.group.is_first:
                look_before(self.folder, whole, self.watch)
                if self.recipe.start is not None:
                    BeforeAfter(self.folder, self.watch).look_before(whole)
            del whole
            self.watch.evaluate(self.state, progress=0.0)
        with self.interruption.patience():
            self._train()
        self.reporter.note("evaluating and writing the model")
        whole = self._whole()
        summary = by_first(self.group, lambda: write_result(self.folder, self.recipe, self.data, whole, self.watch))
        self.board.close()
        return summary

    def _whole(self) -> TrainState:
        """The state with a whole model; all processes ask together."""
        return replace(self.state, model=self.state.whole_model())

    def _on_compiling(self) -> str | None:
        """What the first steps wait for; None: nothing."""
        if self.device.type == "cpu":
            return None if is_compiled(losses) else "loops are compiled for this machine, once: some 20 seconds more"
        if self._uncompiled is None:
            return "blocks are compiled in the first steps, which takes up to a minute"
        return f"blocks are not compiled: {self._uncompiled}"

    def _resume(self) -> None:
        name = by_first(self.group, self._last_checkpoint)
        if name is None:
            return
        load_checkpoint(self.folder.checkpoints / name, self.state, fingerprint=self.fingerprint)
        self.reporter.note(f"going on from step {self.state.step:,} ({name})")

    def _last_checkpoint(self) -> str | None:
        clear_parts(self.folder.checkpoints)
        checkpoints = list_checkpoints(self.folder.checkpoints)
        return checkpoints[-1].name if checkpoints else None

    def _train(self) -> None:
        """Consumes the loop's reports, and ends with the last state saved."""
        root, keep = self.folder.checkpoints, self.recipe.checkpoint.keep
        with CheckpointWriter(root, fingerprint=self.fingerprint, keep=keep) as self.checkpoints:
            self._consume()
            self._save()
        self.group.told([0.0], patient=True)  # by now the first one's thread has all files

    def _consume(self) -> None:
        saved_seconds = self.state.seconds
        micro_tokens = self._begin_with_parts()
        try:
            loop = train(self.state, self.stream, self.masker, self.recipe.training, objectives=self.objectives)
            for report in loop:
                self.metrics.step(report)
                self.board.step(report)
                self.reporter.step(report)
                if self.state.micro_tokens != micro_tokens:
                    micro_tokens = self.state.micro_tokens
                    self.reporter.note(in_smaller_parts(micro_tokens))
                due = self._checkpoint_due(report, saved_seconds)
                evaluated = self.watch.due(report.progress)
                if evaluated:  # some of it by the first alone
                    due = self.watch.evaluate(self.state, progress=report.progress) or due
                told = self.group.told([self.interruption.signum or 0], patient=evaluated)
                signum = max(int(said) for (said,) in told)
                if due or signum:
                    self._save()
                    saved_seconds = report.seconds
                if signum:
                    self._stop(signum, report.step)
        except DivergedError as error:
            if not self.group.is_first:
                raise EndedElsewhereError(f"{error}; the first process says what to do") from error
            raise DivergedError(f"{error}; {self._way_out()}") from error

    def _stop(self, signum: int, step: int) -> NoReturn:
        """Ends in all processes, whichever was sent the signal; the first says so."""
        self.checkpoints.wait()
        self.group.told([0.0], patient=True)
        way_on = f"go on with --out {typed(self.folder.root)} --resume"
        raise Interrupted(signum, f"stopped and saved at step {step:,}; {way_on}" if self.group.is_first else "")

    def _begin_with_parts(self) -> int | None:
        """How many positions go at once in the first steps; None: all of a step."""
        training = self.recipe.training
        begin_with_parts(self.state, self.masker, training, self.objectives)
        found = self.state.micro_tokens
        if found is not None and found != training.micro_batch_tokens:
            self.reporter.note(f"steps are made in parts of {found:,} positions, which fit the GPU by calculation")
        return found

    def _checkpoint_due(self, report: StepReport, saved_seconds: float) -> bool:
        every_steps = self.recipe.checkpoint.every_steps
        if every_steps is not None:
            return report.step % every_steps == 0
        return report.seconds - saved_seconds >= CHECKPOINT_SECONDS

    def _way_out(self) -> str:
        self.checkpoints.settle(SETTLE_SECONDS)
        checkpoints = list_checkpoints(self.folder.checkpoints)
        last = f"the latest checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
        rate = self.recipe.training.learning_rate
        return f"{last}. Start anew with a lower learning rate: --set training.learning_rate={rate / 3:.2g} --overwrite"

    def _save(self) -> None:
        self.metrics.sync()
        self.checkpoints.save(self.state)
