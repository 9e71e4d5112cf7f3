"""All runs of a fine-tuning, a seed after another: how they begin, the best model, and what is written of it.

A run begins with an encoder, of ours or of transformers, and a new head that is drawn from its seed.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.errors import DivergedError, EndedElsewhereError, SettingsError
from unmask.files import write_atomically, writing
from unmask.finetuning.fitting import FitPlan, Fitted, HeldOutData, evaluate, fit, rank
from unmask.finetuning.result_folder import FinishedRun, ResultFolder
from unmask.finetuning.task_files import Files, class_weights, selecting_metric
from unmask.folders.card_head import Origin
from unmask.folders.checksums import write_checksums
from unmask.folders.layout_names import Pooling
from unmask.folders.model_folder import LAYOUTS, load_model
from unmask.folders.task_folder import TaskHead, TaskNetwork, save_task_model, with_task_head
from unmask.folders.transformers_folder import (
    TransformersPretrained,
    load_transformers,
    runs_in_transformers,
    save_transformers_task,
    transformers_with_head,
)
from unmask.measuring.uncertainty import mean_interval
from unmask.network.encoder import MaskedLM
from unmask.network.transformers_network import TransformersTask
from unmask.pretraining.run_reporter import Reporter
from unmask.report.finetune_page import write_finetune_report
from unmask.report.task_card import write_task_card
from unmask.tasks.examples import EncodedInput, InputEncoder
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import Labelled, Metrics, Task
from unmask.tasks.task_model import open_fine_tuned
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.group import ALONE, Group, by_first
from unmask.training.hardware import choose_device

Pretrained = MaskedLM | TransformersPretrained


def load_pretrained(folder: Path, tokenizer: Tokenizer, *, max_length: int | None) -> Pretrained:
    """Loads the encoder of a folder.

    Args:
        folder: Of a model.
        tokenizer: Its tokenizer.
        max_length: Longest input that the settings ask for.

    Raises:
        ModelError: The folder cannot be used.
    """
    special = tokenizer.special
    if runs_in_transformers(folder):
        return load_transformers(folder, vocab_size=tokenizer.vocab_size, pad_id=special.pad, max_length=max_length)
    return load_model(folder, mask_id=special.mask)


def pooling_for(pretrained: Pretrained, kind: type[Task], asked: Pooling | None) -> Pooling:
    """What whole texts are told from.

    Args:
        pretrained: The encoder.
        kind: The task.
        asked: What the settings say.

    Raises:
        SettingsError: The model's head, or the task, has no place for it.
    """
    if isinstance(pretrained, TransformersPretrained) or not kind.of_texts:
        if asked is not None:
            whose = "transformers' head pools in its own way" if kind.of_texts else "the task has no whole texts"
            raise SettingsError(f"finetune.pooling={asked}: {whose}; omit it")
        return "first"
    layout = pretrained.config.layout
    has_choice = LAYOUTS[layout].pooling_key is not None
    if asked == "mean" and not has_choice:
        raise SettingsError(f"finetune.pooling=mean: classifiers of the layout {layout} take the first token; omit it")
    return asked or ("mean" if has_choice else "first")


def begin(pretrained: Pretrained, task: Task, *, seed: int, settings: FinetuneSettings) -> TaskNetwork:
    """A network before its first step.

    Args:
        pretrained: The encoder; it stays as it is.
        task: What the head is for.
        seed: Of the head's weights, and of all where all are drawn.
        settings: Dropout and initial weights.

    Raises:
        ModelError, SettingsError: As `transformers_with_head`.
    """
    drawn = settings.initial_weights == "random"
    if isinstance(pretrained, TransformersPretrained):
        return transformers_with_head(
            pretrained, task.task_head, seed=seed, dropout=settings.dropout, trained=not drawn
        )
    return with_task_head(pretrained, task.task_head, seed=seed, dropout=settings.dropout, trained=not drawn)


class Runs:
    """All runs of a fine-tuning.

    Args:
        pretrained: The encoder; it stays as it is.
        tokenizer: Its tokenizer.
        files: What is learned from and measured on.
        task: What the model will do.
        settings: As given.
        reporter: Told of the progress.
        group: The processes that train together; the first writes into the folder.

    Raises:
        UnmaskError: Texts do not fit the model, or settings not the task.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        tokenizer: Tokenizer,
        files: Files,
        task: Task,
        settings: FinetuneSettings,
        reporter: Reporter,
        group: Group = ALONE,
    ) -> None:
        self.pretrained, self.tokenizer, self.task, self.files = pretrained, tokenizer, task, files
        self.settings, self.reporter = settings, reporter
        self.encoder = InputEncoder(tokenizer, pretrained.config, max_length=settings.max_length)
        self.ledger: dict[str, dict[str, int]] = {}
        learning = task.while_learning(files.train)
        self.plan = FitPlan(
            task=learning,
            settings=settings,
            metric=selecting_metric(task, settings.metric),
            weights=class_weights(files.train, task, settings.class_weights),
            train=self._encoded("train", files.train, learning, with_targets=True).examples,
            validation=self._held_out("validation", files.validation),
            group=group,
        )
        self.test = None if files.test is None else self._held_out("test", files.test)

    def run(self, folder: ResultFolder, finished: Sequence[FinishedRun], origin: Origin) -> dict[str, Any]:
        """Trains from every seed, saves the best model, and writes what came of it.

        Args:
            folder: Of the result.
            finished: Seeds whose training is over, of an earlier call that was stopped; the best one's model is in the
                folder.
            origin: What the encoder is, for the card.
        """
        self._announce()
        runs, group = list(finished), self.plan.group
        if runs:
            self.reporter.note(f"going on: the training of {len(runs)} of {self.settings.seeds} seeds is over")
        for number in range(len(runs), self.settings.seeds):
            seed = self.settings.seed + number
            self._begin(seed, number + 1)
            fitted = self._fit(seed)
            by_first(group, lambda: self._keep(fitted, folder, runs))  # noqa: B023  (called at once)
        return by_first(group, lambda: self._finish(folder, runs, origin))

    def _keep(self, fitted: Fitted, folder: ResultFolder, runs: list[FinishedRun]) -> None:
        """Writes down what a seed has come to, and its model where it is better than those before it."""
        figures = self._figures(fitted)
        history = [{"seed": fitted.seed, **vars(each)} for each in fitted.history]
        is_best = all(self._rank(figures) > self._rank(other.figures) for other in runs)
        if is_best:
            place = folder.waiting(len(runs) + 1)
            save_network(fitted.model, self.task.task_head, place)
            # so that transformers gives the model the token types that it was trained with
            self.tokenizer.save(place, max_length=self.encoder.max_length, with_types=self.encoder.with_types)
            write_checksums(place)
        runs.append(FinishedRun(figures, history, is_best))
        folder.keep(runs)

    def new_model(self, seed: int) -> TaskNetwork:
        """What a run begins with, on its device.

        Raises:
            ModelError: The model cannot do the task.
        """
        model = begin(self.pretrained, self.task, seed=seed, settings=self.settings)
        self.plan.task.check_network(model)
        return model.to(choose_device())

    def _begin(self, seed: int, number: int) -> None:
        what = "training"
        if self.settings.seeds > 1:
            what = f"seed {seed} ({number} of {self.settings.seeds})"
            self.reporter.note(what)
        self.reporter.begin(what, may_end_early=self.settings.patience is not None)

    def _rank(self, figures: dict[str, Any]) -> float:
        return rank(figures["metrics"], self.plan.metric)

    def _fit(self, seed: int) -> Fitted:
        try:
            fitted = fit(
                self.new_model(seed),
                self.plan,
                seed=seed,
                on_step=self.reporter.step,
                on_evaluation=lambda evaluated: self.reporter.note(f"  {evaluated.in_words()}"),
            )
        except DivergedError as error:
            if self.plan.group.is_first:
                raise
            raise EndedElsewhereError("the first process says so") from error
        self.plan.task.finish(fitted.model)
        fitted.model.encoder.compute_dtype = torch.float32  # what is reported is what the saved model does elsewhere
        return fitted

    def _figures(self, fitted: Fitted) -> dict[str, Any]:
        """Of a run, measured once more with the weights that are saved."""
        figures: dict[str, Any] = {
            "seed": fitted.seed,
            "metrics": self._measure(fitted.model, self.plan.validation)[0],
            "epochs": fitted.history[-1].epoch,
            "best_epoch": fitted.best.epoch,
            "steps": fitted.history[-1].step,
            "seconds": fitted.seconds,
            "stopped_early": fitted.stopped_early,
        }
        if self.test is not None:
            figures["test_metrics"] = self._measure(fitted.model, self.test)[0]
        return figures

    def _measure(self, model: TaskNetwork, data: HeldOutData) -> tuple[Metrics, list[Any]]:
        return evaluate(model, self.task, data)

    def _finish(self, folder: ResultFolder, finished: Sequence[FinishedRun], origin: Origin) -> dict[str, Any]:
        """The summary, the report and the card; what is told of the best model is told by the one that was saved."""
        own = max((run.figures for run in finished), key=self._rank)
        runs = [run.figures for run in finished]
        best = open_fine_tuned(folder.model, self.tokenizer).network.to(choose_device())
        summary: dict[str, Any] = {
            "model": str(folder.model),
            "task": self.task.kind,
            "metric": self.plan.metric,
            "metrics": own["metrics"],
            "best_seed": own["seed"],
            "seeds": runs,
            **_spread("metrics", runs),
            "labels": list(self.task.names),
            "examples": self.ledger,
            "learning_rate": self.settings.learning_rate_for(self.pretrained.config.hidden_size),
            "num_parameters": best.num_encoder_parameters,
        }
        if self.test is not None:
            summary |= {"test_metrics": own["test_metrics"], **_spread("test_metrics", runs, prefix="test_")}
        _, predictions = self._measure(best, self.plan.validation)
        names = {name: file.path.name for name, file in vars(self.files).items() if file is not None}
        write_finetune_report(
            folder.report,
            summary=summary,
            settings=self.settings.model_dump(),
            history=[line for run in finished for line in run.history],
            classes=self.task.right_and_predicted(self.plan.validation.records, predictions),
            files=names,
        )
        write_task_card(
            folder.model,
            task=self.task,
            summary=summary,
            settings=self.settings,
            files=names,
            classes=Counter(name for record in self.files.train.records for name in self.task.classes_of(record)),
            max_length=self.encoder.max_length,
            origin=origin,
        )
        write_atomically(folder.summary, json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return summary

    def _held_out(self, name: str, file: Labelled) -> HeldOutData:
        return HeldOutData(file.records, self._encoded(name, file, self.task, with_targets=False).examples)

    def _encoded(self, name: str, file: Labelled, task: Task, *, with_targets: bool) -> EncodedInput:
        encoded = task.encode(file.records, self.encoder, with_targets=with_targets)
        self.ledger[name] = {
            "records": len(file.records),
            "inputs": len(encoded.examples),
            "truncated": encoded.truncated,
            "split": encoded.split,
        }
        longest = self.encoder.max_length
        if encoded.truncated:
            self.reporter.note(
                f"{file.path}: {encoded.truncated:,} of {len(file.records):,} texts are longer than {longest} tokens; "
                "their ends are not seen"
            )
        if encoded.split:
            self.reporter.note(
                f"{file.path}: {encoded.split:,} of {len(file.records):,} texts are longer than {longest} tokens; they "
                f"are seen in several parts, {len(encoded.examples):,} in all"
            )
        if encoded.lost:
            self.reporter.note(
                f"{file.path}: {encoded.lost:,} of {len(file.records):,} answers are longer than a window of {longest} "
                "tokens has room for, or end in characters that the tokenizer leaves out; they are learned as no answer"
            )
        return encoded

    def _announce(self) -> None:
        names, records = self.task.names, self.ledger["train"]["records"]
        what = f", {len(names)} labels" if len(names) > 1 else ""
        rate = self.settings.learning_rate_for(self.pretrained.config.hidden_size)
        self.reporter.note(f"{self.task.kind}: {records:,} training examples{what}; learning rate {rate:.2g}")


def save_network(model: TaskNetwork, head: TaskHead, folder: Path) -> None:
    """Writes a model that transformers' class for the task loads, with the same logits.

    Raises:
        WriteError: It cannot be written.
    """
    with writing(folder, SafetensorError):
        if isinstance(model, TransformersTask):
            save_transformers_task(model, head, folder)
        else:
            save_task_model(model, head, folder)


def _spread(key: str, runs: Sequence[dict[str, Any]], *, prefix: str = "") -> dict[str, Metrics]:
    """Mean over the runs, deviation of the sample, and half the width of the mean's 95 % interval (Student's t).

    None where a run has no value, or there is one run only; the width also where all runs have the same value.
    """
    means: Metrics = {}
    deviations: Metrics = {}
    margins: Metrics = {}
    for name in runs[0][key]:
        values = [run[key][name] for run in runs]
        known = [value for value in values if value is not None]
        whole = len(known) == len(values)
        means[name] = statistics.fmean(known) if whole else None
        deviations[name] = statistics.stdev(known) if whole and len(known) > 1 else None
        interval = mean_interval(known) if whole else None
        margins[name] = None if interval is None else (interval[1] - interval[0]) / 2
    return {f"{prefix}mean": means, f"{prefix}deviation": deviations, f"{prefix}margin": margins}
