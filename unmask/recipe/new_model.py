"""The encoder that a recipe and a tokenizer make."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.network.config import EncoderConfig, default_intermediate_size
from unmask.network.encoder import MaskedLM
from unmask.network.heads import heads_for
from unmask.network.layouts import PARTS
from unmask.recipe.recipe import Recipe
from unmask.tokenizer.tokenizer import Tokenizer


def new_model(
    recipe: Recipe, tokenizer: Tokenizer, label_names: Sequence[str] = (), *, config: EncoderConfig | None = None
) -> MaskedLM:
    """The encoder with the heads that the recipe's objectives need; its weights are not drawn yet.

    Args:
        recipe: Its settings.
        tokenizer: Of its text.
        label_names: The classes of documents, where they are an objective.
        config: Of a checkpoint that the training begins with; None makes that of the recipe.
    """
    objectives = recipe.objectives
    config = config or encoder_config(recipe, tokenizer)
    heads = heads_for(
        config,
        pairs=objectives.pairs is not None,
        boundary_length=None if objectives.span_boundary is None else objectives.span_boundary.max_length,
        label_names=None if objectives.label is None else label_names,
        retromae=objectives.retromae is not None,
    )
    return MaskedLM(config, heads)


def encoder_config(recipe: Recipe, tokenizer: Tokenizer) -> EncoderConfig:
    """Fills in what a recipe leaves open."""
    model, special = recipe.model, tokenizer.special
    parts = PARTS[model.layout]
    return EncoderConfig(
        layout=model.layout,
        vocab_size=tokenizer.vocab_size,
        pad_id=special.pad,
        cls_id=special.cls,
        sep_id=special.sep,
        mask_id=special.mask,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        intermediate_size=model.intermediate_size
        or default_intermediate_size(model.hidden_size, parts.intermediate_ratio),
        activation=model.activation,
        max_position_embeddings=model.max_position_embeddings or recipe.training.sequence_length,
        norm_eps=model.norm_eps or parts.norm_eps,
        rotary=model.rotary,
        type_vocab_size=model.type_vocab_size or parts.type_vocab_size,
        dropout=model.dropout,
        classifier_dropout=model.dropout,
        initializer_range=model.initializer_range,
    )
