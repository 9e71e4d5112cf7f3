"""The encoder that a recipe and a tokenizer make."""

from __future__ import annotations

from unmask.model.config import EncoderConfig, default_intermediate_size
from unmask.recipe.recipe import Recipe
from unmask.tokens.tokenizer import Tokenizer


def encoder_config(recipe: Recipe, tokenizer: Tokenizer) -> EncoderConfig:
    """Fills in what a recipe leaves open."""
    model, special = recipe.model, tokenizer.special
    parts = model.model_dump(exclude={"layout", "intermediate_size", "max_position_embeddings"})
    return EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        pad_id=special.pad,
        cls_id=special.cls,
        sep_id=special.sep,
        mask_id=special.mask,
        intermediate_size=model.intermediate_size or default_intermediate_size(model.hidden_size),
        max_position_embeddings=model.max_position_embeddings or recipe.training.sequence_length,
        **parts,
    )
