"""Units: how a row is partitioned into what is masked together.

A partition is a boolean tensor that marks the starts of units. Tokens that cannot be masked never belong to a unit, and
a unit never leaves its segment.

Shape suffix: T = all positions of a batch in a line (B rows x S positions).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated, ClassVar, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.core.compiled import arrays
from unmask.core.settings import AbsolutePath, Settings
from unmask.data.lexicon import MOST_WORDS
from unmask.masking.draw import FlatRows
from unmask.masking.draw_loops import collocation_starts, span_starts
from unmask.masking.tables import Tables
from unmask.tokenizer.spans import BEFORE_SHIFT, FARTHEST

LONGEST_SPAN = 100


class Units(Protocol):
    # Whether replacement draws for each token or once for each unit; a recipe can override it.
    replaced_per: ClassVar[Literal["token", "unit"]]

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """The starts of units: [T], bool. Values at tokens that cannot be masked do not matter. Raises a DataError if
        the rows lack an annotation."""
        ...


class TokenUnits(Settings):
    """Every token is a unit. Source: Devlin et al. 2018, section 3.1."""

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    kind: Literal["tokens"] = "tokens"

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        return torch.ones_like(rows.maskable_T)


class WordUnits(Settings):
    """A word with all its pieces is a unit. Source: whole-word masking of the BERT repository, May 2019."""

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    kind: Literal["words"] = "words"

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        return rows.word_starts_T


class SpanUnits(Settings):
    """Random spans of whole words, or of tokens: the row is tiled with lengths from a distribution.

    Tiles cannot overlap, so no token is masked twice, and drawing tiles uniformly keeps the lengths' distribution
    (the last tile of a segment may be cut short by its end).

    Source: Joshi et al. 2020 (SpanBERT), section 3.1: p = 0.2, at most 10 words, mean 3.8. There, spans start
    anywhere and are drawn until the budget is full; here they tile the row.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "unit"
    kind: Literal["span"] = "span"
    of: Literal["words", "tokens"] = "words"
    """What spans consist of: whole `words`, or `tokens`, regardless of words."""
    lengths: Literal["geometric", "uniform"] | tuple[Annotated[float, Field(ge=0.0)], ...] = "geometric"
    """Lengths of spans: `geometric`, `uniform` from 1 to `max_words`, or weights of the lengths 1, 2, ... (in any
    scale)."""
    p: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Parameter of the geometric distribution."""
    max_words: Annotated[int, Field(ge=1, le=LONGEST_SPAN)] = 10
    """Longest span; the distribution is truncated there and renormalised. Ignored if `lengths` is a list."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not isinstance(self.lengths, str) and not (sum(self.lengths) > 0.0 and len(self.lengths) <= LONGEST_SPAN):
            raise ValueError(
                f"lengths must be 'geometric', 'uniform', or up to {LONGEST_SPAN} weights of the lengths 1, "
                f"2, ..., not all 0; there are {len(self.lengths)}"
            )
        return self

    def thresholds(self) -> list[int]:
        """Cumulative probabilities of the lengths 1, 2, ... on a scale of 2**32."""
        if self.lengths == "geometric":
            weights = [self.p * (1.0 - self.p) ** k for k in range(self.max_words)]
        else:
            weights = [1.0] * self.max_words if self.lengths == "uniform" else list(self.lengths)
        return [round(end / sum(weights) * 2**32) for end in accumulate(weights)]

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Tiles each segment. Every word draws a length, and the k-th tile takes the length of the segment's k-th word.
        Lengths beyond the segment's last word are dropped."""
        word_T = rows.maskable_T if self.of == "tokens" else rows.word_starts_T & rows.maskable_T
        if self not in tables.derived:
            tables.derived[self] = torch.tensor(self.thresholds())
        ends = tables.derived[self]
        return torch.from_numpy(span_starts(*arrays(word_T, rows.segment_begin_T, rows.bits_T, ends)))


class CollocationUnits(Settings):
    """The longest collocation that begins at a word is a unit; all other words are units of their own.

    From left to right, each unit is the longest entry of a lexicon that begins after the previous unit. It never leaves
    its segment, and contains no token that cannot be masked.

    Source: Levine et al. 2021 (PMI-Masking), section 3. There and here, units are drawn uniformly. Here, a unit is
    replaced as a whole, so that no word of a collocation gives the others away.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "unit"
    kind: Literal["collocations"] = "collocations"
    lexicon: AbsolutePath | None = None
    """File made by `unmask lexicon`. Unset: `pretrain` makes one from the training text. It is read when the masker is
    made: masking itself sees `Tables.collocations_P`."""

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        set_P = tables.need("collocations_P", "units of kind collocations")
        batch = arrays(set_P, rows.input_ids_T, rows.maskable_T, rows.word_starts_T, rows.segment_begin_T)
        return torch.from_numpy(collocation_starts(MOST_WORDS, *batch))


# Units from annotations: entities, phrases, subtrees of the dependency parse, and whole words between them. Long texts
# are cut, so a segment may begin within one of these: then its rest is a unit.


class _AnnotatedSpans(Settings):
    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    needs: ClassVar[tuple[str, ...]]
    kind: str

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Spans of a column `entities` or `chunks`, and words outside of them."""
        spans_T = rows.annotation(self.needs[0], f"units of kind {self.kind}")
        inside_T = spans_T > 0
        before_T = torch.roll(inside_T, 1)  # may wrap around, since a segment's first token always begins a unit
        begins_T = (spans_T & 1 == 1) | ~before_T
        return torch.where(inside_T, begins_T, rows.word_starts_T | before_T)


class EntityUnits(_AnnotatedSpans):
    """A named entity is a unit, and so is every other word.

    Source: Sun et al. 2019 (ERNIE 1.0), section 3.2.3; Guu et al. 2020 (REALM), section 3.4, where one entity or date
    per text is masked; here as many as the budget takes.
    """

    needs: ClassVar[tuple[str, ...]] = ("entities",)
    kind: Literal["entity"] = "entity"


class PhraseUnits(_AnnotatedSpans):
    """A phrase (a noun chunk, or whatever the annotation calls a chunk) is a unit, and so is every other word.

    Source: Sun et al. 2019 (ERNIE 1.0), section 3.2.2.
    """

    needs: ClassVar[tuple[str, ...]] = ("chunks",)
    kind: Literal["phrase"] = "phrase"


class SubtreeUnits(Settings):
    """The largest subtrees of the dependency parse with at most `max_words` words are units; so is every other word.

    Only contiguous subtrees count. At a segment's edge, the part within the segment counts.

    Example: of `[The old king] [of Spain] slept`, where `king` is the head of the first five words, subtrees of at most
    two words are `of Spain`; the other words are their own. With five words, the first five are one unit.

    Source: ours; a contiguous subtree is a constituent, so this is masking by phrases of a bounded size.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    needs: ClassVar[tuple[str, ...]] = ("dependencies",)
    kind: Literal["subtree"] = "subtree"
    max_words: Annotated[int, Field(ge=1, le=100)] = 4
    """Words of the largest subtree; with 1, every word is its own unit."""

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Marks words that no small subtree joins to the previous word. Each small subtree adds 1 to all its tokens but
        the first, and a word starts a unit if the sum is 0."""
        parse_T = rows.annotation("dependencies", "units of kind subtree")
        before_T, behind_T = (parse_T >> BEFORE_SHIFT) & FARTHEST, parse_T & FARTHEST
        place_T = torch.arange(len(parse_T), device=parse_T.device)
        segment_end_T = rows.segment_begin_T + rows.segment_sum(torch.ones_like(parse_T)) - 1
        first_T = torch.maximum(place_T - before_T, rows.segment_begin_T)
        last_T = torch.minimum(place_T + behind_T, segment_end_T)
        words_T = torch.cumsum(rows.word_starts_T & rows.maskable_T, 0)
        num_words_T = words_T[last_T] - words_T[first_T] + rows.maskable_T[first_T]
        known_T = (parse_T > 0) & (before_T < FARTHEST) & (behind_T < FARTHEST)
        small_T = (known_T & (num_words_T <= self.max_words)).to(torch.int64)
        steps_T = torch.zeros(len(parse_T) + 2, dtype=torch.int64, device=parse_T.device)
        steps_T = steps_T.scatter_add_(0, first_T + 1, small_T).scatter_add_(0, last_T + 1, -small_T)
        return rows.word_starts_T & (torch.cumsum(steps_T, 0)[:-2] == 0)


PlainUnits = Annotated[
    TokenUnits | WordUnits | SpanUnits | CollocationUnits | EntityUnits | PhraseUnits | SubtreeUnits,
    Field(discriminator="kind"),
]
