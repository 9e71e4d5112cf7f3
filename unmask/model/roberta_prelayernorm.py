"""RoBERTa with norms before attention and MLP, and one behind the last block."""

from __future__ import annotations

from typing import Any

from unmask.model.bert import encoder_rows
from unmask.model.config import EncoderConfig
from unmask.model.folder_layout import FolderLayout
from unmask.model.roberta import read_roberta_config, roberta_names, write_roberta_config

_ROOT = "roberta_prelayernorm"


def _write_config(config: EncoderConfig) -> dict[str, Any]:
    return write_roberta_config(config, architecture="RobertaPreLayerNormForMaskedLM")


def _read_config(content: dict[str, Any], *, mask_id: int) -> EncoderConfig:
    return read_roberta_config(content, layout="roberta-prelayernorm", mask_id=mask_id)


ROBERTA_PRELAYERNORM = FolderLayout(
    names=roberta_names(
        _ROOT,
        encoder_rows(_ROOT, attention_norm="attention.LayerNorm", mlp_norm="intermediate.LayerNorm")
        | {r"encoder\.final_norm\.(weight|bias)": (f"{_ROOT}.LayerNorm.{{}}",)},
    ),
    write_config=_write_config,
    read_config=_read_config,
)
