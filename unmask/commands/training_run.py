"""One pretraining run: its parts, put together, and what a finished run leaves."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch

from unmask.commands.from_checkpoint import FACTS, open_old_text, start_model
from unmask.commands.held_out_watch import Watch, figures_of, lines_from_plain, lines_to_plain, predict_lines
from unmask.commands.masking_tables import masking_tables, score_board
from unmask.commands.recipe import Recipe, new_model
from unmask.commands.run_data import PreparedData
from unmask.commands.run_folder import START_ANEW, RunFolder
from unmask.core.compiled import is_compiled
from unmask.core.errors import DivergedError
from unmask.core.files import read_object, whole_folder, write_atomically, writing
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.data.rows import RowStream
from unmask.masking.masker import Masker
from unmask.measure.held_out import HeldOut, HeldOutSet, explain_plateau, few_draws, on_plateau
from unmask.measure.uncertainty import plain_interval
from unmask.model.encoder import MaskedLM, compile_model
from unmask.model.folder import save_model
from unmask.model.initial_weights import initialise
from unmask.model.loops import losses
from unmask.model.stored_weights import write_checksums
from unmask.report.cards import write_card
from unmask.report.pages import write_report
from unmask.train.callbacks import Callback, ShowProgress, StopAtSignal
from unmask.train.checkpoints import (
    Checkpoints,
    begun_dtype,
    last_checkpoint,
    list_checkpoints,
    load_checkpoint,
)
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import choose_device, choose_dtype, why_not_compiled, works_on_its_own
from unmask.train.objectives import extra_objectives
from unmask.train.trackers import MetricsFile, Service, TensorBoard, read_metrics
from unmask.train.trainer import Trainer

NUM_LINES = 8  # of held-out text, predicted before training and after it


class TrainingRun:
    """From opened data to a finished folder, or to an interruption.

    Args:
        folder: Of the run.
        recipe: Its settings.
        data: What it trains on.
        reporter: Called with the progress.
        group: The processes that train together; the first writes into the folder.
    """

    def __init__(
        self, folder: RunFolder, recipe: Recipe, data: PreparedData, reporter: Reporter, group: Group = ALONE
    ) -> None:
        self.folder, self.recipe, self.data, self.reporter, self.group = folder, recipe, data, reporter, group
        training, device = recipe.training, choose_device()
        tables, lexicon = masking_tables(recipe.masking, data, own_lexicon=folder.lexicon, reporter=reporter)
        made_of = recipe.fingerprinted() + data.manifest.fingerprint + ("" if lexicon is None else lexicon.fingerprint)
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
        model = self._new_model().to(device)
        # A run that goes on keeps the type that it began with, also on another machine.
        model.encoder.compute_dtype = begun_dtype(folder.checkpoints) or choose_dtype(training.precision, device)
        model.encoder.gradient_checkpointing = training.gradient_checkpointing
        self._uncompiled = why_not_compiled(
            training.compile_blocks, device, minutes=training.minutes, steps=training.known_steps
        )
        if self._uncompiled is None:
            compile_model(model)
        pairs = recipe.objectives.pairs
        stream = RowStream(
            data.train,
            data.tokenizer,
            length=training.sequence_length,
            seed=training.seed,
            pairs=None if pairs is None else pairs.kind,
            with_labels=recipe.objectives.label is not None,
            ahead=works_on_its_own(device),
        )
        masker = Masker(
            recipe.masking,
            data.tokenizer,
            seed=training.seed,
            tables=tables,
            with_boundaries=recipe.objectives.span_boundary is not None,
        )
        self.trainer = Trainer(
            model,
            stream,
            training,
            masker=masker,
            objectives=extra_objectives(recipe.objectives),
            board=score_board(recipe.masking, data, device),
            fingerprint=self.fingerprint,
            group=group,
        )
        self.model, self.state = model, self.trainer.state
        self.watch = Watch(recipe, data, reporter)

    def _new_model(self) -> MaskedLM:
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

    def run(self, interruption: Interruption, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Trains from the last checkpoint on, writes everything, and returns the summary.

        Args:
            interruption: Notes signals, at which the run saves and leaves.
            callbacks: Of the user, called before evaluations and checkpoints.

        Raises:
            DivergedError: The loss is not finite; the text names the latest checkpoint.
            Interrupted: A signal came; the state was saved.
            RunError: A checkpoint cannot be written or read.
            MemoryFullError: Not even one row fits into memory.
        """
        folder, recipe, state, is_main = self.folder, self.recipe, self.state, self.group.is_main
        self._announce()
        if (name := on_rank_zero(self.group, lambda: last_checkpoint(folder.checkpoints))) is not None:
            load_checkpoint(folder.checkpoints / name, state, fingerprint=self.fingerprint)
            self.reporter.note(f"going on from step {state.step:,} ({name})")

        metrics = MetricsFile(folder.metrics, step=state.step) if is_main else None
        if metrics is not None:
            self.trainer.callbacks += [metrics, *self._trackers(), ShowProgress(self.reporter)]
        self.trainer.callbacks += [*callbacks, self.watch, StopAtSignal(interruption, folder.root)]
        if metrics is not None:
            saving = Checkpoints(folder.checkpoints, recipe.checkpoint, fingerprint=self.fingerprint, sync=metrics.sync)
            self.trainer.callbacks.append(saving)

        self.watch.begin(state.progress(recipe.training))
        if state.step == 0:
            on_rank_zero(self.group, self._look_before)
            self.watch.evaluate(self.trainer, progress=0.0)
        try:
            with interruption.patience():
                self.trainer.fit()
        except DivergedError as error:
            checkpoints = list_checkpoints(folder.checkpoints)
            last = f"the latest checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
            rate = recipe.training.learning_rate / 3
            raise DivergedError(
                f"{error}; {last}. Start anew with a lower learning rate: --set training.learning_rate={rate:.2g} "
                "--overwrite"
            ) from error
        self.reporter.note("evaluating and writing the model")
        return on_rank_zero(self.group, lambda: self._write_result(metrics))

    def _announce(self) -> None:
        model, manifest, device = self.model, self.data.manifest, self.model.encoder.device
        self.reporter.note(
            f"{manifest.train.tokens:,} tokens to train on, {manifest.validation.tokens:,} held out, "
            f"vocabulary {manifest.vocab_size:,}; model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {device.type}"
        )
        if device.type != "cpu" and self._uncompiled is None:
            self.reporter.note("blocks are compiled in the first steps, which takes up to a minute")
        elif device.type != "cpu":
            self.reporter.note(f"blocks are not compiled: {self._uncompiled}")
        elif not is_compiled(losses):
            self.reporter.note("loops are compiled for this machine, once: some 20 seconds more")

    def _trackers(self) -> list[Callback]:
        """TensorBoard where it is installed, and what else the recipe names."""
        folder, names = self.folder, self.recipe.evaluation.trackers
        config = self.recipe.model_dump(mode="json", exclude={"card"})
        trackers: list[Callback] = [Service(name, run=folder.root.name, config=config) for name in names]
        if find_spec("tensorboard") is not None:
            trackers.append(TensorBoard(folder.tensorboard, step=self.state.step))
        return trackers

    # What a run leaves: what stood before the training, the model's folder, predictions, the summary and the report.

    def _look_before(self) -> None:
        """Keeps what the untrained model makes of some lines and, of a checkpoint, its figures on new and old text."""
        write_atomically(self.folder.predictions, json.dumps({"before": self._predicted()}))
        if self.recipe.start is not None:
            self.reporter.note("evaluating the model before the training")
            new = self.watch.held_out_set(self.recipe.evaluation.final_max_tokens).evaluate(self.model)
            figures = {"new": _domain(new), "old": self._on_old_text()}
            write_atomically(self.folder.before, json.dumps(figures, indent=1) + "\n")

    def _predicted(self) -> list[list[dict[str, Any]]]:
        rows, masked = self.watch.held_out.batches[0]
        return lines_to_plain(predict_lines(self.model, self.data.tokenizer, rows, masked, most=NUM_LINES))

    def _on_old_text(self) -> dict[str, Any] | None:
        """Figures of text of the domain that the checkpoint comes from, where there is any."""
        store = open_old_text(self.folder.old)
        if store is None:
            return None
        length, most = self.recipe.training.sequence_length, self.recipe.evaluation.final_max_tokens
        return _domain(HeldOutSet(store, self.data.tokenizer, length=length, max_tokens=most).evaluate(self.model))

    def _write_result(self, metrics: MetricsFile | None) -> dict[str, Any]:
        """Evaluates on the large set, and writes the model, the predictions, the report and, last, the summary.

        Raises:
            WriteError: A file cannot be written; the checkpoints are there, and the run goes on from the last.
        """
        folder, recipe, data, state, watch = self.folder, self.recipe, self.data, self.state, self.watch
        held_out = watch.held_out_set(recipe.evaluation.final_max_tokens)
        objectives = watch.objective_set(recipe.evaluation.final_max_tokens)
        result, entropy = watch.measure(self.model, held_out, objectives), watch.entropy_of(held_out)
        if metrics is not None:
            metrics.on_evaluation(self.trainer, figures_of(result, final=True))
        watch.say(state.step, result)

        config = self.model.config
        with writing(folder.model), whole_folder(folder.model) as partial:
            save_model(self.model, partial)
            data.tokenizer.save(partial, max_length=config.max_position_embeddings, with_types=config.num_types > 1)
            write_checksums(partial)
        predictions = read_object(folder.predictions, START_ANEW)
        predictions["after"] = self._predicted()
        write_atomically(folder.predictions, json.dumps(predictions))

        summary = self._summary(result, entropy)
        stuck = None
        if summary["on_plateau"]:
            rate = recipe.training.learning_rate
            stuck = explain_plateau(result.loss, entropy, step=state.step, learning_rate=rate)
            self.reporter.note(stuck)
        write_report(
            folder.report,
            recipe=recipe.model_dump(),
            manifest=data.manifest,
            summary=summary,
            metrics=read_metrics(folder.metrics),
            before=lines_from_plain(predictions["before"]),
            after=lines_from_plain(predictions["after"]),
            remark=stuck,
        )
        write_card(
            folder.model,
            recipe=recipe.model_dump(),
            manifest=data.manifest,
            summary=summary,
            mask_token=data.tokenizer.token(data.tokenizer.special.mask),
            remark=stuck,
        )
        write_atomically(folder.summary, json.dumps(summary, indent=1) + "\n")
        return summary

    def _summary(self, result: HeldOut, entropy: float) -> dict[str, Any]:
        state, manifest = self.state, self.data.manifest
        summary = {
            "model": str(self.folder.model),
            "num_parameters": self.model.num_parameters,
            "vocab_size": self.model.config.vocab_size,
            "steps": state.step,
            "tokens_seen": state.tokens_seen,
            "epochs": state.tokens_seen / manifest.train.tokens,
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
            "data_fingerprint": manifest.fingerprint,
            "near_duplicates": manifest.near_duplicates and manifest.near_duplicates.plain(),
            "torch": torch.__version__,
            "device": self.model.encoder.device.type,
        }
        if self.recipe.start is not None:  # measured before and after, on the new text and on the old, same masks
            before = read_object(self.folder.before, START_ANEW)
            after = {"new": _domain(result), "old": self._on_old_text()}
            summary["start"] = read_object(self.folder.start / FACTS, START_ANEW)
            summary["domains"] = {
                name: None if before[name] is None else {"before": before[name], "after": after[name]}
                for name in ("new", "old")
            }
        return summary


def _domain(result: HeldOut) -> dict[str, Any]:
    """Figures on the text of a domain, as JSON takes them."""
    names = ("loss", "loss_stderr", "accuracy", "perplexity", "bits_per_token_byte", "predicted_tokens", "documents")
    values = {name: getattr(result, name) for name in names}
    for name in ("loss_interval", "bits_per_token_byte_interval"):
        values[name] = plain_interval(getattr(result, name))
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
