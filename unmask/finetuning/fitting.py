"""One run of fine-tuning, from one seed: the training loop, evaluations, early stopping, the best weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unmask.finetuning.layers import factors_of
from unmask.finetuning.stream import ExampleStream
from unmask.model.task_folder import TaskNetwork
from unmask.tasks.inputs import ROW, Example
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Metrics, Task
from unmask.tasks.task_model import outputs_of
from unmask.training.hardware import choose_dtype
from unmask.training.loop import StepReport, train
from unmask.training.optimizer import Optimizer
from unmask.training.schedule import Linear
from unmask.training.settings import AdamWSettings, TrainingSettings
from unmask.training.state import LearnerState


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

    state: LearnerState[TaskNetwork]
    steps: Iterator[StepReport]
    batches: int


@dataclass(frozen=True)
class Plan:
    """What every run of a fine-tuning shares.

    Attributes:
        task: What the model learns.
        settings: As given.
        metric: What the best model is told by.
        weights: Of the losses by class; None: all 1.
        train: Inputs to learn from.
        validation: What it is measured on.
    """

    task: Task
    settings: FinetuneSettings
    metric: str
    weights: Sequence[float] | None
    train: Sequence[Example]
    validation: HeldOutData


def fit(
    model: TaskNetwork,
    plan: Plan,
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
            metrics=evaluate(model, plan.task, plan.validation)[0],
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


def begin_training(model: TaskNetwork, plan: Plan, *, seed: int) -> Learning:
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
    optimizer = Optimizer(model, training, dtype=dtype, factor_of=factors_of(model, plan.settings.layer_decay))
    state = LearnerState(model, optimizer)
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


def _training_settings(plan: Plan, hidden_size: int, batches: int, seed: int) -> TrainingSettings:
    settings = plan.settings
    return TrainingSettings(
        steps=settings.epochs * batches,
        sequence_length=ROW,
        batch_tokens=ROW,  # the stream makes batches by examples
        learning_rate=settings.learning_rate_for(hidden_size),
        schedule=Linear(kind="linear", warmup=settings.warmup),
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        optimizer=AdamWSettings(kind="adamw", betas=(0.9, 0.999), eps=1e-8),
        precision=settings.precision,
        seed=seed,
    )
