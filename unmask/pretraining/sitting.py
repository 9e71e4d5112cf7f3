"""One sitting of a run: its parts, put together, and what is done with the reports of the training loop."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import Any

import torch

from unmask.errors import DivergedError
from unmask.evaluation.held_out import HeldOut, HeldOutSet, unigram_entropy
from unmask.files import write_atomically
from unmask.masking.engine import Masker
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.model.initialise import initialise
from unmask.packing.stream import RowStream
from unmask.pretraining.data import PreparedData
from unmask.pretraining.folder import RunFolder
from unmask.pretraining.interrupt import Interrupted, Interruption
from unmask.pretraining.metrics import MetricsFile, read_metrics
from unmask.pretraining.predictions import from_plain, predict_lines, to_plain
from unmask.pretraining.reporter import Reporter
from unmask.recipe.encoder import encoder_config
from unmask.recipe.recipe import Recipe
from unmask.report.page import write_report
from unmask.training.budget import Budget
from unmask.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from unmask.training.hardware import choose_device, choose_dtype
from unmask.training.loop import StepReport, train
from unmask.training.optimizer import Optimizer
from unmask.training.state import TrainState

CHECKPOINT_SECONDS = 120.0


class Sitting:
    """From opened data to a finished folder.

    Args:
        folder: Of the run.
        recipe: Its settings.
        data: What it trains on.
        reporter: Told of the progress.
        interruption: Asked after every step.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        data: PreparedData,
        reporter: Reporter,
        interruption: Interruption,
    ) -> None:
        self.folder, self.recipe, self.data = folder, recipe, data
        self.reporter, self.interruption = reporter, interruption
        training = recipe.training
        self.fingerprint = hashlib.sha256((recipe.to_toml() + data.manifest.fingerprint).encode()).hexdigest()
        self.device = choose_device()
        dtype = choose_dtype(training.precision, self.device)
        model = MaskedLM(encoder_config(recipe, data.tokenizer))
        initialise(model, seed=training.seed, method=recipe.model.initialisation)
        model.to(self.device)
        model.encoder.compute_dtype = dtype
        model.encoder.gradient_checkpointing = training.gradient_checkpointing
        self.state = TrainState(model, Optimizer(model, training, dtype=dtype))
        self.stream = RowStream(data.train, data.tokenizer, length=training.sequence_length, seed=training.seed)
        self.masker = Masker(recipe.masking, data.tokenizer, seed=training.seed, frequencies=data.frequencies)
        self.held_out = self._held_out_set(recipe.evaluation.max_tokens)

    def run(self) -> dict[str, Any]:
        """Trains from the last checkpoint on, writes everything, and returns the summary.

        Raises:
            DivergedError: The loss is not finite; the text names the last good checkpoint.
            Interrupted: A signal came; the state was saved.
            RunError: A checkpoint cannot be written or read.
        """
        model, ledger = self.state.model, self.data.manifest
        self.reporter.note(
            f"{ledger.train.tokens:,} tokens to train on, {ledger.validation.tokens:,} held out, "
            f"vocabulary {ledger.vocab_size:,}; model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {self.device.type}"
        )
        self._resume()
        self.metrics = MetricsFile(self.folder.metrics, step=self.state.step)
        if self.state.step == 0:
            self._look_before()
        with self.interruption.patience():
            self._train()
        return self._finish()

    def _held_out_set(self, max_tokens: int) -> HeldOutSet:
        data, length = self.data, self.recipe.training.sequence_length
        return HeldOutSet(data.validation, data.tokenizer, length=length, max_tokens=max_tokens)

    def _resume(self) -> None:
        checkpoints = list_checkpoints(self.folder.checkpoints)
        if not checkpoints:
            return
        load_checkpoint(checkpoints[-1], self.state, fingerprint=self.fingerprint)
        self.reporter.note(f"going on from step {self.state.step:,} ({checkpoints[-1].name})")

    def _look_before(self) -> None:
        lines = predict_lines(self.state.model, self.data.tokenizer, self.held_out)
        write_atomically(self.folder.predictions, json.dumps({"before": to_plain(lines)}))
        self._evaluate()

    def _train(self) -> None:
        """Consumes the loop's reports."""
        training, checkpoint = self.recipe.training, self.recipe.checkpoint
        progress = Budget.of(training).progress(step=self.state.step, seconds=self.state.seconds)
        times = self.recipe.evaluation.times
        evaluated = int(progress * times)
        saved_seconds = self.state.seconds
        try:
            for report in train(self.state, self.stream, self.masker, training):
                self.metrics.step(report)
                self.reporter.step(report)
                if report.progress < 1.0 and int(report.progress * times) > evaluated:
                    evaluated = int(report.progress * times)
                    self._evaluate()
                due = self._checkpoint_due(report, saved_seconds, checkpoint.every_steps)
                if due or self.interruption.signum is not None:
                    self._save()
                    saved_seconds = report.seconds
                if self.interruption.signum is not None:
                    raise Interrupted(
                        self.interruption.signum,
                        f"stopped and saved at step {report.step:,}; go on with --out {self.folder.root} --resume",
                    )
        except DivergedError as error:
            raise DivergedError(f"{error}; {self._way_out()}") from error
        self._save()

    def _checkpoint_due(self, report: StepReport, saved_seconds: float, every_steps: int | None) -> bool:
        if every_steps is not None:
            return report.step % every_steps == 0
        return report.seconds - saved_seconds >= CHECKPOINT_SECONDS

    def _way_out(self) -> str:
        checkpoints = list_checkpoints(self.folder.checkpoints)
        last = f"the last good checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
        rate = self.recipe.training.learning_rate
        return f"{last}. Start anew with a lower learning rate: --set training.learning_rate={rate / 3:.2g} --overwrite"

    def _save(self) -> None:
        self.metrics.sync()
        save_checkpoint(
            self.folder.checkpoints,
            self.state,
            fingerprint=self.fingerprint,
            keep=self.recipe.checkpoint.keep,
        )

    def _evaluate(self, held_out: HeldOutSet | None = None) -> HeldOut:
        result = (held_out or self.held_out).evaluate(self.state.model)
        self.metrics.evaluation(self.state.step, self.state.seconds, result, final=held_out is not None)
        self.reporter.evaluation(self.state.step, result)
        return result

    def _finish(self) -> dict[str, Any]:
        """Evaluates, and writes the model, the predictions, the report and, last, the summary."""
        self.reporter.note("evaluating and writing the model")
        final_set = self._held_out_set(self.recipe.evaluation.final_max_tokens)
        result = self._evaluate(final_set)
        self._write_model()
        predictions = json.loads(self.folder.predictions.read_text(encoding="utf-8"))
        predictions["after"] = to_plain(predict_lines(self.state.model, self.data.tokenizer, self.held_out))
        write_atomically(self.folder.predictions, json.dumps(predictions))
        summary = self._summary(result, final_set)
        write_report(
            self.folder.report,
            recipe=self.recipe.model_dump(),
            manifest=self.data.manifest,
            summary=summary,
            metrics=read_metrics(self.folder.metrics),
            before=from_plain(predictions["before"]),
            after=from_plain(predictions["after"]),
        )
        write_atomically(self.folder.summary, json.dumps(summary, indent=1) + "\n")
        return summary

    def _write_model(self) -> None:
        partial = self.folder.model.with_name("model.partial")
        shutil.rmtree(partial, ignore_errors=True)
        save_model(self.state.model, partial)
        self.data.tokenizer.save(partial, max_length=self.state.model.config.max_position_embeddings)
        shutil.rmtree(self.folder.model, ignore_errors=True)
        os.replace(partial, self.folder.model)

    def _summary(self, result: HeldOut, held_out: HeldOutSet) -> dict[str, Any]:
        state, data = self.state, self.data
        entropy = unigram_entropy(held_out.targets(), data.frequencies, data.tokenizer.ordinary)
        return {
            "model": str(self.folder.model),
            "num_parameters": state.model.num_parameters,
            "vocab_size": state.model.config.vocab_size,
            "steps": state.step,
            "tokens_seen": state.tokens_seen,
            "epochs": state.tokens_seen / data.manifest.train.tokens,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
            "validation_loss": result.loss,
            "validation_accuracy": result.accuracy,
            "validation_perplexity": result.perplexity,
            "predicted_tokens": result.predicted_tokens,
            "unigram_entropy": entropy,
            "bits_per_byte": result.bits_per_byte,
            "data_fingerprint": data.manifest.fingerprint,
            "torch": torch.__version__,
            "device": self.device.type,
        }
