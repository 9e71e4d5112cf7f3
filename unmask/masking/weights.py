"""Weights: how likely a unit is to be drawn; uniform, by frequency, and by what tokens tell of their neighbours.

A unit of twice the weight is taken twice as often, up to always. What is done with the weights stands in
`unmask.masking.unit_draw`.

Shape suffixes: T = all positions of a batch in a line; V = vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.masking.annotated_weights import FirstWeights, PosWeights, RoleWeights
from unmask.masking.flat_rows import FlatRows, FlatUnits, take
from unmask.masking.scored_weights import (
    AccuracyWeights,
    AnchorWeights,
    AttentionWeights,
    CentralityWeights,
    LossWeights,
    PosLossWeights,
    TfIdfWeights,
)
from unmask.masking.unit_draw import fixed_log2, uniform_keys, weighted_keys
from unmask.masking.vocabulary_tables import Tables
from unmask.settings import Settings


class Weights(Protocol):
    """A way to weigh units."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        """Logarithms of weights to base 2, in 2**-18; None: all units are equal.

        Returns:
            [T], int64, at the places where units begin; others do not matter. Only differences within a segment do.

        Raises:
            DataError: The rows lack an annotation that is needed.
            SettingsError: A table is missing.
        """
        ...


class UniformWeights(Settings):
    """Every unit is equally likely."""

    kind: Literal["uniform"] = "uniform"

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> None:
        """None: all units are equal."""


class FrequencyWeights(Settings):
    """A unit's weight is a power of how often its rarest token stands in the corpus.

    Attributes:
        exponent: Negative prefers the rare, positive the common; 0 is uniform.
        floor: Counts below this are taken for it, so that what stands once in the corpus is not drawn every time.

    Source: Zhang et al. 2023 (WSBERT), section 3.1, for exponent -0.5. There, weights are normalised in the sentence,
    as they are here; here, in addition, the share of masked tokens is exact.
    """

    kind: Literal["frequency", "rare"] = "frequency"
    exponent: Annotated[float, Field(ge=-4.0, le=4.0)] = -0.5
    floor: Annotated[int, Field(ge=1)] = 10

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By the rarest token of each unit."""
        log2_V = tables.derived(self, lambda: self._table(tables))
        rarest_T = units.largest(take(log2_V, rows.input_ids_T))
        return rarest_T if self.exponent < 0 else -rarest_T

    def _table(self, tables: Tables) -> Tensor:
        """The logarithm of each id's weight, with the sign that makes the rarest the largest."""
        counts_V = tables.frequencies("weights of kind frequency").clamp(min=self.floor)
        return fixed_log2(counts_V.double().pow(-abs(self.exponent)))


class BandWeights(Settings):
    """Tokens whose corpus frequency lies within a band come first; a unit counts by its rarest token.

    Attributes:
        low, high: Occurrences per million tokens of the corpus, from and up to which a token is in the band.
        outside: Weight of the units outside, where those within have 1.

    Source: ours, for frequency thresholds as in stop-word lists (a `high`) and minimum counts (a `low`).
    """

    kind: Literal["band"] = "band"
    low: Annotated[float, Field(ge=0.0)] = 0.0
    high: Annotated[float, Field(gt=0.0, le=1e6)] = 1000.0
    outside: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        return self

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By whether the rarest token of each unit is in the band."""
        rank_V = tables.derived("ranks of frequency", lambda: _ranks(tables))
        log2_V = tables.derived(self, lambda: self._table(tables))
        rarest_T = units.largest(take(rank_V, rows.input_ids_T))  # the rarest has the largest rank
        return take(log2_V, rarest_T)

    def _table(self, tables: Tables) -> Tensor:
        """Logarithms of weights by rank of frequency."""
        counts_V = tables.frequencies("weights of kind band")
        sorted_V = torch.sort(counts_V.double(), descending=True, stable=True).values
        per_million = sorted_V / sorted_V.sum().clamp(min=1.0) * 1e6
        within = (per_million >= self.low) & (per_million <= self.high)
        return fixed_log2(torch.where(within, 1.0, self.outside))


def _ranks(tables: Tables) -> Tensor:
    """[V], int64: place of each id among all, the commonest first."""
    counts_V = tables.frequencies("weights of kind band")
    order_V = torch.sort(counts_V, descending=True, stable=True).indices
    return torch.empty_like(order_V).scatter_(0, order_V, torch.arange(len(order_V)))


def keys_of(weights: Weights, log2_T: Tensor | None, rows: FlatRows, units: FlatUnits) -> Tensor:
    """Sorting keys for a budget of tokens.

    Args:
        weights: The weights.
        log2_T: What they say of the units.
        rows: The batch.
        units: Its partition.

    Returns:
        [T], int64 in [0, 2**31), at the places where units begin; others do not matter.
    """
    if isinstance(weights, FirstWeights):
        return weights.turns(rows, units)
    return uniform_keys(rows.bits_T) if log2_T is None else weighted_keys(rows.bits_T, log2_T)


class InformativeWeights(Settings):
    """A unit's weight is a power of the informativeness of its most informative token.

    That is how much the token tells of its neighbours in the whole corpus.

    Attributes:
        lexicon: File that `unmask lexicon` has made; None lets `pretrain` make one of the training text. Read by those
            who make the masker: masking itself sees `Tables.informativeness_V`.
        exponent: Larger ones prefer the informative more; 0 is uniform.
        floor: Informativeness, in nats, below which tokens are alike.

    Source: Sadeq et al. 2022 (InforMask), section 3: tokens are drawn by their pointwise mutual information with
    the others, as rates that each token of the vocabulary has. There, the rates come from counting what would be masked
    in a sample; here they follow from the table, and the share of masked tokens is exact.
    """

    kind: Literal["informative"] = "informative"
    lexicon: str | None = None
    exponent: Annotated[float, Field(ge=0.0, le=8.0)] = 1.0
    floor: Annotated[float, Field(gt=0.0)] = 0.01

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By the most informative token of each unit.

        Raises:
            SettingsError: There is no lexicon.
        """
        log2_V = tables.derived(self, lambda: self._table(tables))
        return units.largest(log2_V[rows.input_ids_T])

    def _table(self, tables: Tables) -> Tensor:
        informativeness_V = tables.informativeness("weights of kind informative")
        weights_V = informativeness_V.double().clamp(min=self.floor).pow(self.exponent)
        return fixed_log2(weights_V)


AnyWeights = Annotated[
    UniformWeights
    | FrequencyWeights
    | BandWeights
    | InformativeWeights
    | FirstWeights
    | PosWeights
    | PosLossWeights
    | RoleWeights
    | LossWeights
    | AccuracyWeights
    | AttentionWeights
    | AnchorWeights
    | TfIdfWeights
    | CentralityWeights,
    Field(discriminator="kind"),
]
