"""What a checkpoint says of a recipe: the model's architecture. What contradicts it is an error, never ignored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.errors import ModelError, SettingsError
from unmask.files import file_sha256
from unmask.folders.model_folder import find_weights, read_encoder_config
from unmask.hub import MODEL, lasting_name
from unmask.network.config import EncoderConfig, ModelSettings, Rotary
from unmask.settings import validated
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer

_FILES = (*MODEL.files, "pytorch_model*.bin")  # the last are of folders that only transformers reads
_SAME_NAMES = (
    "layout", "num_layers", "hidden_size", "num_heads", "intermediate_size", "activation", "norm_eps",
    "type_vocab_size", "initializer_range",
)  # fmt: skip
DEFAULT_LENGTH = 128
# Gururangan et al. 2020, appendix B, have 1e-4 for RoBERTa, 768 wide; narrower models take and need more.
RATE_AT_WIDTH = 1e-4 * 768


def find_checkpoint(path: str | Path) -> Path:
    """The folder of the model that is meant.

    Args:
        path: It, or the folder of a run; or the name of a model on the hub.

    Raises:
        ModelError: There is none.
    """
    return find_weights(path, way_out="--from takes the folder of a model, such as RUN/model")


def checkpoint_sha256(folder: Path) -> str:
    """A hash of all that a training takes from a checkpoint: configuration, weights in all their files, tokenizer."""
    found = {path for pattern in _FILES for path in folder.glob(pattern)}
    content = {path.relative_to(folder).as_posix(): file_sha256(path) for path in found}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def fill_from_checkpoint(values: dict[str, Any], *, where: str) -> None:
    """Completes a recipe that begins with a checkpoint by what the checkpoint says.

    Args:
        values: Of the recipe, as TOML gives them; changed in place. `start.checkpoint` is given.
        where: What the values are, for errors.

    Raises:
        ModelError: The checkpoint cannot be used.
        TokenizerError: Its tokenizer cannot be used.
        SettingsError: A setting contradicts the checkpoint, or means nothing where there is one.
    """
    start = values["start"]
    folder = find_checkpoint(start["checkpoint"])
    sha256 = checkpoint_sha256(folder)
    if start.get("sha256") not in (None, sha256):
        raise SettingsError(
            f"{where}: start.sha256 is {start['sha256']}, but {folder} now has {sha256}: it is another checkpoint than "
            "this recipe was made with; give that one back, or remove start.sha256 (--set start.sha256=none)"
        )
    start["checkpoint"], start["sha256"] = lasting_name(start["checkpoint"], folder), sha256
    config = read_fitting_config(folder, load_tokenizer(folder))
    if validated(TokenizerSettings, values.get("tokenizer") or {}, where=where) != TokenizerSettings():
        raise SettingsError(
            f"{where}: [tokenizer] says which tokenizer is taken or trained, but the checkpoint {folder} brings its "
            "own; leave [tokenizer], --tokenizer, --tokenizer-kind and --vocab-size away (--extend-vocab adds words)"
        )
    _fill_model(values, _architecture(config), where=where)
    longest = _fill_length(values, config, where=where)
    _fill_model(values, {"max_position_embeddings": longest}, where=where)
    values["model"].setdefault("dropout", config.dropout)
    _fill_rate(values["training"], config)


def read_fitting_config(folder: Path, tokenizer: Tokenizer) -> EncoderConfig:
    """The configuration of a checkpoint.

    Raises:
        ModelError: It cannot be read, or has fewer rows than its tokenizer has ids.
    """
    config = read_encoder_config(folder, mask_id=tokenizer.special.mask)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, but the model only "
                         f"{config.vocab_size}; give a model with the tokenizer that it was trained with")  # fmt: skip
    return config


def _architecture(config: EncoderConfig) -> dict[str, Any]:
    """The values of `ModelSettings` that the checkpoint fixes."""
    found = {name: getattr(config, name) for name in _SAME_NAMES}
    if config.rotary is not None:
        found |= {name: getattr(config.rotary, name) for name in Rotary.model_fields}
    return {name: value for name, value in found.items() if value is not None}


def _fill_length(values: dict[str, Any], config: EncoderConfig, *, where: str) -> int:
    """Settles the rows' length, and returns the longest sequence that the model will take."""
    training, longest = values.setdefault("training", {}), config.max_position_embeddings
    extend = values["start"].get("extend_positions", False)
    length = training.setdefault("sequence_length", min(DEFAULT_LENGTH, longest))
    if not isinstance(length, int):
        return longest  # which is an error of its own, later on
    if length > longest and not extend:
        raise SettingsError(
            f"{where}: training.sequence_length {length} is more than the {longest} positions of the checkpoint; set "
            f"training.sequence_length={longest}, or make the model longer with --set start.extend_positions=true"
        )
    if extend and length <= longest:
        raise SettingsError(
            f"{where}: start.extend_positions makes the model longer than its {longest} positions, but "
            f"training.sequence_length is {length}; set it to the length that is wanted, or leave extend_positions away"
        )
    return max(length, longest)


def _fill_rate(training: dict[str, Any], config: EncoderConfig) -> None:
    """Chooses the learning rate where AdamW is asked for and no rate is."""
    optimizer = training.get("optimizer")
    if isinstance(optimizer, dict) and optimizer.get("kind") == "adamw":
        training.setdefault("learning_rate", RATE_AT_WIDTH / config.hidden_size)


def _fill_model(values: dict[str, Any], architecture: Mapping[str, Any], *, where: str) -> None:
    model = values.setdefault("model", {})
    for key, value in model.items():
        if key in architecture and value is not None and value != architecture[key]:
            raise SettingsError(
                f"{where}: model.{key} = {value!r}, but the checkpoint has {architecture[key]!r}; the architecture is "
                f"the checkpoint's: leave model.{key} away, or take a recipe without [model], such as continue"
            )
    initialisation = ModelSettings.model_fields["initialisation"].default
    if model.get("initialisation", initialisation) != initialisation:
        raise SettingsError(
            f"{where}: model.initialisation = {model['initialisation']!r} means nothing to a training that begins with "
            "a checkpoint's weights; leave it away"
        )
    model |= architecture
