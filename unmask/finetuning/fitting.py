"""One run of fine-tuning, from one seed: rates by layer, batches, loop, evaluations, early stopping, best weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unmask.folders.task_folder import TaskNetwork
from unmask.hashing import permutation
from unmask.network.encoder import MaskedLM
from unmask.rows.stream import WHOLE, Cursor, RowBatch, Share
from unmask.tasks.examples import ROW, Example, pack_examples
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Metrics, Task
from unmask.tasks.task_model import outputs_of
from unmask.training.checkpoints import TrainableState
from unmask.training.group import ALONE, Group, by_first
from unmask.training.hardware import choose_dtype
from unmask.training.learning_rate import LinearDecay
from unmask.training.loop import StepReport, train
from unmask.training.optimizer import Optimizer
from unmask.training.settings import AdamWSettings, TrainingSettings

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
class Learning:
    """A training before its first step.

    Attributes:
        state: Model and optimizer.
        steps: Makes a step whenever it is asked for the next report.
        batches: Steps of an epoch.
    """

    state: TrainableState[TaskNetwork]
    steps: Iterator[StepReport]
    batches: int


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


def fit(
    model: TaskNetwork,
    plan: FitPlan,
    *,
    seed: int,
    on_step: Callable[[StepReport], None],
    on_evaluation: Callable[[Evaluated], None],
) -> Fitted:
    """Trains a model, with a head drawn anew, until the metric has not risen for a while or the epochs are over.

    Args:
        model: On its device; changed in place.
        plan: Data and settings.
        seed: Of order and dropout.
        on_step, on_evaluation: Told of the progress.

    Raises:
        DivergedError, MemoryFullError: As `train`.
    """
    settings = plan.settings
    learning = begin_training(model, plan, seed=seed)
    batches, state = learning.batches, learning.state
    evaluations = min(settings.evaluations_per_epoch, batches)
    history: list[Evaluated] = []
    best: tuple[Evaluated, dict[str, Tensor]] | None = None
    reports: list[StepReport] = []  # since the last evaluation; a GPU may still be computing their losses
    waited = 0
    for report in learning.steps:
        reports.append(report)
        on_step(report)
        if report.step * evaluations // batches == (report.step - 1) * evaluations // batches:
            continue
        evaluated = Evaluated(
            step=report.step,
            epoch=report.step / batches,
            loss=math.fsum(each.loss for each in reports) / len(reports),
            # The first one's, for all: by them all end alike.
            metrics=by_first(plan.group, lambda: evaluate(model, plan.task, plan.validation)[0]),
        )
        model.train()
        reports.clear()
        history.append(evaluated)
        on_evaluation(evaluated)
        waited += 1
        if best is None or rank(evaluated.metrics, plan.metric) > rank(best[0].metrics, plan.metric):
            best, waited = (evaluated, {name: t.detach().clone() for name, t in model.state_dict().items()}), 0
        if settings.patience is not None and waited >= settings.patience:
            break
    assert best is not None, "the last step of an epoch is evaluated"
    model.load_state_dict(best[1])
    return Fitted(
        model.eval(), seed, tuple(history), best[0], state.seconds, stopped_early=state.step < settings.epochs * batches
    )


def begin_training(model: TaskNetwork, plan: FitPlan, *, seed: int) -> Learning:
    """The training loop of a model, with a head drawn anew, before its first step.

    Args:
        model: On its device; its steps change it in place.
        plan: Data and settings.
        seed: Of order and dropout.
    """
    stream = ExampleStream(
        plan.train,
        batch_size=plan.settings.batch_size,
        pad_id=model.pad_id,
        max_length=model.config.max_position_embeddings,
        seed=seed,
        alone=not model.encoder.shares_rows,
    )
    training = _training_settings(plan, model.config.hidden_size, stream.batches, seed)
    dtype = choose_dtype(plan.settings.precision, model.encoder.device)
    model.encoder.compute_dtype = dtype
    factors = factors_of(model, plan.settings.layer_decay)
    optimizer = Optimizer(model, training, dtype=dtype, factor_of=factors, group=plan.group)
    state = TrainableState(model, optimizer)
    leading = plan.task.objective(plan.weights)
    return Learning(state, train(state, stream, None, training, leading=leading), stream.batches)


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


def _training_settings(plan: FitPlan, hidden_size: int, batches: int, seed: int) -> TrainingSettings:
    settings = plan.settings
    return TrainingSettings(
        steps=settings.epochs * batches,
        sequence_length=ROW,
        batch_tokens=ROW,  # the stream makes batches by examples
        learning_rate=settings.learning_rate_for(hidden_size),
        schedule=LinearDecay(kind="linear", warmup=settings.warmup),
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        optimizer=AdamWSettings(kind="adamw", betas=(0.9, 0.999), eps=1e-8),
        precision=settings.precision,
        seed=seed,
    )
