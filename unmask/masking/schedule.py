"""The share of tokens that is masked, as a function of training progress."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from unmask.settings import Settings

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]


class LinearRate(Settings):
    """From `start` to `end` in a straight line. Source: Ankner et al. 2023 (.30 to .15)."""

    kind: Literal["linear"]
    start: Rate
    end: Rate

    def at(self, progress: float) -> float:
        """The rate at a progress in [0, 1]."""
        return self.start + (self.end - self.start) * progress


class CosineRate(Settings):
    """From `start` to `end` along half a cosine: slow, fast, slow. Source: Yang et al. 2023, section 3.1."""

    kind: Literal["cosine"]
    start: Rate
    end: Rate

    def at(self, progress: float) -> float:
        """The rate at a progress in [0, 1]."""
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


class StepRate(Settings):
    """Constant between given places: `rates[i]` holds from `places[i]` on; the first place is 0.

    Example: places 0 and 0.5 with rates 0.3 and 0.15 halve the rate in the middle of the training.
    """

    kind: Literal["steps"]
    places: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], ...]
    rates: tuple[Rate, ...]

    @model_validator(mode="after")
    def _check(self) -> StepRate:
        if len(self.places) != len(self.rates):
            raise ValueError(f"{len(self.places)} places but {len(self.rates)} rates; give as many of each")
        if not self.places or self.places[0] != 0.0 or list(self.places) != sorted(set(self.places)):
            raise ValueError(f"places must begin with 0 and rise, not {list(self.places)}")
        return self

    def at(self, progress: float) -> float:
        """The rate at a progress in [0, 1]."""
        return [r for place, r in zip(self.places, self.rates, strict=True) if place <= progress][-1]


RateSchedule = Annotated[LinearRate | CosineRate | StepRate, Field(discriminator="kind")]


def rate_at(rate: float | LinearRate | CosineRate | StepRate, progress: float) -> float:
    """The rate of a number or a schedule at a progress in [0, 1]."""
    return rate if isinstance(rate, float) else rate.at(progress)
