"""What an encoder is made of: the settings a recipe gives, and the complete configuration a model is built from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from unmask.settings import Settings

Activation = Literal["gelu", "gelu_pytorch_tanh", "silu", "relu2"]


class ModelSettings(Settings):
    """Size and parts of the encoder.

    Attributes:
        layout: The transformers layout it is saved in.
        num_layers: Transformer blocks.
        hidden_size: Width of the residual stream; a multiple of `2 * num_heads`.
        num_heads: Attention heads.
        intermediate_size: Width of the gated MLP's inner layer; None is 3/2 of the hidden size, in multiples of 64
            (ModernBERT's ratio).
        activation: Of the gated MLP; the prediction head uses gelu.
        max_position_embeddings: Longest sequence, special tokens included; None is the training's sequence length.
        norm_eps: Added to the variance in layer norms.
        global_every: Every n-th layer, beginning with the first, attends to the whole segment.
        local_window: The others attend to this many tokens around each, half on either side.
        global_rope_theta: Base of the rotary frequencies in global layers.
        local_rope_theta: The same in local layers.
        initializer_range: Standard deviation of the initial weights.

    Source: Warner et al. 2024 (ModernBERT), section 2 and table 4.
    """

    layout: Literal["modernbert"] = "modernbert"
    num_layers: int = Field(default=4, ge=1)
    hidden_size: int = Field(default=256, ge=8)
    num_heads: int = Field(default=4, ge=1)
    intermediate_size: int | None = Field(default=None, ge=1)
    activation: Activation = "gelu"
    max_position_embeddings: int | None = Field(default=None, ge=8)
    norm_eps: float = Field(default=1e-5, gt=0.0)
    global_every: int = Field(default=3, ge=1)
    local_window: int = Field(default=128, ge=2)
    global_rope_theta: float = Field(default=160_000.0, gt=0.0)
    local_rope_theta: float = Field(default=10_000.0, gt=0.0)
    initializer_range: float = Field(default=0.02, gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> ModelSettings:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of 2 x num_heads ({2 * self.num_heads}): "
                "rotary positions turn pairs of each head's dimensions"
            )
        return self


class EncoderConfig(Settings):
    """Everything that a model folder's `config.json` says. Attributes as in `ModelSettings`, none left open.

    Attributes:
        vocab_size: Number of ids.
        pad_id, cls_id, sep_id, mask_id: Special ids.
    """

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    activation: Activation
    max_position_embeddings: int
    norm_eps: float
    global_every: int
    local_window: int
    global_rope_theta: float
    local_rope_theta: float
    initializer_range: float

    def is_global(self, layer: int) -> bool:
        """Whether a layer attends to the whole segment."""
        return layer % self.global_every == 0


def default_intermediate_size(hidden_size: int) -> int:
    """ModernBERT's ratio of 3/2, in multiples of 64."""
    return max(64, round(hidden_size * 1.5 / 64) * 64)
