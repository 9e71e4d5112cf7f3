"""What a step measured, and its way from the device to whoever wants to see it.

On a CPU the figures are there when the step is done. A GPU still works on the step when the host begins the next one,
so they are sent after it into pinned memory, and asking for them waits for this step alone, not for what was queued
behind it. Nothing within a step waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmask.errors import DivergedError


@dataclass(frozen=True)
class MeanLoss:
    """A loss in nats per target, and the number of targets."""

    loss: float
    count: int


@dataclass(frozen=True)
class Measured:
    """The figures of a step.

    Attributes:
        loss: Nats per predicted token, before the update.
        gradient_norm: Before clipping.
        objectives: The losses of the other objectives, by name, without their weights.
    """

    loss: float
    gradient_norm: float
    objectives: Mapping[str, MeanLoss] = field(default_factory=dict)


class Figures:
    """The figures of a step, wherever they are.

    Args:
        step: Its number, for the error's text.
        counts: Targets of each objective, by name; the first is the masked tokens.
        values_F: float64, or float32 of Apple's GPUs: the mean loss of each, and the gradient's norm; on any device.
    """

    def __init__(self, step: int, counts: Mapping[str, int], values_F: Tensor) -> None:
        self._step, self._counts = step, counts
        self._measured: Measured | None = None
        self._values_F, self._sent = values_F, None
        if values_F.device.type == "cuda":
            self._values_F = torch.empty(values_F.shape, dtype=values_F.dtype, pin_memory=True)
            self._values_F.copy_(values_F, non_blocking=True)
            self._sent = torch.cuda.Event()
            self._sent.record()

    @classmethod
    def known(cls, measured: Measured) -> Figures:
        """Figures that nobody has to wait for."""
        figures = cls(0, {}, torch.empty(0))
        figures._measured = measured
        return figures

    @property
    def arrived(self) -> bool:
        """Whether `read` would not wait."""
        return self._measured is not None or self._sent is None or self._sent.query()

    def read(self) -> Measured:
        """The figures; waits for the step where it is still being computed.

        Raises:
            DivergedError: One of them is not finite. The step has changed nothing; on a GPU the steps behind it were
                made, so whoever saves a state reads the figures of its step first.
        """
        if self._measured is None:
            if self._sent is not None:
                self._sent.synchronize()
            *losses, norm = self._values_F.tolist()
            check_finite(self._step, list(self._counts), losses, norm)
            means = [MeanLoss(loss, count) for loss, count in zip(losses, self._counts.values(), strict=True)]
            others = dict(zip(list(self._counts)[1:], means[1:], strict=True))
            self._measured = Measured(means[0].loss, norm, others)
        return self._measured


class HasFigures:
    """What a step's figures say, for what carries them; each waits for the step and raises what `Figures.read` does.

    Attributes:
        figures: Losses and the gradient's norm, which a GPU may still be computing.
    """

    figures: Figures

    @property
    def loss(self) -> float:
        """Nats per predicted token, before the update."""
        return self.figures.read().loss

    @property
    def gradient_norm(self) -> float:
        """Before clipping."""
        return self.figures.read().gradient_norm

    @property
    def objectives(self) -> Mapping[str, MeanLoss]:
        """The losses of other objectives than the leading one, by name, without their weights."""
        return self.figures.read().objectives


def check_finite(step: int, names: Sequence[str], losses: Sequence[float], norm: float = 0.0) -> None:
    """Looks at a step's figures.

    Raises:
        DivergedError: One of them is not finite; the text says which.
    """
    if not all(map(math.isfinite, losses)):
        shown = ", ".join(f"{loss} ({name})" for name, loss in zip(names, losses, strict=True))
        raise DivergedError(f"the loss of step {step} is {shown if len(losses) > 1 else losses[0]}")
    if not math.isfinite(norm):
        raise DivergedError(f"the gradient of step {step} has the norm {norm}")
