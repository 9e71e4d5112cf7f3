"""All runs of a fine-tuning, one seed after another: how they start, the best model, and the files of the result.

A run starts from an encoder, ours or one of transformers, with a new head drawn from its seed. In the folder:

    model/           the best model: a transformers folder, with its tokenizer and its card
    settings.json    task, files and settings; marks the folder as a result
    runs.jsonl       a line for each finished seed: its `figures` and its `history` of evaluations, as in summary.json
                     and metrics.jsonl, with their checksum
    metrics.jsonl    a line at every evaluation
    checkpoints/     the latest state of the seed in training
    mistakes.json    confusions of classes and the most confident mistakes on the validation file
    summary.json     figures of the result, written last
    report.html      figures and curves, for reading
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.core.compiled import keep_to_quota
from unmask.core.errors import CorpusError, SettingsError, listed, sealed, shown
from unmask.core.files import whole_folder, write_atomically, write_object, writing
from unmask.core.hashing import permutation
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter, decimals
from unmask.data.rows import WHOLE, Cursor, RowBatch, Share
from unmask.measure.uncertainty import bootstrap_intervals, mean_interval
from unmask.model.card_head import Origin
from unmask.model.config import Layout
from unmask.model.encoder import MaskedLM
from unmask.model.folder import (
    check_vocabulary,
    files_checked,
    load_model,
    save_task_model,
    with_task_head,
    write_checksums,
)
from unmask.model.layout_names import LAYOUTS, ClassifierPooling
from unmask.model.transformers import (
    TaskNetwork,
    TransformersNetwork,
    TransformersPretrained,
    load_transformers,
    save_transformers_task,
    transformers_with_head,
    why_in_transformers,
)
from unmask.report.cards import write_task_card
from unmask.report.pages import confusion_of, worst_of, write_finetune_report
from unmask.tasks.classify import CLASS_METRICS, class_metrics
from unmask.tasks.files import Columns, ExampleFiles, Labelled, read_labelled
from unmask.tasks.inputs import ROW, Example, InputEncoder, pack_examples
from unmask.tasks.loaded_model import as_model
from unmask.tasks.task import FinetuneSettings, Metrics, Task, outputs_of
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.callbacks import Callback, StepReport
from unmask.train.checkpoints import fit, remove_checkpoints
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import choose_device, choose_dtype
from unmask.train.settings import AdamWSettings, CheckpointSettings, LinearDecay, TrainingSettings
from unmask.train.trainer import Trainer

_LEAST_HELD_OUT = 20  # rows
_LEAST_LEFT = 2  # examples of each class that stay in training
_ORDER = 11  # makes this order independent of those of pretraining


# ----------------------------------------
# One run: batches, evaluations, early stopping, best weights.


class ExampleStream:
    """An endless stream of batches of examples, shuffled each epoch and packed by `pack_examples`.

    Batches have about equally many examples: a step on a few would move the weights as far as one on many.
    """

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
        self._pad_id, self._max_length, self._alone = pad_id, max_length, alone
        self._order = lru_cache(maxsize=1)(partial(permutation, len(examples), _ORDER, seed))  # of an epoch

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch has the rows and the length that its examples need; special tokens count as tokens here."""
        order = self._order(cursor.epoch)
        begin, end = (n * len(order) // self.batches for n in (cursor.window, cursor.window + 1))
        examples = [self.examples[number] for number in order[begin:end]]
        rows = pack_examples(examples, pad_id=self._pad_id, max_length=self._max_length, alone=self._alone)
        is_last = cursor.window + 1 == self.batches
        after = Cursor(cursor.epoch + 1) if is_last else Cursor(cursor.epoch, cursor.window + 1)
        own = share.part(rows.shape[0])
        return RowBatch(rows.part(own.start, own.stop), cursor.epoch, sum(map(len, examples)), after)


def begin_training(
    model: TaskNetwork,
    task: Task,
    examples: Sequence[Example],
    settings: FinetuneSettings,
    *,
    seed: int,
    weights: Sequence[float] | None = None,
    group: Group = ALONE,
) -> Trainer:
    """The trainer of a model, which is on its device already; `weights` are those of the losses, by class."""
    stream = ExampleStream(
        examples,
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
    return Trainer(model, stream, training, objective=task.objective(weights), group=group)


# ----------------------------------------
# All runs.


def read_files(
    kind: type[Task],
    paths: Mapping[str, ExampleFiles],
    settings: FinetuneSettings,
    note: Callable[[str], None],
    *,
    pooling: ClassifierPooling = "first",
) -> tuple[dict[str, Labelled], Task]:
    """Reads the files `train`, `validation` and perhaps `test`; also returns the task, as learned from `train`."""
    for name in ("stride", "longest_answer"):
        if name in settings.model_fields_set and name not in kind.stored:
            raise SettingsError(f"finetune.{name} is for answers, not for {kind.kind}; leave it out", options=["set"])
    how: dict[str, Any] = {"separator": settings.label_separator, "reading": settings}
    train = read_labelled(paths["train"], kind, settings.columns, **how)
    for line in train.notes:
        note(line)
    if train.columns:
        hint = "" if train.columns.items() <= dict(settings.columns).items() else " (override with text, second, label)"
        note("columns: " + ", ".join(f"{role} in {name!r}" for role, name in train.columns.items()) + hint)
    files = {"train": train}
    if "validation" not in paths:
        files["train"], files["validation"] = train, held = hold_out(train, kind)
        note(f"validation: {held.path.name}, {len(held.records):,} rows chosen by a hash (or give a validation file)")
    task = replace(kind.learned_from(train, settings, pooling), delimiter=settings.delimiter)
    if remark := task.check(train, train.path):
        note(remark)
    columns = Columns(**train.columns) if train.columns else settings.columns
    labels_of: dict[str, tuple[str, ...]] = {}  # by training text
    mixed = dict[str, None]()
    for record in train.records:
        text, labels = task.text_of(record), tuple(sorted(task.classes_of(record)))
        if labels_of.setdefault(text, labels) != labels:
            mixed[text] = None
    if mixed:
        note(f"{train.path}: texts with different labels: {len(mixed):,}, such as {shown(next(iter(mixed)))}")
    for name in sorted({"validation", "test"} & paths.keys(), reverse=True):
        file = files[name] = read_labelled(paths[name], kind, columns, like=train, **how)
        again = [text for text in map(task.text_of, file.records) if text in labels_of]
        share = f"{len(again):,} of {len(file.records):,} texts ({len(again) / len(file.records):.1%})"
        overlap = (
            f"{file.path}: {share} are also in {train.path}, word for word, such as {shown(again[0])}" if again else ""
        )
        for line in filter(None, (*file.notes, task.check(file, train.path), overlap)):
            note(line)
    return files, task


def hold_out(train: Labelled, kind: type[Task]) -> tuple[Labelled, Labelled]:
    """Splits a tenth of the records off the training file, by a hash of their text, so equal ones stay together and
    every seed has the same. At least two records of each class are left to train on."""
    numbers_of: dict[str, list[int]] = {}
    for number, record in enumerate(train.records):
        key = hashlib.sha256(kind.text_of(record).encode()).hexdigest()
        numbers_of.setdefault(key, []).append(number)
    size, held = len(train.records) // 10, set[int]()
    remaining = Counter(name for record in train.records for name in kind.classes_of(record))
    for _, numbers in sorted(numbers_of.items()):
        own = Counter(name for number in numbers for name in kind.classes_of(train.records[number]))
        stays = any(remaining[name] - count < _LEAST_LEFT for name, count in own.items())
        if len(held) < size and len(held) + len(numbers) <= 2 * size and not stays:
            held.update(numbers)
            remaining.subtract(own)
    if len(held) < _LEAST_HELD_OUT:
        raise CorpusError(
            f"{train.path}: a tenth is held out, but only {len(held):,} of {len(train.records):,} rows can serve for "
            f"validation, which needs {_LEAST_HELD_OUT}: equal texts stay together, and {_LEAST_LEFT} examples of each "
            "class stay for training; give a separate file",
            options=("validation",),
        )
    learned, rest = ([r for n, r in enumerate(train.records) if (n in held) is is_held] for is_held in (False, True))
    return replace(train, records=learned), replace(train, records=rest, path=Path(f"a tenth of {train.path.name}"))


def class_weights(train: Labelled, task: Task, weights: str | Mapping[str, float] | None) -> list[float] | None:
    """Weights of the losses by class, in the order of the classes.

    Example: 30 examples of `a` and 10 of `b`, balanced: 40 / (2 x 30) = 2/3 and 40 / (2 x 10) = 2.
    """
    if weights is None:
        return None
    counts = Counter(name for record in train.records for name in task.classes_of(record))
    if not counts:
        raise SettingsError(f"finetune.class_weights: the task {task.kind!r} has no classes; remove it")
    if not isinstance(weights, str):
        if unknown := sorted(set(weights) - set(task.names)):
            raise SettingsError(
                f"finetune.class_weights: there is no class {unknown[0]!r} in {train.path}; it has "
                f"{listed(task.names, 8)}"
            )
        return [weights.get(name, 1.0) for name in task.names]
    if task.of_flags:  # any number of labels: a weight is that of texts with the label against those without
        return [max(len(train.records) - counts[name], 1) / counts[name] for name in task.names]
    return [counts.total() / (len(task.names) * counts[name]) for name in task.names]


def selecting_metric(task: Task, named: str | None) -> str:
    names = task.metric_names
    if named is not None and named not in names:
        raise SettingsError(f"finetune.metric = {named!r}: metrics of this task are {', '.join(names)}")
    return named or names[0]


def usable_pooling(
    named: ClassifierPooling | None, layout: Layout | None, kind: type[Task], *, model: str = "this model"
) -> ClassifierPooling:
    """The pooling of whole texts: the named one, or the mean if the layout has that; None is no layout of ours."""
    choices: tuple[ClassifierPooling, ...] = ()
    if layout is not None and kind.of_texts:
        choices = ("first",) if LAYOUTS[layout].pooling_key is None else ("mean", "first")
    if named is not None and named not in choices:
        one_of = " or ".join(choices) or "no choice"
        raise SettingsError(f"finetune.pooling={named}: {model} allows {one_of} for {kind.kind}; omit it")
    return named or (choices[0] if choices else "first")


class Runs(Callback):
    """All runs of a fine-tuning: an encoder and the files of a task, read and checked against each other.

    It is a callback of each run's trainer: it evaluates, keeps the best weights, and stops early if the metric no
    longer rises.
    """

    def __init__(
        self,
        source: Path,
        kind: type[Task],
        paths: Mapping[str, ExampleFiles],
        settings: FinetuneSettings,
        reporter: Reporter,
        group: Group,
    ) -> None:
        self.settings, self.reporter, self.group = settings, reporter, group
        self.pretrained: MaskedLM | TransformersPretrained  # never changed: each run trains a copy
        with files_checked(source):
            self.tokenizer = load_tokenizer(source)
            special, vocab_size = self.tokenizer.special, self.tokenizer.vocab_size
            if why_in_transformers(source) is not None:
                self.pretrained = load_transformers(
                    source, vocab_size=vocab_size, pad_id=special.pad, max_length=settings.max_length
                )
            else:
                self.pretrained = load_model(source, mask_id=special.mask)
                check_vocabulary(source, vocab_size, self.pretrained.config.vocab_size)
        self.learning_rate = settings.learning_rate_for(self.pretrained.config.hidden_size)

        layout = self.pretrained.config.layout if isinstance(self.pretrained, MaskedLM) else None
        pooling = usable_pooling(settings.pooling, layout, kind)

        # Files, and their records as inputs.
        for name, each in paths.items():
            if each.path.is_dir():
                names = ", ".join(part.path.name for part in each.sources[:3])
                reporter.note(f"{name}: {names} ({len(each.sources)}) of {each.path}")
        # `train`, `validation` and, if given, `test`; `examples` and `counts` have the same keys.
        self.files, self.task = read_files(kind, paths, settings, reporter.note, pooling=pooling)
        rows = [record.row for record in self.files["validation"].records]
        self.held_out = hashlib.sha256(str(rows).encode()).hexdigest()  # identifies rows that were split off, too
        self.metric = selecting_metric(self.task, settings.metric)  # by which the best model is chosen
        self.weights = class_weights(self.files["train"], self.task, settings.class_weights)  # of the losses
        encoder = InputEncoder(self.tokenizer, self.pretrained.config, max_length=settings.max_length)
        self.max_length = encoder.max_length  # of the model that is made
        self.examples: dict[str, list[Example]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        for name, file in self.files.items():
            is_train = name == "train"
            encoded = self.task.encode(file.records, encoder, with_targets=is_train)
            self.tokenizer.watch(encoded.unknown_in(file.records, self.tokenizer))
            self.examples[name] = encoded.examples
            total, num_inputs = len(file.records), len(encoded.examples)
            numbers = {"records": total, "inputs": num_inputs, "truncated": encoded.truncated, "split": encoded.split}
            self.counts[name] = numbers
            for line in encoded.notes(total, self.max_length, self.pretrained.config.max_position_embeddings):
                reporter.note(f"{file.path}: {line}")

    @property
    def labels(self) -> str:
        """The number of labels, as the end of a sentence."""
        return f", {len(self.task.names)} labels" if len(self.task.names) > 1 else ""

    def trainer(self, seed: int) -> Trainer:
        """The trainer of a seed, with its model on its device. A ModelError if the model cannot do the task."""
        head, settings = self.task.task_head, self.settings
        how = {"seed": seed, "dropout": settings.dropout, "trained": settings.initial_weights == "model"}
        model: TaskNetwork
        if isinstance(self.pretrained, TransformersPretrained):
            model = transformers_with_head(self.pretrained, head, **how)  # type: ignore[arg-type]
        else:
            model = with_task_head(self.pretrained, head, **how)  # type: ignore[arg-type]
        self.task.check_network(model)
        keep_to_quota()
        return begin_training(
            model.to(choose_device()),
            self.task,
            self.examples["train"],
            settings,
            seed=seed,
            weights=self.weights,
            group=self.group,
        )

    def on_figures(self, trainer: Trainer, report: StepReport) -> None:
        trainer.state.recent_losses.append(report.loss)

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step % self._batches(trainer) == 0:
            self._evaluate(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Evaluates a training that another callback has stopped within an epoch."""
        state = trainer.state
        if trainer.error is None and (not state.history or state.history[-1]["step"] < state.step):
            self._evaluate(trainer)

    def _batches(self, trainer: Trainer) -> int:
        return (trainer.settings.steps or 0) // self.settings.epochs

    def _evaluate(self, trainer: Trainer) -> None:
        state = trainer.state
        with trainer.evaluating():
            # All ranks take rank 0's metrics, so that all stop at the same step.
            metrics = on_rank_zero(self.group, lambda: self.evaluate(state.model, self.task, "validation")[0])
        state.model.train()
        loss = math.fsum(state.recent_losses) / len(state.recent_losses)
        epoch = math.ceil(state.step / self._batches(trainer))
        evaluated = {"step": state.step, "epoch": epoch, "loss": loss, "metrics": metrics}
        state.recent_losses = []
        state.history.append(evaluated)
        if self._best(state.history) is evaluated:
            state.keep_weights()
        trainer.evaluated(evaluated)
        figures = ", ".join(f"{name} {decimals(v)}" for name, v in metrics.items())
        self.reporter.note(f"  epoch {epoch:>3}: loss {loss:.3f}, {figures}")
        self.stop_early(trainer)

    def stop_early(self, trainer: Trainer) -> None:
        history, patience = trainer.state.history, self.settings.patience
        if history and patience is not None and len(history) - 1 - history.index(self._best(history)) >= patience:
            trainer.request_stop()

    def _best(self, evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """That with the best metric; the first one of equal ones."""
        return max(evaluations, key=lambda each: self.task.rank(each["metrics"], self.metric))

    def evaluate(self, model: TaskNetwork, task: Task, name: str) -> tuple[Metrics, Sequence[Any]]:
        """Metrics and predictions on a file, in the model's compute dtype. Puts the model in evaluation mode."""
        records, examples = self.files[name].records, self.examples[name]
        predictions = task.decode(records, examples, outputs_of(model.eval(), task, examples))
        return task.measure(records, predictions), predictions

    def run(
        self,
        root: Path,
        finished: list[dict[str, Any]],
        origin: Origin,
        *,
        fingerprint: str,
        interruption: Interruption,
        callbacks: Sequence[Callback] = (),
        with_intervals: bool = True,
    ) -> dict[str, Any]:
        """Trains every seed that is not finished, saves the best model, and writes and returns the summary.

        The fingerprint covers all that determines the weights, except the seed.
        """
        seeds = self.settings.seeds
        self.reporter.note(
            f"{self.task.kind}: {self.counts['train']['records']:,} training examples{self.labels}; learning rate "
            f"{self.learning_rate:.2g}"
        )
        if finished:
            self.reporter.note(f"resuming: {len(finished)} of {seeds} seeds are already trained")
            finished_fingerprints = {f"{fingerprint}, seed {run['figures']['seed']}" for run in finished}
            on_rank_zero(self.group, lambda: remove_checkpoints(root / "checkpoints", finished_fingerprints))
        for number in range(len(finished), seeds):
            seed, what = self.settings.seed + number, "training"
            if seeds > 1:
                what = f"seed {seed} ({number + 1} of {seeds})"
                self.reporter.note(what)
            trainer = self.trainer(seed)
            state, trainer.fingerprint = trainer.state, f"{fingerprint}, seed {seed}"
            ends_early = self.settings.patience is not None
            fit(
                trainer, root, self, interruption, self.reporter, CheckpointSettings(keep=1), callbacks,
                begin=partial(self.stop_early, trainer), with_metrics=False, what=what, section="finetune",
                may_end_early=ends_early,
            )  # fmt: skip
            assert state.best_weights is not None, "the last step is evaluated"
            state.model.load_state_dict(state.best_weights)
            finished_task = self.task.finish(state.model.eval())
            state.model.encoder.compute_dtype = torch.float32  # as the saved model computes elsewhere
            on_rank_zero(self.group, partial(self._record_seed, trainer, finished_task, seed, root, finished))
        return on_rank_zero(self.group, lambda: self._finish(root, finished, origin, with_intervals and seeds == 1))

    def _record_seed(self, trainer: Trainer, task: Task, seed: int, root: Path, finished: list[dict[str, Any]]) -> None:
        """Records the result of a seed, and saves its model if it is better than those before it."""
        state = trainer.state
        model, history = state.model, state.history
        figures: dict[str, Any] = {
            "seed": seed,
            "metrics": self.evaluate(model, task, "validation")[0],  # once more, with the weights that are saved
            "epochs": history[-1]["epoch"],
            "best_epoch": self._best(history)["epoch"],
            "steps": history[-1]["step"],
            "seconds": state.seconds,
            "stopped_early": state.step < (trainer.settings.steps or 0),
        }
        if "test" in self.files:
            figures["test_metrics"] = self.evaluate(model, task, "test")[0]
        for name in ("summary.json", "report.html"):  # of fewer seeds, and perhaps of another model
            (root / name).unlink(missing_ok=True)
        if self._best([*(run["figures"] for run in finished), figures]) is figures:
            with writing(root / "model", SafetensorError), whole_folder(root / "model") as folder:
                if isinstance(model, TransformersNetwork):
                    save_transformers_task(model, task.task_head, folder)
                else:
                    save_task_model(model, task.task_head, folder)
                # so that transformers gives the model the token types that it was trained with
                with_types = self.pretrained.config.num_types > 1
                self.tokenizer.save(folder, max_length=self.max_length, with_types=with_types)
                write_checksums(folder)
        finished.append({"figures": figures, "history": [{"seed": seed, **each} for each in history]})
        lines = (line for run in finished for line in run["history"])
        write_atomically(root / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        # If the process is killed before runs.jsonl is written, the seed is trained again, to the same model.
        write_atomically(root / "runs.jsonl", "".join(json.dumps(sealed(run)) + "\n" for run in finished))
        shutil.rmtree(root / "checkpoints", ignore_errors=True)

    def _finish(
        self, root: Path, finished: Sequence[dict[str, Any]], origin: Origin, with_intervals: bool
    ) -> dict[str, Any]:
        runs = [run["figures"] for run in finished]
        best_figures = self._best(runs)
        model = as_model(root / "model")
        best, task = model.fine_tuned
        summary: dict[str, Any] = {
            "model": str(root / "model"),
            "task": self.task.kind,
            "metric": self.metric,
            "metrics": best_figures["metrics"],
            "best_seed": best_figures["seed"],
            "seeds": runs,
            **spread("metrics", runs),
            "labels": list(self.task.names),
            "examples": self.counts,
            "learning_rate": self.learning_rate,
            "num_parameters": best.num_encoder_parameters,
        }
        _, predictions = self.evaluate(best, task, "validation")
        records = self.files["validation"].records
        summary["warning"] = learned_nothing(task, best_figures["metrics"], self.metric, records, predictions)
        if summary["warning"]:
            self.reporter.warn(summary["warning"])
        if "test" in self.files:
            summary |= {"test_metrics": best_figures["test_metrics"], **spread("test_metrics", runs, prefix="test_")}
        if with_intervals:
            summary["interval"] = intervals(task, records, predictions)
            if "test" in self.files:
                test_predictions = self.evaluate(best, task, "test")[1]
                summary["test_interval"] = intervals(task, self.files["test"].records, test_predictions)
        names = {name: file.path.name for name, file in self.files.items()}
        judged = task.judged(records, predictions)
        confusion = confusion_of(*self.task.right_and_predicted(records, predictions))
        worst = worst_of(judged)
        texts_of_worst = [{**each._asdict(), "texts": texts} for each, texts in worst]
        write_object(root / "mistakes.json", {"confusion": confusion, "worst": texts_of_worst})
        write_finetune_report(
            root / "report.html",
            summary=summary,
            settings=self.settings.model_dump(),
            history=[line for run in finished for line in run["history"]],
            confusion=confusion,
            worst=worst,
            files=names,
        )
        write_task_card(
            root / "model",
            task=self.task,
            summary=summary,
            settings=self.settings,
            files=names,
            classes=Counter(name for record in self.files["train"].records for name in self.task.classes_of(record)),
            max_length=self.max_length,
            origin=origin,
        )
        write_atomically(root / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return summary


def intervals(task: Task, records: Sequence[Any], predictions: Sequence[Any]) -> dict[str, list[float] | None]:
    """95 % intervals of a model's metrics over documents; they say nothing about other seeds."""
    shares = [name for name in task.metric_names if task.items(records, name) is not None]
    return bootstrap_intervals(task.measured(records, predictions), list(map(task.text_of, records)), shares=shares)


def learned_nothing(
    task: Task, metrics: Metrics, metric: str, records: Sequence[Any], predictions: Sequence[Any]
) -> str:
    """Evidence that a model is no better than one that predicts the same for all; empty if it is better."""
    right, predicted = task.right_and_predicted(records, predictions)
    if not predicted:
        predicted = [
            str(getattr(each, name)) for each in predictions for name in ("labels", "answer") if hasattr(each, name)
        ]
    value, what = metrics[metric], ""
    if len(set(predicted)) == 1 and len(records) > 1 and len(set(right)) != 1:
        unit = "words" if task.kind == "tag" else "texts"
        what = f"learned nothing: it predicts {predicted[0]!r} for all {len(predicted):,} {unit}"
    elif len(set(right)) > 1 and metric in CLASS_METRICS:
        common = Counter(right).most_common(1)[0][0]
        always = class_metrics(right, [common] * len(right))[metric] or 0.0
        if value is not None and value <= always:
            what = f"is no better than predicting {common!r} for all: {metric} {value:.3f} against {always:.3f}"
    elif task.kind == "regress":
        error, deviation = metrics["rmse"] or 0.0, statistics.pstdev(record.label for record in records)
        if deviation and error >= deviation:
            what = f"is no better than predicting the mean for all: rmse {error:.3g} against {deviation:.3g}"
    elif value == 0.0 and metric not in task.lower_is_better:
        what = f"learned nothing: its {metric.replace('_', ' ')} is 0"
    weights = "finetune.class_weights=balanced if classes are rare, " if any(map(task.classes_of, records)) else ""
    return what and (
        f"the model {what}; try more epochs or examples, another finetune.learning_rate, "
        f"{weights}or a model that was pretrained longer"
    )


def spread(key: str, runs: Sequence[dict[str, Any]], *, prefix: str = "") -> dict[str, Metrics]:
    """Mean over the runs, deviation of the sample, and half the width of the mean's 95 % interval (Student's t).

    All are None if a run has no value; deviation and width also with a single run, the width also if all are equal.
    """
    figures: dict[str, Metrics] = {f"{prefix}{name}": {} for name in ("mean", "deviation", "margin")}
    for name in runs[0][key]:
        values = [run[key][name] for run in runs]
        values = [] if None in values else values
        interval = mean_interval(values)
        figures[f"{prefix}mean"][name] = statistics.fmean(values) if values else None
        figures[f"{prefix}deviation"][name] = statistics.stdev(values) if len(values) > 1 else None
        figures[f"{prefix}margin"][name] = None if interval is None else (interval[1] - interval[0]) / 2
    return figures
