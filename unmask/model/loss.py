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


def summed_loss(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """Sum of the cross-entropies in nats, in float32; 0 where nothing is predicted.

    The sum, not the mean: means of unequal batches must not be averaged.
    """
    return functional.cross_entropy(logits_NV.float(), targets_N, reduction="sum")
