"""Everything that a training run is, apart from its settings and its data."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from unmask.model.encoder import MaskedLM
from unmask.packing.stream import Cursor
from unmask.training.optimizer import Optimizer


@dataclass
class TrainState:
    """What a checkpoint holds. There is no random generator in it: order and masks are functions of the cursor.

    Attributes:
        model: The weights.
        optimizer: Its momentum and running means.
        cursor: Where the next batch begins.
        step: Optimizer steps made.
        tokens_seen: Tokens of text trained on, repetitions included.
        seconds: Trained so far, over all sittings.
    """

    model: MaskedLM
    optimizer: Optimizer
    cursor: Cursor = field(default_factory=Cursor)
    step: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Computes in this type from now on: a run that goes on elsewhere keeps the choice it began with."""
        self.model.encoder.compute_dtype = dtype
        if self.optimizer.muon is not None:
            self.optimizer.muon.dtype = dtype
