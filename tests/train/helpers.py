"""Small trainings for tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.model.helpers import MakeModel
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows, Masker
from unmask.model.encoder import MaskedLM, initialise
from unmask.train.callbacks import StepReport
from unmask.train.checkpoints import Checkpoints, list_checkpoints
from unmask.train.objectives import Objective
from unmask.train.optimizer import build_optimizer
from unmask.train.settings import CheckpointSettings, TrainingSettings
from unmask.train.step import Figures, TrainState, training_step
from unmask.train.trainer import Trainer


def settings_of(**changes: object) -> TrainingSettings:
    values = {"steps": 8, "sequence_length": 32, "batch_tokens": 256, "learning_rate": 5e-3} | changes
    return TrainingSettings.model_validate(values)


@dataclass(frozen=True)
class Small:
    """The model, the text and the masks of small trainings."""

    make_model: MakeModel
    stream: Any
    masker: Masker

    def state(self, settings: TrainingSettings) -> TrainState:
        model = self.make_model(initializer_range=0.02)
        initialise(model, seed=settings.seed)
        return TrainState(model, build_optimizer(model, settings))

    def train(
        self, state: TrainState, settings: TrainingSettings, *, clock: Iterator[float] | None = None
    ) -> Iterator[StepReport]:
        """The steps of a trainer that resumes from a state; its clock may be a sequence of times."""
        trainer = Trainer(
            state.model, self.stream, settings, masker=self.masker, optimizer=lambda model: state.optimizer
        )
        trainer.state = state
        if clock is not None:
            trainer.clock = lambda: next(clock)
        return trainer.steps()

    def trained(self, settings: TrainingSettings) -> tuple[TrainState, list[StepReport]]:
        """A new state after all steps, and their reports."""
        state = self.state(settings)
        return state, list(self.train(state, settings))


def save_checkpoint(root: Path, state: TrainState, *, fingerprint: str, keep: int) -> Path:
    """Saves a state as at the end of its training."""
    trainer = SimpleNamespace(state=state, callbacks=(), error=None, read_figures=lambda: None)
    Checkpoints(root, CheckpointSettings(keep=keep), fingerprint=fingerprint).on_end(trainer)
    return list_checkpoints(root)[-1]


def weights_of(state: TrainState) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in state.model.parameters()])


def gradients_of_a_step(
    model: MaskedLM,
    rows: Rows,
    masked: MaskedRows,
    *objectives: Objective,
    micro_rows: int | None = None,
    seed: int = 0,
) -> tuple[Figures, dict[str, torch.Tensor]]:
    """The figures of a step, and the gradient that it would have applied; nothing is changed."""
    settings = settings_of(seed=seed, sequence_length=64, clip_norm=math.inf, optimizer={"kind": "adamw"})
    optimizer = build_optimizer(model.train(), settings)  # type: ignore[arg-type]
    gradients: dict[str, torch.Tensor] = {}
    optimizer.step = lambda: gradients.update(  # type: ignore[method-assign, assignment, misc]
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    )
    state = TrainState(model, optimizer, micro_tokens=micro_rows and micro_rows * rows.shape[1])
    result = training_step(state, settings, rows, masked, objectives=objectives)
    return result, gradients
