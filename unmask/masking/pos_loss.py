"""Weights by part of speech that follow the training: what the model finds hard of late is masked more often.

Shape suffixes: T = all positions of a batch in a line; L = labels of parts of speech, place 0 for tokens without any.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.errors import SettingsError
from unmask.masking.annotated_weights import NOTHING, log2_of_heaviest
from unmask.masking.flat import FlatRows, FlatUnits
from unmask.masking.keys import fixed_log2
from unmask.masking.tables import Tables
from unmask.settings import Settings

_LEAST = 1e-6  # of a weight: its logarithm is finite
_WANTED_BY = "weights of kind pos_loss"


class PosLossWeights(Settings):
    """A unit's weight is that of its weightiest part of speech, by the model's recent loss on it.

    With the mean and the standard deviation of the parts of speech's losses, a part of speech weighs

        floor + (1 - floor) x sigmoid((its loss - mean) / deviation / temperature)

    Tokens without a tag are a part of speech of their own, which counts in units that have no other. A part of speech
    that was never predicted has the mean loss. Until the first scores all units are equally likely.

    Attributes:
        temperature: Standard deviations of the loss that are a step of the logistic curve; the larger, the more
            equal the weights.
        floor: The least weight, where the largest is 1: how much of it is left to what the model finds easy.

    Source: Yang et al. 2023, section 4 (POS-tagging weighted masking) and the code that goes with it, whose logistic
    curve this is, with temperature 1/2 and no floor. There, the weight is the probability that a word is taken in one
    walk over the words in random order, and the loss is a moving average that takes in 1/1000 of every step; here
    probabilities are in proportion to the weights, so the share of masked tokens is exact, and the average takes in
    what was observed since the last refresh, as that of other scores does (`unmask.training.scores`).
    """

    score: ClassVar[str] = "pos_loss"
    needs: ClassVar[tuple[str, ...]] = ("pos",)
    kind: Literal["pos_loss"] = "pos_loss"
    temperature: Annotated[float, Field(gt=0.0, le=1000.0)] = 0.5
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        """By the losses of tags; None before there are any."""
        tags_T = rows.annotation("pos", _WANTED_BY)
        if tables.has_no_scores_yet:
            return None
        log2 = tables.derived(self, lambda: self._table(tables))
        return log2_of_heaviest(units, log2[:-1], tags_T, log2[-1])

    def _table(self, tables: Tables) -> Tensor:
        """Logarithms by label, from 1 on; behind them that of units without one. Made on the host, once a version."""
        loss_L = tables.score(self.score, _WANTED_BY).double()
        labels = tables.labels_of("pos", _WANTED_BY)
        if len(loss_L) != len(labels) + 1:
            raise SettingsError(
                f"{_WANTED_BY}: the score 'pos_loss' is of {len(loss_L) - 1} parts of speech, but the data has "
                f"{len(labels)}; scores and rows are to come from the same data"
            )
        log2_L = fixed_log2(self.weights_of(loss_L))
        return torch.cat([torch.tensor([NOTHING]), log2_L[1:], log2_L[:1]])

    def weights_of(self, loss_L: Tensor) -> Tensor:
        """The weights of losses, float64 [L]."""
        deviation = loss_L.std(correction=0).clamp(min=1e-12)
        curve_L = torch.sigmoid((loss_L - loss_L.mean()) / deviation / self.temperature)
        return (self.floor + (1.0 - self.floor) * curve_L).clamp(min=_LEAST)
