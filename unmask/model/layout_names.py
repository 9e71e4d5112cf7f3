"""How a layout is stored: reads and writes the names of its weights, and its config.json.

The names are a table. A row maps a module or a parameter of ours to its stored names, with `{}` for the number of the
block. If it is stored in several parts (queries, keys and values), our weight stacks them in its rows:

    encoder.blocks.3.attention.qkv.weight [3D, D]  <->  bert.encoder.layer.3.attention.self.query.weight [D, D]
                                                        ...key.weight, ...value.weight
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from unmask.core.errors import ModelError, SettingsError, UnsupportedError, shown
from unmask.core.settings import validated
from unmask.model.config import PARTS, Activation, EncoderConfig, Layout

log = logging.getLogger("unmask")

Held = TypeVar("Held")
ClassifierPooling = Literal["mean", "first"]  # pooling of a text classifier: a name of `unmask.model.pooling`
_POOLING_NAMES: dict[ClassifierPooling, str] = {"first": "cls", "mean": "mean"}
_ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "swish": "silu"}  # other names of the same functions


@dataclass(frozen=True)
class FolderLayout:
    layout: Layout  # its name, which is transformers' `model_type`
    architecture: str  # transformers' class of its masked language models
    prefix: str  # of the encoder's weights in a masked language model; folders of a bare encoder lack it
    rows: Mapping[str, tuple[str, ...]]  # modules or parameters of ours, and their stored names
    keys: Mapping[str, str]  # fields of `EncoderConfig`, and their keys in config.json
    must_be: Mapping[str, Any]  # keys with the only value that is supported, in transformers too
    ours: Mapping[str, Any]  # keys with the only value that our encoder supports; transformers runs others
    defaults: Mapping[str, Any]  # values of keys that config.json may lack
    unused: tuple[str, ...] = ()  # name prefixes of weights that we do not use, but write back
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of weights, to the name in the table
    known: tuple[str, ...] = ()  # redundant weights, such as the tied decoder
    write_aliases: bool = False  # whether weights are written under their other names too
    # Parameters that the masked-language-model head shares with task heads. A folder with only these has no
    # masked-language-model head
    shared: tuple[str, ...] = ()
    pair_architecture: str | None = None  # transformers' class with a pair head; None if it has none
    # The key of config.json that tells whether a text classifier pools the first token (`cls`) or the mean; None:
    # always the first token
    pooling_key: str | None = None

    # Names

    def theirs(self, name: str) -> list[str]:
        """The names under which one of our parameters is stored."""
        block = "".join(re.findall(r"\d+", name))
        row = name.replace(f".{block}.", ".{}.") if block else name
        if row in self.rows:
            templates = self.rows[row]
        else:
            module, _, kind = row.rpartition(".")
            templates = tuple(f"{template}.{kind}" for template in self.rows[module])
        return [template.format(block) for template in templates]

    def to_transformers(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights in float32, on the host, by their stored names."""
        stored: dict[str, Tensor] = {}
        for name, weight in ours.items():
            names = self.theirs(name)
            parts = weight.detach().to("cpu", torch.float32).chunk(len(names))
            stored |= {theirs: part.contiguous() for theirs, part in zip(names, parts, strict=True)}
        if not self.write_aliases:
            return stored
        return stored | {other: stored[name].clone() for other, name in self.aliases.items() if name in stored}

    def canonical(self, weights: Mapping[str, Held]) -> dict[str, Held]:
        """Weights, or facts about them, by the names of the table: with the prefix, and without older spellings."""
        bare = not any(name.startswith(self.prefix) for name in weights)
        beside = {template.partition(".")[0] for templates in self.rows.values() for template in templates}
        renamed = {}
        for name, tensor in weights.items():
            new = f"{self.prefix}{name}" if bare and name.partition(".")[0] not in beside else name
            new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", new))  # TensorFlow's names
            renamed[self.aliases.get(new, new)] = tensor
        return renamed

    # config.json

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The content of config.json, so that transformers 4.48 and newer load the folder without remote code."""
        if (rotary := config.rotary) is None:  # BERT's family
            ids = {"cls_token_id": config.cls_id, "sep_token_id": config.sep_id}
            if config.parts.positions_after_padding:  # RoBERTa and its kin also have bos and eos
                ids |= {"bos_token_id": config.cls_id, "eos_token_id": config.sep_id}
            own: dict[str, Any] = {
                # Usual for attention probabilities too, although our encoder does not drop these
                "attention_probs_dropout_prob": config.dropout,
                "classifier_dropout": config.classifier_dropout,
                "max_position_embeddings": config.first_position + config.max_position_embeddings,
                "position_embedding_type": "absolute",
                "tie_word_embeddings": True,
                **{name: value for name, value in ids.items() if value is not None},
            }
        else:  # ModernBERT: layer pattern and rotary settings with the keys of transformers 4, and those of 5
            full, sliding = "full_attention", "sliding_attention"
            own = {
                "classifier_pooling": "mean",
                "initializer_cutoff_factor": 2.0,
                **self.ours,
                **{f"{part}_dropout": config.dropout for part in ("attention", "mlp", "embedding")},
                "local_attention": rotary.local_window,
                "global_attn_every_n_layers": rotary.global_every,
                "layer_types": [full if config.is_global(i) else sliding for i in range(config.num_layers)],
                "global_rope_theta": rotary.global_rope_theta,
                "local_rope_theta": rotary.local_rope_theta,
                "rope_parameters": {
                    full: {"rope_type": "default", "rope_theta": rotary.global_rope_theta},
                    sliding: {"rope_type": "default", "rope_theta": rotary.local_rope_theta},
                },
                "bos_token_id": config.cls_id,
                "eos_token_id": config.sep_id,
            }
        return {
            "architectures": [self.architecture],
            "model_type": config.layout,
            **{key: getattr(config, name) for name, key in self.keys.items()},
            **own,
            "mask_token_id": config.mask_id,
            "dtype": "float32",
            "torch_dtype": "float32",
        }

    def read_config(self, content: Mapping[str, Any], *, mask_id: int) -> EncoderConfig:
        """The configuration in a config.json of transformers 4 or 5, or of ours; `mask_id` is the tokenizer's. Raises
        an UnsupportedError if our encoder lacks a part."""
        content = {**self.defaults, **self.must_be, **self.ours, **content}
        for error, only in ((ModelError, self.must_be), (UnsupportedError, self.ours)):
            for key, value in only.items():
                if content[key] != value:
                    raise error(f"config.json: {key} = {shown(content[key])} is not supported, only {value!r}")
        try:
            values = {name: content[key] for name, key in self.keys.items()}
            if PARTS[self.layout].rotary:
                values |= _modernbert_fields(content)
            else:
                positions, pad = content["max_position_embeddings"], content["pad_token_id"]
                rate, after_padding = content.get("classifier_dropout"), PARTS[self.layout].positions_after_padding
                begin, end = (content["bos_token_id"], content["eos_token_id"]) if after_padding else (None, None)
                if after_padding and isinstance(pad, int) and isinstance(positions, int):  # else an error below
                    positions -= pad + 1
                values |= {
                    "cls_id": content.get("cls_token_id", begin),
                    "sep_id": content.get("sep_token_id", end),
                    "max_position_embeddings": positions,
                    "rotary": None,
                    "classifier_dropout": content["hidden_dropout_prob"] if rate is None else rate,
                }
            if isinstance(activation := values["activation"], str):
                values["activation"] = _ACTIVATIONS.get(activation, activation)
                if values["activation"] not in get_args(Activation):
                    supported = ", ".join(map(repr, get_args(Activation)))
                    raise UnsupportedError(f"config.json: activation = {shown(activation)} is none of {supported}")
            values |= {"layout": self.layout, "mask_id": mask_id}
            return validated(EncoderConfig, values, where="config.json")
        except KeyError as error:
            raise ModelError(f"config.json: {error.args[0]} is missing") from error
        except ModelError:
            raise
        except SettingsError as error:
            raise ModelError(str(error)) from error
        except (TypeError, ValueError) as error:
            raise ModelError(f"config.json: {error}") from error

    def pooling_content(self, pooling: ClassifierPooling) -> dict[str, Any]:
        if self.pooling_key is not None:
            return {self.pooling_key: _POOLING_NAMES[pooling]}
        if pooling != "first":
            raise ModelError("classifiers of this layout pool the first token; they cannot pool by the mean")
        return {}

    def pooling_of(self, content: Mapping[str, Any], where: str) -> ClassifierPooling:
        """A classifier's pooling; transformers' default is the first token."""
        name = "cls" if self.pooling_key is None else content.get(self.pooling_key, "cls")
        for pooling, theirs in _POOLING_NAMES.items():
            if theirs == name:
                return pooling
        raise ModelError(f"{where}: {self.pooling_key} = {shown(name)} is not supported, only cls or mean")


_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "initializer_range": "initializer_range",
    "pad_id": "pad_token_id",
}


# ----------------------------------------
# BERT's family: BERT, RoBERTa (also as XLM-R and CamemBERT), and RoBERTa with pre-norm.


def _bert_layout(layout: Layout, name: str) -> FolderLayout:
    """`name` is the prefix of transformers' classes of the layout."""
    # In transformers the weights of XLM-R and CamemBERT have RoBERTa's names.
    root = {"bert": "bert", "roberta-prelayernorm": "roberta_prelayernorm"}.get(layout, "roberta")
    block, is_bert, post_norm = f"{root}.encoder.layer.{{}}", layout == "bert", PARTS[layout].post_norm
    head = "cls.predictions" if is_bert else "lm_head"
    rows = {
        "encoder.tokens": (f"{root}.embeddings.word_embeddings.weight",),
        "encoder.positions": (f"{root}.embeddings.position_embeddings.weight",),
        "encoder.token_types": (f"{root}.embeddings.token_type_embeddings.weight",),
        "encoder.norm": (f"{root}.embeddings.LayerNorm",),
        "encoder.blocks.{}.attention.qkv": tuple(f"{block}.attention.self.{x}" for x in ("query", "key", "value")),
        "encoder.blocks.{}.attention.out": (f"{block}.attention.output.dense",),
        "encoder.blocks.{}.attention_norm": (f"{block}.attention.{'output.' if post_norm else ''}LayerNorm",),
        "encoder.blocks.{}.mlp.into": (f"{block}.intermediate.dense",),
        "encoder.blocks.{}.mlp.out": (f"{block}.output.dense",),
        "encoder.blocks.{}.mlp_norm": (f"{block}.{'output' if post_norm else 'intermediate'}.LayerNorm",),
        "encoder.final_norm": (f"{root}.LayerNorm",),
        "head.dense": (f"{head}.transform.dense" if is_bert else "lm_head.dense",),
        "head.norm": (f"{head}.transform.LayerNorm" if is_bert else "lm_head.layer_norm",),
        "head.bias": (f"{head}.bias",),
        "label_head.dense": ("bert.pooler.dense" if is_bert else "classifier.dense",),
        "label_head.classifier": ("classifier" if is_bert else "classifier.out_proj",),
        "answer_head": ("qa_outputs",),
        "tag_head": ("classifier",),
    }
    if is_bert:
        rows |= {"pair_head.pooler": ("bert.pooler.dense",), "pair_head.classifier": ("cls.seq_relationship",)}
    keys = {
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "type_vocab_size": "type_vocab_size",
        "norm_eps": "layer_norm_eps",
    }
    return FolderLayout(
        layout=layout,
        architecture=f"{name}ForMaskedLM",
        prefix=f"{root}.",
        rows=rows,
        keys=_KEYS | keys,
        # A decoder predicts no masked tokens. transformers 5 ignores relative positions, so it would run another model.
        must_be={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
        ours={"tie_word_embeddings": True},
        defaults={
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "pad_token_id": 1 if PARTS[layout].positions_after_padding else 0,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        unused=("bert.pooler.", "cls.seq_relationship.") if is_bert else (f"{root}.pooler.",),
        aliases={f"{head}.decoder.bias": f"{head}.bias"},
        known=(f"{head}.decoder.weight", f"{root}.embeddings.position_ids"),
        # transformers 4.48 loses RoBERTa's bias (its own, too) if it is stored under one name only.
        write_aliases=not is_bert,
        pair_architecture="BertForPreTraining" if is_bert else None,
    )


# ----------------------------------------
# ModernBERT


def _modernbert_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    rates = [content[f"{part}_dropout"] for part in ("embedding", "attention", "mlp")]
    if any(rate != rates[0] for rate in rates):
        log.warning("config.json: dropout of embeddings, attention, MLP = %s; using the highest for all", rates)

    # Global layers: every n-th in transformers 4, a list of all layers' kinds in 5.
    types, layers = content.get("layer_types"), content["num_hidden_layers"]
    if types is None:
        every = content["global_attn_every_n_layers"]
    else:
        if not isinstance(types, list) or (isinstance(layers, int) and len(types) != layers):
            raise ModelError(f"config.json: layer_types {shown(types)} must name each of the {layers} layers")
        full = [kind == "full_attention" for kind in types]
        every = next((layer for layer, is_global in enumerate(full) if is_global and layer), max(1, len(types)))
        if full != [layer % every == 0 for layer in range(len(types))]:
            raise UnsupportedError(f"config.json: layer_types {shown(types)}: only every n-th layer may be global")

    thetas, parameters = [], content.get("rope_parameters") or {}
    for kind, old_name in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        if not isinstance(parameters, dict) or not isinstance(own := parameters.get(kind) or {}, dict):
            raise ModelError(f"config.json: rope_parameters = {shown(parameters)} must hold a table for {kind}")
        if own and own.get("rope_type", "default") != "default":
            raise UnsupportedError(f"config.json: rope_type {shown(own['rope_type'])} is not supported, only 'default'")
        thetas.append(own["rope_theta"] if own else content[old_name])
    return {
        "dropout": max(rates),
        "rotary": {
            "global_every": every,
            "local_window": content["local_attention"],
            "global_rope_theta": thetas[0],
            "local_rope_theta": thetas[1],
        },
    }


MODERNBERT = FolderLayout(
    layout="modernbert",
    architecture="ModernBertForMaskedLM",
    prefix="model.",
    rows={
        "encoder.tokens": ("model.embeddings.tok_embeddings.weight",),
        "encoder.norm": ("model.embeddings.norm",),
        "encoder.final_norm": ("model.final_norm",),
        "encoder.blocks.{}.attention_norm": ("model.layers.{}.attn_norm",),
        "encoder.blocks.{}.attention.qkv": ("model.layers.{}.attn.Wqkv",),
        "encoder.blocks.{}.attention.out": ("model.layers.{}.attn.Wo",),
        "encoder.blocks.{}.mlp_norm": ("model.layers.{}.mlp_norm",),
        "encoder.blocks.{}.mlp.into": ("model.layers.{}.mlp.Wi",),
        "encoder.blocks.{}.mlp.out": ("model.layers.{}.mlp.Wo",),
        "head.dense": ("head.dense",),
        "head.norm": ("head.norm",),
        "head.bias": ("decoder.bias",),
        "label_head.classifier": ("classifier",),
        "tag_head": ("classifier",),
        "answer_head": ("classifier",),
    },
    keys=_KEYS
    | {
        "activation": "hidden_activation",
        "norm_eps": "norm_eps",
        "max_position_embeddings": "max_position_embeddings",
        "classifier_dropout": "classifier_dropout",
        "cls_id": "cls_token_id",
        "sep_id": "sep_token_id",
    },
    must_be={},
    ours={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "classifier_activation": "gelu",
        "rope_scaling": None,
    },
    defaults={
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "initializer_range": 0.02,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "mlp_dropout": 0.0,
        "classifier_dropout": 0.0,
    },
    known=("decoder.weight",),
    shared=("head.dense.weight", "head.norm.weight"),
    pooling_key="classifier_pooling",
)

LAYOUTS: dict[Layout, FolderLayout] = {  # by `model_type` of transformers
    "modernbert": MODERNBERT,
    "bert": _bert_layout("bert", "Bert"),
    "roberta": _bert_layout("roberta", "Roberta"),
    "xlm-roberta": _bert_layout("xlm-roberta", "XLMRoberta"),
    "camembert": _bert_layout("camembert", "Camembert"),
    "roberta-prelayernorm": _bert_layout("roberta-prelayernorm", "RobertaPreLayerNorm"),
}
