"""Weights: how likely a unit is to be drawn; uniform, by frequency, and by what tokens tell of their neighbours.

A unit of twice the weight is taken twice as often, up to always. What is done with the weights stands in
`unmask.masking.draw`.

Shape suffixes: T = all positions of a batch in a line; V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.core.compiled import arrays
from unmask.core.errors import SettingsError
from unmask.core.settings import Settings
from unmask.masking.draw import (
    LARGEST_LOG2,
    POINT,
    FlatRows,
    FlatUnits,
    cosines,
    counts_in_segment,
    fixed_log2,
    pick,
    take,
)
from unmask.masking.tables import Tables
from unmask.tokenizer.alignment import HEADS_SHIFT

# ----------------------------------------
# Weights by annotations: entities first, parts of speech, syntactic roles.
#
# Shape suffix: T = all positions of a batch in a line.

Weight = Annotated[float, Field(gt=0.0, le=1e6)]
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


# ----------------------------------------
# Weights by scores: of the model in training, of another encoder, or of the document itself.
#
# Scores of a model come as tables over the vocabulary, or over parts of speech, that the training loop makes every so
# many steps. Until the first (scores without tables), all units are equally likely. They are turned into fixed-point
# logarithms once a version.
#
# Shape suffixes: T = all positions of a batch in a line; V = vocabulary; D = dimensions; L = labels of parts of speech,
# place 0 for tokens without any.

_EMBEDDING_SCALE = 1 << 11  # the sum of 32,768 of them, squared, times 64 directions, is below 2**63
Power = Annotated[float, Field(ge=-8.0, le=8.0)]


class _VocabularyScore(Settings):
    """A unit's weight is a power of the largest score among its tokens."""

    score: ClassVar[str]

    power: Power = 1.0

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        """By the score; None before there is one."""
        if tables.has_no_scores_yet:
            return None
        log2_V = tables.derived(self, lambda: self._table(tables))
        largest_T = units.largest(take(log2_V, rows.input_ids_T))
        return largest_T if self.power >= 0.0 else -largest_T

    def _table(self, tables: Tables) -> Tensor:
        score_V = tables.score(self.score, f"weights of kind {self.score}").double().clamp(min=1e-6)
        return fixed_log2(score_V.pow(abs(self.power)))


class LossWeights(_VocabularyScore):
    """What the model found hard of late: the moving average of the loss on each vocabulary entry.

    Attributes:
        power: Of the average loss; 0 is uniform.

    Source: Zhang et al. 2023 (WSBERT), section 3.2 (dynamic weights follow the loss on the token).
    """

    score: ClassVar[str] = "loss"
    kind: Literal["loss"] = "loss"


class AccuracyWeights(_VocabularyScore):
    """What the model gets wrong: w = 0.2 w + 0.8 x rate x (1 - accuracy) for each vocabulary entry, at every refresh.

    Attributes:
        power: Of w.

    Source: Edman and Fraser 2025 (adaptive masking, BabyLM). There, w is a probability of each token; here it is in
    proportion to w within a document piece, and the share of masked tokens is exact.
    """

    score: ClassVar[str] = "accuracy"
    kind: Literal["accuracy"] = "accuracy"


class AttentionWeights(_VocabularyScore):
    """What others look at: the attention that a vocabulary entry receives on average in the model being trained.

    Attributes:
        power: Of the attention received, relative to an even share; negative prefers what nobody looks at.

    Source: saliency by attention, as in AttnMask; measured on a sample of rows at every refresh, not in every step.
    """

    score: ClassVar[str] = "attention"
    kind: Literal["attention"] = "attention"


class AnchorWeights(_VocabularyScore):
    """What is close to the words that set this text apart from a background corpus.

    Attributes:
        power: Of the similarity to the closest anchor, mapped to (0, 1].
        background: A prepared folder with the same tokenizer, whose frequencies are compared.
        num_anchors: How many entries with the largest TF-ICF are anchors.

    Source: Wilf et al. 2023 (Difference-Masking), section 3. There, similarity is that of a pretrained encoder; here
    that of the embeddings of the model being trained.
    """

    score: ClassVar[str] = "anchors"
    kind: Literal["anchors"] = "anchors"
    background: str
    num_anchors: Annotated[int, Field(ge=1)] = 200


class TfIdfWeights(Settings):
    """What is particular to its document: a word's count in the document piece times the logarithm of its rarity.

    Attributes:
        power: Of the product; negative prefers what stands everywhere.

    Source: Sparck Jones 1972 (the rarity: -log2 of the share of documents that hold the token).
    """

    kind: Literal["tfidf"] = "tfidf"
    power: Power = 1.0

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        """By the largest TF-IDF of each unit's tokens."""
        idf_V = tables.derived(self, lambda: self._rarity(tables))
        counts = _counts_in_segment(rows, len(idf_V))
        log2_counts = tables.derived("log2 of counts", _log2_of_counts)
        log2_T = take(idf_V, rows.input_ids_T) + take(log2_counts, counts.clamp(max=len(log2_counts) - 1))
        largest_T = units.largest(pick(rows.maskable_T, log2_T, -(1 << 40)))
        return (largest_T.double() * self.power).round().to(torch.int64)

    def _rarity(self, tables: Tables) -> Tensor:
        documents_V, total = tables.documents("weights of kind tfidf")
        share_V = (documents_V.double() + 1.0) / (total + 2.0)
        return fixed_log2((-torch.log2(share_V)).clamp(min=1e-3))


class CentralityWeights(Settings):
    """How close a word's meaning is to that of its document: the cosine between their embeddings.

    Attributes:
        encoder: Folder of an encoder (of transformers or sentence-transformers) whose input embeddings are taken; None:
            those of the model being trained.
        strength: Doublings of the weight from an unrelated word (cosine 0) to the document's mean itself (cosine 1);
            negative prefers words that stand apart.

    Source: ours, after the centrality of sentences in summarisation (Radev et al. 2004), with embeddings of words.
    """

    kind: Literal["centrality"] = "centrality"
    encoder: str | None = None
    strength: Annotated[float, Field(ge=-16.0, le=16.0)] = 3.0

    @property
    def score(self) -> str | None:
        """The score of the model being trained that it follows."""
        return "embedding" if self.encoder is None else None

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        """By the cosine; None before there are embeddings."""
        if self.encoder is None and tables.has_no_scores_yet:
            return None
        table_VD = tables.derived(self, lambda: self._table(tables))
        batch = arrays(rows.input_ids_T, rows.maskable_T, rows.segment_begin_T, units.begin_T)
        cosine_T = torch.from_numpy(cosines(table_VD.numpy(), *batch))
        return (cosine_T * self.strength * (1 << POINT)).round().to(torch.int64)

    def _table(self, tables: Tables) -> Tensor:
        """Embeddings in integers: their sums, and so cosines and masks, are the same in any order of adding."""
        wanted_by = "weights of kind centrality"
        table = tables.score("embedding", wanted_by) if self.encoder is None else tables.embedding(wanted_by)
        table_VD = table.double()
        largest = table_VD.abs().max().clamp(min=1e-12)
        return (table_VD / largest * _EMBEDDING_SCALE).round().to(torch.int64)


def _counts_in_segment(rows: FlatRows, vocab_size: int) -> Tensor:
    """[T], int64: how often the token's id stands in its segment."""
    return torch.from_numpy(counts_in_segment(vocab_size, *arrays(rows.input_ids_T, rows.segment_begin_T)))


def _log2_of_counts() -> Tensor:
    return fixed_log2(torch.arange(4096).clamp(min=1).double())


_LEAST = 1e-6  # of a weight: its logarithm is finite
_WANTED_BY = "weights of kind pos_loss"


class PosLossWeights(Settings):
    """A unit's weight is that of its weightiest part of speech: what the model finds hard of late is masked more often.

    With the mean and the standard deviation of the model's recent losses on parts of speech, one of these weighs

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
    what was observed since the last refresh, as that of other scores does (`unmask.train.scores`).
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
