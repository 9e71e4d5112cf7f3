"""Settings of an embedding model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.core.settings import Settings
from unmask.data.settings import Reading
from unmask.model.card_head import CardSettings
from unmask.model.pooling import POOLINGS
from unmask.train.settings import CheckpointSettings

_LEAST_DIMENSIONS = 64
Weight = Annotated[float, Field(ge=0.0)]
Length = Annotated[int, Field(ge=1)]


class PairColumns(Reading):
    """Columns of a file of pairs, by name (None: detected by usual names), and how it is read."""

    query: str | None = None
    """Column of queries."""
    text: str | None = None
    """Column of right answers."""
    negative: str | None = None
    """Column of wrong answers."""
    label: str | None = None
    """Column with 1 if query and text match and 0 if not, or a score from 0 to 1, which is a match from 0.5 on; an
    empty name: none. Unset: a column called `label`, `score`, `similarity`, `relevance`, `is_duplicate` or the like."""


class SparseSettings(Settings):
    """Sparse vectors (SPLADE) instead of dense ones; see `unmask.train.contrast`."""

    first_weight: Weight = 5e-4
    """Weight of the regulariser that makes first texts of pairs (queries) sparse. It grows over the first third of
    training. More weight means fewer nonzero numbers, and eventually worse vectors."""
    second_weight: Weight = 3e-4
    """Weight of the same regulariser for second texts (documents)."""


class EmbedderSettings(Settings):
    """How an embedding model is trained."""

    columns: PairColumns = PairColumns()
    """Columns of a file of pairs."""
    first_lengths: tuple[Length, Length] = (8, 64)
    """Shortest and longest first crop of a pair, in tokens, log-uniform in between. Queries are short and passages are
    long."""
    second_lengths: tuple[Length, Length] = (16, 128)
    """Shortest and longest second crop, likewise."""
    part_tokens: int = Field(default=256, ge=16)
    """Documents are cut into parts of about this many tokens; both crops of a pair come from the same part."""
    batch_size: int = Field(default=128, ge=2)
    """Pairs per step. Each is contrasted with all others, so a large batch is a harder task and suits long training.
    Memory does not limit it (see `micro_batch_tokens`)."""
    sparse: SparseSettings | None = None
    """Make sparse vectors, as wide as the vocabulary. Unset: dense vectors."""
    pooling: str = "mean"
    """Pooling of dense vectors: a name in `unmask.model.pooling.POOLINGS`. Unset: that of the model's folder, if it has
    one."""
    temperature: float | None = Field(default=None, ge=0.01)
    """Divisor of similarities. Unset: 0.05, or 5 for sparse vectors, whose products are large."""
    dimensions: tuple[Length, ...] | None = None
    """Lengths at which vectors may be truncated (Matryoshka), up to the model's width; an empty list: none. Unset:
    repeated halves down to 64."""
    mlm_weight: float = Field(default=0.1, ge=0.0)
    """Weight of the loss per predicted token, relative to that per pair; 0 for models without a head for masked tokens.
    15 % of the tokens of second texts and wrong answers are masked."""
    learning_rate: float | None = Field(default=None, gt=0.0)
    """Peak of AdamW's learning rate. Unset: 1e-4 x (768 / hidden size)^2, at most 1e-3."""
    warmup: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the training in which the learning rate rises; then it falls linearly to 0."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Decoupled weight decay, on matrices and the embedding."""
    clip_norm: float = Field(default=1.0, gt=0.0)
    """Largest norm of the whole gradient."""
    holdout: float = Field(default=0.05, gt=0.0, le=0.5)
    """Share of the documents (or pairs) to hold out for evaluation, at most 512 pairs of each kind. For text it is
    short for `corpus.holdout`; if the model's own run is known and nothing is set, that run's rule applies."""
    evaluations: int = Field(default=4, ge=1)
    """Evaluations on held-out pairs during training, the last at its end, besides the one at its beginning."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without a lower held-out loss, and keep the best model. Unset: train to the end
    of the budget."""
    micro_batch_tokens: int | None = Field(default=None, ge=8)
    """Maximum positions computed at once; a step with more computes vectors twice (`unmask.train.step`). Unset: about 2
    GB worth on a CPU, or what fits a GPU."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Type of the activations; `auto` uses bf16 if the hardware supports it."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When checkpoints are written."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of order, crops, masks and dropout."""
    card: CardSettings = CardSettings()
    """What you state about the model on its card."""

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
                f"the two shortest crops, {self.least_tokens}, do not fit into one part of a document; give "
                f"part_tokens = {2 * both}, or shorter crops"
            )
        if self.sparse is not None and "pooling" in self.model_fields_set:
            raise ValueError("pooling is of dense vectors; sparse ones are the largest logits; leave one out")
        if self.sparse is not None and self.dimensions:
            raise ValueError("dimensions truncate dense vectors, which sparse ones do not allow; leave one out")
        return self

    @property
    def temperature_or_default(self) -> float:
        return self.temperature or (0.05 if self.sparse is None else 5.0)

    @property
    def shortest(self) -> int:
        return min(self.first_lengths[0], self.second_lengths[0])

    @property
    def longest(self) -> int:
        return max(self.first_lengths[1], self.second_lengths[1])

    @property
    def least_tokens(self) -> str:
        return f"{self.first_lengths[0]} and {self.second_lengths[0]} tokens"

    def learning_rate_for(self, hidden_size: int) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return min(1e-3, 1e-4 * (768 / hidden_size) ** 2)

    def dimensions_for(self, hidden_size: int) -> tuple[int, ...]:
        """Lengths to which vectors of this width can be truncated, longest first, without the full width."""
        if self.sparse is not None:
            return ()
        if self.dimensions is not None:
            return tuple(sorted((size for size in set(self.dimensions) if size < hidden_size), reverse=True))
        halves = (hidden_size >> n for n in range(1, hidden_size.bit_length()))
        return tuple(size for size in halves if size >= _LEAST_DIMENSIONS)
