"""The loss at predicted positions.

Shape suffixes: N = predicted positions, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def predicted_positions(labels: Tensor) -> Tensor:
    """Places in the flattened batch whose label is not negative: int64 [N]. Id 0 is a label like any other."""
    return torch.nonzero(labels.flatten() >= 0).squeeze(1)


def token_losses(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """The cross-entropy of each prediction in nats, in float32: [N].

    They are summed, not averaged, by whoever needs one number: means of unequal batches must not be averaged.
    """
    return functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
