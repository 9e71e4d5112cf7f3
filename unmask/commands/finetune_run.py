"""All runs of a fine-tuning, a seed after another: how they begin, the best model, and what is written of it.

A run begins with an encoder, of ours or of transformers, and a new head that is drawn from its seed. In the folder:

    model/           the best model: a transformers folder, with its tokenizer and its card
    settings.json    task, files and settings; a folder with it holds a result
    runs.jsonl       a line for each seed whose training is over: its figures and evaluations, with their checksum
    metrics.jsonl    a line at every evaluation
    checkpoints/     the latest state of the seed that is trained
    summary.json     figures of the result, written last
    report.html      all of it for the eye
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.core.errors import RunError, parse_json, sealed, unsealed
from unmask.core.files import ClaimedFolder, read_object, whole_folder, write_atomically, writing
from unmask.core.hashing import permutation
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.data.rows import WHOLE, Cursor, RowBatch, Share
from unmask.measure.uncertainty import mean_interval
from unmask.model.card_head import CardSettings, Origin, with_named
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_task_model, with_task_head
from unmask.model.stored_weights import write_checksums
from unmask.model.transformers import (
    TaskNetwork,
    TransformersNetwork,
    TransformersPretrained,
    save_transformers_task,
    transformers_with_head,
)
from unmask.report.cards import write_task_card
from unmask.report.pages import write_finetune_report
from unmask.tasks.files import Labelled
from unmask.tasks.inputs import ROW, Example, pack_examples
from unmask.tasks.predict import open_fine_tuned, outputs_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Metrics, Task
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Arrivals, Callback, StepReport
from unmask.train.checkpoints import fit
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import choose_device, choose_dtype
from unmask.train.optimizer import build_optimizer
from unmask.train.settings import AdamWSettings, CheckpointSettings, LinearDecay, TrainingSettings
from unmask.train.step import TrainState
from unmask.train.trainer import Trainer

# What may have changed when a fine-tuning goes on: the number of seeds, what the card says, and where files lie whose
# content is the same.
MAY_DIFFER = {"finetune.seeds", "finetune.card", "model", "train", "validation", "test"}
_ANEW = "replace the result with --overwrite"
_ORDER = 11  # sets this order apart from those of pretraining


class ResultFolder:
    """Paths within the folder, and the seeds whose training is over: of each its `figures` and its `history` of
    evaluations, as summary.json and metrics.jsonl have them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        self.settings = root / "settings.json"
        self.runs = root / "runs.jsonl"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        self.checkpoints = root / "checkpoints"
        self.claimed = ClaimedFolder(root=root, marker=self.settings.name, what="a result")

    @property
    def names(self) -> set[str]:
        """Of all that is written."""
        return {path.name for path in vars(self).values() if isinstance(path, Path) and path != self.root}

    def card(self, named: CardSettings) -> CardSettings:
        """What the card of the result that is here says, and what is named now."""
        before = read_object(self.settings, _ANEW).get("finetune")
        if not isinstance(before, dict) or not isinstance(before.get("card", {}), dict):
            raise RunError(f"{self.settings}: damaged (it does not say how the result was begun); {_ANEW}")
        return with_named(before.get("card", {}), named, where=f"{self.settings}: card")

    def begin(self, content: dict[str, Any], *, goes_on: bool) -> list[dict[str, Any]]:
        """Claims the folder, for a new result in place of any that is there, or for one that goes on, with the same
        settings and files and no fewer seeds; returns the seeds whose training is over."""
        finished: list[dict[str, Any]] = []
        if goes_on:
            before = read_object(self.settings, _ANEW)
            try:
                lines = self.runs.read_text(encoding="utf-8").splitlines() if self.runs.is_file() else []
                finished = [unsealed(parse_json(line)) for line in lines]
            except (ValueError, TypeError) as error:
                raise RunError(f"{self.root}: the result is damaged ({error}); {_ANEW}") from error
            self.claimed.check_same(before, json.loads(json.dumps(content)), but_for=MAY_DIFFER)
            if len(finished) > (seeds := content["finetune"]["seeds"]):
                raise RunError(
                    f"{self.root} holds {len(finished)} seeds whose training is over, but finetune.seeds is {seeds}; "
                    "ask for as many at least, or replace the result with --overwrite"
                )
        elif self.claimed.is_claimed:
            self.claimed.clear(self.names)
        self.claimed.make()
        self.claimed.claim(json.dumps(content, indent=2) + "\n")
        return finished


# ----------------------------------------
# One run: rates by layer, batches, evaluations, early stopping, best weights.


def factors_of(model: TaskNetwork, decay: float) -> Callable[[str], float]:
    """The share of the learning rate that each parameter takes, by its name: the less, the deeper it lies.

    A layer's number is the first whole number in a name. Layers that share their weights (ALBERT) are one layer here,
    however often they are gone through; where layers stand in groups (ALBERT with several, Funnel's blocks), the group
    counts as the layer. With 2 layers and a decay of 0.5:

        encoder.blocks.1.attention.qkv.weight                                       layer 1: 0.5
        encoder.model.deberta.encoder.layer.0.attention.self.query_proj.weight      layer 0: 0.25
        encoder.model.deberta.embeddings.word_embeddings.weight                     below all layers: 0.125
        encoder.model.deberta.encoder.rel_embeddings.weight                         with the embeddings
        encoder.model.deberta.encoder.LayerNorm.weight                              with the last layer
        encoder.model.bert.pooler.dense.weight                                      with the head: 1

    `decay` is the factor from each layer to the one below it. Source: Clark et al. 2020 (ELECTRA), appendix B.
    """
    is_ours = isinstance(model, MaskedLM)
    inside = "encoder." if isinstance(model, MaskedLM) else f"encoder.model.{model.encoder.model.base_model_prefix}."
    names = [name for name, _ in model.named_parameters() if name.startswith(inside)]
    layers = {name: next((int(part) for part in name.split(".") if part.isdigit()), None) for name in names}
    num_layers = max((number for number in layers.values() if number is not None), default=-1) + 1

    def factor(name: str) -> float:
        if not name.startswith(inside) or "pooler" in name:
            return 1.0
        number = layers[name]
        if number is None:
            is_embedding = not name.startswith("encoder.final_norm.") if is_ours else "embed" in name
            number = -1 if is_embedding else num_layers - 1
        return decay ** (num_layers - number)

    return factor


class ExampleStream:
    """An endless stream of examples in an order of their own each epoch, so many a batch, packed by `pack_examples`.

    The epoch's batches have about equally many: a step on a few examples would move the weights as far as one on many.
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
        self._seed, self._pad_id, self._max_length, self._alone = seed, pad_id, max_length, alone

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a place, or a share of it, and the place after it.

        Rows and their length are what the examples need; special tokens count as tokens here.
        """
        order = permutation(len(self.examples), _ORDER, self._seed, cursor.epoch)
        begin, end = (n * len(order) // self.batches for n in (cursor.window, cursor.window + 1))
        examples = [self.examples[number] for number in order[begin:end]]
        packed = pack_examples(examples, pad_id=self._pad_id, max_length=self._max_length, alone=self._alone)
        is_last = cursor.window + 1 == self.batches
        after = Cursor(cursor.epoch + 1) if is_last else Cursor(cursor.epoch, cursor.window + 1)
        own = share.part(packed.rows.shape[0])
        return RowBatch(packed.rows.part(own.start, own.stop), cursor.epoch, sum(map(len, examples)), after)


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
    """The trainer of a model that is on its device; `weights` are those of the losses by class."""
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
    factors = factors_of(model, settings.layer_decay)
    return Trainer(
        model,
        stream,
        training,
        objective=task.objective(weights),
        optimizer=lambda model: build_optimizer(model, training, factor_of=factors),
        group=group,
    )


def rank(metrics: Metrics, name: str) -> float:
    """A metric as a number that is higher the better; one that is not defined is the worst."""
    value = metrics[name]
    return -math.inf if value is None else -value if name in LOWER_IS_BETTER else value


class FitWatch(Callback):
    """Evaluates a model as it learns, keeps the best weights, and ends the training where the metric has not risen for
    too long."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._arrivals = Arrivals()

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Evaluates where it is time: so often an epoch, and at its end."""
        runs, state, settings = self._runs, trainer.state, self._runs.settings
        state.recent_losses += [each.loss for each in self._arrivals.add(report)]
        batches = (trainer.settings.steps or 0) // settings.epochs
        evaluations = min(settings.evaluations_per_epoch, batches)
        if report.step * evaluations // batches == (report.step - 1) * evaluations // batches:
            return
        self.read_losses(state)
        # Rank 0's for all: by them all end alike.
        metrics = on_rank_zero(runs.group, lambda: runs.evaluate(state.model, runs.learning, "validation")[0])
        state.model.train()
        loss = math.fsum(state.recent_losses) / len(state.recent_losses)
        evaluated = {"step": report.step, "epoch": report.step / batches, "loss": loss, "metrics": metrics}
        state.recent_losses = []
        ranks = [rank(each["metrics"], runs.metric) for each in state.history]
        if not ranks or rank(metrics, runs.metric) > max(ranks):
            state.best_weights = {name: tensor.detach().clone() for name, tensor in state.model.state_dict().items()}
            best = len(ranks)
        else:
            best = ranks.index(max(ranks))
        state.history.append(evaluated)
        trainer.evaluated(evaluated)
        figures = ", ".join(f"{name} {'undefined' if v is None else f'{v:.3f}'}" for name, v in metrics.items())
        runs.reporter.note(f"  epoch {evaluated['epoch']:>4.1f}: loss {loss:.3f}, {figures}")
        if settings.patience is not None and len(ranks) - best >= settings.patience:
            trainer.request_stop()

    def read_losses(self, state: TrainState) -> None:
        """Waits for the losses that a GPU is still computing."""
        state.recent_losses += [each.loss for each in self._arrivals.rest()]


# ----------------------------------------
# All runs.


@dataclass(frozen=True)
class Runs:
    """All runs of a fine-tuning."""

    pretrained: MaskedLM | TransformersPretrained  # stays as it is
    tokenizer: Tokenizer
    max_length: int  # of the model that is made
    task: Task  # what the model will do
    learning: Task  # what it learns
    files: Mapping[str, Labelled]  # `train`, `validation` and, where there is one, `test`
    examples: Mapping[str, Sequence[Example]]  # of each
    counts: Mapping[str, Mapping[str, int]]
    metric: str  # by which the best model is chosen
    weights: Sequence[float] | None  # of the losses by class; None: all 1
    settings: FinetuneSettings
    reporter: Reporter
    group: Group

    @property
    def learning_rate(self) -> float:
        """The peak rate."""
        return self.settings.learning_rate_for(self.pretrained.config.hidden_size)

    def trainer(self, seed: int) -> Trainer:
        """What a seed begins with, on its device. A ModelError says that the model cannot do the task."""
        head, settings = self.task.task_head, self.settings
        how = {"seed": seed, "dropout": settings.dropout, "trained": settings.initial_weights == "model"}
        model: TaskNetwork
        if isinstance(self.pretrained, TransformersPretrained):
            model = transformers_with_head(self.pretrained, head, **how)  # type: ignore[arg-type]
        else:
            model = with_task_head(self.pretrained, head, **how)  # type: ignore[arg-type]
        self.learning.check_network(model)
        return begin_training(
            model.to(choose_device()),
            self.learning,
            self.examples["train"],
            settings,
            seed=seed,
            weights=self.weights,
            group=self.group,
        )

    def evaluate(self, model: TaskNetwork, task: Task, name: str) -> tuple[Metrics, list[Any]]:
        """Metrics and predictions of a file, in the type that the model computes in; it is in evaluation mode then."""
        records, examples = self.files[name].records, self.examples[name]
        predictions = task.decode(records, examples, outputs_of(model.eval(), task, examples))
        return task.measure(records, predictions), predictions

    def run(
        self,
        folder: ResultFolder,
        finished: list[dict[str, Any]],
        origin: Origin,
        *,
        fingerprint: str,
        interruption: Interruption,
        callbacks: Sequence[Callback] = (),
    ) -> dict[str, Any]:
        """Trains from every seed that is not over, saves the best model, and writes the summary, which is returned.

        The fingerprint is one of all that decides the weights but the seed.
        """
        seeds, names = self.settings.seeds, self.task.names
        labels = f", {len(names)} labels" if len(names) > 1 else ""
        self.reporter.note(
            f"{self.task.kind}: {self.counts['train']['records']:,} training examples{labels}; learning rate "
            f"{self.learning_rate:.2g}"
        )
        if finished:
            self.reporter.note(f"going on: the training of {len(finished)} of {seeds} seeds is over")
        for number in range(len(finished), seeds):
            seed, what = self.settings.seed + number, "training"
            if seeds > 1:
                what = f"seed {seed} ({number + 1} of {seeds})"
                self.reporter.note(what)
            trainer, watch = self.trainer(seed), FitWatch(self)
            state, trainer.fingerprint = trainer.state, f"{fingerprint}, seed {seed}"
            ends_early = self.settings.patience is not None
            fit(
                trainer, folder.root, watch, interruption, self.reporter, CheckpointSettings(keep=1), callbacks,
                sync=partial(watch.read_losses, state), what=what, may_end_early=ends_early,
            )  # fmt: skip
            assert state.best_weights is not None, "the last step of an epoch is evaluated"
            state.model.load_state_dict(state.best_weights)
            self.learning.finish(state.model.eval())
            state.model.encoder.compute_dtype = torch.float32  # figures are those of the saved model elsewhere
            on_rank_zero(self.group, partial(self._keep, trainer, seed, folder, finished))
        return on_rank_zero(self.group, lambda: self._finish(folder, finished, origin))

    def _keep(self, trainer: Trainer, seed: int, folder: ResultFolder, finished: list[dict[str, Any]]) -> None:
        """Writes down what a seed has come to, and its model where it is better than those before it."""
        state = trainer.state
        model, history = state.model, state.history
        best = max(history, key=lambda each: rank(each["metrics"], self.metric))  # the first of equal ones
        figures: dict[str, Any] = {
            "seed": seed,
            "metrics": self.evaluate(model, self.task, "validation")[0],  # once more, with the weights that are saved
            "epochs": history[-1]["epoch"],
            "best_epoch": best["epoch"],
            "steps": history[-1]["step"],
            "seconds": state.seconds,
            "stopped_early": state.step < (trainer.settings.steps or 0),
        }
        if "test" in self.files:
            figures["test_metrics"] = self.evaluate(model, self.task, "test")[0]
        best_before = max((rank(other["figures"]["metrics"], self.metric) for other in finished), default=None)
        if best_before is None or rank(figures["metrics"], self.metric) > best_before:
            with writing(folder.model, SafetensorError), whole_folder(folder.model) as partial:
                if isinstance(model, TransformersNetwork):
                    save_transformers_task(model, self.task.task_head, partial)
                else:
                    save_task_model(model, self.task.task_head, partial)
                # so that transformers gives the model the token types that it was trained with
                with_types = self.pretrained.config.num_types > 1
                self.tokenizer.save(partial, max_length=self.max_length, with_types=with_types)
                write_checksums(partial)
        finished.append({"figures": figures, "history": [{"seed": seed, **each} for each in history]})
        # A kill before runs.jsonl is written lets the seed be trained again, to the same model.
        write_atomically(folder.runs, "".join(json.dumps(sealed(run)) + "\n" for run in finished))
        lines = (line for run in finished for line in run["history"])
        write_atomically(folder.metrics, "".join(json.dumps(line) + "\n" for line in lines))
        shutil.rmtree(folder.checkpoints, ignore_errors=True)

    def _finish(self, folder: ResultFolder, finished: Sequence[dict[str, Any]], origin: Origin) -> dict[str, Any]:
        """The summary, the report and the card, all of the model as it was saved."""
        runs = [run["figures"] for run in finished]
        own = max(runs, key=lambda figures: rank(figures["metrics"], self.metric))
        best = open_fine_tuned(folder.model, self.tokenizer).network.to(choose_device())
        summary: dict[str, Any] = {
            "model": str(folder.model),
            "task": self.task.kind,
            "metric": self.metric,
            "metrics": own["metrics"],
            "best_seed": own["seed"],
            "seeds": runs,
            **spread("metrics", runs),
            "labels": list(self.task.names),
            "examples": self.counts,
            "learning_rate": self.learning_rate,
            "num_parameters": best.num_encoder_parameters,
        }
        if "test" in self.files:
            summary |= {"test_metrics": own["test_metrics"], **spread("test_metrics", runs, prefix="test_")}
        _, predictions = self.evaluate(best, self.task, "validation")
        names = {name: file.path.name for name, file in self.files.items()}
        write_finetune_report(
            folder.report,
            summary=summary,
            settings=self.settings.model_dump(),
            history=[line for run in finished for line in run["history"]],
            classes=self.task.right_and_predicted(self.files["validation"].records, predictions),
            files=names,
        )
        write_task_card(
            folder.model,
            task=self.task,
            summary=summary,
            settings=self.settings,
            files=names,
            classes=Counter(name for record in self.files["train"].records for name in self.task.classes_of(record)),
            max_length=self.max_length,
            origin=origin,
        )
        write_atomically(folder.summary, json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return summary


def spread(key: str, runs: Sequence[dict[str, Any]], *, prefix: str = "") -> dict[str, Metrics]:
    """Mean over the runs, deviation of the sample, and half the width of the mean's 95 % interval (Student's t).

    None where a run has no value, or there is one run only; the width also where all runs have the same value.
    """
    figures: dict[str, Metrics] = {f"{prefix}{name}": {} for name in ("mean", "deviation", "margin")}
    for name in runs[0][key]:
        values = [run[key][name] for run in runs]
        values = [] if None in values else values
        interval = mean_interval(values) if values else None
        figures[f"{prefix}mean"][name] = statistics.fmean(values) if values else None
        figures[f"{prefix}deviation"][name] = statistics.stdev(values) if len(values) > 1 else None
        figures[f"{prefix}margin"][name] = None if interval is None else (interval[1] - interval[0]) / 2
    return figures
