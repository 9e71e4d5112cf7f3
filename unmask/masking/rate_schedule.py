"""The share of tokens that is masked: a function of training progress, or drawn for each document piece.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from unmask.hashing import RATE_STEP, RATE_WITHIN
from unmask.settings import Settings

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
QUANTILES = 1 << RATE_STEP.size  # of a distribution of rates, between which it is interpolated


class LinearRate(Settings):
    """From `start` to `end` in a straight line. Source: Ankner et al. 2023 (.30 to .15)."""

    kind: Literal["linear"]
    start: Rate
    end: Rate

    def at(self, progress: float) -> float:
        """The rate at a progress in [0, 1]."""
        return (1.0 - progress) * self.start + progress * self.end


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


class UniformRate(Settings):
    """A rate of its own for each document piece, uniform between `low` and `high`.

    Attributes:
        low, high: Its range.
        loss_weight: `inverse` weighs each loss by 1 / rate, which makes the objective a bound on the likelihood of the
            text (masked diffusion); `none` does not.

    Source: Sahoo et al. 2024 (MDLM), section 3; Nie et al. 2025 (LLaDA), section 2.1.
    """

    kind: Literal["uniform"]
    low: Rate = 0.02
    high: Rate = 0.98
    loss_weight: Literal["inverse", "none"] = "none"

    @model_validator(mode="after")
    def _check(self) -> UniformRate:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self

    def quantiles(self) -> NDArray[np.float64]:
        """The rates at 0, 1/n, ..., 1 of the distribution."""
        return np.linspace(self.low, self.high, QUANTILES + 1)

    @property
    def mean(self) -> float:
        """The expected rate."""
        return 0.5 * (self.low + self.high)


class BetaRate(Settings):
    """A rate of its own for each document piece, from a beta distribution.

    Attributes:
        mean: The expected rate.
        concentration: a + b of the distribution; the larger, the closer rates are to the mean.
        loss_weight: As for `uniform`.
    """

    kind: Literal["beta"]
    mean: Rate = 0.3
    concentration: float = Field(default=8.0, gt=0.0)
    loss_weight: Literal["inverse", "none"] = "none"

    def quantiles(self) -> NDArray[np.float64]:
        """The rates at 0, 1/n, ..., 1 of the distribution, from a sum of its density over a fine grid."""
        a, b = self.mean * self.concentration, (1.0 - self.mean) * self.concentration
        middle = (np.arange(1 << 16) + 0.5) / (1 << 16)
        logs = (a - 1.0) * np.log(middle) + (b - 1.0) * np.log1p(-middle)
        # Where a or b is below 1 the density has no bound at that end: the mass of the outermost cells is exact.
        logs[0] = (1.0 - a) * math.log(len(middle)) - math.log(a)
        logs[-1] = (1.0 - b) * math.log(len(middle)) - math.log(b)
        below = np.concatenate([[0.0], np.cumsum(np.exp(logs - logs.max()))])
        edges = np.linspace(0.0, 1.0, len(below))
        return np.interp(np.linspace(0.0, 1.0, QUANTILES + 1), below / below[-1], edges)


ScheduledRate = LinearRate | CosineRate | StepRate
SampledRate = UniformRate | BetaRate
RateSchedule = Annotated[ScheduledRate | SampledRate, Field(discriminator="kind")]


def rate_at(rate: float | ScheduledRate | SampledRate, progress: float) -> float:
    """The expected rate of a number, a schedule or a distribution at a progress in [0, 1]."""
    if isinstance(rate, float):
        return rate
    return rate.mean if isinstance(rate, UniformRate | BetaRate) else rate.at(progress)


def sampled_rates(rate: SampledRate, bits_T: Tensor, point: int) -> Tensor:
    """A rate for each place, from random bits.

    Args:
        rate: The distribution.
        bits_T: int64: 64 random bits, the same at all places of a segment.
        point: Bits behind the point.

    Returns:
        [T], int64, in 2**-point.
    """
    quantiles = torch.from_numpy(np.round(rate.quantiles() * (1 << point)).astype(np.int64))
    index_T, rest_T = RATE_STEP.of(bits_T), RATE_WITHIN.of(bits_T)
    low_T = quantiles[index_T]
    return low_T + (((quantiles[index_T + 1] - low_T) * rest_T) >> RATE_WITHIN.size)
