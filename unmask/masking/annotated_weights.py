"""Weights by annotations: entities first, parts of speech, syntactic roles.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.errors import SettingsError
from unmask.hashing import TURN
from unmask.masking.flat_rows import FlatRows, FlatUnits, take
from unmask.masking.row_loops import KEY_BITS
from unmask.masking.unit_draw import LARGEST_LOG2, fixed_log2, uniform_keys
from unmask.masking.vocabulary_tables import Tables
from unmask.settings import Settings
from unmask.tokenizer.alignment import HEADS_SHIFT

Weight = Annotated[float, Field(gt=0.0, le=1e6)]
_SHARE_BITS = 8
_LAST = (1 << (KEY_BITS - 1)) - 1
_NEVER_FIRST = -LARGEST_LOG2
NOTHING = -(1 << 40)  # less than the logarithm of any weight

# The class of words in each language's tables of Universal Dependencies, and in spaCy's for English (ClearNLP's).
ARGUMENTS = {
    "nsubj", "nsubjpass", "csubj", "csubjpass", "obj", "iobj", "dobj", "pobj", "dative", "obl", "ccomp", "xcomp",
    "pcomp", "acomp", "attr", "oprd",
}  # fmt: skip
FUNCTION = {
    "aux", "auxpass", "case", "cc", "clf", "cop", "det", "mark", "punct", "prep", "predet", "preconj", "prt", "neg",
    "expl", "agent",
}  # fmt: skip
UNIVERSAL_TAGS = {
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
    "SYM", "VERB", "X",
}  # fmt: skip
_CONTENT = ("ADJ", "ADV", "NOUN", "NUM", "PROPN", "VERB")


class FirstWeights(Settings):
    """Units of a kind take a share of the budget, as long as both they and the others last.

    All units of the kind have the weight share / (their tokens), all others (1 - share) / (theirs): so of the expected
    tokens they have their share, in each segment. Where one kind is taken whole and does not fill its share, the other
    gets the rest.

    Attributes:
        of: Whether the kind is units that hold an entity, or those that hold a chunk.
        share: Of the budget that the kind takes. With 1 all of them come before all others.

    Source: Guu et al. 2020 (REALM), section 3.4, masks entities alone, which is a share of 1 (with others where a text
    has too few). The share is ours.
    """

    kind: Literal["first"] = "first"
    of: Literal["entities", "chunks"] = "entities"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5

    @property
    def needs(self) -> tuple[str, ...]:
        """The annotation."""
        return (self.of,)

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By kind, and by how many tokens of the kind the segment has."""
        first_T = self._is_first(rows, units)
        of_first_T = rows.segment_sum(units.size_T * first_T)
        of_others_T = rows.segment_sum(units.size_T * (1 - first_T))
        longest = 1 << rows.width.bit_length()  # few tables, whatever the widths of batches
        logs = tables.derived(
            ("log2 of tokens", longest), lambda: fixed_log2(torch.arange(longest).clamp(min=1).double())
        )
        share = _log2_of(self.share)
        others = _NEVER_FIRST if self.share == 1.0 else _log2_of(1.0 - self.share)
        return torch.where(first_T == 1, share - take(logs, of_first_T), others - take(logs, of_others_T))

    def _is_first(self, rows: FlatRows, units: FlatUnits) -> Tensor:
        """[T], int64: 1 where a unit of the kind begins."""
        named_T = rows.annotation(self.of, "weights of kind first") > 0
        return units.largest(named_T.to(torch.int64))

    def turns(self, rows: FlatRows, units: FlatUnits) -> Tensor:
        """Keys for a budget of tokens: [T], int64 in [0, 2**31).

        Both kinds stand in a random order. A unit's turn is the number of tokens of its kind that come before it (and a
        random part of itself), divided by its kind's share, in steps of 1/256. So of any budget the kinds take their
        shares as long as both last, and it need not be known here. Beyond 32,768 tokens all turns are equal.
        """
        first_T = self._is_first(rows, units)
        group_T = rows.segment_T * 2 + 1 - first_T
        order_U = torch.argsort((group_T << KEY_BITS) | uniform_keys(rows.bits_T), stable=True)
        size_U, group_U = units.size_T[order_U], group_T[order_U]
        before_U = torch.cumsum(size_U, 0) - size_U
        opens_U = torch.diff(group_U, prepend=group_U[:1] - 1) != 0
        before_U = before_U - torch.cummax(torch.where(opens_U, before_U, 0), 0).values
        turn_U = (before_U << TURN.size) + TURN.of(rows.bits_T[order_U]) * size_U

        whole = 1 << _SHARE_BITS
        share = min(max(round(self.share * whole), 1), whole - 1)
        is_first_U = first_T[order_U] == 1
        turn_U = (turn_U * torch.where(is_first_U, whole - share, share)).clamp(max=_LAST)
        if self.share == 1.0:
            turn_U = torch.where(is_first_U, turn_U, turn_U + _LAST + 1)
        return torch.zeros_like(turn_U).scatter_(0, order_U, turn_U)


class PosWeights(Settings):
    """A unit's weight is that of its weightiest part of speech.

    Attributes:
        weights: Tag to weight.
        default: Weight of other tags, and of units without any.

    Source: ours; content words before function words, as Yang et al. 2023 do with weights that follow the loss.
    """

    needs: ClassVar[tuple[str, ...]] = ("pos",)
    kind: Literal["pos"] = "pos"
    weights: dict[str, Weight] = Field(default_factory=lambda: dict.fromkeys(_CONTENT, 2.0))
    default: Weight = 1.0

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By tags."""
        tags_T = rows.annotation("pos", "weights of kind pos")
        key = ("pos", tuple(sorted(self.weights.items())), self.default)
        log2 = tables.derived(key, lambda: self._table(tables))
        return log2_of_heaviest(units, log2, tags_T, _log2_of(self.default))

    def _table(self, tables: Tables) -> Tensor:
        labels = tables.labels_of("pos", "weights of kind pos")
        unknown = sorted(set(self.weights) - set(labels) - UNIVERSAL_TAGS)
        if unknown:
            raise SettingsError(
                f"masking.weights.weights names the part of speech {unknown[0]!r}, which the data does not have; "
                f"it has {', '.join(labels)}"
            )
        if labels and self.weights and not set(labels) & set(self.weights):
            raise SettingsError(
                "masking.weights.weights has no part of speech of the data, so all words would weigh the same: the "
                f"data has {_some(labels)}, the weights are of {', '.join(sorted(self.weights))}; name tags of the "
                "data there"
            )
        return _log2([self.weights.get(label, self.default) for label in labels])


class RoleWeights(Settings):
    """A unit's weight is that of its weightiest word, by its role in the dependency parse.

    Attributes:
        arguments: Subjects, objects, and clauses that stand for them.
        function: Articles, prepositions, auxiliaries, conjunctions, punctuation.
        heads: Other words on which something hangs.
        others: The rest.

    Source: ours; the classes are those of Universal Dependencies (de Marneffe et al. 2021).
    """

    needs: ClassVar[tuple[str, ...]] = ("dependencies",)
    kind: Literal["role"] = "role"
    arguments: Weight = 2.0
    function: Weight = 0.5
    heads: Weight = 1.0
    others: Weight = 1.0

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By roles."""
        role_T = rows.annotation("dependencies", "weights of kind role") >> HEADS_SHIFT
        log2 = tables.derived(self, lambda: self._table(tables))
        return log2_of_heaviest(units, log2, role_T, _log2_of(self.others))

    def _table(self, tables: Tables) -> Tensor:
        """Logarithms by 2 x role + (1 where something hangs on the word), from 2 on."""
        weights = [self.others]
        labels = tables.labels_of("dependencies", "weights of kind role")
        if labels and not {_basic(label) for label in labels} & (ARGUMENTS | FUNCTION):
            raise SettingsError(
                "weights of kind role know the roles of Universal Dependencies and of spaCy's English pipelines, but "
                f"the data has none of them: it has {_some(labels)}; annotate it with a pipeline that gives such "
                "roles, or take other weights, such as masking.weights.kind = 'uniform'"
            )
        for label in labels:
            weights += self._weights_of(label)
        return _log2(weights)

    def _weights_of(self, role: str) -> list[float]:
        """Without anything hanging on the word, and with; subtypes, as in `nsubj:pass`, are of their type."""
        basic = _basic(role)
        if basic in FUNCTION:
            return [self.function] * 2
        return [self.arguments] * 2 if basic in ARGUMENTS else [self.others, self.heads]


def _basic(role: str) -> str:
    """A role without its subtype."""
    return role.lower().split(":")[0]


def _some(labels: Sequence[str]) -> str:
    """The first twenty, and how many more there are."""
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return ", ".join(labels[:20]) + more


def _log2(weights: Sequence[float]) -> Tensor:
    """Fixed-point logarithms; nothing was said at place 0."""
    found = fixed_log2(torch.tensor(weights, dtype=torch.float64))
    return torch.cat([torch.tensor([NOTHING]), found])


def log2_of_heaviest(units: FlatUnits, log2: Tensor, said_T: Tensor, other: Tensor | int) -> Tensor:
    """The weight of each unit's weightiest token; tokens of which nothing was said count where there are no others.

    Args:
        units: The partition.
        log2: int64: fixed-point logarithms of weights by number of a label, `NOTHING` at place 0.
        said_T: int64: numbers of labels, 0 where nothing was said.
        other: Logarithm of the weight of units of which nothing was said.
    """
    found_T = units.largest(log2[said_T])
    return torch.where(found_T == NOTHING, other, found_T)


def _log2_of(weight: float) -> int:
    return int(fixed_log2(torch.tensor([weight], dtype=torch.float64))[0])
