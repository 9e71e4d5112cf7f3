"""Small models of transformers that are not of our layouts, on the disk with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from unmask.tokenizer.tokenizer import Tokenizer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
DISTANCES = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
# The class that is saved, and what its configuration is made of.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "DistilBert": ("ForMaskedLM", {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}),
    "Electra": ("ForPreTraining", {**SIZES, "embedding_size": 16}),
    "Albert": ("ForMaskedLM", {**SIZES, "embedding_size": 16}),
    "DebertaV2": ("ForMaskedLM", {**SIZES, **DISTANCES}),
    "MPNet": ("ForMaskedLM", SIZES),
    "XLMRoberta": ("ForMaskedLM", {**SIZES, "type_vocab_size": 1}),
}


def save_transformers(
    name: str, tokenizer: Tokenizer, folder: Path, *, head: str | None = None, **changes: Any
) -> Path:
    """A model as transformers saves it, with weights large enough for differences to show."""
    import transformers

    usual, settings = FAMILIES.get(name, ("Model", SIZES))
    values = {
        "vocab_size": tokenizer.vocab_size,
        "max_position_embeddings": 66,
        "pad_token_id": tokenizer.special.pad,
        "initializer_range": 0.1,
    }
    config = getattr(transformers, f"{name}Config")(**(values | settings | changes))
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, f"{name}{head or usual}")(config)
    model.save_pretrained(folder)
    tokenizer.save(folder, max_length=64)
    return folder
