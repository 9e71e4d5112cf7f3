"""From raw text to a trained model: the assembly, in the order in which data flows."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from unmask.errors import DivergedError, RunError
from unmask.evaluation.held_out import HeldOut, HeldOutSet, unigram_entropy
from unmask.files import write_atomically
from unmask.inference.model import Model, load
from unmask.masking.engine import Masker
from unmask.model.config import EncoderConfig, default_intermediate_size
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.model.initialise import initialise
from unmask.packing.stream import RowStream
from unmask.pretraining.data import PreparedData, obtain_data
from unmask.pretraining.folder import RunFolder, open_folder
from unmask.pretraining.interrupt import Interrupted, Interruption
from unmask.pretraining.metrics import MetricsFile, read_metrics
from unmask.pretraining.predictions import from_plain, predict_lines, to_plain
from unmask.pretraining.reporter import LogReporter, Reporter
from unmask.recipe.recipe import DEFAULT, Recipe, load_recipe
from unmask.report.page import write_report
from unmask.tokens.tokenizer import Tokenizer
from unmask.training.budget import Budget
from unmask.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from unmask.training.hardware import choose_device, choose_dtype
from unmask.training.loop import StepReport, train
from unmask.training.optimizer import Optimizer
from unmask.training.state import TrainState

CHECKPOINT_SECONDS = 120.0


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Its folder.
        summary: What `summary.json` says.
    """

    folder: Path
    summary: dict[str, Any]

    @cached_property
    def model(self) -> Model:
        """The trained model."""
        return load(self.folder / "model")


def packaged_corpus() -> Path:
    """Tiny Shakespeare (1.1 MB, public domain), which stands in where no files are given."""
    return Path(str(resources.files("unmask") / "data" / "tinyshakespeare.txt"))


def pretrain(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    paths: Sequence[str | Path] | None = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    strategy: str | None = None,
    tokenizer: str | Path | None = None,
    vocab_size: int | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Pretrains a masked language model.

    Args:
        paths: Text files, or a folder of prepared shards; None takes the packaged Tiny Shakespeare.
        out: Folder of the run.
        recipe: Name of a packaged recipe, or a TOML file.
        minutes: Budget in minutes of training.
        steps: Budget in optimizer steps.
        strategy: Masking strategy.
        tokenizer: Folder with a tokenizer.json; None trains one.
        vocab_size: Of the trained tokenizer; None sizes it to the corpus.
        seed: Of weights, order and masks.
        settings: `section.key=value` overrides.
        resume: Go on with the run in `out` from its last checkpoint (from the beginning where there is none).
        overwrite: Remove a run in `out` first.
        reporter: Told of the progress; None logs.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    if minutes is not None and steps is not None:
        raise RunError("give minutes or steps, not both")
    options = {
        "training.minutes": minutes,
        "training.steps": steps,
        "training.seed": seed,
        "masking.strategy": strategy,
        "tokenizer.path": None if tokenizer is None else str(Path(tokenizer).resolve()),
        "tokenizer.vocab_size": vocab_size,
    }
    asked = recipe is not None or bool(settings) or any(value is not None for value in options.values())
    reporter = reporter or LogReporter()
    with Interruption() as interruption:
        wanted = None
        if asked or not resume or not RunFolder(Path(out)).holds_run:
            wanted = load_recipe(recipe or DEFAULT, options=options, overrides=tuple(settings))
        folder = open_folder(Path(out), resume=resume, overwrite=overwrite)
        resolved = _claim(folder, wanted)
        sources = _sources(folder, paths)
        data = obtain_data(sources, folder.data, resolved, reporter)
        return _Pretraining(folder, resolved, data, reporter, interruption).run()


def _claim(folder: RunFolder, wanted: Recipe | None) -> Recipe:
    """Writes the recipe into a new folder, or takes the one of the run that goes on."""
    if not folder.holds_run:
        assert wanted is not None
        write_atomically(folder.recipe, wanted.to_toml())
        return wanted
    kept = load_recipe(str(folder.recipe))
    if wanted is not None and wanted != kept:
        key, old, new = next(_differences(kept.model_dump(), wanted.model_dump()))
        raise RunError(
            f"{folder.root}: the run has {key} = {old!r}, but {new!r} is asked for; a run goes on with its own "
            "settings: leave them away, or start anew with --overwrite"
        )
    return kept


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def _sources(folder: RunFolder, paths: Sequence[str | Path] | None) -> list[Path]:
    """The files of the run: those given now, or those it began with."""
    given = [str(Path(path).resolve()) for path in paths] if paths else None
    if folder.sources.is_file():
        kept: list[str] = json.loads(folder.sources.read_text(encoding="utf-8"))
        if given is not None and given != kept:
            raise RunError(
                f"{folder.root}: the run was begun on {', '.join(kept)}; leave the paths away, or use --overwrite"
            )
        given = kept
    given = given or [str(packaged_corpus())]
    write_atomically(folder.sources, json.dumps(given, indent=1) + "\n")
    return [Path(path) for path in given]


def encoder_config(recipe: Recipe, tokenizer: Tokenizer) -> EncoderConfig:
    """The configuration of the model that a recipe and a tokenizer make."""
    model, special = recipe.model, tokenizer.special
    longest = model.max_position_embeddings or recipe.training.sequence_length
    if longest < recipe.training.sequence_length:
        raise RunError(
            f"model.max_position_embeddings {longest} is less than training.sequence_length "
            f"{recipe.training.sequence_length}"
        )
    parts = model.model_dump(exclude={"layout", "intermediate_size", "max_position_embeddings"})
    return EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        pad_id=special.pad,
        cls_id=special.cls,
        sep_id=special.sep,
        mask_id=special.mask,
        intermediate_size=model.intermediate_size or default_intermediate_size(model.hidden_size),
        max_position_embeddings=longest,
        **parts,
    )


class _Pretraining:
    """One sitting of a run: its parts, put together, and what is done with the loop's reports."""

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
        initialise(model, seed=training.seed)
        model.to(self.device)
        model.encoder.compute_dtype = dtype
        self.state = TrainState(model, Optimizer(model, training, dtype=dtype))
        self.stream = RowStream(data.train, data.tokenizer, length=training.sequence_length, seed=training.seed)
        self.masker = Masker(recipe.masking, data.tokenizer, seed=training.seed, frequencies=data.frequencies)
        self.held_out = self._held_out_set(recipe.evaluation.max_tokens)

    def run(self) -> Run:
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
        self.interruption.patient = True
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

    def _checkpoint_due(self, report: StepReport, saved_seconds: float, every_steps: int | None) -> bool:
        if report.progress >= 1.0:
            return True
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
        self.metrics.evaluation(self.state.step, self.state.seconds, result)
        self.reporter.evaluation(self.state.step, result)
        return result

    def _finish(self) -> Run:
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
        return Run(self.folder.root, summary)

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
