"""Which files of a model are fetched, and which of them it must have. Pickles are none of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import ModelError, TokenizerError, UnmaskError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
_VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "tokenizer.model",
)  # fmt: skip
_OF_TOKENIZERS = (
    *_VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_OF_NETWORKS = (CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", "checksums.json")
_OF_SENTENCES = (MODULES, POOLING, "sentence_bert_config.json", "config_sentence_transformers.json")


@dataclass(frozen=True)
class Need:
    """What of a model is wanted.

    Attributes:
        files: Names and patterns of all that is fetched, where it is there.
        lacks: Which file a folder must have and has not; None: it has what is needed.
        absent: What errors say of a string that is no path.
        error: Their class.
    """

    files: tuple[str, ...]
    lacks: Callable[[Path], str | None]
    absent: str
    error: type[UnmaskError]


def _lacks_tokenizer(folder: Path) -> str | None:
    return None if any((folder / name).is_file() for name in _VOCABULARIES) else _VOCABULARIES[0]


def _lacks_model(folder: Path) -> str | None:
    if not (folder / CONFIG).is_file():
        return CONFIG
    if not (folder / WEIGHTS).is_file():
        parts = _parts(folder / INDEX) if (folder / INDEX).is_file() else [WEIGHTS]
        if lack := next((name for name in parts if not (folder / name).is_file()), None):
            return lack
    return _lacks_tokenizer(folder)


def _parts(index: Path) -> list[str]:
    """The files that share the weights."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: damaged ({error}); remove the model from the hub's cache") from error


TOKENIZER = Need(
    _OF_TOKENIZERS, _lacks_tokenizer, absent="there is no tokenizer.json and no vocab.txt", error=TokenizerError
)
MODEL = Need((*_OF_NETWORKS, *_OF_TOKENIZERS, *_OF_SENTENCES), _lacks_model, absent="no such folder", error=ModelError)
