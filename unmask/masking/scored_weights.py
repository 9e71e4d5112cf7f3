"""Weights by scores: of the model in training, of another encoder, or of the document itself.

Scores of a model come as tables over the vocabulary, or over parts of speech, that the training loop makes every so
many steps. Until the first (scores without tables), all units are equally likely. They are turned into fixed-point
logarithms once a version.

Shape suffixes: T = all positions of a batch in a line; V = vocabulary; D = dimensions; L = labels of parts of speech,
place 0 for tokens without any.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.compiled import arrays
from unmask.errors import SettingsError
from unmask.masking.annotated_weights import NOTHING, log2_of_heaviest
from unmask.masking.flat_rows import FlatRows, FlatUnits, pick, take
from unmask.masking.row_loops import POINT, cosines, counts_in_segment
from unmask.masking.unit_draw import fixed_log2
from unmask.masking.vocabulary_tables import Tables
from unmask.settings import Settings

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
