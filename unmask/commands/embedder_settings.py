"""Settings of the training of an embedding model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.core.settings import Settings
from unmask.model.card_head import CardSettings
from unmask.model.pooling import POOLINGS
from unmask.train.settings import AdamWSettings, CheckpointSettings, MuonSettings

Weight = Annotated[float, Field(ge=0.0)]
Length = Annotated[int, Field(ge=1)]
MINUTES = 10.0  # where no budget is given
_LEAST_DIMENSIONS = 64


class PairKinds(Settings):
    """Which pairs are made of documents, and how often each kind is where a document has several.

    Attributes:
        crops: Two stretches of the same part of a document.
        titles: The title, and a stretch of the document.
        neighbours: What stands before the border of two paragraphs, and what stands after it; that may be more than
            one paragraph, or a part of one.

    Source: crops: Izacard et al. 2022 (Contriever), section 3; titles: Reimers and Gurevych's sets of title and body,
    as in Wang et al. 2022 (E5), section 3; neighbours: Neelakantan et al. 2022 (cpt-text), section 3.
    """

    crops: Weight = 1.0
    titles: Weight = 1.0
    neighbours: Weight = 0.5

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.crops or self.titles or self.neighbours):
            raise ValueError("all kinds of pairs have the weight 0; give one of them more")
        return self


class PairColumns(Settings):
    """Columns of a file of pairs, by name; None: found by usual names.

    Attributes:
        query: What is searched with.
        text: What is to be found.
        negative: What is not.
        label: 1 where query and text belong together, 0 where they do not; or a score from 0 to 1.
    """

    query: str | None = None
    text: str | None = None
    negative: str | None = None
    label: str | None = None


class HardNegatives(Settings):
    """Wrong answers that the model itself takes for likely, mined in the course of the training.

    Attributes:
        after: Share of the training after which they are looked for, once, among all texts.
        margin: A text counts as wrong only below this share of the right answer's similarity: what is more alike may
            well be right.
        each: How many of the likeliest such texts are kept for each text; one of them is drawn whenever the text comes.

    Source: Moreira et al. 2024 (NV-Retriever), section 3.2 (TopK-PercPos).
    """

    after: float = Field(default=0.5, gt=0.0, lt=1.0)
    margin: float = Field(default=0.95, gt=0.0, le=1.0)
    each: int = Field(default=4, ge=1, le=100)


class SparseSettings(Settings):
    """Sparse vectors (SPLADE) instead of dense ones; see `unmask.train.contrast`.

    Attributes:
        first_weight, second_weight: Of the regulariser that makes them sparse: for the first texts of pairs, which
            search, and for what they are to find. They grow over the first third of the training. More weight means
            fewer numbers that are not 0, and in the end worse vectors.
    """

    first_weight: Weight = 5e-4
    second_weight: Weight = 3e-4


class EmbedderSettings(Settings):
    """How an embedding model is trained.

    Attributes:
        kinds: Which pairs are made of documents.
        first_lengths, second_lengths: Tokens of the two crops of a pair, from the least to the most; in between all
            orders of magnitude are equally likely. Searches are short and what is found is long.
        part_tokens: Documents are gone through in parts of about so many tokens, and crops of a pair are of one part.
        overlap: Whether the crops of a pair may have words in common that stand at the same place.
        batch_size: Pairs of a step. Each is contrasted with all others, so a large batch is a harder task, for which a
            long training has the time; memory does not limit it (`micro_batch_tokens`).
        sparse: Sparse vectors, as wide as the vocabulary; None: dense ones.
        pooling: How dense vectors are made of a text's tokens: a name of `unmask.model.pooling.POOLINGS`.
        temperature: That similarities are divided by; None: 0.05, and 5 for sparse vectors, whose products are large.
        dimensions: Beginnings of the vectors that are to be good vectors by themselves; None: halves of the hidden
            size down to 64; an empty list: none.
        mlm_weight: Of the loss per predicted token beside that per pair; 0 predicts none.
        mask_rate: Share of the tokens that is hidden for that.
        masked: In which texts of a pair tokens are hidden: the `first`, the `second` (with the wrong
            answers) or `both`. Vectors are made of what is left, which of a short text may be too little.
        hard_negatives: Whether they are looked for, and how; None: they are not.
        learning_rate: Peak rate; None: by the optimizer, and for AdamW by the width, as `learning_rate_for` says.
        warmup: Share of the training in which it rises; then it falls in a line to 0.
        weight_decay: Decoupled, on matrices and the embedding.
        clip_norm: Largest norm of the whole gradient.
        optimizer: AdamW or Muon.
        holdout: Share of the documents (or pairs) that are held out to measure on, at most 512 pairs of each kind. Of
            text it is short for `corpus.holdout`; where the model's own run is known, its rule holds unless one is set.
        evaluations: How often that is done; at the beginning and the end in any case.
        patience: Evaluations without a lower held-out loss after which the training ends with the best model; None: it
            ends with the budget.
        micro_batch_tokens: Positions that are computed at once at most; a step with more computes vectors twice
            (`unmask.train.step`). None: as many as take about 2 GB on a CPU, and what fits a GPU.
        gradient_checkpointing, precision: As in `TrainingSettings`.
        checkpoint: When the training is saved.
        seed: Of order, crops, masks and dropout.
        columns: Of a file of pairs.
        card: What the user says of the model for its card.
    """

    kinds: PairKinds = PairKinds()
    columns: PairColumns = PairColumns()
    first_lengths: tuple[Length, Length] = (8, 64)
    second_lengths: tuple[Length, Length] = (16, 128)
    part_tokens: int = Field(default=256, ge=16)
    overlap: bool = True
    batch_size: int = Field(default=128, ge=2)
    sparse: SparseSettings | None = None
    pooling: str = "mean"
    temperature: float | None = Field(default=None, ge=0.01)
    dimensions: tuple[Length, ...] | None = None
    mlm_weight: float = Field(default=0.1, ge=0.0)
    mask_rate: float = Field(default=0.15, gt=0.0, lt=1.0)
    masked: Literal["first", "second", "both"] = "second"
    hard_negatives: HardNegatives | None = None
    learning_rate: float | None = Field(default=None, gt=0.0)
    warmup: float = Field(default=0.1, ge=0.0, le=1.0)
    weight_decay: float = Field(default=0.01, ge=0.0)
    clip_norm: float = Field(default=1.0, gt=0.0)
    optimizer: Annotated[AdamWSettings | MuonSettings, Field(discriminator="kind")] = AdamWSettings(
        kind="adamw", betas=(0.9, 0.99)
    )
    holdout: float = Field(default=0.05, gt=0.0, le=0.5)
    evaluations: int = Field(default=4, ge=1)
    patience: int | None = Field(default=None, ge=1)
    micro_batch_tokens: int | None = Field(default=None, ge=8)
    gradient_checkpointing: bool = False
    precision: Literal["auto", "bf16", "float32"] = "auto"
    checkpoint: CheckpointSettings = CheckpointSettings()
    seed: int = Field(default=0, ge=0, lt=2**31)
    card: CardSettings = CardSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling is {' or '.join(POOLINGS)}, not {self.pooling!r}")
        for name in ("first_lengths", "second_lengths"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name} are from {least} to {most} tokens; give the smaller number first")
        both = self.first_lengths[0] + self.second_lengths[0]
        if both > self.part_tokens:
            raise ValueError(
                f"the shortest crops have {self.first_lengths[0]} and {self.second_lengths[0]} tokens, which do not "
                f"fit a part of a document together; give part_tokens = {2 * both}, or shorter crops"
            )
        if self.sparse is not None and self.dimensions:
            raise ValueError(
                "dimensions are beginnings of dense vectors, but sparse vectors have a number for each token of the "
                "vocabulary; leave one of the two out"
            )
        return self

    @property
    def temperature_or_default(self) -> float:
        """The temperature that is set, or that of the kind of vectors."""
        return self.temperature or (0.05 if self.sparse is None else 5.0)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest crop."""
        return min(self.first_lengths[0], self.second_lengths[0])

    @property
    def longest(self) -> int:
        """Tokens of the longest crop."""
        return max(self.first_lengths[1], self.second_lengths[1])

    def learning_rate_for(self, hidden_size: int) -> float:
        """The peak rate of a model of this width."""
        if self.learning_rate is not None:
            return self.learning_rate
        if isinstance(self.optimizer, MuonSettings):
            return 2e-3
        return min(1e-3, 1e-4 * (768 / hidden_size) ** 2)

    def dimensions_for(self, hidden_size: int) -> tuple[int, ...]:
        """The beginnings of vectors of this width that are good vectors, the longest first, the whole left out."""
        if self.sparse is not None:
            return ()
        if self.dimensions is not None:
            return tuple(sorted((size for size in set(self.dimensions) if size < hidden_size), reverse=True))
        halves = (hidden_size >> n for n in range(1, hidden_size.bit_length()))
        return tuple(size for size in halves if size >= _LEAST_DIMENSIONS)
