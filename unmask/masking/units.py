"""Units: how a row is partitioned into what is masked together.

A partition is a boolean tensor that says where units begin. Tokens that cannot be masked never belong to a unit, and
a unit never leaves its segment.

Shape suffix: T = all positions of a batch in a line (B rows x S positions).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.compiled import arrays
from unmask.masking.annotated_units import EntityUnits, PhraseUnits, SubtreeUnits
from unmask.masking.collocations import CollocationUnits
from unmask.masking.flat import FlatRows
from unmask.masking.kernels.units import span_starts
from unmask.masking.tables import Tables
from unmask.settings import Settings

LONGEST_SPAN = 100


class Units(Protocol):
    """A way to partition rows.

    Attributes:
        replaced_per: Whether replacement draws for each token or once for each unit, unless a recipe says so.
    """

    replaced_per: ClassVar[Literal["token", "unit"]]

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Where units begin: [T], bool. Values at tokens that cannot be masked do not matter.

        Raises:
            DataError: The rows lack an annotation that is needed.
        """
        ...


class TokenUnits(Settings):
    """Every token is a unit. Source: Devlin et al. 2018, section 3.1."""

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    kind: Literal["tokens"] = "tokens"

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Everywhere."""
        return torch.ones_like(rows.maskable_T)


class WordUnits(Settings):
    """A word with all its pieces is a unit. Source: whole-word masking of the BERT repository, May 2019."""

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    kind: Literal["words"] = "words"

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Where words begin."""
        return rows.word_starts_T


class SpanUnits(Settings):
    """Random spans of whole words, or of tokens: the row is tiled with lengths from a distribution.

    Tiles cannot overlap, so no token is masked twice, and drawing tiles uniformly keeps the lengths' distribution
    (the last tile of a segment may be cut short by its end).

    Attributes:
        of: What spans consist of: `words`, or `tokens`, whatever words these belong to.
        lengths: `geometric`, `uniform` from 1 to `max_words`, or how likely the lengths 1, 2, ... are (in any scale).
        p: Of the geometric distribution.
        max_words: Longest span; the distribution is cut there and renormalised. Given probabilities say it themselves.

    Source: Joshi et al. 2020 (SpanBERT), section 3.1: p = 0.2, at most 10 words, mean 3.8. There, spans start
    anywhere and are drawn until the budget is full; here they tile the row.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "unit"
    kind: Literal["span"] = "span"
    of: Literal["words", "tokens"] = "words"
    lengths: Literal["geometric", "uniform"] | tuple[Annotated[float, Field(ge=0.0)], ...] = "geometric"
    p: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    max_words: Annotated[int, Field(ge=1, le=LONGEST_SPAN)] = 10

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not isinstance(self.lengths, str) and not (sum(self.lengths) > 0.0 and len(self.lengths) <= LONGEST_SPAN):
            raise ValueError(
                f"lengths are 'geometric', 'uniform', or up to {LONGEST_SPAN} numbers that say how likely the lengths "
                f"1, 2, ... are, not all of them 0; there are {len(self.lengths)}"
            )
        return self

    @property
    def longest(self) -> int:
        """Words (or tokens) of the longest span."""
        return self.max_words if isinstance(self.lengths, str) else len(self.lengths)

    def thresholds(self) -> list[int]:
        """Upper ends of the lengths 1, 2, ... on a scale of 2**32."""
        if self.lengths == "geometric":
            weights = [self.p * (1.0 - self.p) ** k for k in range(self.max_words)]
        else:
            weights = [1.0] * self.max_words if self.lengths == "uniform" else list(self.lengths)
        total, ends, before = sum(weights), [], 0.0
        for weight in weights:
            before += weight
            ends.append(round(before / total * 2**32))
        return ends

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Tiles each segment.

        A length is drawn at every word. From the segment's begin on, the k-th length drawn is that of the k-th tile,
        so tiles begin at the running sums of the lengths; sums beyond the segment's last word are dropped.
        """
        word_T = rows.maskable_T if self.of == "tokens" else rows.word_starts_T & rows.maskable_T
        ends = tables.derived((self, "ends"), lambda: torch.tensor(self.thresholds()))
        return torch.from_numpy(span_starts(*arrays(word_T, rows.segment_begin_T, rows.bits_T, ends)))


PlainUnits = Annotated[
    TokenUnits | WordUnits | SpanUnits | CollocationUnits | EntityUnits | PhraseUnits | SubtreeUnits,
    Field(discriminator="kind"),
]
