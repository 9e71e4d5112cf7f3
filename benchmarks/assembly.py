"""Our training as benchmarks put it together: a recipe and prepared text, without the folder of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from unmask.commands.recipe import Recipe, new_model
from unmask.commands.run_data import PreparedData
from unmask.data.rows import RowStream
from unmask.masking.masker import Masker
from unmask.model.encoder import compile_model
from unmask.model.initial_weights import initialise
from unmask.train.callbacks import StepReport
from unmask.train.checkpoints import TrainState
from unmask.train.hardware import choose_dtype, why_not_compiled, works_on_its_own
from unmask.train.settings import TrainingSettings
from unmask.train.trainer import Trainer


@dataclass(frozen=True)
class Training:
    """What is trained."""

    trainer: Trainer
    state: TrainState
    stream: RowStream
    masker: Masker
    settings: TrainingSettings

    def reports(self, clock: Callable[[], float] = time.monotonic) -> Iterator[StepReport]:
        """Trains, a report a step."""
        self.trainer.clock = clock
        return self.trainer.steps()


def assemble(recipe: Recipe, data: PreparedData, device: torch.device) -> Training:
    """A training that has not begun."""
    settings = recipe.training
    model = new_model(recipe, data.tokenizer)
    initialise(model, seed=settings.seed, method=recipe.model.initialisation)
    model.to(device)
    model.encoder.compute_dtype = choose_dtype(settings.precision, device)
    choice, minutes, steps = settings.compile_blocks, settings.minutes, settings.known_steps
    if why_not_compiled(choice, device, minutes=minutes, steps=steps) is None:
        compile_model(model)
    stream = RowStream(
        data.train,
        data.tokenizer,
        length=settings.sequence_length,
        seed=settings.seed,
        ahead=works_on_its_own(device),
    )
    masker = Masker(recipe.masking, data.tokenizer, seed=settings.seed, tables=data.tables)
    trainer = Trainer(model, stream, settings, masker=masker)
    return Training(trainer, trainer.state, stream, masker, settings)
