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
from unmask.train.checkpoints import TrainState
from unmask.train.hardware import choose_dtype, why_not_compiled, works_on_its_own
from unmask.train.loop import StepReport, train
from unmask.train.optimizer import Optimizer
from unmask.train.settings import TrainingSettings


@dataclass(frozen=True)
class Training:
    """What the loop is given."""

    state: TrainState
    stream: RowStream
    masker: Masker
    settings: TrainingSettings

    def reports(self, clock: Callable[[], float] = time.monotonic) -> Iterator[StepReport]:
        """Trains, a report a step."""
        return train(self.state, self.stream, self.masker, self.settings, clock=clock)


def assemble(recipe: Recipe, data: PreparedData, device: torch.device) -> Training:
    """A training that has not begun."""
    settings = recipe.training
    dtype = choose_dtype(settings.precision, device)
    model = new_model(recipe, data.tokenizer)
    initialise(model, seed=settings.seed, method=recipe.model.initialisation)
    model.to(device)
    model.encoder.compute_dtype = dtype
    choice, minutes, steps = settings.compile_blocks, settings.minutes, settings.known_steps
    if why_not_compiled(choice, device, minutes=minutes, steps=steps) is None:
        compile_model(model, tuned=settings.tuned_products)
    return Training(
        TrainState(model, Optimizer(model, settings, dtype=dtype)),
        RowStream(
            data.train,
            data.tokenizer,
            length=settings.sequence_length,
            seed=settings.seed,
            ahead=works_on_its_own(device),
        ),
        Masker(recipe.masking, data.tokenizer, seed=settings.seed, tables=data.tables),
        settings,
    )
