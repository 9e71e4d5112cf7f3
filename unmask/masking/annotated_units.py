"""Units that annotations make: entities, phrases, subtrees of the dependency parse; between them whole words.

A segment may begin within one of these, since long texts are cut: then what is left of it is a unit.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.masking.flat import FlatRows
from unmask.masking.tables import Tables
from unmask.settings import Settings
from unmask.tokens.alignment import BEFORE_SHIFT, FARTHEST


def spans_and_words(rows: FlatRows, spans_T: Tensor) -> Tensor:
    """Where units begin that are spans of a column, and words outside of them.

    Args:
        rows: The batch.
        spans_T: int64: a column of kind `entities` or `chunks` (see `unmask.tokens.alignment`).
    """
    inside_T = spans_T > 0
    before_T = torch.roll(inside_T, 1)  # the first token of a segment always begins a unit, whatever comes round here
    begins_T = (spans_T & 1 == 1) | ~before_T
    return torch.where(inside_T, begins_T, rows.word_starts_T | before_T)


class EntityUnits(Settings):
    """A named entity is a unit, and so is every other word.

    Source: Sun et al. 2019 (ERNIE 1.0), section 3.2.3; Guu et al. 2020 (REALM), section 3.4, where one entity or date a
    text is masked; here as many as the budget takes.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    needs: ClassVar[tuple[str, ...]] = ("entities",)
    kind: Literal["entity"] = "entity"

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Where entities begin, and words outside of them."""
        return spans_and_words(rows, rows.annotation("entities", "units of kind entity"))


class PhraseUnits(Settings):
    """A phrase (a noun chunk, or whatever the annotation calls a chunk) is a unit, and so is every other word.

    Source: Sun et al. 2019 (ERNIE 1.0), section 3.2.2.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    needs: ClassVar[tuple[str, ...]] = ("chunks",)
    kind: Literal["phrase"] = "phrase"

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Where phrases begin, and words outside of them."""
        return spans_and_words(rows, rows.annotation("chunks", "units of kind phrase"))


class SubtreeUnits(Settings):
    """The largest subtrees of the dependency parse with so many words at most are units; other words are their own.

    A subtree that is not contiguous is none. At a segment's edge, what lies within counts.

    Attributes:
        max_words: Words of the largest subtree; with 1, every word is its own unit.

    Example: of `[The old king] [of Spain] slept`, where `king` is the head of the first five words, subtrees of at most
    two words are `of Spain`; the other words are their own. With five words, the first five are one unit.

    Source: ours; a contiguous subtree is a constituent, so this is masking by phrases of a bounded size.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "token"
    needs: ClassVar[tuple[str, ...]] = ("dependencies",)
    kind: Literal["subtree"] = "subtree"
    max_words: Annotated[int, Field(ge=1, le=100)] = 4

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Words that no small subtree joins to the word before them.

        Each small subtree adds one to all places behind its first token; a word stands apart where the sum is 0.
        """
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
