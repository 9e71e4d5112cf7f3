"""Settings of training, of its checkpoints, and of the objectives besides masked-language modelling."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from unmask.core.plugins import OrPlugIn
from unmask.core.settings import Settings, check_places
from unmask.train.callbacks import TRACKERS

ADAMW_RATE = 1e-3  # default of learning_rate with AdamW

# ----------------------------------------
# Schedules of the learning rate: the factor of the peak rate as a function of progress.

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Warmup(Settings):
    """Rises linearly from 0 to 1."""

    warmup: Share = 0.05
    """Share of the budget in which the learning rate rises from 0 to its peak."""

    def at(self, progress: float) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        if isinstance(self, WarmupStableDecay):
            decayed = (progress - (1.0 - self.decay)) / self.decay if self.decay > 0.0 else 0.0
            return 1.0 - min(decayed, 1.0) ** 0.5 if decayed > 0.0 else 1.0
        left = (1.0 - progress) / (1.0 - self.warmup) if self.warmup < 1.0 else 1.0  # share of the time after warmup
        return 0.5 - 0.5 * math.cos(math.pi * left) if isinstance(self, Cosine) else left


class WarmupStableDecay(_Warmup):
    """Rises linearly, stays, and falls as 1 - sqrt(share of the decay gone).

    Source: Hägele et al. 2024 (the shape of the decay); Hu et al. 2024 (MiniCPM, the three phases).
    """

    kind: Literal["warmup_stable_decay"]
    decay: Share = 0.3
    """Share of the budget, at its end, in which the learning rate falls to 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup + self.decay > 1.0:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} exceed the whole budget")
        return self


class LinearDecay(_Warmup):
    """Rises and falls linearly to 0. Source: Devlin et al. 2018, appendix A.2."""

    kind: Literal["linear"]


class Cosine(_Warmup):
    """Rises linearly and falls along half a cosine to 0. Source: Loshchilov and Hutter 2017."""

    kind: Literal["cosine"]


Schedule = Annotated[WarmupStableDecay | LinearDecay | Cosine, Field(discriminator="kind")]


# ----------------------------------------
# Settings of held-out evaluation during training.


class EvaluationSettings(Settings):
    """How often the model is evaluated, and on how much text."""

    times: int = Field(default=10, ge=0)
    """Evaluations during training, besides those before and after it."""
    max_tokens: int = Field(default=32_768, ge=1)
    """Held-out tokens of each of these evaluations."""
    prompts: tuple[str, ...] = ()
    """Lines with masked tokens, to show predictions for at each evaluation."""
    final_max_tokens: int = Field(default=1_000_000, ge=1)
    """Held-out tokens of the evaluation after the training, whose figures the summary gives."""
    trackers: tuple[Annotated[Literal["trackio", "wandb", "mlflow"], OrPlugIn(TRACKERS)], ...] = ()
    """Services that the figures are sent to, or callbacks of plug-ins."""


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamWSettings(Settings):
    """AdamW for every parameter. Source: Loshchilov and Hutter 2019."""

    kind: Literal["adamw"]
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0.0)
    """Added to the denominator of AdamW's step."""


class MuonSettings(Settings):
    """Muon for the matrices of the blocks and the head, AdamW for the embedding, norms and biases.

    Source: Jordan et al. 2024 (Muon); Amsel et al. 2025 (how matrices are orthogonalised); the scale that makes one
    learning rate fit both: Liu et al. 2025 (Moonlight), section 2.2.
    """

    kind: Literal["muon"]
    embedding_rate: float = Field(default=0.15, gt=0.0)
    """Learning rate of the embeddings (tokens, learned positions, token types), as a share of `learning_rate`."""
    momentum: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Decay of the running gradient."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of AdamW's running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0.0)
    """Added to the denominator of AdamW's step."""


class LengthSchedule(Settings):
    """Short rows first, long ones later: `lengths[i]` holds from the progress `places[i]` on; the first place is 0.

    A step keeps its number of positions, so it has more of the short rows. Short rows are cheaper (attention) and
    teach the first things as well.

    Example: places 0 and 0.9 with lengths 128 and 512 are BERT's.

    Source: Devlin et al. 2018, appendix A.2; Press et al. 2021 (Shortformer), section 3.
    """

    places: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], ...]
    """Progress from which each length holds; starts at 0."""
    lengths: tuple[Annotated[int, Field(ge=8)], ...]
    """Positions of a row from each place on; the longest is `sequence_length`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_places(self.places, lengths=self.lengths)
        return self


class TrainingSettings(Settings):
    """How the model is trained. The budget is exactly one of steps, tokens and minutes."""

    steps: int | None = Field(default=None, ge=1)
    """Budget in optimizer steps; set exactly one of steps, tokens and minutes."""
    tokens: int | None = Field(default=None, ge=1)
    """Budget in tokens of text, repetitions included."""
    minutes: float | None = Field(default=None, gt=0.0)
    """Budget in minutes of training."""
    sequence_length: int = Field(default=128, ge=8)
    """Positions of a row, special tokens included."""
    length_schedule: LengthSchedule | None = None
    """Shorter rows at the beginning of training. Unset: `sequence_length` throughout."""
    batch_tokens: int = Field(default=4096, ge=8)
    """Maximum positions of a step, filled with as many whole rows as fit. Unset: 4,096, or four rows if they are
    longer."""
    micro_batch_tokens: int | None = Field(default=None, ge=8)
    """Maximum positions computed at once; a step accumulates their gradients. Unset: all that fit by calculation, on a
    CPU into about 2 GB (1,024 at least). Halved when memory runs out."""
    learning_rate: float = Field(default=5e-3, gt=0.0)
    """Peak of the learning rate (of the matrices, with Muon). AdamW: 0.001 by default. A recipe's own applies to its
    own optimizer only."""
    schedule: Schedule = LinearDecay(kind="linear")
    """How the learning rate rises and falls. A rate that stays high for long ends in a higher loss
    (docs/explanation/experiments.md; Bergsma et al. 2025)."""
    weight_decay: float = Field(default=0.1, ge=0.0)
    """Decoupled weight decay, on matrices and the embedding."""
    clip_norm: float = Field(default=1.0, gt=0.0, allow_inf_nan=True)
    """Largest norm of the whole gradient; `inf` does not clip."""
    optimizer: Annotated[MuonSettings | AdamWSettings, Field(discriminator="kind")] = MuonSettings(kind="muon")
    """The optimizer."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Type of the activations; `auto` uses bf16 where the hardware supports it."""
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory, about a third more time, same gradients."""
    compile_blocks: Literal["auto", "yes", "no"] = "auto"
    """Apply torch.compile to the model's blocks. On GPUs this merges many small operations, but costs compile time at
    the start and for each new row length. `auto` does it on CUDA if Triton and a C compiler are installed and the
    budget is at least five minutes or 100 steps; if it fails, training continues without (with `yes` it is an error).
    CPUs have compiled loops instead, so `yes` is an error there."""
    sampled_softmax: Literal["auto", "no"] = "auto"
    """Compute the loss of hidden tokens over a part of the vocabulary: the targets of the step, the 1,024 most frequent
    tokens, and 1,024 others, drawn at random and weighted for those that were not. A step of 2
    layers of 128 takes two thirds of the time, or less with a larger vocabulary, and teaches about as much. `auto` does
    it on CPUs, for vocabularies of 4,096 or more, unless masks follow the accuracy. Evaluations use the whole
    vocabulary."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of initial weights, order of the text, masks, dropout and sampled softmaxes."""

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, values: Any) -> Any:
        """A table without a kind is of the default kind. AdamW has its own default rate, long rows a larger step."""
        if not isinstance(values, dict):
            return values
        kinds = {"schedule": "linear", "optimizer": "muon"}
        tables = {name: values[name] for name in kinds if isinstance(values.get(name), dict)}
        optimizer = values.get("optimizer")
        kind = optimizer.get("kind") if isinstance(optimizer, dict) else getattr(optimizer, "kind", None)
        rate = {"learning_rate": ADAMW_RATE} if kind == "adamw" else {}
        length = values.get("sequence_length")
        positions = {"batch_tokens": max(4096, 4 * length)} if isinstance(length, int) else {}
        kinds_named = {name: {"kind": kinds[name], **table} for name, table in tables.items()}
        return {**rate, **positions, **values, **kinds_named}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(budget is not None for budget in (self.steps, self.tokens, self.minutes)) != 1:
            raise ValueError("give exactly one of steps, tokens and minutes as the budget")
        longest = self.sequence_length
        for name, tokens in (("batch_tokens", self.batch_tokens), ("micro_batch_tokens", self.micro_batch_tokens)):
            if tokens is not None and tokens < longest:
                raise ValueError(f"{name} = {tokens} is less than one row; set at least sequence_length = {longest}")
        if (schedule := self.length_schedule) is not None and max(schedule.lengths) != longest:
            raise ValueError(
                f"the longest of length_schedule.lengths {list(schedule.lengths)} must be sequence_length = {longest}; "
                "change one of them, or leave the schedule out (training.length_schedule=none)"
            )
        return self

    @property
    def known_steps(self) -> int | None:
        """Optimizer steps of the budget (at least, if it is in tokens); None if it is in minutes."""
        return self.steps if self.tokens is None else math.ceil(self.tokens / self.batch_tokens)

    def progress(self, steps: int, tokens: int, seconds: float) -> float:
        """The share of the budget used up, in [0, 1], after the given steps, tokens of text and seconds."""
        if self.steps is not None:
            used = steps / self.steps
        elif self.tokens is not None:
            used = tokens / self.tokens
        else:
            assert self.minutes is not None, "one of the three is set"
            used = seconds / (self.minutes * 60.0)
        return min(used, 1.0)

    def length_at(self, progress: float) -> int:
        if (schedule := self.length_schedule) is None:
            return self.sequence_length
        return [n for place, n in zip(schedule.places, schedule.lengths, strict=True) if place <= progress][-1]


class CheckpointSettings(Settings):
    """When checkpoints are written."""

    every_steps: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. Unset: about two minutes."""
    keep: int = Field(default=2, ge=1)
    """Latest checkpoints to keep, besides the one with the lowest held-out loss."""


class PairSettings(Settings):
    """Classify sentence pairs as right or wrong, from the first token. Only in the BERT layout.

    `next_sentence`: in a wrong pair the second half is another document's. Source: Devlin et al. 2018 (BERT), section
    3.1. `sentence_order`: in a wrong pair the halves change places. Source: Lan et al. 2020 (ALBERT), section 3.1.
    """

    kind: Literal["next_sentence", "sentence_order"]
    """How wrong pairs are made: the second half comes from another document (`next_sentence`), or the halves are
    swapped (`sentence_order`)."""
    weight: float = Field(default=1.0, gt=0.0)
    """Weight of the loss per pair, relative to that per predicted token."""


class SpanBoundarySettings(Settings):
    """Predict each masked token also from the two tokens beside its span. Only with spans.

    In a mixture, texts (or steps) of strategies without spans have no targets of this objective. Its held-out figures
    use only spans, drawn as by the first strategy that has them.

    Source: Joshi et al. 2020 (SpanBERT), section 3.2.
    """

    weight: float = Field(default=1.0, gt=0.0)
    """Weight of the loss per predicted token, relative to that of masked tokens."""
    max_length: int = Field(default=32, ge=1)
    """Positions in a span with their own embedding; later ones share the last."""


class LabelSettings(Settings):
    """Predict the class of a document from its first token. Needs data prepared with `corpus.label`."""

    weight: float = Field(default=1.0, gt=0.0)
    """Weight of the loss per segment with a class, relative to that per predicted token."""


class RetroMAESettings(Settings):
    """Rebuild each text from its vector, by a one-layer decoder that sees little of the text itself.

    The vector is the mean of the last hidden states of the masked text, at the masking rate (15 to 30 %).

    Source: Xiao et al. 2022 (RetroMAE), section 3, with enhanced decoding. There all tokens are rebuilt, from the
        vector of `[CLS]`.
    """

    weight: float = Field(default=1.0, gt=0.0)
    """Weight of the loss per rebuilt token, relative to that per predicted token."""
    rate: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a text's tokens hidden from the decoder, drawn separately for each position; at 1 it sees only the
    vector."""
    prediction_rate: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the tokens to rebuild, drawn afresh in each epoch. Each costs the prediction head as much as a masked
    token, most of a step in small models. Tokens of one text teach its vector much the same, so time should be better
    spent on more texts; we have not measured this."""


class ObjectivesSettings(Settings):
    """What is learned besides the masked tokens; None means not learned."""

    pairs: PairSettings | None = None
    """Classify sentence pairs as right or wrong. Only in the BERT layout."""
    span_boundary: SpanBoundarySettings | None = None
    """Also predict masked tokens from the boundaries of their spans."""
    label: LabelSettings | None = None
    """Learn the classes of documents (`corpus.label`)."""
    retromae: RetroMAESettings | None = None
    """Rebuild texts from their vectors."""
