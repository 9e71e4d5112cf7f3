"""Any model that can be measured: one of ours, or any masked language model that transformers reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import ModelError, TokenizerError
from unmask.folders.model_folder import CONFIG, LAYOUTS, find_model, has_weights
from unmask.folders.transformers_folder import import_transformers, read_transformers, unsupported
from unmask.network.encoder import MaskedLM
from unmask.network.transformers_network import TransformersConfig, TransformersMaskedLM, longest_of, width_of
from unmask.tokenizer.loading import as_tokenizer, load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.hardware import choose_device
from unmask.using.loaded_model import Model, load

_OLDER_FORMS = ("vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")


@dataclass(frozen=True)
class Scorable:
    """A model that answers questions about hidden tokens, with its tokenizer.

    Attributes:
        folder: Where it was loaded from.
        network: The model.
        tokenizer: Its tokenizer.
    """

    folder: Path
    network: MaskedLM | TransformersMaskedLM
    tokenizer: Tokenizer


def as_scorable(model: Model | Scorable | str | Path) -> Scorable:
    """A model in the form in which models are measured; one that is loaded here is moved to the device that there is.

    Raises:
        ModelError: It has no head for masked tokens: it is fine-tuned, or a bare encoder; or as `load_scorable`.
        TokenizerError: As `load_scorable`.
    """
    if isinstance(model, Scorable):
        return model
    if isinstance(model, str | Path):
        loaded = load_scorable(model)
        loaded.network.to(choose_device())
        return loaded
    model.check_head()
    return Scorable(model.folder, model.network, model.tokenizer)


def load_scorable(folder: str | Path) -> Scorable:
    """Loads a model to be measured.

    Layouts of ours run in our encoder. Others (DistilBERT, ELECTRA's generator, ALBERT, DeBERTa, ...) run in
    transformers, as do models of our layouts with parts that our encoder lacks, and folders whose weights are not in
    one model.safetensors.

    Args:
        folder: Of a model, or of a run; or the name of a model on the hub.

    Raises:
        ModelError: The folder is not there, lacks a file, or holds no masked language model; or it needs transformers,
            which is not installed.
        TokenizerError: The tokenizer cannot be used, for instance because it has no mask token.
    """
    path = find_model(folder)
    if (path / CONFIG).is_file():
        kind = _kind(path)
        if kind not in LAYOUTS or not has_weights(path) or unsupported(path) is not None:
            return _with_transformers(path, kind)
    return as_scorable(load(path))


def _kind(folder: Path) -> str | None:
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG}: not JSON ({error})") from error
    return content.get("model_type") if isinstance(content, dict) else None


def _with_transformers(folder: Path, kind: str | None) -> Scorable:
    """Loads a model that transformers knows, in float32, without running code from the folder.

    Args:
        folder: With a config.json.
        kind: Its `model_type`, for errors.

    Raises:
        ModelError: transformers is not installed, does not know the layout, or there is no masked-language-model head.
        TokenizerError: The tokenizer cannot be used.
    """
    transformers = import_transformers(folder, kind)
    model, missing = read_transformers(transformers.AutoModelForMaskedLM, folder, what="masked language model")
    if missing:
        raise ModelError(
            f"{folder}: no masked language model: the weights lack {', '.join(missing[:4])}"
            f"{' and more' if len(missing) > 4 else ''}; a discriminator or a bare encoder predicts no tokens"
        )
    tokenizer = _tokenizer(folder, transformers)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {model.config.vocab_size}"
        )
    size = int(model.config.vocab_size)
    config = TransformersConfig(width_of(model), longest_of(model), 1, tokenizer.special.pad, size)
    return Scorable(folder, TransformersMaskedLM(model, config).eval(), tokenizer)


def _tokenizer(folder: Path, transformers: Any) -> Tokenizer:
    """The folder's tokenizer; where it is in one of the older forms, transformers makes a fast one of it."""
    is_fast = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    if is_fast or not any((folder / name).is_file() for name in _OLDER_FORMS):
        return load_tokenizer(folder)  # without any file, transformers would make up a tokenizer with no words
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TokenizerError(f"{folder}: no tokenizer that transformers reads ({reason})") from error
    try:
        found = as_tokenizer(theirs)
    except TokenizerError as error:
        raise TokenizerError(f"{folder}: {error}") from error
    if not found.ordinary.any():  # what transformers makes where it finds nothing
        raise TokenizerError(f"{folder}: no tokenizer that transformers reads (it has no vocabulary)")
    return found
