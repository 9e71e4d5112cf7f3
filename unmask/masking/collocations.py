"""Collocations as units: words that stand together more often than chance makes them, from a lexicon.

Shape suffixes: T = all positions of a batch in a line; W = running numbers of words (padded to T).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.compiled import arrays
from unmask.masking.flat import FlatRows
from unmask.masking.kernels.units import collocation_starts
from unmask.masking.tables import Tables
from unmask.settings import Settings

MOST_WORDS = 5


class CollocationUnits(Settings):
    """The longest collocation that begins at a word is a unit, whatever is in none is a whole word.

    Going from left to right, each unit is the longest entry of the lexicon that begins where the last unit has ended. A
    collocation never leaves its segment, and no token that cannot be masked stands within.

    Attributes:
        lexicon: File that `unmask lexicon` has made; None lets `pretrain` make one of the training text. Read by those
            who make the masker: masking itself sees `Tables.collocations`.

    Source: Levine et al. 2021 (PMI-Masking), section 3. There and here, units are drawn uniformly. Here, a unit is
    replaced as a whole, so that no word of a collocation gives the others away.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "unit"
    kind: Literal["collocations"] = "collocations"
    lexicon: str | None = None

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Where units begin.

        Raises:
            SettingsError: There is no lexicon.
        """
        collocations = tables.collocation_hashes("units of kind collocations")
        batch = arrays(rows.input_ids_T, rows.maskable_T, rows.word_starts_T, rows.segment_begin_T)
        most_words = MOST_WORDS if collocations.size else 1
        return torch.from_numpy(collocation_starts(most_words, collocations.places_P.numpy(), *batch))
