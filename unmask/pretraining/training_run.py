"""One training run: its parts, put together, and what is done with the reports of the training loop.

At SIGINT and SIGTERM it saves and leaves.
"""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, NoReturn

from unmask.compiled import is_compiled
from unmask.errors import DivergedError, EndedElsewhereError, addressed
from unmask.files import typed
from unmask.masking.masker import Masker
from unmask.network.compiling import compile_model
from unmask.network.encoder import MaskedLM
from unmask.network.initial_weights import initialise
from unmask.network.loss_loops import losses
from unmask.pretraining.before_after import BeforeAfter
from unmask.pretraining.continuing import start_model
from unmask.pretraining.masking_inputs import masking_tables, score_board
from unmask.pretraining.run_data import PreparedData
from unmask.pretraining.run_folder import RunFolder
from unmask.pretraining.run_metrics import Board, MetricsFile, NoMetrics
from unmask.pretraining.run_reporter import Reporter
from unmask.pretraining.run_result import look_before, write_result
from unmask.pretraining.watch import Watch
from unmask.recipe.new_model import new_model
from unmask.recipe.recipe import Recipe
from unmask.rows.stream import RowStream
from unmask.training.budget import Budget
from unmask.training.checkpoints import (
    CheckpointWriter,
    TrainState,
    begun_dtype,
    clear_parts,
    list_checkpoints,
    load_checkpoint,
)
from unmask.training.group import ALONE, Group, by_first
from unmask.training.hardware import choose_device, choose_dtype, why_not_compiled, works_on_its_own
from unmask.training.loop import StepReport, begin_with_parts, train
from unmask.training.objectives import extra_objectives
from unmask.training.optimizer import Optimizer
from unmask.training.retries import in_smaller_parts

GOES_ON = "the same command goes on from what was saved last"
GOES_ON_WITH_RESUME = "the same command with --resume goes on from what was saved last"


class Interrupted(Exception):
    """A signal asked to stop. Nothing is lost.

    Attributes:
        signum: Of the signal.
    """

    def __init__(self, signum: int, text: str) -> None:
        super().__init__(text)
        self.signum = signum

    def __str__(self) -> str:
        return addressed(super().__str__())


class Interruption:
    """While it is entered, a signal raises `Interrupted` at once, or, in a section that must end well, is noted.

    Outside the main thread Python takes no signals, and nothing is done.

    Args:
        remark: What `Interrupted` says of how to go on.
    """

    def __init__(self, remark: str = GOES_ON_WITH_RESUME) -> None:
        self.remark = remark
        self.signum: int | None = None
        self.patient = False
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if isinstance(error, SystemError) and (stopped := _behind(error)) is not None:
            raise stopped

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.patient and self.signum is None:
            self.signum = signum
            return
        raise Interrupted(signum, f"stopped; {self.remark}")

    @contextmanager
    def patience(self) -> Iterator[None]:
        """A section that looks at `signum` by itself and ends well; a second signal does not wait for it."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False


def _behind(error: BaseException) -> Interrupted | None:
    """The interruption that an error was made of: libraries in C make another of what a signal raises within them."""
    cause = error.__cause__
    return cause if cause is None or isinstance(cause, Interrupted) else _behind(cause)


SETTLE_SECONDS = 60.0  # in which a checkpoint that is being written may be named as the latest
CHECKPOINT_SECONDS = 120.0


class TrainingRun:
    """From opened data to a finished folder, or to an interruption.

    Args:
        folder: Of the run.
        recipe: Its settings.
        data: What it trains on.
        reporter: Told of the progress.
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
        if group.share.of > 1 and training.sharding == "full" and self.device.type != "cpu":
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
