"""All runs of a fine-tuning, a seed after another: how they begin, the best model, and what is written of it.

A run begins with an encoder, of ours or of transformers, and a new head that is drawn from its seed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.commands.recipe_files import Overrides, apply_overrides, as_overrides, set_value
from unmask.core.errors import (
    CorpusError,
    RunError,
    SettingsError,
    parse_json,
    sealed,
    unsealed,
)
from unmask.core.files import ClaimedFolder, write_atomically, writing
from unmask.core.hashing import permutation
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.core.settings import validated
from unmask.data.rows import WHOLE, Cursor, RowBatch, Share
from unmask.data.sources import InMemory, Texts, paths_or_texts, readable
from unmask.measure.uncertainty import mean_interval
from unmask.model.card_head import CardSettings, Origin, with_named
from unmask.model.encoder import MaskedLM
from unmask.model.folder import TaskHead, TaskNetwork, load_model, save_task_model, with_task_head
from unmask.model.layout_names import LAYOUTS, ClassifierPooling
from unmask.model.stored_weights import write_checksums
from unmask.model.transformers import TransformersTask
from unmask.model.transformers_folder import (
    TransformersPretrained,
    load_transformers,
    runs_in_transformers,
    save_transformers_task,
    transformers_with_head,
)
from unmask.report.cards import write_task_card
from unmask.report.pages import write_finetune_report
from unmask.tasks.files import ExampleFiles, example_files, read_labelled
from unmask.tasks.inputs import ROW, EncodedInput, Example, InputEncoder, pack_examples
from unmask.tasks.predict import open_fine_tuned, outputs_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Labelled, Metrics, Task, few
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Arrivals, Callback, ShowProgress, StepReport, StopAtSignal
from unmask.train.checkpoints import Checkpoints, TrainState, last_checkpoint, load_checkpoint
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import choose_device, choose_dtype
from unmask.train.optimizer import build_optimizer
from unmask.train.settings import AdamWSettings, CheckpointSettings, LinearDecay, TrainingSettings
from unmask.train.trainer import Trainer

# ----------------------------------------
# The files and the settings of a fine-tuning, read and found to fit each other.

_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy", "seqeval": "seqeval"}


@dataclass(frozen=True)
class Files:
    """The files that were given, read."""

    train: Labelled
    validation: Labelled
    test: Labelled | None


def settings_of(overrides: Sequence[str]) -> FinetuneSettings:
    """The settings that `finetune.key=value` overrides say, and those of the card that `card.key=value` ones do.

    Raises:
        SettingsError: One is of another section, or not known, or has a value that it cannot have.
    """
    values: dict[str, Any] = {}
    apply_overrides(values, overrides)
    if strangers := sorted(set(values) - {"finetune", "card"}):
        raise SettingsError(
            f"{strangers[0]}: fine-tuning has one section of settings, finetune, as in finetune.epochs=3, and that of "
            "the card, as in card.license=mit"
        )
    for name, value in values.get("card", {}).items():
        set_value(values, f"finetune.card.{name}", value)
    columns = values.get("finetune", {}).get("columns")
    for name, value in columns.items() if isinstance(columns, dict) else ():
        if isinstance(value, int) and not isinstance(value, bool):
            set_value(values, f"finetune.columns.{name}", str(value))  # a column's number
    return validated(FinetuneSettings, values.get("finetune", {}), where="finetune")


def chosen_settings(
    settings: Overrides,
    *,
    text: str | None,
    second: str | None,
    label: str | None,
    seeds: int | None,
    seed: int | None,
) -> FinetuneSettings:
    """The settings that were asked for, by overrides and by their short forms.

    Raises:
        SettingsError: As `settings_of`.
    """
    short = {"columns.text": text, "columns.second": second, "columns.label": label, "seeds": seeds, "seed": seed}
    given = [f"finetune.{name}={value}" for name, value in short.items() if value is not None]
    return settings_of([*as_overrides(settings), *given])


@contextmanager
def examples_given(train: Texts, validation: Texts | None, test: Texts | None) -> Iterator[dict[str, ExampleFiles]]:
    """The files of what a user gives; as long as it is entered, those of rows in memory are there as well.

    Args:
        train: A file or folder, or rows in memory; or a folder or dataset with parts.
        validation: Likewise; None: the part for validation of what is trained on.
        test: Likewise; None: there is none.

    Raises:
        CorpusError: One cannot be read, or nothing says what the best model is told by.
    """
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch, ExitStack() as opened:
        here = partial(_place, scratch=Path(scratch), opened=opened)
        source = here("train", train)
        found = {"train": example_files(*source, part="train")}
        if validation is None:
            found["validation"] = example_files(*source, part="validation")
        else:
            found["validation"] = example_files(*here("validation", validation))
        if test is not None:
            found["test"] = example_files(*here("test", test))
        yield found


def _place(name: str, given: Texts, *, scratch: Path, opened: ExitStack) -> tuple[Path, Path]:
    """Where examples lie, and what that is called."""
    names = paths_or_texts(given) or []
    if len(names) != 1:
        raise CorpusError(f"{name}: give one file or folder, not {len(names)}")
    if isinstance(names[0], InMemory):
        return names[0].keep(scratch / name), Path(f"{name} in memory")
    return opened.enter_context(readable(names[0])), Path(names[0])


def read_files(
    kind: type[Task],
    paths: Mapping[str, ExampleFiles],
    settings: FinetuneSettings,
    note: Callable[[str], None],
    *,
    pooling: ClassifierPooling = "first",
) -> tuple[Files, Task]:
    """Reads the files of a task.

    Args:
        kind: The task.
        paths: Files of `train` and `validation`, and of `test` where there is one.
        settings: Name columns.
        note: Told which columns were found, and what is remarkable about labels.
        pooling: What whole texts will be told from.

    Returns:
        The files, and what a model of the training file will do.

    Raises:
        CorpusError: A file cannot be read, or has labels that do not fit.
    """
    train = read_labelled(paths["train"], kind, settings.columns)
    if train.columns is not None:
        found = {name: column for name, column in vars(train.columns).items() if column is not None}
        note("columns: " + ", ".join(f"{name} in {column!r}" for name, column in found.items()))
    task = kind.learned_from(train, settings, pooling)
    if remark := task.remark(train):
        note(remark)
    others = {}
    for name in ("validation", "test"):
        if name in paths:
            others[name] = read_labelled(paths[name], kind, train.columns or settings.columns)
            if remark := task.check(others[name], train.path):
                note(remark)
    return Files(train, others["validation"], others.get("test")), task


def class_weights(train: Labelled, task: Task, wanted: str | Mapping[str, float] | None) -> list[float] | None:
    """Weights of the losses by class, in the order of the classes.

    Raises:
        SettingsError: The task has no classes, or the table names others than the training file.

    Example: 30 examples of `a` and 10 of `b`, balanced: 40 / (2 x 30) = 2/3 and 40 / (2 x 10) = 2.
    """
    if wanted is None:
        return None
    counts = Counter(name for record in train.records for name in task.classes_of(record))
    if not counts:
        raise SettingsError(f"finetune.class_weights: the task {task.kind!r} has no classes; remove it")
    if not isinstance(wanted, str):
        if unknown := sorted(set(wanted) - set(task.names)):
            raise SettingsError(
                f"finetune.class_weights: there is no class {unknown[0]!r} in {train.path}; it has {few(task.names)}"
            )
        return [wanted.get(name, 1.0) for name in task.names]
    return [counts.total() / (len(task.names) * counts[name]) for name in task.names]


def selecting_metric(task: Task, wanted: str | None) -> str:
    """The metric that the best model is chosen by.

    Raises:
        SettingsError: The task has no such metric.
    """
    names = task.metric_names
    if wanted is not None and wanted not in names:
        raise SettingsError(f"finetune.metric = {wanted!r}: metrics of this task are {', '.join(names)}")
    return wanted or names[0]


def needs_packages() -> None:
    """Finds out before training that the packages that metrics need are there.

    Raises:
        SettingsError: One is missing.
    """
    for name, package in _PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            raise SettingsError(f"metrics need {package}; install it with: pip install 'unmask[metrics]'")


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
        metric: What the best model is told by.
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


# ----------------------------------------
# The folder of a fine-tuned model.
#
# model/           the best model: a transformers folder, with its tokenizer and its card
# model.N/         that of the N-th seed, until runs.jsonl says that it is over and the best; a kill may leave it
# settings.json    task, files and settings; a folder with it holds a result
# runs.jsonl       a line for each seed whose training is over: its figures and evaluations, with their checksum
# metrics.jsonl    a line at every evaluation
# checkpoints/     the latest state of the seed that is trained
# summary.json     figures of the result, written last
# report.html      all of it for the eye

CHECKPOINTS = "checkpoints"
# What may have changed when a fine-tuning goes on: the number of seeds, what the card says, and where files lie whose
# content is the same.
MAY_DIFFER = {"finetune.seeds", "finetune.card", "model", "train", "validation", "test"}


@dataclass(frozen=True)
class FinishedRun:
    """What is kept of a seed whose training is over.

    Attributes:
        figures: As `summary.json` has them under `seeds`.
        history: Its evaluations, as `metrics.jsonl` has them.
        is_best: Whether it is better than those before it.
    """

    figures: dict[str, Any]
    history: list[dict[str, Any]]
    is_best: bool = False


class ResultFolder:
    """Paths within the folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        self.settings = root / "settings.json"
        self.runs = root / "runs.jsonl"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        self.checkpoints = root / CHECKPOINTS
        self.claimed = ClaimedFolder(root=root, marker=self.settings.name, what="a result")

    def go_on(self, content: dict[str, Any]) -> list[FinishedRun]:
        """The runs that are over, of a result that was begun with the same settings and the same content of the files.

        The number of seeds may differ, what the card says, and where the files lie.

        Raises:
            RunError: The settings or files are others, there are fewer seeds than runs that are over, or a file is
                damaged.
        """
        begun = self._begun()
        try:
            lines = self.runs.read_text(encoding="utf-8").splitlines() if self.runs.is_file() else []
            finished = [FinishedRun(**unsealed(parse_json(line))) for line in lines]
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error
        self.claimed.check_same(begun, json.loads(json.dumps(content)), but_for=MAY_DIFFER)
        if len(finished) > (seeds := content["finetune"]["seeds"]):
            raise RunError(
                f"{self.root} holds {len(finished)} seeds whose training is over, but finetune.seeds is {seeds}; ask "
                "for as many at least, or replace the result with --overwrite"
            )
        self._claim(content)
        self._settle(finished)
        return finished

    def card(self, named: CardSettings) -> CardSettings:
        """What the card of the result that is here says, where this is asked for now.

        Raises:
            RunError: The result is damaged.
            SettingsError: What was asked for then and now contradicts itself.
        """
        kept = self._begun().get("finetune")
        if not isinstance(kept, dict) or not isinstance(kept.get("card", {}), dict):
            raise self._damaged(ValueError(f"{self.settings.name} does not say how it was begun"))
        return with_named(kept.get("card", {}), named, where=f"{self.settings}: card")

    def _begun(self) -> dict[str, Any]:
        try:
            begun = parse_json(self.settings.read_text(encoding="utf-8"))
            if not isinstance(begun, dict):
                raise ValueError(f"{self.settings.name} is no JSON object")
        except ValueError as error:
            raise self._damaged(error) from error
        return begun

    def _damaged(self, error: Exception) -> RunError:
        return RunError(f"{self.root}: the result is damaged ({error}); replace it with --overwrite")

    def waiting(self, number: int) -> Path:
        """Where the model of the N-th seed is written, if it is the best so far."""
        return self.root / f"model.{number}"

    def keep(self, finished: list[FinishedRun]) -> None:
        """Writes down the runs that are over; the last one's model takes the best one's place, where it is better."""
        write_atomically(self.runs, "".join(json.dumps(sealed(asdict(run))) + "\n" for run in finished))
        evaluations = (line for run in finished for line in run.history)
        write_atomically(self.metrics, "".join(json.dumps(line) + "\n" for line in evaluations))
        self._settle(finished)

    def _settle(self, finished: list[FinishedRun]) -> None:
        """Brings the models to what the runs that are over say, also behind a kill."""
        last = self.waiting(len(finished))
        if finished and finished[-1].is_best and last.is_dir():
            shutil.rmtree(self.model, ignore_errors=True)
            last.rename(self.model)
        self._remove_waiting()

    def _remove_waiting(self) -> None:
        for left in self.root.glob("model.*"):
            shutil.rmtree(left)

    def begin(self, content: dict[str, Any]) -> list[FinishedRun]:
        """Removes the result that is there, if any, and makes the folder one that holds a result; no run is over yet.

        Raises:
            RunError: A file cannot be removed or made.
        """
        if self.claimed.is_claimed:
            self._remove_waiting()
            files = (self.model, self.runs, self.metrics, self.summary, self.report, self.checkpoints)
            self.claimed.clear(path.name for path in files)
        self.claimed.make()
        self._claim(content)
        return []

    def _claim(self, content: dict[str, Any]) -> None:
        self.claimed.claim(json.dumps(content, indent=2) + "\n")

    def discard(self) -> None:
        """Takes the mark of a result away where nothing came of it, so that the next try is not told of one."""
        if not self.runs.is_file():
            self.settings.unlink(missing_ok=True)


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


def pooling_for(pretrained: Pretrained, kind: type[Task], asked: ClassifierPooling | None) -> ClassifierPooling:
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
        self._announce()
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
            save_network(fitted.model, self.task.task_head, place)
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
        model = begin(self.pretrained, self.task, seed=seed, settings=self.settings)
        self.plan.task.check_network(model)
        return model.to(choose_device())

    def _rank(self, figures: dict[str, Any]) -> float:
        return rank(figures["metrics"], self.plan.metric)

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
