"""Losses that compare targets across a whole step, computed part by part: any batch in the memory of one part.

    1. every part forward, without a graph      vectors
    2. the loss of all vectors                  its gradient by each vector
    3. every part forward again, with a graph   backward from its vectors, with their gradients

The result is the gradient of the whole batch at once, for one more forward pass. What is dropped is a function of the
step and the part, so both passes of a part give the same vectors. A step of one part needs none of this.

Source: Gao et al. 2021 (Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup), section 3.

Shape suffixes: E = vectors, D = their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.network.trainable import Trainable
from unmask.training.objectives import Objective
from unmask.training.step_parts import StepPart

Encode = Callable[[StepPart, int], Tensor]
"""Hidden states [T, D] of a part, given it and its number."""


@dataclass(frozen=True)
class CachedLoss:
    """The loss of a whole step, and what its parts are to pass back.

    Attributes:
        mean: The loss, divided by the number of targets; without a gradient.
        gradients: Of each part [E, D]: of the weighted mean loss by its vectors.
    """

    mean: Tensor
    gradients: tuple[Tensor, ...]

    def of_part(self, number: int, vectors_ED: Tensor) -> Tensor:
        """A number whose gradient by the weights is what this part adds to that of the step."""
        return (vectors_ED * self.gradients[number]).sum()


def cached_loss(
    model: Trainable, parts: Sequence[StepPart], index: int, objective: Objective, *, encode: Encode, total: float
) -> CachedLoss:
    """Makes the first two passes. Parameters that the loss itself has (a temperature) get their gradient here.

    Args:
        model: In training mode.
        parts: Of the step.
        index: Which of the step's objectives it is.
        objective: With a joint loss.
        encode: Gives the hidden states of a part, the same whenever it is asked.
        total: What the summed loss is divided by.
    """
    joint = objective.joint
    assert joint is not None, "its targets are compared with each other"
    targets = [part.targets[index] for part in parts]
    with torch.no_grad():
        found = [joint.vectors(model, encode(part, number), targets[number]) for number, part in enumerate(parts)]
    vectors_ED = torch.cat(found).requires_grad_()
    mean = joint.losses(model, vectors_ED, targets).total / total
    (objective.weight * mean).backward()
    assert vectors_ED.grad is not None
    return CachedLoss(mean.detach(), vectors_ED.grad.split([len(each) for each in found]))
