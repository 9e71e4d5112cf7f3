"""A recipe: corpus, tokenizer, masking, model, training and checkpoints, each with the settings of its own part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, model_validator

from unmask.commands.recipe_files import (
    CONTINUING,
    DEFAULT,
    OPTIONS,
    LightRecipe,
    Overrides,
    as_overrides,
    parameters_of,
    read_recipe,
    usual_recipe,
)
from unmask.core.errors import ModelError, RunError, SettingsError, TokenizerError, UnsupportedError, shown
from unmask.core.files import file_sha256
from unmask.core.hub import OF_NETWORKS, lasting_name, local_path
from unmask.core.remote import local_copies
from unmask.core.settings import Settings, settings_within, validated
from unmask.masking.settings import MaskingSettings, span_units, values_of
from unmask.model.config import PARTS, EncoderConfig, ModelSettings, Rotary, default_intermediate_size
from unmask.model.encoder import MaskedLM
from unmask.model.folder import check_vocabulary, find_model, find_weights, has_weights, read_config_file
from unmask.model.layers import heads_for
from unmask.tokenizer.loading import load_for_new_model, load_tokenizer, with_commit
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.callbacks import check_trackers
from unmask.train.settings import TrainingSettings

# Settings that a recipe with `sizing` leaves open, for `unmask.commands.sizing` to choose.
SIZED = (
    "model.num_layers",
    "model.hidden_size",
    "model.num_heads",
    "training.batch_tokens",
    "training.learning_rate",
)


class StartSettings(Settings):
    """The checkpoint that training starts from, and what is added to it first."""

    checkpoint: str
    """Folder of a BERT, RoBERTa or ModernBERT model written by unmask or transformers, or of a run; or the name of such
    a model on the hub, which a run completes with its commit (`owner/name@commit`)."""
    sha256: str | None = None
    """Hash of the checkpoint's content, filled in when a run starts; if a recipe has it, it must match."""
    extend_vocab: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of words of the training text to add to the vocabulary."""
    new_tokenizer: bool = False
    """Replace the checkpoint's tokenizer by that of the prepared data, or by one that `[tokenizer]` describes, by
    default trained on the text. Tokens that both have keep their embeddings. Another gets the mean of those that
    spelled it, and if it has neighbours in the text, of old tokens with similar ones."""
    extend_positions: bool = False
    """Extend the model's positions if `training.sequence_length` exceeds them."""
    old_data: tuple[str, ...] = ()
    """Text of the model's original domain, or a prepared folder (its validation split), to evaluate on before and after
    training. Empty: the validation split of the checkpoint's own run, if available."""


def without_files(values: Any) -> Any:
    """Settings as plain values, without the files that masking names, which may be moved: what they hold is part of a
    run's fingerprint."""
    if isinstance(values, dict):
        return {key: without_files(each) for key, each in values.items() if key not in ("lexicon", "background")}
    return [without_files(each) for each in values] if isinstance(values, list | tuple) else values


class Recipe(LightRecipe):
    """Every setting of a pretraining run. Sections are documented in their own classes."""

    start: StartSettings | None = None
    masking: MaskingSettings = MaskingSettings.model_validate({})

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.sizing is not None and (self.training.minutes is None or self.start is not None):
            raise ValueError(
                "sizing = 'budget' chooses the size of a new model from the minutes of training; with steps or tokens, "
                "use a recipe with a fixed size, such as tiny; with a checkpoint, use continue"
            )
        longest, rows = self.model.max_position_embeddings, self.training.sequence_length
        if longest is not None and longest < rows:
            raise ValueError(f"model.max_position_embeddings {longest} is less than training.sequence_length {rows}")
        if longest is not None and longest > rows and self.start is None and self.model.rotary is None:
            raise ValueError(
                f"model.max_position_embeddings {longest} exceeds training.sequence_length {rows}: position "
                "embeddings beyond the rows would stay random; make the two equal"
            )
        if self.objectives.pairs is not None and (self.model.layout != "bert" or self.model.type_vocab_size == 1):
            raise ValueError(
                "objectives.pairs: a head for pairs needs the layout 'bert' and two token types; here model.layout is "
                f"{self.model.layout!r} and model.type_vocab_size {self.model.type_vocab_size or 'unset'}; set these, "
                "start from such a model, or set objectives.pairs=none"
            )
        if self.objectives.span_boundary is not None and span_units(self.masking) is None:
            raise ValueError(
                f"objectives.span_boundary: masking by {self.masking.units.kind} has no spans; set masking.strategy to "
                "'span', or remove objectives.span_boundary (objectives.span_boundary=none)"
            )
        return self

    def to_toml(self) -> str:
        """The recipe as TOML for `--recipe`; settings without a value are left out."""
        values = self.model_dump(exclude_none=True)
        if not values["card"]:
            del values["card"]
        return tomli_w.dumps(values)

    def fingerprinted(self) -> str:
        """The part of the recipe that determines the weights, to which checkpoints are tied."""
        exclude: Any = {"card": True, "evaluation": {"trackers"}, "training": {"micro_batch_tokens"}}
        return tomli_w.dumps(without_files(self.model_dump(exclude=exclude, exclude_none=True)))

    @property
    def positions(self) -> int:
        return self.model.max_position_embeddings or self.training.sequence_length


def load_recipe(
    source: str = DEFAULT,
    *,
    options: Mapping[str, Any] | None = None,
    overrides: Overrides = (),
    complete: bool = True,
) -> Recipe:
    """Loads a recipe with options, values by dotted key, and overrides on top.

    With `complete`, a recipe that starts from a checkpoint is filled in from it and checked against it, and names on
    the hub get their commits; a recipe that is sized by its budget may not have a size. The recipe of a run is complete
    already, and its checkpoint may be gone.
    """
    values, where = read_recipe(source, options, overrides)
    for section in ("start", "model", "training"):
        if not isinstance(values.get(section, {}), dict):
            raise SettingsError(f"{where}: {section} = {values[section]!r}: expected a table of settings, [{section}]")
    if complete and (start := values.get("start")):
        validated(StartSettings, {"checkpoint": "", **start}, where=f"{where}: start")
        if "checkpoint" not in start:
            raise SettingsError(f"{where}: {', '.join(start)} of [start] need a checkpoint", options=["from_"])
        _fill_from_checkpoint(values, where=where)
    given = parameters_of(options, overrides)
    recipe = validated(Recipe, values, where=where, given=given)
    if complete and recipe.sizing is not None:
        _check_open(recipe, given, where=where)
    return recipe.model_copy(update={"tokenizer": with_commit(recipe.tokenizer)}) if complete else recipe


def _check_open(recipe: Recipe, given: Collection[str], *, where: str) -> None:
    """Raises a SettingsError if a recipe sets what its `sizing` chooses, which would be ignored. `given` are the keys
    of the settings that were set on top of the recipe."""
    training = recipe.training
    usual = TrainingSettings(minutes=1.0, sequence_length=training.sequence_length)
    tables = {"model": (recipe.model, ModelSettings()), "training": (training, usual)}
    way_out = "leave it out, or take a recipe with a size, such as tiny"
    if (kind := training.optimizer.kind) != "muon":  # first, since another optimizer has another default rate
        text = f"{where}: sizing = 'budget' chooses a rate for Muon, not for training.optimizer.kind = {kind!r}"
        raise SettingsError(f"{text}; {way_out}", options=["recipe"])
    for section, _, name in (key.partition(".") for key in SIZED):
        own, default = (getattr(each, name) for each in tables[section])
        if f"{section}.{name}" in given or own != default:
            raise SettingsError(f"{where}: sizing = 'budget' chooses {section}.{name}; {way_out}", options=["recipe"])


def requested_recipe(recipe: str | Path | None = None, *, settings: Overrides = (), **options: Any) -> Recipe:
    """The recipe for these options of `unmask.pretrain`; None: not set."""
    values = {OPTIONS[name]: value for name, value in options.items() if value is not None}
    budgets, overrides = ("minutes", "steps", "tokens"), as_overrides(settings)
    named = {*values, *(key for key, value in overrides if value is not None)}
    if len(named & {OPTIONS[each] for each in budgets}) > 1:
        raise RunError("give one of minutes, steps and tokens", options=budgets)
    if isinstance(tokenizer := options.get("tokenizer"), Path):  # never a name on the hub
        values["tokenizer.path"] = str(tokenizer.absolute())
    if (strategy := options.get("strategy")) is not None and not isinstance(strategy, str):
        values |= values_of(strategy)
    checkpoint, old_data = options.get("from_"), options.get("old_data")
    if isinstance(checkpoint, Path):
        values["start.checkpoint"] = str(checkpoint.absolute())
    if old_data is not None:
        old_texts = [old_data] if isinstance(old_data, str | Path) else old_data
        values["start.old_data"] = [str(Path(path).absolute()) for path in local_copies(*old_texts)]
    usual = usual_recipe([*values, *(key for key, _ in overrides)])
    complete = load_recipe(str(recipe or usual), options=values, overrides=overrides)
    check_trackers(complete.evaluation.trackers)
    _check_values(complete.masking)
    return complete


def _check_values(masking: MaskingSettings) -> None:
    """Checks that the file of a recipe can hold the settings of units and weights, which may be classes of the user."""
    for settings in settings_within(masking):
        for name, field in type(settings).model_fields.items():
            value = getattr(settings, name)
            is_lost = value is None and field.default is not None  # TOML has no None, so reading gives the default
            if is_lost or not isinstance(value, bool | int | float | str | list | tuple | dict | Settings | None):
                raise SettingsError(
                    f"strategy: a recipe cannot hold {name} = {shown(value)} of {type(settings).__name__}; use texts, "
                    "numbers, lists or tables, and None only as the default",
                    options=["strategy"],
                )


# ----------------------------------------
# The checkpoint that a training starts from.

_SAME_NAMES = (
    "layout", "num_layers", "hidden_size", "num_heads", "intermediate_size", "activation", "norm_eps",
    "type_vocab_size", "initializer_range",
)  # fmt: skip
DEFAULT_LENGTH = 128
# Gururangan et al. 2020, appendix B, use 1e-4 for RoBERTa, 768 wide; narrower models tolerate and need more.
RATE_AT_WIDTH = 1e-4 * 768


def find_checkpoint(source: str | Path) -> Path:
    """As `find_weights`, but refuses an unsupported type of model first: before its weights are fetched, and before the
    error that pickles must be converted."""
    with suppress(TokenizerError):  # `find_weights` says more about names that are not on the hub
        read_config_file(find_model(local_path(source, weights=False)))
    return find_weights(source)


def checkpoint_sha256(folder: Path) -> str:
    """A hash of all that a training takes from a checkpoint: configuration, all files of weights, tokenizer. Other
    files do not count, since commands may fetch them into the same copy later, such as a sentence encoder's prompts."""
    pickles = [] if has_weights(folder) else ["pytorch_model*.bin"]  # of folders that only transformers reads
    files = {path for pattern in (*OF_NETWORKS, *pickles) for path in folder.glob(pattern)}
    content = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_fitting_config(folder: Path, tokenizer: Tokenizer) -> EncoderConfig:
    content, layout = read_config_file(folder)
    try:
        config = layout.read_config(content, mask_id=tokenizer.special.mask)
    except UnsupportedError as error:
        raise ModelError(
            f"{folder}: {error}: our encoder lacks it (fill, embed, evaluate, score and finetune also take models that "
            "transformers runs)"
        ) from error
    check_vocabulary(folder, tokenizer.vocab_size, config.vocab_size)
    return config


def _fill_from_checkpoint(values: dict[str, Any], *, where: str) -> None:
    """Fills in the values of a recipe, in place, from its `start.checkpoint`; contradictions are errors."""
    start, model, training = values["start"], values.setdefault("model", {}), values.setdefault("training", {})
    folder = find_checkpoint(start["checkpoint"])
    sha256 = checkpoint_sha256(folder)
    if start.get("sha256") not in (None, sha256):
        raise SettingsError(
            f"{where}: start.sha256 is {start['sha256']}, but {folder} has {sha256}: it is not the checkpoint that the "
            "recipe was made with; restore that one, or remove start.sha256 (start.sha256=none)",
            options=["set"],
        )
    start["checkpoint"], start["sha256"] = lasting_name(start["checkpoint"], folder), sha256
    tokenizer = load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    _settle_tokenizer(values, folder, tokenizer, where=where)

    # The length of rows, and the model's positions if they are extended.
    longest, extend = config.max_position_embeddings, start.get("extend_positions", False)
    if extend and "sequence_length" not in training:
        raise SettingsError(
            f"{where}: start.extend_positions needs a length; set training.sequence_length to more than the {longest} "
            "positions of the checkpoint",
            options=["set"],
        )
    length = training.setdefault("sequence_length", min(DEFAULT_LENGTH, longest))
    if isinstance(length, int):  # validation reports other types later
        if length > longest and not extend:
            raise SettingsError(
                f"{where}: training.sequence_length {length} is more than the {longest} positions of the checkpoint; "
                f"set training.sequence_length={longest}, or make the model longer with start.extend_positions=true",
                options=["set"],
            )
        longest = max(length, longest)

    # The architecture is the checkpoint's.
    architecture = {name: getattr(config, name) for name in _SAME_NAMES}
    architecture["initialisation"] = ModelSettings.model_fields["initialisation"].default  # no weights are drawn
    if config.rotary is not None:
        architecture |= {name: getattr(config.rotary, name) for name in Rotary.model_fields}
    architecture = {name: value for name, value in architecture.items() if value is not None}
    architecture["max_position_embeddings"] = longest
    for key, value in model.items():
        if key in architecture and value is not None and value != architecture[key]:
            raise SettingsError(
                f"{where}: model.{key} = {value!r}, but the checkpoint has {architecture[key]!r}; the architecture is "
                f"the checkpoint's: leave model.{key} out, or take a recipe without [model], such as continue"
            )
    model |= {"dropout": config.dropout, **model, **architecture}
    # Defaults of other recipes are those of a new model, whose rate would ruin a trained one. A rate of the recipe's
    # own belongs to its optimizer.
    usual = read_recipe(CONTINUING)[0]["training"]
    for name in ("schedule", "weight_decay", *(() if "learning_rate" in training else ("optimizer",))):
        training.setdefault(name, usual[name])
    optimizer = training.get("optimizer")
    if isinstance(optimizer, dict) and "learning_rate" not in training:
        if optimizer.get("kind") == "adamw":
            training["learning_rate"] = RATE_AT_WIDTH / config.hidden_size
        elif optimizer.get("kind", "muon") == "muon":
            what = "Muon's default learning rate suits a new model and would ruin a trained one; set a lower one"
            raise SettingsError(f"{where}: {what}", setting="training.learning_rate")


def _settle_tokenizer(values: dict[str, Any], folder: Path, tokenizer: Tokenizer, *, where: str) -> None:
    """Takes the settings of a tokenizer out of a recipe whose checkpoint brings its own; others are errors."""
    start = values["start"]
    if start.get("new_tokenizer", False):
        if start.get("extend_vocab") is not None:
            what = "start.new_tokenizer replaces the vocabulary that words would be added to; leave one of the two out"
            raise SettingsError(f"{where}: {what}", options=["extend_vocab"])
        return
    own = validated(TokenizerSettings, values.pop("tokenizer", None) or {}, where=where)
    if own != TokenizerSettings() and (
        own.path is None or load_for_new_model(own.path).fingerprint != tokenizer.fingerprint
    ):
        raise SettingsError(
            f"{where}: the checkpoint {folder} brings its own tokenizer; leave [tokenizer] out, replace the "
            "checkpoint's (start.new_tokenizer=true), or add words",
            options=["set", "extend_vocab"],
        )


# ----------------------------------------
# The encoder of a recipe and a tokenizer.


def new_model(
    recipe: Recipe, tokenizer: Tokenizer, label_names: Sequence[str] = (), *, config: EncoderConfig | None = None
) -> MaskedLM:
    """The encoder with the heads that the recipe's objectives need; its weights are not drawn yet.

    `config` is that of the checkpoint that training starts from; None: it is made from the recipe.
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
    model, special = recipe.model, tokenizer.special
    parts = PARTS[model.layout]
    same = "layout", "num_layers", "hidden_size", "num_heads", "activation", "rotary", "dropout", "initializer_range"
    inner = model.intermediate_size or default_intermediate_size(model.hidden_size, parts.intermediate_ratio)
    return EncoderConfig(
        **{name: getattr(model, name) for name in same},
        vocab_size=tokenizer.vocab_size,
        pad_id=special.pad,
        cls_id=special.cls,
        sep_id=special.sep,
        mask_id=special.mask,
        intermediate_size=inner,
        max_position_embeddings=recipe.positions,
        norm_eps=model.norm_eps or parts.norm_eps,
        type_vocab_size=model.type_vocab_size or parts.type_vocab_size,
        classifier_dropout=model.dropout,
    )
