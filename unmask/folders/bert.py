"""The layouts of BERT's family: BERT, RoBERTa (also as XLM-R and CamemBERT), and RoBERTa with its norms before.

What the family shares comes first, then each layout with its names and its config.json.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from unmask.folders.layout_names import FolderLayout, Names, read_values
from unmask.network.config import EncoderConfig
from unmask.network.heads import stored_heads
from unmask.network.layouts import Layout

# Parts that stand in the same place in all of the family: our block, their layer.
_LAYER = {
    r"attention\.out": "attention.output.dense",
    r"mlp\.into": "intermediate.dense",
    r"mlp\.out": "output.dense",
}
_QKV = ("query", "key", "value")
# What a config.json must say: a decoder predicts no masked tokens, and transformers 5 passes over relative positions,
# so that another model would be run.
_MUST_BE = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
# What it says of the encoders that ours can be.
_OURS = {"tie_word_embeddings": True}
_DEFAULTS: dict[str, Any] = {
    **_MUST_BE,
    **_OURS,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
_ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "swish": "silu"}  # other names of the same functions


def encoder_rows(root: str, *, attention_norm: str, mlp_norm: str) -> dict[str, tuple[str, ...]]:
    """The names of the encoder's weights.

    Args:
        root: The encoder's name, such as `bert`.
        attention_norm, mlp_norm: Where the norms of a layer stand.
    """
    rows: dict[str, tuple[str, ...]] = {
        r"encoder\.tokens": (f"{root}.embeddings.word_embeddings.weight",),
        r"encoder\.positions": (f"{root}.embeddings.position_embeddings.weight",),
        r"encoder\.token_types": (f"{root}.embeddings.token_type_embeddings.weight",),
    }
    layer = _LAYER | {r"attention_norm": attention_norm, r"mlp_norm": mlp_norm}
    for kind in ("weight", "bias"):
        rows[rf"encoder\.norm\.{kind}"] = (f"{root}.embeddings.LayerNorm.{kind}",)
        begin, end = r"encoder\.blocks\.(\d+)\.", rf"\.{kind}"
        for ours, theirs in layer.items():
            rows[begin + ours + end] = (f"{root}.encoder.layer.{{}}.{theirs}.{kind}",)
        rows[rf"{begin}attention\.qkv{end}"] = tuple(
            f"{root}.encoder.layer.{{}}.attention.self.{part}.{kind}" for part in _QKV
        )
    return rows


def write_family_config(config: EncoderConfig, *, architecture: str) -> dict[str, Any]:
    """The content of `config.json`.

    The dropout is written for the attention's probabilities too, as is usual, although it is not applied to them here.
    """
    ids = {"cls_token_id": config.cls_id, "sep_token_id": config.sep_id}
    return {
        "architectures": [architecture],
        "model_type": config.layout,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "classifier_dropout": config.classifier_dropout,
        "max_position_embeddings": config.first_position + config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.norm_eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": config.pad_id,
        **{name: value for name, value in ids.items() if value is not None},
        "mask_token_id": config.mask_id,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def read_family_config(
    content: dict[str, Any], *, layout: Layout, mask_id: int, first_position: int = 0
) -> EncoderConfig:
    """The configuration that a `config.json` stands for.

    Args:
        content: The file, parsed, of transformers 4 or 5, or ours; it says the padding's id.
        layout: Its layout.
        mask_id: From the tokenizer.
        first_position: The row of the position table that a segment's first token takes.

    Raises:
        UnsupportedError: It asks for a part that this encoder does not have.
        ModelError: It is no such encoder, lacks a key, or has a value that is not allowed.
    """
    content = {**_DEFAULTS, **content}
    activation = content["hidden_act"]
    of_classifier = content.get("classifier_dropout")  # null in most folders

    def values() -> dict[str, Any]:
        return {
            "layout": layout,
            "vocab_size": content["vocab_size"],
            "pad_id": content["pad_token_id"],
            "cls_id": content.get("cls_token_id"),
            "sep_id": content.get("sep_token_id"),
            "mask_id": mask_id,
            "num_layers": content["num_hidden_layers"],
            "hidden_size": content["hidden_size"],
            "num_heads": content["num_attention_heads"],
            "intermediate_size": content["intermediate_size"],
            "activation": _ACTIVATIONS.get(activation, activation) if isinstance(activation, str) else activation,
            "max_position_embeddings": _without(content["max_position_embeddings"], first_position),
            "norm_eps": content["layer_norm_eps"],
            "rotary": None,
            "type_vocab_size": content["type_vocab_size"],
            "dropout": content["hidden_dropout_prob"],
            "classifier_dropout": content["hidden_dropout_prob"] if of_classifier is None else of_classifier,
            "initializer_range": content["initializer_range"],
        }

    return read_values(content, must_be=_MUST_BE, ours=_OURS, values=values)


def _without(positions: Any, first: int) -> Any:
    """What is no number is an error further on."""
    return positions - first if isinstance(positions, int) else positions


def _write_bert_config(config: EncoderConfig) -> dict[str, Any]:
    return write_family_config(config, architecture="BertForMaskedLM")


def _read_bert_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    return read_family_config({"pad_token_id": 0, **content}, layout="bert", mask_id=mask_id)


BERT = FolderLayout(
    names=Names(
        prefix="bert.",
        rows=encoder_rows("bert", attention_norm="attention.output.LayerNorm", mlp_norm="output.LayerNorm")
        | {
            r"head\.dense\.(weight|bias)": ("cls.predictions.transform.dense.{}",),
            r"head\.norm\.(weight|bias)": ("cls.predictions.transform.LayerNorm.{}",),
            r"head\.bias": ("cls.predictions.bias",),
            **stored_heads("bert"),
        },
        kept=("bert.pooler.", "cls.seq_relationship."),
        aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        known=("cls.predictions.decoder.weight", "bert.embeddings.position_ids"),
    ),
    write_config=_write_bert_config,
    read_config=_read_bert_config,
    pair_architecture="BertForPreTraining",
)


# RoBERTa: BERT's parts with other names, and positions that begin behind the padding's id.
def roberta_names(root: str, rows: dict[str, tuple[str, ...]]) -> Names:
    """The names of a RoBERTa, of the encoder's rows and the head's."""
    return Names(
        prefix=f"{root}.",
        rows=rows
        | {
            r"head\.dense\.(weight|bias)": ("lm_head.dense.{}",),
            r"head\.norm\.(weight|bias)": ("lm_head.layer_norm.{}",),
            r"head\.bias": ("lm_head.bias",),
            **stored_heads("roberta"),
        },
        kept=(f"{root}.pooler.",),
        aliases={"lm_head.decoder.bias": "lm_head.bias"},
        known=("lm_head.decoder.weight", f"{root}.embeddings.position_ids"),
        write_aliases=True,  # transformers 4.48 loses the bias (its own, too) where it stands only under one name
    )


def write_roberta_config(config: EncoderConfig, *, architecture: str) -> dict[str, Any]:
    """The content of `config.json`; the sequence's ends have names of their own here."""
    content = write_family_config(config, architecture=architecture)
    ends = {"bos_token_id": config.cls_id, "eos_token_id": config.sep_id}
    return content | {name: value for name, value in ends.items() if value is not None}


def read_roberta_config(content: dict[str, Any], *, layout: Layout, mask_id: int) -> EncoderConfig:
    """The configuration that a `config.json` stands for.

    Raises:
        UnsupportedError, ModelError: As for `read_family_config`.
    """
    defaults = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    content = {**defaults, **content}
    ends = {"cls_token_id": content["bos_token_id"], "sep_token_id": content["eos_token_id"]}
    pad = content["pad_token_id"]
    first = pad + 1 if isinstance(pad, int) else 0  # what is not a number is an error further on
    return read_family_config({**ends, **content}, layout=layout, mask_id=mask_id, first_position=first)


def _roberta_layout(layout: Layout, architecture: str) -> FolderLayout:
    """RoBERTa's network under the name of a model: transformers calls its weights `roberta` in all of them."""
    return FolderLayout(
        names=roberta_names(
            "roberta",
            encoder_rows("roberta", attention_norm="attention.output.LayerNorm", mlp_norm="output.LayerNorm"),
        ),
        write_config=partial(write_roberta_config, architecture=architecture),
        read_config=partial(read_roberta_config, layout=layout),
    )


ROBERTA = _roberta_layout("roberta", "RobertaForMaskedLM")
XLM_ROBERTA = _roberta_layout("xlm-roberta", "XLMRobertaForMaskedLM")
CAMEMBERT = _roberta_layout("camembert", "CamembertForMaskedLM")


# RoBERTa with norms before attention and MLP, and one behind the last block.
_ROOT = "roberta_prelayernorm"
ROBERTA_PRELAYERNORM = FolderLayout(
    names=roberta_names(
        _ROOT,
        encoder_rows(_ROOT, attention_norm="attention.LayerNorm", mlp_norm="intermediate.LayerNorm")
        | {r"encoder\.final_norm\.(weight|bias)": (f"{_ROOT}.LayerNorm.{{}}",)},
    ),
    write_config=partial(write_roberta_config, architecture="RobertaPreLayerNormForMaskedLM"),
    read_config=partial(read_roberta_config, layout="roberta-prelayernorm"),
)
