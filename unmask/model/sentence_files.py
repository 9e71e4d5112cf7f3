"""What makes a model folder one of sentence-transformers too: three small files that say how tokens become a vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.model.config import EncoderConfig

POOLING_FOLDER = "1_Pooling"


def write_sentence_files(config: EncoderConfig, folder: Path) -> None:
    """Writes the files beside `config.json`, so that `SentenceTransformer(folder)` takes the mean over the tokens.

    The mean counts all tokens but padding, `[CLS]` and `[SEP]` included, as is usual there.

    Args:
        config: Of the encoder.
        folder: An existing model folder.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), section 3 (mean pooling).
    """
    library = "sentence_transformers.models"
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": False,
        "include_prompt": True,
    }
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{library}.Transformer"},
            {"idx": 1, "name": "1", "path": POOLING_FOLDER, "type": f"{library}.Pooling"},
        ],
        f"{POOLING_FOLDER}/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": config.max_position_embeddings, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    (folder / POOLING_FOLDER).mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
