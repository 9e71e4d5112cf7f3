"""The ModernBERT layout: how a model is written so that transformers 4.48 and newer load it without remote code."""

from __future__ import annotations

import logging
from typing import Any

from unmask.errors import ModelError, UnsupportedError
from unmask.folders.layout_names import FolderLayout, Names, read_values
from unmask.network.config import EncoderConfig
from unmask.network.heads import stored_heads
from unmask.values import shown

log = logging.getLogger("unmask")

NAMES = Names(
    prefix="model.",
    rows={
        r"encoder\.tokens": ("model.embeddings.tok_embeddings.weight",),
        r"encoder\.norm\.weight": ("model.embeddings.norm.weight",),
        r"encoder\.final_norm\.weight": ("model.final_norm.weight",),
        r"encoder\.blocks\.(\d+)\.attention_norm\.weight": ("model.layers.{}.attn_norm.weight",),
        r"encoder\.blocks\.(\d+)\.attention\.qkv\.weight": ("model.layers.{}.attn.Wqkv.weight",),
        r"encoder\.blocks\.(\d+)\.attention\.out\.weight": ("model.layers.{}.attn.Wo.weight",),
        r"encoder\.blocks\.(\d+)\.mlp_norm\.weight": ("model.layers.{}.mlp_norm.weight",),
        r"encoder\.blocks\.(\d+)\.mlp\.into\.weight": ("model.layers.{}.mlp.Wi.weight",),
        r"encoder\.blocks\.(\d+)\.mlp\.out\.weight": ("model.layers.{}.mlp.Wo.weight",),
        r"head\.dense\.weight": ("head.dense.weight",),
        r"head\.norm\.weight": ("head.norm.weight",),
        r"head\.bias": ("decoder.bias",),
        **stored_heads("modernbert"),
    },
    known=("decoder.weight",),
    shared=("head.dense.weight", "head.norm.weight"),
)
_MUST_BE = {"position_embedding_type": "absolute"}
# What a config.json says of the encoders that ours can be.
_OURS = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_activation": "gelu",
}
_DEFAULTS: dict[str, Any] = {
    **_MUST_BE,
    **_OURS,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "initializer_range": 0.02,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "mlp_dropout": 0.0,
    "classifier_dropout": 0.0,
}


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """The content of `config.json`. Both spellings of layer pattern and rotary settings are written: 4 and 5 differ."""
    full, sliding = "full_attention", "sliding_attention"
    rotary = config.rotary
    assert rotary is not None
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
        "attention_dropout": config.dropout,
        "mlp_bias": False,
        "mlp_dropout": config.dropout,
        "embedding_dropout": config.dropout,
        "classifier_bias": False,
        "classifier_dropout": config.classifier_dropout,
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "local_attention": rotary.local_window,
        "global_attn_every_n_layers": rotary.global_every,
        "layer_types": [full if config.is_global(i) else sliding for i in range(config.num_layers)],
        "global_rope_theta": rotary.global_rope_theta,
        "local_rope_theta": rotary.local_rope_theta,
        "rope_parameters": {
            full: {"rope_type": "default", "rope_theta": rotary.global_rope_theta},
            sliding: {"rope_type": "default", "rope_theta": rotary.local_rope_theta},
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
        UnsupportedError: It asks for a part that this encoder does not have.
        ModelError: It lacks a key, or has a value that is not allowed.
    """
    content = {**_DEFAULTS, **content}
    dropouts = [content[f"{part}_dropout"] for part in ("embedding", "attention", "mlp")]
    if any(rate != dropouts[0] for rate in dropouts):
        log.warning("config.json: dropout of embeddings, attention, MLP = %s; the highest is taken for all", dropouts)

    def values() -> dict[str, Any]:
        return {
            "layout": "modernbert",
            "vocab_size": content["vocab_size"],
            "pad_id": content["pad_token_id"],
            "cls_id": content["cls_token_id"],
            "sep_id": content["sep_token_id"],
            "mask_id": mask_id,
            "num_layers": content["num_hidden_layers"],
            "hidden_size": content["hidden_size"],
            "num_heads": content["num_attention_heads"],
            "intermediate_size": content["intermediate_size"],
            "activation": content["hidden_activation"],
            "max_position_embeddings": content["max_position_embeddings"],
            "norm_eps": content["norm_eps"],
            "rotary": {
                "global_every": _global_every(content),
                "local_window": content["local_attention"],
                "global_rope_theta": _theta(content, "full_attention", "global_rope_theta"),
                "local_rope_theta": _theta(content, "sliding_attention", "local_rope_theta"),
            },
            "dropout": _highest(dropouts),
            "classifier_dropout": content["classifier_dropout"],
            "initializer_range": content["initializer_range"],
        }

    return read_values(content, must_be=_MUST_BE, ours=_OURS, values=values)


def _highest(rates: list[Any]) -> Any:
    """What is no number is an error further on."""
    others = [rate for rate in rates if not isinstance(rate, int | float)]
    return others[0] if others else max(rates)


def _global_every(content: dict[str, Any]) -> Any:
    types = content.get("layer_types")
    if types is None:
        return content["global_attn_every_n_layers"]
    layers = content["num_hidden_layers"]
    if not isinstance(types, list) or (isinstance(layers, int) and len(types) != layers):
        raise ModelError(f"config.json: layer_types = {shown(types)} does not name a kind for each of {layers} layers")
    wanted = [kind == "full_attention" for kind in types]
    every = next((layer for layer, is_global in enumerate(wanted) if is_global and layer), max(1, len(types)))
    if wanted == [layer % every == 0 for layer in range(len(types))]:
        return every
    raise UnsupportedError(f"config.json: layer_types {shown(types)} is not 'every n-th layer is global'")


def _theta(content: dict[str, Any], kind: str, old_name: str) -> Any:
    parameters = content.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not isinstance(own := parameters.get(kind) or {}, dict):
        raise ModelError(f"config.json: rope_parameters = {shown(parameters)} is no table with a table for {kind}")
    if not own:
        return content[old_name]
    if own.get("rope_type", "default") != "default":
        raise UnsupportedError(f"config.json: rope_type {shown(own['rope_type'])} is not supported, only 'default'")
    return own["rope_theta"]


MODERNBERT = FolderLayout(
    names=NAMES, write_config=write_config, read_config=read_config, pooling_key="classifier_pooling"
)
