"""Weights: how likely a unit is to be drawn, uniform, or by tables, annotations, scores of a model, or its document.

A unit of twice the weight is taken twice as often, up to always; `unmask.masking.draw` turns weights into draws. They
are logarithms to base 2 in fixed point; `Tables.derived` caches those of whole tables.

Shape suffixes: T = all positions of a batch in a line; V = vocabulary; D = dimensions; L = labels of an annotation, by
number: place 0 is for tokens without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from unmask.core.compiled import arrays
from unmask.core.errors import SettingsError, listed
from unmask.core.settings import AbsolutePath, Settings
from unmask.data.annotations import UNIVERSAL_TAGS
from unmask.masking.draw import LARGEST_LOG2, FlatRows, FlatUnits, fixed_log2, pick
from unmask.masking.draw_loops import POINT, cosines, counts_in_segment
from unmask.masking.tables import Tables
from unmask.tokenizer.spans import HEADS_SHIFT

Weight = Annotated[float, Field(gt=0.0, le=1e6)]
Power = Annotated[float, Field(ge=-8.0, le=8.0)]
_NOTHING = -(1 << 40)  # less than the logarithm of any weight
_MOST_COUNTS = 4096  # counts in a segment with a logarithm in the table; larger ones are clamped
_EMBEDDING_SCALE = 1 << 11  # the sum of 32,768 of them, squared, times 64 directions, is below 2**63

# Classes of dependency labels: those of Universal Dependencies, and of spaCy's English pipelines (ClearNLP's).
_ARGUMENTS = {
    "nsubj", "nsubjpass", "csubj", "csubjpass", "obj", "iobj", "dobj", "pobj", "dative", "obl", "ccomp", "xcomp",
    "pcomp", "acomp", "attr", "oprd",
}  # fmt: skip
_FUNCTION = {
    "aux", "auxpass", "case", "cc", "clf", "cop", "det", "mark", "punct", "prep", "predet", "preconj", "prt", "neg",
    "expl", "agent",
}  # fmt: skip


class Weights(Protocol):
    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        """Logarithms of weights to base 2, in 2**-18: [T], int64; None: all units are equal.

        Only values at the first tokens of units matter, and only their differences within a segment. Raises a DataError
        if the rows lack an annotation, a SettingsError if a table is missing.
        """
        ...


class UniformWeights(Settings):
    """All units are equally likely."""

    kind: Literal["uniform"] = "uniform"

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> None:
        return None


class FrequencyWeights(Settings):
    """A unit's weight is a power of its rarest token's count in the corpus.

    Source: Zhang et al. 2023 (WSBERT), section 3.1, for exponent -0.5; here the share of masked tokens is exact.
    """

    kind: Literal["frequency", "rare"] = "frequency"
    exponent: Annotated[float, Field(ge=-4.0, le=4.0)] = -0.5
    """Power of the count: negative prefers rare tokens, positive common ones; 0 is uniform."""
    floor: Annotated[int, Field(ge=1)] = 10
    """Lower counts are raised to this, so that tokens seen once are not always drawn."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        counts_V = tables.need("frequencies_V", "weights of kind frequency")
        if self not in tables.derived:
            tables.derived[self] = fixed_log2(counts_V.clamp(min=self.floor).double().pow(-abs(self.exponent)))
        # The rarest token has the largest entry, whatever the sign.
        rarest_T = units.largest(tables.derived[self].index_select(0, rows.input_ids_T))
        return rarest_T if self.exponent < 0 else -rarest_T


class InformativeWeights(Settings):
    """A unit's weight is a power of how much its most informative token reveals about its neighbours in the corpus.

    Source: Sadeq et al. 2022 (InforMask), section 3: tokens are drawn by their pointwise mutual information with
    the others. There, rates come from counting what would be masked in a sample; here they follow from the table.
    """

    kind: Literal["informative"] = "informative"
    lexicon: AbsolutePath | None = None
    """File made by `unmask lexicon`. Unset: `pretrain` makes one from the training text. It is read when the masker is
    made: masking itself sees `Tables.informativeness_V`."""
    exponent: Annotated[float, Field(ge=0.0, le=8.0)] = 1.0
    """Power of the informativeness: larger values prefer informative tokens more; 0 is uniform."""
    floor: Annotated[float, Field(gt=0.0)] = 0.01
    """Informativeness, in nats, below which all tokens count alike."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        nats_V = tables.need("informativeness_V", "weights of kind informative")
        if self not in tables.derived:
            tables.derived[self] = fixed_log2(nats_V.double().clamp(min=self.floor).pow(self.exponent))
        return units.largest(tables.derived[self].index_select(0, rows.input_ids_T))


# Weights by annotations.


class FirstWeights(Settings):
    """Units of one kind take a share of the budget in each segment: their weight is share / (their tokens), that of
    others (1 - share) / (theirs). If all units of one kind do not fill its share, the others get the rest.

    Source: Guu et al. 2020 (REALM), section 3.4, masks entities alone, which is a share of 1 (with others where a text
    has too few). The share is ours.
    """

    kind: Literal["first"] = "first"
    of: Literal["entities", "chunks"] = "entities"
    """What units of this kind contain."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the budget for this kind. At 1, all of its units come before any others."""

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        named_T = rows.annotation(self.of, "weights of kind first") > 0
        first_T = units.largest(named_T.to(torch.int64))  # 1 at the first tokens of units of this kind
        longest = 1 << rows.width.bit_length()  # a power of two, so that few tables serve all widths
        log2_of = _log2_of_counts(tables, longest)
        share, rest = fixed_log2(torch.tensor([self.share, 1.0 - self.share], dtype=torch.float64)).tolist()
        rest = -LARGEST_LOG2 if self.share == 1.0 else rest
        log2_first_T = share - log2_of.index_select(0, rows.segment_sum(units.size_T * first_T))
        log2_others_T = rest - log2_of.index_select(0, rows.segment_sum(units.size_T * (1 - first_T)))
        return torch.where(first_T == 1, log2_first_T, log2_others_T)


def _log2_of_counts(tables: Tables, size: int) -> Tensor:
    """Fixed-point logarithms of 1, 1, 2, 3, ..., `size` - 1."""
    if ("counts", size) not in tables.derived:
        tables.derived["counts", size] = fixed_log2(torch.arange(size).clamp(min=1).double())
    return tables.derived["counts", size]


def _of_labels(weights: Sequence[float], other: float) -> Tensor:
    """Fixed-point logarithms by label, from 1 on; the last one is for units without a label."""
    log2 = fixed_log2(torch.tensor([*weights, other], dtype=torch.float64))
    return torch.cat([torch.tensor([_NOTHING]), log2])


def _heaviest(units: FlatUnits, log2_L: Tensor, label_T: Tensor) -> Tensor:
    # The largest weight of each unit's labelled tokens, or that for no label. `log2_L` is made by `_of_labels`.
    heaviest_T = units.largest(log2_L[:-1][label_T])
    return torch.where(heaviest_T == _NOTHING, log2_L[-1], heaviest_T)


class PosWeights(Settings):
    """A unit's weight is that of its heaviest part of speech.

    Source: ours; content words before function words, as Yang et al. 2023 do with weights that follow the loss.
    """

    needs: ClassVar[tuple[str, ...]] = ("pos",)
    kind: Literal["pos"] = "pos"
    weights: dict[str, Weight] = Field(
        default_factory=lambda: {"ADJ": 2.0, "ADV": 2.0, "NOUN": 2.0, "NUM": 2.0, "PROPN": 2.0, "VERB": 2.0}
    )
    """Weights by tag."""
    default: Weight = 1.0
    """Weight of other tags, and of units without a tag."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        tags_T = rows.annotation("pos", "weights of kind pos")
        key = ("pos", tuple(sorted(self.weights.items())), self.default)  # a dict has no hash
        if key not in tables.derived:
            labels = tables.labels_of("pos", "weights of kind pos")
            unknown = sorted(set(self.weights).difference(labels, UNIVERSAL_TAGS))
            if unknown:
                raise SettingsError(
                    f"masking.weights.weights names {unknown[0]!r}, which the data lacks; it has {', '.join(labels)}"
                )
            if labels and self.weights and not set(labels) & set(self.weights):
                raise SettingsError(
                    f"masking.weights.weights must name parts of speech of the data, which has {listed(labels, 20)}"
                )
            weights = [self.weights.get(label, self.default) for label in labels]
            tables.derived[key] = _of_labels(weights, self.default)
        return _heaviest(units, tables.derived[key], tags_T)


class RoleWeights(Settings):
    """A unit's weight is that of its heaviest word, by its role in the dependency parse.

    Source: ours; the classes are those of Universal Dependencies (de Marneffe et al. 2021).
    """

    needs: ClassVar[tuple[str, ...]] = ("dependencies",)
    kind: Literal["role"] = "role"
    arguments: Weight = 2.0
    """Weight of subjects and objects, also as clauses."""
    function: Weight = 0.5
    """Weight of articles, prepositions, auxiliaries, conjunctions and punctuation."""
    heads: Weight = 1.0
    """Weight of other words that have dependents."""
    others: Weight = 1.0
    """Weight of the rest."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        role_T = rows.annotation("dependencies", "weights of kind role") >> HEADS_SHIFT
        if self not in tables.derived:
            labels = tables.labels_of("dependencies", "weights of kind role")
            roles = [label.lower().split(":")[0] for label in labels]  # subtypes, as in `nsubj:pass`, take their type
            if labels and not set(roles) & (_ARGUMENTS | _FUNCTION):
                raise SettingsError(
                    "weights of kind role know the roles of Universal Dependencies and of spaCy's English pipelines, "
                    f"but the data has only {listed(labels, 20)}; use other weights, or annotate the data again"
                )
            weights = [self.others]  # by 2 x role + (1 if the word has dependents), from 2 on
            for role in roles:
                known = self.function if role in _FUNCTION else self.arguments if role in _ARGUMENTS else None
                weights += [self.others, self.heads] if known is None else [known, known]
            tables.derived[self] = _of_labels(weights, self.others)
        return _heaviest(units, tables.derived[self], role_T)


# Weights by scores of the model being trained: tables over the vocabulary, or over parts of speech, that the training
# loop recomputes every `refresh_steps` steps. Until the first scores, all units are equally likely.


class PosLossWeights(Settings):
    """A unit's weight is that of its heaviest part of speech: what the model recently found hard is masked more often.

    With the mean and the standard deviation of the model's recent losses over parts of speech, the weight of one is

        floor + (1 - floor) x sigmoid((its loss - mean) / deviation / temperature)

    Tokens without a tag are a part of speech of their own, which counts in units that have no other. A part of speech
    that was never predicted has the mean loss.

    Source: Yang et al. 2023, section 4 (POS-tagging weighted masking) and the code that goes with it, whose logistic
    curve this is, with temperature 1/2 and no floor. There, words are visited once in random order, the weight is the
    probability that a word is taken, and the loss is a moving average over steps. Here probabilities are in proportion
    to the weights, and the loss is averaged like other scores (`unmask.train.scores`).
    """

    score: ClassVar[str] = "pos_loss"
    needs: ClassVar[tuple[str, ...]] = ("pos",)
    kind: Literal["pos_loss"] = "pos_loss"
    temperature: Annotated[float, Field(gt=0.0, le=1000.0)] = 0.5
    """Temperature of the logistic curve, in standard deviations of the loss; larger values make weights more equal."""
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Lowest weight, relative to a largest of 1, for parts of speech that the model finds easy."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        own = "weights of kind pos_loss"
        tags_T = rows.annotation("pos", own)
        loss_L = tables.score(self.score, own)
        if loss_L is None:
            return None
        labels = tables.labels_of("pos", own)
        if len(loss_L) != len(labels) + 1:
            raise SettingsError(f"{own}: scores of {len(loss_L) - 1} parts of speech, but the data has {len(labels)}")
        if self not in tables.derived:
            other, *weights = self.weights_of(loss_L.double()).tolist()
            tables.derived[self] = _of_labels(weights, other)
        return _heaviest(units, tables.derived[self], tags_T)

    def weights_of(self, loss_L: Tensor) -> Tensor:
        deviation = loss_L.std(correction=0).clamp(min=1e-12)
        curve_L = torch.sigmoid((loss_L - loss_L.mean()) / deviation / self.temperature)
        return (self.floor + (1.0 - self.floor) * curve_L).clamp(min=1e-6)  # so that the logarithm is finite


class _VocabularyScore(Settings):
    """A unit's weight is a power of the largest score among its tokens."""

    score: ClassVar[str]

    power: Power = 1.0
    """Power of the score: 0 is uniform, negative prefers low scores."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        score_V = tables.score(self.score, f"weights of kind {self.score}")
        if score_V is None:
            return None
        if self not in tables.derived:
            tables.derived[self] = fixed_log2(score_V.double().clamp(min=1e-6).pow(abs(self.power)))
        largest_T = units.largest(tables.derived[self].index_select(0, rows.input_ids_T))
        return largest_T if self.power >= 0.0 else -largest_T


class LossWeights(_VocabularyScore):
    """What the model recently found hard: the score is the moving average of the loss on each vocabulary entry.

    Source: Zhang et al. 2023 (WSBERT), section 3.2 (dynamic weights follow the loss on the token).
    """

    score: ClassVar[str] = "loss"
    kind: Literal["loss"] = "loss"


class AccuracyWeights(_VocabularyScore):
    """What the model gets wrong: the score of a vocabulary entry is w = 0.2 w + 0.8 x (1 - accuracy), at every refresh.

    Source: Edman and Fraser 2025 (adaptive masking, BabyLM). There, w is a token's probability, and the paper also
    multiplies by the rate; here probabilities are in proportion to w, so that factor cancels out.
    """

    score: ClassVar[str] = "accuracy"
    kind: Literal["accuracy"] = "accuracy"


class AttentionWeights(_VocabularyScore):
    """What others attend to: the attention that a vocabulary entry receives on average in the model being trained,
    relative to an even share.

    Source: saliency by attention, as in AttnMask; measured on a sample of rows at every refresh, not in every step.
    """

    score: ClassVar[str] = "attention"
    kind: Literal["attention"] = "attention"


class AnchorWeights(_VocabularyScore):
    """What is close to the words that set this text apart from a background corpus: the similarity to the closest of
    these anchors, mapped to (0, 1].

    Source: Wilf et al. 2023 (Difference-Masking), section 3. There, similarity is that of a pretrained encoder; here
    that of the embeddings of the model being trained. There, anchors have the largest TF-ICF; here the largest
    p x log(p / q), with shares p in this text and q in the background, which leaves out the most frequent words.
    """

    score: ClassVar[str] = "anchors"
    kind: Literal["anchors"] = "anchors"
    background: AbsolutePath
    """A prepared folder with the same tokenizer, whose frequencies are compared."""
    num_anchors: Annotated[int, Field(ge=1)] = 200
    """Number of anchors: the entries that contribute most to the divergence from the background."""


# Weights by the document itself.


class TfIdfWeights(Settings):
    """What is specific to its document: a word's count in the segment times the logarithm of its rarity.

    Source: Sparck Jones 1972 (the rarity: -log2 of the share of documents that hold the token;
    documents of over 262,144 characters count as several).
    """

    kind: Literal["tfidf"] = "tfidf"
    power: Power = 1.0
    """Power of the product: 0 is uniform, negative prefers words found everywhere."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor:
        documents_V = tables.need("documents_V", "weights of kind tfidf")
        if self not in tables.derived:
            share_V = (documents_V.double() + 1.0) / (tables.num_documents + 2.0)
            tables.derived[self] = fixed_log2((-torch.log2(share_V)).clamp(min=1e-3))
        rarity_V, log2_of = tables.derived[self], _log2_of_counts(tables, _MOST_COUNTS)
        batch = arrays(rows.input_ids_T, rows.segment_begin_T)
        count_T = torch.from_numpy(counts_in_segment(tables.vocab_size, *batch)).clamp(max=_MOST_COUNTS - 1)
        log2_T = rarity_V.index_select(0, rows.input_ids_T) + log2_of.index_select(0, count_T)
        largest_T = units.largest(pick(rows.maskable_T, log2_T, _NOTHING))
        return (largest_T.double() * self.power).round().to(torch.int64)


class CentralityWeights(Settings):
    """How close a word's meaning is to that of its document: the cosine between their embeddings.

    Source: ours, after the centrality of sentences in summarisation (Radev et al. 2004), with embeddings of words.
    """

    score: ClassVar[str] = "embedding"
    kind: Literal["centrality"] = "centrality"
    strength: Annotated[float, Field(ge=-16.0, le=16.0)] = 3.0
    """How often the weight doubles from an unrelated word (cosine 0) to the document's mean (cosine 1); negative
    prefers outlying words."""

    def log2(self, rows: FlatRows, units: FlatUnits, tables: Tables) -> Tensor | None:
        table = tables.score(self.score, "weights of kind centrality")
        if table is None:
            return None
        if self not in tables.derived:  # integers, so that sums, cosines and masks do not depend on the order of adding
            largest = table.double().abs().max().clamp(min=1e-12)
            tables.derived[self] = (table.double() / largest * _EMBEDDING_SCALE).round().to(torch.int64)
        batch = arrays(rows.input_ids_T, rows.maskable_T, rows.segment_begin_T, units.begin_T)
        cosine_T = torch.from_numpy(cosines(tables.derived[self].numpy(), *batch))
        return (cosine_T * self.strength * (1 << POINT)).round().to(torch.int64)


AnyWeights = Annotated[
    UniformWeights
    | FrequencyWeights
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
