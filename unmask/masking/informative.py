"""Weights by how much a token tells of its neighbours in the whole corpus.

Shape suffixes: T = all positions of a batch in a line; V = vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from unmask.masking.flat import FlatRows, FlatUnits
from unmask.masking.keys import fixed_log2
from unmask.masking.tables import Tables
from unmask.settings import Settings


class InformativeWeights(Settings):
    """A unit's weight is a power of the informativeness of its most informative token.

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
