"""All runs of a fine-tuning, a seed after another: how they begin, the best model, and what is written of it.

A run begins with an encoder, of ours or of transformers, and a new head that is drawn from its seed.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.commands.finetune_files import Files, class_weights, selecting_metric
from unmask.commands.finetune_folder import CHECKPOINTS, FinishedRun, ResultFolder
from unmask.core.errors import (
    SettingsError,
)
from unmask.core.files import write_atomically, writing
from unmask.core.hashing import permutation
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.data.rows import WHOLE, Cursor, RowBatch, Share
from unmask.measure.uncertainty import mean_interval
from unmask.model.card_head import Origin
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model, save_task_model, with_task_head
from unmask.model.layout_names import LAYOUTS, ClassifierPooling
from unmask.model.stored_weights import write_checksums
from unmask.model.transformers import (
    TaskNetwork,
    TransformersNetwork,
    TransformersPretrained,
    load_transformers,
    runs_in_transformers,
    save_transformers_task,
    transformers_with_head,
)
from unmask.report.cards import write_task_card
from unmask.report.pages import write_finetune_report
from unmask.tasks.inputs import ROW, EncodedInput, Example, InputEncoder, pack_examples
from unmask.tasks.predict import open_fine_tuned, outputs_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Labelled, Metrics, Task
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Arrivals, Callback, ShowProgress, StepReport, StopAtSignal
from unmask.train.checkpoints import Checkpoints, TrainState, last_checkpoint, load_checkpoint
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import choose_device, choose_dtype
from unmask.train.optimizer import build_optimizer
from unmask.train.settings import AdamWSettings, CheckpointSettings, LinearDecay, TrainingSettings
from unmask.train.trainer import Trainer

# ----------------------------------------
# One run of fine-tuning, from one seed: rates by layer, batches, loop, evaluations, early stopping, best weights.

_ENCODER = "encoder.model."  # before the names that transformers gives
_POOLER, _EMBEDDING = "pooler", "embed"


def factors_of(model: TaskNetwork, decay: float) -> Callable[[str], float]:
    """The share of the learning rate that each parameter takes, by its name: the less, the deeper it lies.

    Args:
        model: That is trained.
        decay: From each layer to the one below it.

    Source: Clark et al. 2020 (ELECTRA), appendix B.
    """
    if isinstance(model, MaskedLM):
        return layer_factors(model.config.num_layers, decay)
    names = [name for name, _ in model.named_parameters()]
    return transformers_layer_factors(names, str(model.encoder.model.base_model_prefix), decay)


def layer_factors(num_layers: int, decay: float) -> Callable[[str], float]:
    """The share of the learning rate that a parameter of ours takes.

    Example: with 2 layers and a decay of 0.5: head 1, second layer 0.5, first layer 0.25, embedding 0.125; what comes
    after the last layer goes with it.
    """

    def factor(name: str) -> float:
        if not name.startswith("encoder."):
            return 1.0
        if name.startswith("encoder.final_norm."):
            return decay
        below = num_layers - int(name.split(".")[2]) if name.startswith("encoder.blocks.") else num_layers + 1
        return decay**below

    return factor


def transformers_layer_factors(names: Iterable[str], prefix: str, decay: float) -> Callable[[str], float]:
    """The same by transformers' names. A layer's number is the first whole number in a name:

        encoder.model.deberta.encoder.layer.3.attention.self.query_proj.weight      layer 3
        encoder.model.deberta.embeddings.word_embeddings.weight                     below all layers
        encoder.model.deberta.encoder.rel_embeddings.weight                         with the embeddings
        encoder.model.deberta.encoder.LayerNorm.weight                              with the last layer
        encoder.model.bert.pooler.dense.weight                                      with the head

    Layers that share their weights (ALBERT) are one layer here, however often they are gone through: with a decay of
    0.5 they take 0.5 and the embeddings 0.25. Where layers stand in groups (ALBERT with several, Funnel's blocks), the
    group counts as the layer.

    Args:
        names: Of all parameters.
        prefix: Of the encoder's, as transformers calls it (`base_model_prefix`).
        decay: From each layer to the one below it.
    """
    inside = f"{_ENCODER}{prefix}."
    numbers = [number for name in names if name.startswith(inside) and (number := _layer(name)) is not None]
    num_layers = max(numbers, default=-1) + 1

    def factor(name: str) -> float:
        if not name.startswith(inside) or _POOLER in name:
            return 1.0
        number = _layer(name)
        if number is None:
            return decay ** (num_layers + 1) if _EMBEDDING in name else decay
        return decay ** (num_layers - number)

    return factor


def _layer(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


_ORDER = 11  # sets this order apart from those of pretraining


class ExampleStream:
    """Examples in an order of their own each epoch, so many a batch, packed into rows.

    The stream is endless; its place is a small cursor.

    Args:
        examples: All of them.
        batch_size: Examples of a batch. The epoch's batches have about equally many: a step on a few examples would
            move the weights as far as one on many.
        pad_id, max_length, alone: As for `pack_examples`.
        seed: Of the order.
    """

    version = 0  # the batch at a place never changes

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch_size: int,
        pad_id: int,
        max_length: int,
        seed: int,
        alone: bool = False,
    ) -> None:
        self.examples = examples
        self.batches = math.ceil(len(examples) / batch_size)
        self._pad_id = pad_id
        self._max_length = max_length
        self._seed = seed
        self._alone = alone

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a place, or a share of it, and the place after it.

        Rows and their length are what the examples need, whatever is asked for; special tokens count as tokens here.
        """
        order = permutation(len(self.examples), _ORDER, self._seed, cursor.epoch)
        begin, end = (n * len(order) // self.batches for n in (cursor.window, cursor.window + 1))
        examples = [self.examples[number] for number in order[begin:end]]
        packed = pack_examples(examples, pad_id=self._pad_id, max_length=self._max_length, alone=self._alone)
        is_last = cursor.window + 1 == self.batches
        after = Cursor(cursor.epoch + 1) if is_last else Cursor(cursor.epoch, cursor.window + 1)
        own = share.part(packed.rows.shape[0])
        return RowBatch(packed.rows.part(own.start, own.stop), cursor.epoch, sum(map(len, examples)), after)


@dataclass(frozen=True)
class HeldOutData:
    """Records that a model is measured on, as inputs."""

    records: Sequence[Any]
    examples: Sequence[Example]


@dataclass(frozen=True)
class Evaluated:
    """An evaluation within a run.

    Attributes:
        step: Steps before it.
        epoch: Epochs before it, in fractions.
        loss: Mean loss of the steps since the evaluation before.
        metrics: By name.
    """

    step: int
    epoch: float
    loss: float
    metrics: Metrics

    def in_words(self) -> str:
        """`epoch  1.0: loss 0.413, accuracy 0.913`."""
        metrics = (f"{name} {'undefined' if value is None else f'{value:.3f}'}" for name, value in self.metrics.items())
        return f"epoch {self.epoch:>4.1f}: loss {self.loss:.3f}, {', '.join(metrics)}"


@dataclass(frozen=True)
class Fitted:
    """A finished run; its model holds the best weights.

    Attributes:
        model: In evaluation mode.
        seed: Of the run.
        history: All evaluations.
        best: The evaluation whose weights these are.
        seconds: Of training, evaluations included.
        stopped_early: Whether the metric had not risen for too long.
    """

    model: TaskNetwork
    seed: int
    history: tuple[Evaluated, ...]
    best: Evaluated
    seconds: float
    stopped_early: bool


@dataclass(frozen=True)
class FitPlan:
    """What every run of a fine-tuning shares.

    Attributes:
        task: What the model learns.
        settings: As given.
        metric: By which the best model is chosen.
        weights: Of the losses by class; None: all 1.
        train: Inputs to learn from.
        validation: What it is measured on.
        group: The processes that train together.
    """

    task: Task
    settings: FinetuneSettings
    metric: str
    weights: Sequence[float] | None
    train: Sequence[Example]
    validation: HeldOutData
    group: Group = ALONE


class FitWatch(Callback):
    """Evaluates a model as it learns, keeps the best weights, and ends the training where the metric has not risen for
    too long."""

    def __init__(self, plan: FitPlan, reporter: Reporter) -> None:
        self._plan, self._reporter = plan, reporter
        self._arrivals = Arrivals()

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Evaluates where it is time: so often an epoch, and at its end."""
        plan, state, model = self._plan, trainer.state, trainer.state.model
        state.recent_losses += [each.loss for each in self._arrivals.add(report)]
        batches = (trainer.settings.steps or 0) // plan.settings.epochs
        evaluations = min(plan.settings.evaluations_per_epoch, batches)
        if report.step * evaluations // batches == (report.step - 1) * evaluations // batches:
            return
        self.read_losses(trainer.state)
        evaluated = Evaluated(
            step=report.step,
            epoch=report.step / batches,
            loss=math.fsum(state.recent_losses) / len(state.recent_losses),
            # Rank 0's for all: by them all end alike.
            metrics=on_rank_zero(plan.group, lambda: evaluate(model, plan.task, plan.validation)[0]),
        )
        model.train()
        state.recent_losses = []
        ranks = [rank(each["metrics"], plan.metric) for each in state.history]
        if not ranks or rank(evaluated.metrics, plan.metric) > max(ranks):
            state.best_weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            best = len(ranks)
        else:
            best = ranks.index(max(ranks))
        state.history.append(vars(evaluated))
        trainer.evaluated(vars(evaluated))
        self._reporter.note(f"  {evaluated.in_words()}")
        if plan.settings.patience is not None and len(ranks) - best >= plan.settings.patience:
            trainer.request_stop()

    def read_losses(self, state: TrainState) -> None:
        """Waits for the losses that a GPU is still computing."""
        state.recent_losses += [each.loss for each in self._arrivals.rest()]


def fit(  # noqa: PLR0913  (what a run of fine-tuning is made of)
    model: TaskNetwork,
    plan: FitPlan,
    *,
    seed: int,
    reporter: Reporter,
    what: str = "training",
    folder: Path | None = None,
    fingerprint: str = "",
    interruption: Interruption | None = None,
    callbacks: Sequence[Callback] = (),
) -> Fitted:
    """Trains a model, with a head drawn anew, until the metric has not risen for a while or the epochs are over.

    Args:
        model: On its device; changed in place.
        plan: Data and settings.
        seed: Of order and dropout.
        reporter: Called with the progress.
        what: Name of the training.
        folder: Of the result; checkpoints are in it, from the last of which the training goes on. None: there are none.
        fingerprint: Of all that decides the weights but the seed.
        interruption: Notes signals; None: they are not looked at.
        callbacks: Of the user.

    Raises:
        DivergedError, MemoryFullError: As `Trainer.fit`.
        Interrupted: A signal came; the state was saved.
    """
    trainer = begin_training(model, plan, seed=seed)
    state, watch = trainer.state, FitWatch(plan, reporter)
    root, fingerprint = folder and folder / CHECKPOINTS, f"{fingerprint}, seed {seed}"
    if root is not None and (name := on_rank_zero(plan.group, lambda: last_checkpoint(root))) is not None:
        load_checkpoint(root / name, state, fingerprint=fingerprint)
        reporter.note(f"going on from step {state.step:,} of seed {seed}")
    if plan.group.is_main:
        trainer.callbacks.append(ShowProgress(reporter, what, may_end_early=plan.settings.patience is not None))
    trainer.callbacks += [*callbacks, watch]
    if folder is not None and interruption is not None:
        trainer.callbacks.append(StopAtSignal(interruption, folder))
    if root is not None and plan.group.is_main:
        sync = partial(watch.read_losses, state)
        trainer.callbacks.append(Checkpoints(root, CheckpointSettings(keep=1), fingerprint=fingerprint, sync=sync))
    with interruption.patience() if interruption is not None else nullcontext():
        trainer.fit()
    assert state.best_weights is not None, "the last step of an epoch is evaluated"
    model.load_state_dict(state.best_weights)
    history = [Evaluated(**each) for each in state.history]
    best = max(history, key=lambda each: rank(each.metrics, plan.metric))  # the first of equal ones
    stopped_early = state.step < (trainer.settings.steps or 0)
    return Fitted(model.eval(), seed, tuple(history), best, state.seconds, stopped_early)


def begin_training(model: TaskNetwork, plan: FitPlan, *, seed: int) -> Trainer:
    """The trainer of a model, with a head drawn anew, before its first step.

    Args:
        model: On its device; steps change it in place.
        plan: Data and settings.
        seed: Of order and dropout.
    """
    settings = plan.settings
    stream = ExampleStream(
        plan.train,
        batch_size=settings.batch_size,
        pad_id=model.pad_id,
        max_length=model.config.max_position_embeddings,
        seed=seed,
        alone=not model.encoder.shares_rows,
    )
    training = TrainingSettings(
        steps=settings.epochs * stream.batches,
        sequence_length=ROW,
        batch_tokens=ROW,  # the stream makes batches by examples
        learning_rate=settings.learning_rate_for(model.config.hidden_size),
        schedule=LinearDecay(kind="linear", warmup=settings.warmup),
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        optimizer=AdamWSettings(kind="adamw", betas=(0.9, 0.999), eps=1e-8),
        precision=settings.precision,
        seed=seed,
    )
    model.encoder.compute_dtype = choose_dtype(settings.precision, model.encoder.device)
    factors = factors_of(model, settings.layer_decay)
    return Trainer(
        model,
        stream,
        training,
        objective=plan.task.objective(plan.weights),
        optimizer=lambda model: build_optimizer(model, training, factor_of=factors),
        group=plan.group,
    )


def evaluate(model: TaskNetwork, task: Task, data: HeldOutData) -> tuple[Metrics, list[Any]]:
    """Predicts and measures, in the type that the model computes in.

    Args:
        model: With the task's head; in evaluation mode afterwards.
        task: The task.
        data: What it is measured on.
    """
    outputs = outputs_of(model.eval(), task, data.examples)
    predictions = task.decode(data.records, data.examples, outputs)
    return task.measure(data.records, predictions), predictions


def rank(metrics: Metrics, name: str) -> float:
    """A metric as a number that is higher the better; one that is not defined is the worst."""
    value = metrics[name]
    return -math.inf if value is None else -value if name in LOWER_IS_BETTER else value


Pretrained = MaskedLM | TransformersPretrained


def load_pretrained(folder: Path, tokenizer: Tokenizer, *, max_length: int | None) -> Pretrained:
    """Loads the encoder of a folder; `max_length` is the longest input that the settings ask for."""
    special = tokenizer.special
    if runs_in_transformers(folder):
        return load_transformers(folder, vocab_size=tokenizer.vocab_size, pad_id=special.pad, max_length=max_length)
    return load_model(folder, mask_id=special.mask)


def pooling_for(pretrained: Pretrained, kind: type[Task], named: ClassifierPooling | None) -> ClassifierPooling:
    """How whole texts are pooled.

    Args:
        pretrained: The encoder.
        kind: The task.
        named: By the settings.

    Raises:
        SettingsError: The model's head, or the task, has no place for it.
    """
    if isinstance(pretrained, TransformersPretrained) or not kind.of_texts:
        if named is not None:
            whose = "transformers' head pools in its own way" if kind.of_texts else "the task has no whole texts"
            raise SettingsError(f"finetune.pooling={named}: {whose}; omit it")
        return "first"
    layout = pretrained.config.layout
    has_choice = LAYOUTS[layout].pooling_key is not None
    if named == "mean" and not has_choice:
        raise SettingsError(f"finetune.pooling=mean: classifiers of the layout {layout} take the first token; omit it")
    return named or ("mean" if has_choice else "first")


class Runs:
    """All runs of a fine-tuning.

    Args:
        pretrained: The encoder; it stays as it is.
        tokenizer: Its tokenizer.
        files: What is learned from and measured on.
        task: What the model will do.
        settings: As given.
        reporter: Called with the progress.
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

    def run(
        self,
        folder: ResultFolder,
        finished: Sequence[FinishedRun],
        origin: Origin,
        *,
        fingerprint: str = "",
        interruption: Interruption | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> dict[str, Any]:
        """Trains from every seed, saves the best model, and writes what came of it.

        Args:
            folder: Of the result.
            finished: Seeds whose training is over, of an earlier call that was stopped; the best one's model is in the
                folder.
            origin: What the encoder is, for the card.
            fingerprint, interruption, callbacks: As for `fit`.
        """
        names, records = self.task.names, self.ledger["train"]["records"]
        labels = f", {len(names)} labels" if len(names) > 1 else ""
        rate = self.settings.learning_rate_for(self.pretrained.config.hidden_size)
        self.reporter.note(f"{self.task.kind}: {records:,} training examples{labels}; learning rate {rate:.2g}")
        runs, group = list(finished), self.plan.group
        if runs:
            self.reporter.note(f"going on: the training of {len(runs)} of {self.settings.seeds} seeds is over")
        for number in range(len(runs), self.settings.seeds):
            seed = self.settings.seed + number
            what = "training"
            if self.settings.seeds > 1:
                what = f"seed {seed} ({number + 1} of {self.settings.seeds})"
                self.reporter.note(what)
            fitted = fit(
                self.new_model(seed),
                self.plan,
                seed=seed,
                reporter=self.reporter,
                what=what,
                folder=folder.root,
                fingerprint=fingerprint,
                interruption=interruption,
                callbacks=callbacks,
            )
            self.plan.task.finish(fitted.model)
            fitted.model.encoder.compute_dtype = torch.float32  # figures are those of the saved model elsewhere
            on_rank_zero(group, lambda: self._keep(fitted, folder, runs))  # noqa: B023  (called at once)
        return on_rank_zero(group, lambda: self._finish(folder, runs, origin))

    def _keep(self, fitted: Fitted, folder: ResultFolder, runs: list[FinishedRun]) -> None:
        """Writes down what a seed has come to, and its model where it is better than those before it."""
        figures = self._figures(fitted)
        history = [{"seed": fitted.seed, **vars(each)} for each in fitted.history]
        is_best = all(self._rank(figures) > self._rank(other.figures) for other in runs)
        if is_best:
            place = folder.waiting(len(runs) + 1)
            with writing(place, SafetensorError):  # a folder that transformers' class for the task loads
                if isinstance(fitted.model, TransformersNetwork):
                    save_transformers_task(fitted.model, self.task.task_head, place)
                else:
                    save_task_model(fitted.model, self.task.task_head, place)
            # so that transformers gives the model the token types that it was trained with
            self.tokenizer.save(place, max_length=self.encoder.max_length, with_types=self.encoder.with_types)
            write_checksums(place)
        runs.append(FinishedRun(figures, history, is_best))
        folder.keep(runs)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)

    def new_model(self, seed: int) -> TaskNetwork:
        """What a run begins with, on its device.

        Raises:
            ModelError: The model cannot do the task.
        """
        head, trained = self.task.task_head, self.settings.initial_weights == "model"
        model: TaskNetwork
        if isinstance(self.pretrained, TransformersPretrained):
            model = transformers_with_head(
                self.pretrained, head, seed=seed, dropout=self.settings.dropout, trained=trained
            )
        else:
            model = with_task_head(self.pretrained, head, seed=seed, dropout=self.settings.dropout, trained=trained)
        self.plan.task.check_network(model)
        return model.to(choose_device())

    def _rank(self, figures: dict[str, Any]) -> float:
        return rank(figures["metrics"], self.plan.metric)

    def _figures(self, fitted: Fitted) -> dict[str, Any]:
        """Of a run, measured once more with the weights that are saved."""
        figures: dict[str, Any] = {
            "seed": fitted.seed,
            "metrics": evaluate(fitted.model, self.task, self.plan.validation)[0],
            "epochs": fitted.history[-1].epoch,
            "best_epoch": fitted.best.epoch,
            "steps": fitted.history[-1].step,
            "seconds": fitted.seconds,
            "stopped_early": fitted.stopped_early,
        }
        if self.test is not None:
            figures["test_metrics"] = evaluate(fitted.model, self.task, self.test)[0]
        return figures

    def _finish(self, folder: ResultFolder, finished: Sequence[FinishedRun], origin: Origin) -> dict[str, Any]:
        """The summary, the report and the card, all of the model as it was saved."""
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
        _, predictions = evaluate(best, self.task, self.plan.validation)
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
        longest, total = self.encoder.max_length, len(file.records)
        for count, what in (
            (encoded.truncated, f"texts are longer than {longest} tokens; their ends are not seen"),
            (
                encoded.split,
                f"texts are longer than {longest} tokens; they are seen in several parts, {len(encoded.examples):,} in "
                "all",
            ),
            (
                encoded.lost,
                f"answers are longer than a window of {longest} tokens has room for, or end in characters that the "
                "tokenizer leaves out; they are learned as no answer",
            ),
        ):
            if count:
                self.reporter.note(f"{file.path}: {count:,} of {total:,} {what}")
        return encoded


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
