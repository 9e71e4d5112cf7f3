"""What inputs a network of transformers takes, read off the network: each kind says it in its own way."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.model.foreign import ForeignConfig

LONGEST = 512  # tokens, where nothing says how long an input may be
_UNBOUNDED = 1 << 20  # positions above which a number says that there is no bound


def longest_of(model: Any) -> int:
    """Positions that a network has. RoBERTa's kind begins its table behind the padding's id; other tables are larger
    than what is used of them."""
    said = getattr(model.config, "max_position_embeddings", None)
    longest = said if isinstance(said, int) and 0 < said < _UNBOUNDED else None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "weight"):
            before = getattr(module, "padding_idx", None)
            held = len(module.weight) - (0 if before is None else before + 1)
            return held if longest is None else min(held, longest)
    return longest or LONGEST


def foreign_config(model: Any, folder: Path, *, pad_id: int, max_length: int | None) -> ForeignConfig:
    """What inputs of a network look like.

    Args:
        model: Of transformers, with a head or without.
        folder: Where it lies with its tokenizer.
        pad_id: The tokenizer's.
        max_length: The longest input that is asked for. A network that knows distances between tokens only, and no
            positions (DeBERTa), takes any; without this, what its tokenizer says, or 512.

    Raises:
        ModelError: It cannot be told what is padding.
    """
    arguments = inspect.signature(model.forward).parameters
    if "attention_mask" not in arguments:
        raise ModelError(
            f"{folder}: a model of type {model.config.model_type!r} takes no attention mask, so that padding would "
            "change what it says; take another model"
        )
    types = getattr(model.config, "type_vocab_size", None) if "token_type_ids" in arguments else 1
    longest = longest_of(model)
    if _knows_distances_only(model.config):
        longest = max_length or _of_tokenizer(folder) or LONGEST
    return ForeignConfig(width_of(model), longest, types or 1, pad_id, int(model.config.vocab_size))


def width_of(model: Any) -> int:
    """The network's width."""
    return int(getattr(model.config, "hidden_size", None) or model.get_input_embeddings().weight.shape[1])


def _knows_distances_only(config: Any) -> bool:
    return bool(getattr(config, "relative_attention", False)) and not getattr(config, "position_biased_input", True)


def _of_tokenizer(folder: Path) -> int | None:
    """The longest input that the tokenizer's files name; transformers writes a huge number where there is none."""
    file = folder / "tokenizer_config.json"
    found = json.loads(file.read_text(encoding="utf-8")).get("model_max_length") if file.is_file() else None
    return int(found) if isinstance(found, int | float) and 0 < found < _UNBOUNDED else None
