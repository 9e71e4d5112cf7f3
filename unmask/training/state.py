"""Everything that a training run is, apart from its settings and its data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from unmask.model.encoder import MaskedLM
from unmask.model.learner import Learner
from unmask.packing.stream import Cursor
from unmask.training.budget import Spent
from unmask.training.optimizer import Optimizer
from unmask.training.scores import ScoreBoard

Model = TypeVar("Model", bound=Learner)


@dataclass(frozen=True)
class Best:
    """The lowest held-out loss of a run so far, and the step after which it was measured."""

    step: int
    loss: float


@dataclass
class LearnerState(Generic[Model]):
    """What a checkpoint holds. There is no random generator in it: order and masks are functions of the cursor.

    Attributes:
        model: The weights.
        optimizer: Its momentum and running means.
        cursor: Where the next batch begins.
        step: Optimizer steps made.
        tokens_seen: Tokens of text trained on, repetitions included.
        seconds: Trained so far, over all sittings.
        micro_tokens: Positions that are computed at once at most, where memory ran out or the settings say it.
        best: The lowest held-out loss so far.
        board: Scores that masking follows, where it follows any.
    """

    model: Model
    optimizer: Optimizer
    cursor: Cursor = field(default_factory=Cursor)
    step: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    micro_tokens: int | None = None
    best: Best | None = None
    board: ScoreBoard | None = None

    @property
    def spent(self) -> Spent:
        """What the training has used so far."""
        return Spent(self.step, self.tokens_seen, self.seconds)

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Computes in this type from now on: a run that goes on elsewhere keeps the choice it began with."""
        self.model.encoder.compute_dtype = dtype
        if self.optimizer.muon is not None:
            self.optimizer.muon.dtype = dtype


TrainState = LearnerState[MaskedLM]
