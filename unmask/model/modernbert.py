"""The ModernBERT layout: how a model is written so that transformers 4.48 and newer load it without remote code."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from unmask.errors import ModelError
from unmask.model.config import EncoderConfig

# Our parameter names and transformers', in both directions.
_NAMES = (
    (r"encoder\.tokens", "model.embeddings.tok_embeddings.weight"),
    (r"encoder\.norm\.weight", "model.embeddings.norm.weight"),
    (r"encoder\.final_norm\.weight", "model.final_norm.weight"),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.weight", "model.layers.{}.attn_norm.weight"),
    (r"encoder\.blocks\.(\d+)\.attention\.qkv\.weight", "model.layers.{}.attn.Wqkv.weight"),
    (r"encoder\.blocks\.(\d+)\.attention\.out\.weight", "model.layers.{}.attn.Wo.weight"),
    (r"encoder\.blocks\.(\d+)\.mlp_norm\.weight", "model.layers.{}.mlp_norm.weight"),
    (r"encoder\.blocks\.(\d+)\.mlp\.into\.weight", "model.layers.{}.mlp.Wi.weight"),
    (r"encoder\.blocks\.(\d+)\.mlp\.out\.weight", "model.layers.{}.mlp.Wo.weight"),
    (r"head\.dense\.weight", "head.dense.weight"),
    (r"head\.norm\.weight", "head.norm.weight"),
    (r"head\.bias", "decoder.bias"),
)
# What a config.json may say that this encoder cannot do.
_MUST_BE = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_activation": "gelu",
    "position_embedding_type": "absolute",
}
_DEFAULTS: dict[str, Any] = {
    **_MUST_BE,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "initializer_range": 0.02,
}


def to_transformers_name(name: str) -> str:
    """The name that transformers gives to one of our parameters."""
    for pattern, theirs in _NAMES:
        if match := re.fullmatch(pattern, name):
            return theirs.format(*match.groups())
    raise AssertionError(f"no name in the ModernBERT layout for {name}")


def from_transformers(weights: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Our parameters out of transformers' weights.

    Args:
        weights: As in `model.safetensors`.
        names: Our parameter names.

    Raises:
        ModelError: A weight is missing.
    """
    found = {}
    for name in names:
        theirs = to_transformers_name(name)
        if theirs not in weights:
            raise ModelError(f"the weights lack {theirs}; the folder does not hold a ModernBERT masked language model")
        found[name] = weights[theirs]
    return found


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """The content of `config.json`. Both spellings of layer pattern and rotary settings are written: 4 and 5 differ."""
    full, sliding = "full_attention", "sliding_attention"
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_activation": config.activation,
        "classifier_activation": "gelu",
        "classifier_pooling": "mean",
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "initializer_cutoff_factor": 2.0,
        "norm_eps": config.norm_eps,
        "norm_bias": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "embedding_dropout": 0.0,
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "local_attention": config.local_window,
        "global_attn_every_n_layers": config.global_every,
        "layer_types": [full if config.is_global(i) else sliding for i in range(config.num_layers)],
        "global_rope_theta": config.global_rope_theta,
        "local_rope_theta": config.local_rope_theta,
        "rope_parameters": {
            full: {"rope_type": "default", "rope_theta": config.global_rope_theta},
            sliding: {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
        "pad_token_id": config.pad_id,
        "cls_token_id": config.cls_id,
        "bos_token_id": config.cls_id,
        "sep_token_id": config.sep_id,
        "eos_token_id": config.sep_id,
        "mask_token_id": config.mask_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def read_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    """The configuration that a `config.json` stands for.

    Args:
        content: The file, parsed; of transformers 4 or 5, or ours.
        mask_id: From the tokenizer; ModernBERT's configuration does not hold it.

    Raises:
        ModelError: It asks for a part that this encoder does not have, or lacks a key.
    """
    content = {**_DEFAULTS, **content}
    for key, value in _MUST_BE.items():
        if content[key] != value:
            raise ModelError(f"config.json: {key} = {content[key]!r} is not supported, only {value!r}")
    try:
        every = _global_every(content)
        return EncoderConfig(
            vocab_size=content["vocab_size"],
            pad_id=content["pad_token_id"],
            cls_id=content["cls_token_id"],
            sep_id=content["sep_token_id"],
            mask_id=mask_id,
            num_layers=content["num_hidden_layers"],
            hidden_size=content["hidden_size"],
            num_heads=content["num_attention_heads"],
            intermediate_size=content["intermediate_size"],
            activation=content["hidden_activation"],
            max_position_embeddings=content["max_position_embeddings"],
            norm_eps=content["norm_eps"],
            global_every=every,
            local_window=content["local_attention"],
            global_rope_theta=_theta(content, "full_attention", "global_rope_theta"),
            local_rope_theta=_theta(content, "sliding_attention", "local_rope_theta"),
            initializer_range=content["initializer_range"],
        )
    except KeyError as error:
        raise ModelError(f"config.json: {error.args[0]} is missing") from error
    except ValueError as error:
        raise ModelError(f"config.json: {error}") from error


def _global_every(content: dict[str, Any]) -> int:
    types = content.get("layer_types")
    if types is None:
        return int(content["global_attn_every_n_layers"])
    wanted = [kind == "full_attention" for kind in types]
    for every in range(1, len(types) + 1):
        if wanted == [i % every == 0 for i in range(len(types))]:
            return every
    raise ModelError(f"config.json: layer_types {types} is not 'every n-th layer is global'")


def _theta(content: dict[str, Any], kind: str, old_name: str) -> float:
    parameters = (content.get("rope_parameters") or {}).get(kind)
    if parameters is None:
        return float(content[old_name])
    if parameters.get("rope_type", "default") != "default":
        raise ModelError(f"config.json: rope_type {parameters['rope_type']!r} is not supported, only 'default'")
    return float(parameters["rope_theta"])
