"""What an encoder is made of: the settings a recipe gives, and the complete configuration a model is built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from unmask.core.settings import Settings

Layout = Literal["modernbert", "bert", "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm"]


@dataclass(frozen=True)
class Parts:
    """The parts of a layout, and its defaults for settings that a recipe leaves unset. The class's own defaults are
    BERT's. The encoder asks for parts, never for a layout's name.

    Source of the defaults: Devlin et al. 2019 (BERT), section 3 and appendix A.2.
    """

    # Positions are rotary, and layers alternate between global and local attention. Otherwise positions are learned,
    # and every layer is global.
    rotary: bool = False
    # Learned positions begin at pad_id + 1, and their table has that many more rows
    positions_after_padding: bool = False
    # Post-norm: a norm after each addition to the residual stream. Otherwise pre-norm: a norm before each attention
    # and MLP, and one after the last block
    post_norm: bool = True
    # The first block has a norm before its attention, though the embeddings are already normalised
    first_norm: bool = True
    bias: bool = True  # linear layers and norms have biases
    gated: bool = False  # the MLP is gated
    gelu_head: bool = False  # the prediction head uses gelu, whatever the blocks use
    # The classification head has a tanh layer before its classifier; otherwise it shares the prediction head's layers
    label_dense: bool = True
    # Task classifiers are initialised with a standard deviation of hidden_size^-1/2; otherwise of `initializer_range`
    wide_classifier: bool = False
    type_vocab_size: int | None = 2  # default number of token types; None if the layout has none
    intermediate_ratio: float = 4.0  # default width of the MLP's inner layer, as a multiple of the hidden size
    norm_eps: float = 1e-12  # default epsilon of norms


# Liu et al. 2019 (RoBERTa); the positions are fairseq's. Conneau et al. 2020 (XLM-R) and Martin et al. 2020 (CamemBERT)
# use the same network, which transformers repeats under each of their names.
_ROBERTA = Parts(positions_after_padding=True, gelu_head=True, type_vocab_size=1, norm_eps=1e-5)
# Warner et al. 2024 (ModernBERT), section 2.1.
_MODERNBERT = Parts(
    rotary=True,
    post_norm=False,
    first_norm=False,
    bias=False,
    gated=True,
    gelu_head=True,
    label_dense=False,
    wide_classifier=True,
    type_vocab_size=None,
    intermediate_ratio=1.5,
    norm_eps=1e-5,
)
PARTS: dict[Layout, Parts] = {
    "modernbert": _MODERNBERT,
    "bert": Parts(),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    # RoBERTa with the norms of Xiong et al. 2020 (On layer normalization in the transformer architecture), figure 1b.
    "roberta-prelayernorm": replace(_ROBERTA, post_norm=False),
}


_END = 2**31  # larger sizes and ids are mistakes
Size = Annotated[int, Field(ge=1, lt=_END)]
Id = Annotated[int, Field(ge=0, lt=_END)]
Activation = Literal["gelu", "gelu_pytorch_tanh", "silu", "relu2"]
Initialisation = Literal["truncated_normal", "depth_scaled", "corpus"]


def _check_heads(hidden_size: int, num_heads: int, parts: Parts) -> None:
    if hidden_size % (2 * num_heads if parts.rotary else num_heads):
        more = ", and of twice that with rotary positions" if parts.rotary else ""
        raise ValueError(f"hidden_size {hidden_size} must be a multiple of num_heads ({num_heads}){more}")


class Rotary(Settings):
    """Rotary positions, and how far each layer attends. Attributes as in `ModelSettings`.

    Source: Warner et al. 2024 (ModernBERT), section 2 and table 4.
    """

    model_config = ConfigDict(strict=True)

    global_every: Size = 3
    local_window: int = Field(default=128, ge=2, lt=_END)
    global_rope_theta: float = Field(default=160_000.0, gt=0.0, allow_inf_nan=False)
    local_rope_theta: float = Field(default=10_000.0, gt=0.0, allow_inf_nan=False)


class ModelSettings(Settings):
    """Size and parts of the encoder. None means the layout's default (`unmask.model.config`)."""

    layout: Layout = "modernbert"
    """The transformers layout of the model and its saved folder."""
    num_layers: int = Field(default=4, ge=1)
    """Transformer blocks."""
    hidden_size: int = Field(default=256, ge=8)
    """Width of the residual stream; a multiple of `num_heads`, and of twice that with rotary positions."""
    num_heads: int = Field(default=4, ge=1)
    """Attention heads."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Width of the MLP's inner layer. Unset: 3/2 of the hidden size for ModernBERT, else 4 times it, in multiples of
    64."""
    activation: Activation = "gelu"
    """Activation of the MLP. The prediction head uses gelu, but BERT's uses this one too."""
    max_position_embeddings: int | None = Field(default=None, ge=8)
    """Longest sequence, special tokens included. Unset: the training's, the only choice for learned positions of a new
    model."""
    norm_eps: float | None = Field(default=None, gt=0.0)
    """Added to the variance in layer norms. Unset: the layout's own."""
    type_vocab_size: int | None = Field(default=None, ge=1)
    """Token types; ModernBERT has none. The text is of type 0. Unset: the layout's own."""
    global_every: int | None = Field(default=None, ge=1)
    """Every n-th layer, starting with the first, attends to the whole segment. This setting and the next three need
    rotary positions; unset, the layout's own values hold."""
    local_window: int | None = Field(default=None, ge=2)
    """The other layers attend to this many tokens, half on either side."""
    global_rope_theta: float | None = Field(default=None, gt=0.0)
    """Base of the rotary frequencies in global layers."""
    local_rope_theta: float | None = Field(default=None, gt=0.0)
    """Base of the rotary frequencies in the other layers."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout rate in training, on the embeddings and on the output of each attention and MLP. Unlike in BERT,
    attention probabilities have no dropout."""
    initialisation: Initialisation = "corpus"
    """How weights are initialised (see `unmask.model.encoder.initialise`); `corpus` computes token embeddings from the
    training text, and makes attention start local (`unmask.train.initialisation`)."""
    initializer_range: float = Field(default=0.02, gt=0.0)
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _check(self) -> ModelSettings:
        parts = PARTS[self.layout]
        meaningless = [name for name in Rotary.model_fields if not parts.rotary and getattr(self, name) is not None]
        if parts.type_vocab_size is None and self.type_vocab_size is not None:
            meaningless.append("type_vocab_size")
        if meaningless:
            raise ValueError(f"{', '.join(meaningless)}: not used by the layout {self.layout!r}; remove it")
        _check_heads(self.hidden_size, self.num_heads, parts)
        return self

    @property
    def rotary(self) -> Rotary | None:
        """Rotary positions as set, or None if the layout has none."""
        own = {name: value for name in Rotary.model_fields if (value := getattr(self, name)) is not None}
        return Rotary.model_validate(own) if PARTS[self.layout].rotary else None


class EncoderConfig(Settings):
    """A model folder's `config.json` in our terms. Attributes as in `ModelSettings`, all of them set."""

    model_config = ConfigDict(strict=True)  # a quoted number is an error

    layout: Layout = "modernbert"
    vocab_size: Size
    pad_id: Id
    cls_id: Id | None  # None if the folder does not state it (BERT's do not)
    sep_id: Id | None
    mask_id: Id
    num_layers: Size
    hidden_size: Size
    num_heads: Size
    intermediate_size: Size
    activation: Activation
    max_position_embeddings: Size
    norm_eps: float = Field(gt=0.0, allow_inf_nan=False)
    rotary: Rotary | None  # None if the layout's positions are learned
    type_vocab_size: Size | None = None  # None if the layout has no token types
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, allow_inf_nan=False)
    # Dropout rate on the input of a task's classifier, in training
    classifier_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, allow_inf_nan=False)
    initializer_range: float = Field(ge=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> EncoderConfig:
        assert (self.rotary is not None) == self.parts.rotary
        assert (self.type_vocab_size is not None) == (self.parts.type_vocab_size is not None)
        _check_heads(self.hidden_size, self.num_heads, self.parts)
        if self.pad_id >= self.vocab_size:
            raise ValueError(f"pad_id {self.pad_id} is outside the vocabulary of {self.vocab_size} entries")
        return self

    @property
    def parts(self) -> Parts:
        return PARTS[self.layout]

    @property
    def first_position(self) -> int:
        """The row of the position table for a segment's first token."""
        return self.pad_id + 1 if self.parts.positions_after_padding else 0

    @property
    def num_types(self) -> int:
        """The number of token types; 1 if the layout has none."""
        return self.type_vocab_size or 1

    def is_global(self, layer: int) -> bool:
        return self.rotary is None or layer % self.rotary.global_every == 0


def default_intermediate_size(hidden_size: int, ratio: float) -> int:
    return max(64, round(hidden_size * ratio / 64) * 64)
