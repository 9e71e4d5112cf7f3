"""The learning rate as a function of progress, or of the step: a factor of the peak rate."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.settings import Settings

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class WarmupStableDecay(Settings):
    """Rises in a line, stays, and falls as 1 - sqrt(share of the decay gone).

    Attributes:
        warmup: Share of the budget in which it rises from 0 to 1.
        decay: Share at the end in which it falls to 0.

    Source: Hägele et al. 2024 (the shape of the decay); Hu et al. 2024 (MiniCPM, the three phases).
    """

    kind: Literal["warmup_stable_decay"]
    warmup: Share = 0.05
    decay: Share = 0.3

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup + self.decay > 1.0:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} are more than the whole budget")
        return self

    def at(self, progress: float, step: float) -> float:
        """The factor at a progress in [0, 1]."""
        if progress < self.warmup:
            return progress / self.warmup
        gone = (progress - (1.0 - self.decay)) / self.decay if self.decay > 0.0 else 0.0
        return 1.0 - min(gone, 1.0) ** 0.5 if gone > 0.0 else 1.0


class LinearDecay(Settings):
    """Rises in a line and falls in a line to 0. Source: Devlin et al. 2018, appendix A.2.

    Attributes:
        warmup: Share of the budget in which it rises.
    """

    kind: Literal["linear"]
    warmup: Share = 0.05

    def at(self, progress: float, step: float) -> float:
        """The factor at a progress in [0, 1]."""
        return progress / self.warmup if progress < self.warmup else _left(progress, self.warmup)


class Cosine(Settings):
    """Rises in a line and falls along half a cosine to 0. Source: Loshchilov and Hutter 2017.

    Attributes:
        warmup: Share of the budget in which it rises.
    """

    kind: Literal["cosine"]
    warmup: Share = 0.05

    def at(self, progress: float, step: float) -> float:
        """The factor at a progress in [0, 1]."""
        if progress < self.warmup:
            return progress / self.warmup
        return 0.5 - 0.5 * math.cos(math.pi * _left(progress, self.warmup))


class Noam(Settings):
    """Rises in a line and falls with the root of the steps; it does not know the budget.

    The formula of the paper, factor x hidden_size^-0.5 x min(step^-0.5, step x warmup_steps^-1.5), has its peak at
    `warmup_steps`; here the peak is 1, so `training.learning_rate` is factor x (hidden_size x warmup_steps)^-0.5.

    Attributes:
        warmup_steps: Steps in which it rises.

    Source: Vaswani et al. 2017, section 5.3.
    """

    kind: Literal["noam"]
    warmup_steps: int = Field(ge=1)

    def at(self, progress: float, step: float) -> float:
        """The factor at a step, counted from 0."""
        return min(step / self.warmup_steps, (self.warmup_steps / max(step, 1e-9)) ** 0.5)


def _left(progress: float, warmup: float) -> float:
    return (1.0 - progress) / (1.0 - warmup) if warmup < 1.0 else 1.0


Schedule = Annotated[WarmupStableDecay | LinearDecay | Cosine | Noam, Field(discriminator="kind")]
