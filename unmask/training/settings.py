"""Settings of training and of its checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from unmask.settings import Settings

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamWSettings(Settings):
    """AdamW for every parameter.

    Attributes:
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.

    Source: Loshchilov and Hutter 2019.
    """

    kind: Literal["adamw"]
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: float = Field(default=1e-6, gt=0.0)


class MuonSettings(Settings):
    """Muon for the matrices of the blocks and the head, AdamW for the embedding, norms and biases.

    Attributes:
        momentum: Decay of the running gradient.
        iterations: Newton-Schulz steps.
        embedding_learning_rate: Peak rate of what AdamW trains; None takes that of the matrices.
        betas, eps: Of AdamW.

    Source: Jordan et al. 2024 (Muon); the scale that makes one learning rate fit both: Liu et al. 2025 (Moonlight),
    section 2.2.
    """

    kind: Literal["muon"]
    momentum: float = Field(default=0.95, ge=0.0, lt=1.0)
    iterations: int = Field(default=5, ge=1, le=12)
    embedding_learning_rate: float | None = Field(default=None, gt=0.0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0.0)


class TrainingSettings(Settings):
    """How the model is trained.

    Attributes:
        steps: Budget in optimizer steps.
        minutes: Budget in minutes of training; exactly one of the two is given.
        sequence_length: Positions of a row, special tokens included.
        batch_tokens: Positions of a step at most: as many whole rows of the sequence length as fit.
        learning_rate: Peak rate (of the matrices, with Muon).
        warmup: Share of the budget over which the rate rises from 0.
        decay: Share of the budget, at its end, over which it falls to 0.
        weight_decay: Decoupled, on matrices and the embedding.
        clip_norm: Largest norm of the whole gradient.
        optimizer: Muon or AdamW.
        precision: Type of the activations; `auto` takes bf16 where the hardware multiplies it fast.
        gradient_checkpointing: Compute each block again in the backward pass instead of keeping what it computed: less
            memory, about a third more time, the same gradients.
        seed: Of the initial weights, the order of the text, the masks and the dropout.
    """

    steps: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0.0)
    sequence_length: int = Field(default=128, ge=8)
    batch_tokens: int = Field(default=4096, ge=8)
    learning_rate: float = Field(default=5e-3, gt=0.0)
    warmup: float = Field(default=0.05, ge=0.0, le=1.0)
    decay: float = Field(default=0.3, ge=0.0, le=1.0)
    weight_decay: float = Field(default=0.01, ge=0.0)
    clip_norm: float = Field(default=1.0, gt=0.0)
    optimizer: Annotated[MuonSettings | AdamWSettings, Field(discriminator="kind")] = MuonSettings(kind="muon")
    precision: Literal["auto", "bf16", "float32"] = "auto"
    gradient_checkpointing: bool = False
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _check(self) -> TrainingSettings:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes as the budget")
        if self.batch_tokens < self.sequence_length:
            raise ValueError(
                f"batch_tokens {self.batch_tokens} is less than one row (sequence_length {self.sequence_length})"
            )
        if self.warmup + self.decay > 1.0:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} are more than the whole budget")
        return self

    @property
    def num_rows(self) -> int:
        """Rows of a step."""
        return self.batch_tokens // self.sequence_length


class CheckpointSettings(Settings):
    """When the training is saved.

    Attributes:
        every_steps: Steps between checkpoints; None saves about every two minutes.
        keep: How many of the latest are kept.
    """

    every_steps: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)
