"""What the training loop asks of a model: ours, or one that transformers runs.

Shape suffixes: B = rows, S = positions, D = what is made of a position.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from unmask.network.attention_plan import Sequences


class RowEncoder(Protocol):
    """Makes something of each position of rows.

    Attributes:
        compute_dtype: Of the activations.
    """

    compute_dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def shares_rows(self) -> bool:
        """Whether several texts may stand in a row, as segments that do not see each other; else one stands in each."""

    @property
    def takes_padding(self) -> bool:
        """Whether what comes out for a text does not depend on the padding behind it."""

    @property
    def width(self) -> int:
        """How many numbers it makes of a position: D."""

    def __call__(
        self,
        input_ids_BS: Tensor,
        *,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        token_type_ids_BS: Tensor | None = None,
        sequences: Sequences | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """[B, S, D]; see `unmask.network.encoder.Encoder.forward`."""


class Trainable(Protocol):
    """A model that is trained: objectives know what they make of its encoder's output, the loop does not."""

    @property
    def encoder(self) -> RowEncoder:
        """What makes something of each position."""

    @property
    def pad_id(self) -> int:
        """Stands in what is left of rows."""

    def train(self, mode: bool = True) -> nn.Module:
        """Enters training mode."""
