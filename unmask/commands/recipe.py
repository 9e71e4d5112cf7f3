"""A recipe: corpus, tokenizer, masking, model, training and checkpoints, each with the settings of its own part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, model_validator

from unmask.commands.recipe_files import DEFAULT, LightRecipe, apply_overrides, read_recipe, set_value
from unmask.core.errors import ModelError, SettingsError
from unmask.core.files import file_sha256
from unmask.core.hub import MODEL, lasting_name
from unmask.core.settings import Settings, validated
from unmask.masking.settings import MaskingSettings, span_units
from unmask.model.config import PARTS, EncoderConfig, ModelSettings, Rotary, default_intermediate_size
from unmask.model.encoder import MaskedLM
from unmask.model.folder import find_weights, read_encoder_config
from unmask.model.heads import heads_for
from unmask.tokenizer.loading import load_tokenizer, with_commit
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
    return find_weights(path, way_out="a training begins with the folder of a model, such as RUN/model")


def checkpoint_sha256(folder: Path) -> str:
    """A hash of all that a training takes from a checkpoint: configuration, weights in all their files, tokenizer."""
    files = {path for pattern in _FILES for path in folder.glob(pattern)}
    content = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
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
            "this recipe was made with; give that one back, or remove start.sha256 (start.sha256=none)",
            options=["set"],
        )
    start["checkpoint"], start["sha256"] = lasting_name(start["checkpoint"], folder), sha256
    config = read_fitting_config(folder, load_tokenizer(folder))
    if validated(TokenizerSettings, values.get("tokenizer") or {}, where=where) != TokenizerSettings():
        raise SettingsError(
            f"{where}: [tokenizer] says which tokenizer is taken or trained, but the checkpoint {folder} brings its "
            "own; leave it away, or add words to it",
            options=["extend_vocab"],
        )

    model = values.setdefault("model", {})
    architecture = {name: getattr(config, name) for name in _SAME_NAMES}
    if config.rotary is not None:
        architecture |= {name: getattr(config.rotary, name) for name in Rotary.model_fields}
    _fill_model(model, {name: value for name, value in architecture.items() if value is not None}, where=where)

    training, longest = values.setdefault("training", {}), config.max_position_embeddings
    extend = start.get("extend_positions", False)
    length = training.setdefault("sequence_length", min(DEFAULT_LENGTH, longest))
    if isinstance(length, int):  # anything else is an error of its own, later on
        if length > longest and not extend:
            raise SettingsError(
                f"{where}: training.sequence_length {length} is more than the {longest} positions of the checkpoint; "
                f"set training.sequence_length={longest}, or make the model longer with start.extend_positions=true",
                options=["set"],
            )
        if extend and length <= longest:
            raise SettingsError(
                f"{where}: start.extend_positions makes the model longer than its {longest} positions, but "
                f"training.sequence_length is {length}; set it to a greater length, or leave extend_positions away"
            )
        longest = max(length, longest)
    _fill_model(model, {"max_position_embeddings": longest}, where=where)
    model.setdefault("dropout", config.dropout)
    optimizer = training.get("optimizer")
    if isinstance(optimizer, dict) and optimizer.get("kind") == "adamw":
        training.setdefault("learning_rate", RATE_AT_WIDTH / config.hidden_size)


def _fill_model(model: dict[str, Any], architecture: Mapping[str, Any], *, where: str) -> None:
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


class StartSettings(Settings):
    """From which checkpoint a training begins, and what is added to it first.

    Attributes:
        checkpoint: Folder of a BERT, RoBERTa or ModernBERT model that unmask or transformers wrote, or of a run; or the
            name of such a model on the hub, with the commit (`owner/name@commit`) when a run has begun.
        sha256: Of its content. Filled in when a run begins; where it is given, the checkpoint must have it.
        extend_vocab: How many words of the training text get an entry of their own; None adds none.
        extend_positions: Whether the model is made longer where `training.sequence_length` goes beyond it.
        old_data: Text of the domain that the model comes from, whole, or one prepared folder (its validation split):
            the model is evaluated on it before the training and after it. Empty takes the validation split of the
            checkpoint's own run, where that is still there.
    """

    checkpoint: str
    sha256: str | None = None
    extend_vocab: int | None = Field(default=None, ge=1, le=1_000_000)
    extend_positions: bool = False
    old_data: tuple[str, ...] = ()


class Recipe(LightRecipe):
    """Every setting of a pretraining run. Sections are documented in their own classes.

    Attributes:
        description: What the recipe is for, in one line.
        start: The checkpoint that the training begins with; None draws new weights.
        card: What the user says of the model for its card. It is the one section that changes nothing of the training,
            so a run may go on with another one.
    """

    start: StartSettings | None = None
    masking: MaskingSettings = MaskingSettings.model_validate({})

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        longest, rows = self.model.max_position_embeddings, self.training.sequence_length
        if longest is not None and longest < rows:
            raise ValueError(f"model.max_position_embeddings {longest} is less than training.sequence_length {rows}")
        if self.objectives.pairs is not None:
            if self.model.layout != "bert":
                raise ValueError(
                    f"objectives.pairs: the layout {self.model.layout!r} has no place for a head that tells pairs "
                    "apart; set model.layout to 'bert', or remove objectives.pairs (objectives.pairs=none)"
                )
            if (self.model.type_vocab_size or 2) < 2:
                raise ValueError(
                    "objectives.pairs: the halves of a pair have two token types; model.type_vocab_size is 1"
                )
        if self.objectives.span_boundary is not None and span_units(self.masking) is None:
            raise ValueError(
                f"objectives.span_boundary: masking by {self.masking.units.kind} has no spans; set masking.strategy to "
                "'span', or remove objectives.span_boundary (objectives.span_boundary=none)"
            )
        return self

    def to_toml(self) -> str:
        """The recipe as a file that `--recipe` reads; settings without a value are left out."""
        values = _without_none(self.model_dump())
        if not values["card"]:
            del values["card"]
        return tomli_w.dumps(values)

    def fingerprinted(self) -> str:
        """What a checkpoint belongs to: the recipe without what changes no weight."""
        return tomli_w.dumps(_without_none(self.model_dump(exclude={"card": True, "evaluation": {"trackers"}})))


def load_recipe(
    source: str = DEFAULT,
    *,
    options: Mapping[str, Any] | None = None,
    overrides: tuple[str, ...] = (),
    complete: bool = True,
) -> Recipe:
    """Loads a recipe and applies what was asked for on top.

    Args:
        source: Name of a packaged recipe, or a TOML file.
        options: Values by dotted key, such as `{"training.minutes": 5}`; None values are passed over. Applied first.
        overrides: `section.key=value` in TOML's notation, as `--set` takes them.
        complete: Whether a recipe that begins with a checkpoint is filled in by what the checkpoint says, and checked
            against it, and names of the hub get their commits. The recipe of a run is complete already, and its
            checkpoint need not be there any more.

    Raises:
        SettingsError: The recipe, a key or a value is unknown or out of range, or contradicts the checkpoint.
        ModelError, TokenizerError: The checkpoint or the tokenizer cannot be used.
    """
    values, where = read_recipe(source)
    for key, value in (options or {}).items():
        if value is not None:
            set_value(values, key, value)
    apply_overrides(values, overrides)
    for section in ("start", "model", "training"):
        if not isinstance(values.get(section, {}), dict):
            raise SettingsError(f"{where}: {section} = {values[section]!r}: expected a table of settings, [{section}]")
    if complete and values.get("start"):
        _complete(values, where)
    recipe = validated(Recipe, values, where=where)
    return recipe.model_copy(update={"tokenizer": with_commit(recipe.tokenizer)}) if complete else recipe


def _complete(values: dict[str, Any], where: str) -> None:
    validated(StartSettings, {"checkpoint": "", **values["start"]}, where=f"{where}: start")
    if "checkpoint" not in values["start"]:
        raise SettingsError(
            f"{where}: {', '.join(values['start'])}: what is asked of a checkpoint needs one", options=["from_"]
        )
    fill_from_checkpoint(values, where=where)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


# ----------------------------------------
# The encoder that a recipe and a tokenizer make.


def new_model(
    recipe: Recipe, tokenizer: Tokenizer, label_names: Sequence[str] = (), *, config: EncoderConfig | None = None
) -> MaskedLM:
    """The encoder with the heads that the recipe's objectives need; its weights are not drawn yet.

    Args:
        recipe: Its settings.
        tokenizer: Of its text.
        label_names: The classes of documents, where they are an objective.
        config: Of a checkpoint that the training begins with; None makes that of the recipe.
    """
    objectives = recipe.objectives
    config = config or encoder_config(recipe, tokenizer)
    heads = heads_for(
        config,
        pairs=objectives.pairs is not None,
        boundary_length=None if objectives.span_boundary is None else objectives.span_boundary.max_length,
        label_names=None if objectives.label is None else label_names,
        retromae=objectives.retromae is not None,
    )
    return MaskedLM(config, heads)


def encoder_config(recipe: Recipe, tokenizer: Tokenizer) -> EncoderConfig:
    """Fills in what a recipe leaves open."""
    model, special = recipe.model, tokenizer.special
    parts = PARTS[model.layout]
    return EncoderConfig(
        layout=model.layout,
        vocab_size=tokenizer.vocab_size,
        pad_id=special.pad,
        cls_id=special.cls,
        sep_id=special.sep,
        mask_id=special.mask,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        intermediate_size=model.intermediate_size
        or default_intermediate_size(model.hidden_size, parts.intermediate_ratio),
        activation=model.activation,
        max_position_embeddings=model.max_position_embeddings or recipe.training.sequence_length,
        norm_eps=model.norm_eps or parts.norm_eps,
        rotary=model.rotary,
        type_vocab_size=model.type_vocab_size or parts.type_vocab_size,
        dropout=model.dropout,
        classifier_dropout=model.dropout,
        initializer_range=model.initializer_range,
    )
