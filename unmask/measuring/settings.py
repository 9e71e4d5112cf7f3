"""Settings of the held-out evaluation while training."""

from __future__ import annotations

from pydantic import Field

from unmask.settings import Settings


class EvaluationSettings(Settings):
    """How often and on how much the model is evaluated.

    Attributes:
        times: Evaluations spread over the training, besides the one before it and the one behind it.
        max_tokens: Validation tokens of each of these.
        prompts: Lines whose hidden tokens are predicted and shown at each of these.
        final_max_tokens: Validation tokens of the one behind the training, whose figures the summary gives.
    """

    times: int = Field(default=10, ge=0)
    max_tokens: int = Field(default=32_768, ge=1)
    prompts: tuple[str, ...] = ()
    final_max_tokens: int = Field(default=1_000_000, ge=1)
