"""The RoBERTa layout: BERT's parts with other names, and positions that begin behind the padding's id."""

from __future__ import annotations

from typing import Any

from unmask.model.bert import encoder_rows, read_family_config, write_family_config
from unmask.model.config import EncoderConfig
from unmask.model.folder_layout import FolderLayout
from unmask.model.heads import stored_heads
from unmask.model.layouts import Layout
from unmask.model.names import Names


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


def _write_config(config: EncoderConfig) -> dict[str, Any]:
    return write_roberta_config(config, architecture="RobertaForMaskedLM")


def _read_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    return read_roberta_config(content, layout="roberta", mask_id=mask_id)


ROBERTA = FolderLayout(
    names=roberta_names(
        "roberta",
        encoder_rows("roberta", attention_norm="attention.output.LayerNorm", mlp_norm="output.LayerNorm"),
    ),
    write_config=_write_config,
    read_config=_read_config,
)
