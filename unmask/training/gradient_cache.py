"""Losses that compare targets across a whole step, computed part by part: any batch in the memory of one part.

    1. every part forward, without a graph      vectors
    2. the loss of all vectors                  its gradient by each vector
    3. every part forward again, with a graph   backward from its vectors, with their gradients

The result is the gradient of the whole batch at once, for one more forward pass. What is dropped is a function of the
step and the part, so both passes of a part give the same vectors. A step of one part needs none of this.

Several processes tell each other the vectors of their rows, and each computes the loss of all of them:

    process 0   rows 0..3 ──▶ vectors ─┐             ┌─▶ loss of all ──▶ gradient by its own vectors ──▶ backward
    process 1   rows 4..7 ──▶ vectors ─┴─ gathered ──┴─▶ loss of all ──▶ gradient by its own vectors ──▶ backward

What is compared is then what one process would compare. A process with one part computes it once: it keeps the graph.

Source: Gao et al. 2021 (Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup), section 3; vectors
gathered from all as in Radford et al. 2021 (CLIP), section 2.5, where each process computes its rows of the scores;
here it computes all of them, which are little beside the model.

Shape suffixes: E = vectors, D = their size, K = what is known of each, M = processes, R = the most vectors of any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from unmask.network.trainable import Trainable
from unmask.training.group import Group
from unmask.training.objectives import JointTargets, Objective
from unmask.training.optimizer import FailedElsewhereError
from unmask.training.retries import kind_of_failure
from unmask.training.step_parts import StepPart

Encode = Callable[[StepPart, int], Tensor]
"""Hidden states [T, D] of a part, given it and its number."""


class Kept(NamedTuple):
    """What was computed of the only part of a process, with its graph: hidden states, and vectors."""

    hidden_TD: Tensor
    vectors_ED: Tensor


@dataclass(frozen=True)
class CachedLoss:
    """The loss of a whole step, and what this process's parts are to pass back.

    Attributes:
        mean: The loss, divided by the number of targets, without a gradient; in all processes but the first 0, so that
            it counts once.
        gradients: Of each part [E, D]: of the weighted mean loss by its vectors.
        kept: Of the only part, which need not be computed again; None: there are several.
    """

    mean: Tensor
    gradients: tuple[Tensor, ...]
    kept: Kept | None

    def of_part(self, number: int, vectors_ED: Tensor) -> Tensor:
        """A number whose gradient by the weights is what this part adds to that of the step."""
        return (vectors_ED * self.gradients[number]).sum()


def cached_loss(
    model: Trainable,
    parts: Sequence[StepPart],
    index: int,
    objective: Objective,
    *,
    encode: Encode,
    total: float,
    group: Group,
    patient: bool = False,
) -> CachedLoss:
    """Makes the first two passes. Parameters that the loss itself has (a temperature) get their gradient here.

    Args:
        model: In training mode.
        parts: Of the step, this process's.
        index: Which of the step's objectives it is.
        objective: With a joint loss.
        encode: Gives the hidden states of a part, the same whenever it is asked.
        total: What the summed loss is divided by: of all processes.
        group: The processes, all of which are here.
        patient: Whether the others may take long.

    Raises:
        FailedElsewhereError: Another process could not compute its vectors.
        GroupError: Another process has ended, or does not answer.
    """
    joint = objective.joint
    assert joint is not None, "its targets are compared with each other"
    targets = cast(list[JointTargets], [part.targets[index] for part in parts])
    columns_EK = torch.cat([each.columns() for each in targets])
    told = group.told([len(columns_EK), sum(map(len, targets))], patient=patient)
    sizes, counts = ([int(number) for number in each] for each in zip(*told, strict=True))
    is_only, kept = len(parts) == 1, None
    with _computed_by_all(group, patient=patient):
        found = []
        for number, part in enumerate(parts):
            with torch.set_grad_enabled(is_only):
                hidden_TD = encode(part, number)
                vectors_ED = joint.vectors(model, hidden_TD, targets[number])
            kept = Kept(hidden_TD, vectors_ED) if is_only else None
            found.append(vectors_ED.detach())
        every_ED = torch.cat(found)
        # Room is made before anything is sent, since others would wait for who finds no memory for it.
        rooms = [_Room.of(each, sizes) for each in (every_ED, columns_EK)] if group.share.of > 1 else []
    if rooms:
        every_ED, columns_EK = (room.gathered(group, sizes) for room in rooms)
        del rooms
        targets = [targets[0].of_columns(columns_EK, sum(counts))]
    every_ED.requires_grad_()
    mean = joint.losses(model, every_ED, targets).total / total
    if group.is_first:
        (objective.weight * mean).backward()
        gradient_ED = every_ED.grad
    else:  # what is the loss's own, such as a temperature, has its gradient in the first process, once
        (gradient_ED,) = torch.autograd.grad(objective.weight * mean, every_ED)
    assert gradient_ED is not None
    begin = sum(sizes[: group.share.number])
    own_ED = gradient_ED[begin : begin + sizes[group.share.number]]
    mean = mean.detach() if group.is_first else torch.zeros_like(mean)
    return CachedLoss(mean, own_ED.split([len(each) for each in found]), kept)


class _Room(NamedTuple):
    """Room for something of all processes: what this one has of it, filled up to R, and all of it."""

    own_RK: Tensor
    every_MRK: Tensor

    @classmethod
    def of(cls, own_EK: Tensor, sizes: Sequence[int]) -> _Room:
        """Makes it, for so many of each process."""
        own_RK = pad(own_EK, (0, 0, 0, max(sizes) - len(own_EK)))
        return cls(own_RK, own_RK.new_empty(len(sizes), *own_RK.shape))

    def gathered(self, group: Group, sizes: Sequence[int]) -> Tensor:
        """[E, K]: of all processes, one behind another."""
        group.gather(self.every_MRK.unbind(0), self.own_RK)
        return torch.cat([each_RK[:size] for each_RK, size in zip(self.every_MRK, sizes, strict=True)])


@contextmanager
def _computed_by_all(group: Group, *, patient: bool) -> Iterator[None]:
    """While it is entered, something is computed that all processes wait for; they go on together or not at all.

    Raises:
        FailedElsewhereError: Another process failed in it.
    """
    if group.share.of == 1:
        yield
        return
    try:
        yield
    except Exception as error:
        group.told([kind_of_failure(error)], patient=patient)
        raise
    if failure := int(max(said for (said,) in group.told([0], patient=patient))):
        raise FailedElsewhereError(failure)
