"""A recipe: corpus, tokenizer, masking, model, training and checkpoints, each with the settings of its own part."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, model_validator

from unmask.errors import SettingsError
from unmask.files import absence
from unmask.folders.card_head import CardSettings
from unmask.hub import TOKENIZER, fetch, hub_name, lasting_name
from unmask.masking.settings import MaskingSettings, span_units
from unmask.measuring.settings import EvaluationSettings
from unmask.network.config import ModelSettings
from unmask.recipe.architecture import fill_from_checkpoint
from unmask.recipe.overrides import apply_overrides, set_value
from unmask.results import Result, Sheet, Shown, Styled
from unmask.settings import Settings, validated
from unmask.text.settings import AnnotationSettings, CorpusSettings
from unmask.tokenizer.settings import TokenizerSettings
from unmask.training.settings import CheckpointSettings, ObjectivesSettings, TrainingSettings
from unmask.values import parse_toml


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


DEFAULT = "tiny"
_MOST_BYTES = 1 << 20  # of a recipe
CONTINUING = "continue"  # where a checkpoint is given and no recipe
_OURS = ("tiny", "mini", "small", "base", CONTINUING)


class Recipe(Settings):
    """Every setting of a pretraining run. Sections are documented in their own classes.

    Attributes:
        description: What the recipe is for, in one line.
        start: The checkpoint that the training begins with; None draws new weights.
        card: What the user says of the model for its card. It is the one section that changes nothing of the training,
            so a run may go on with another one.
    """

    description: str | None = None
    start: StartSettings | None = None
    corpus: CorpusSettings = CorpusSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    annotation: AnnotationSettings = AnnotationSettings()
    masking: MaskingSettings = MaskingSettings.model_validate({})
    model: ModelSettings = ModelSettings()
    objectives: ObjectivesSettings = ObjectivesSettings()
    training: TrainingSettings
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    card: CardSettings = CardSettings()

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        longest, rows = self.model.max_position_embeddings, self.training.sequence_length
        if longest is not None and longest < rows:
            raise ValueError(f"model.max_position_embeddings {longest} is less than training.sequence_length {rows}")
        if self.objectives.pairs is not None:
            if self.model.layout != "bert":
                raise ValueError(
                    f"objectives.pairs: the layout {self.model.layout!r} has no place for a head that tells pairs "
                    "apart; set model.layout to 'bert', or remove objectives.pairs (--set objectives.pairs=none)"
                )
            if (self.model.type_vocab_size or 2) < 2:
                raise ValueError(
                    "objectives.pairs: the halves of a pair have two token types; model.type_vocab_size is 1"
                )
        if self.objectives.span_boundary is not None and span_units(self.masking) is None:
            raise ValueError(
                f"objectives.span_boundary: masking by {self.masking.units.kind} has no spans; set masking.strategy to "
                "'span', or remove objectives.span_boundary (--set objectives.span_boundary=none)"
            )
        return self

    def to_toml(self) -> str:
        """The recipe as a file that `--recipe` reads; settings without a value are left out."""
        values = _without_none(self.model_dump())
        if not values["card"]:
            del values["card"]
        return tomli_w.dumps(values)

    def fingerprinted(self) -> str:
        """What a checkpoint belongs to: the recipe, without what the card says, which changes no weight, without how
        processes share the work, and without what earlier versions did not name, where it is as it was: a budget of
        tokens, products that are not tuned.
        """
        values = self.model_dump(exclude={"card": True, "training": {"sharding"}})
        if self.masking.budget == "tokens":
            del values["masking"]["budget"]
        if not self.training.tuned_products:
            del values["training"]["tuned_products"]
        return tomli_w.dumps(_without_none(values))


def recipe_names() -> list[str]:
    """Names of the packaged recipes."""
    folder = resources.files("unmask") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


class PackagedRecipes(Result):
    """The packaged recipes.

    Attributes:
        recipes: What each is for, by name.
    """

    recipes: dict[str, str]

    def shown(self) -> Iterator[Shown]:
        """A line a recipe."""
        yield Sheet(("", ""), [(Styled(name, "bold"), text) for name, text in self.recipes.items()])


def recipes() -> PackagedRecipes:
    """The packaged recipes: ours from small to large, then those of papers."""
    names = sorted(recipe_names(), key=lambda name: (_OURS.index(name) if name in _OURS else len(_OURS), name))
    return PackagedRecipes({"recipes": {name: load_recipe(name).description or "" for name in names}})


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
    values, where = _read(source)
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
    return _with_commit(recipe) if complete else recipe


def _with_commit(recipe: Recipe) -> Recipe:
    """The recipe, with the commit behind the name of a tokenizer on the hub."""
    path = recipe.tokenizer.path
    if path is None or (wanted := hub_name(path)) is None:
        return recipe
    tokenizer = recipe.tokenizer.model_copy(update={"path": lasting_name(path, fetch(wanted, TOKENIZER))})
    return recipe.model_copy(update={"tokenizer": tokenizer})


def _complete(values: dict[str, Any], where: str) -> None:
    validated(StartSettings, {"checkpoint": "", **values["start"]}, where=f"{where}: start")
    if "checkpoint" not in values["start"]:
        raise SettingsError(
            f"{where}: {', '.join(values['start'])}: what is asked of a checkpoint needs one; name it with --from"
        )
    fill_from_checkpoint(values, where=where)


def _read(source: str) -> tuple[dict[str, Any], str]:
    path = Path(source)
    if path.suffix == ".toml":
        if not path.is_file():
            raise SettingsError(f"{path}: {absence(path, 'recipe file')}")
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise SettingsError(f"{path}: {size:,} bytes, but a recipe has at most {_MOST_BYTES:,}; give a recipe")
        try:
            text, where = path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    else:
        names = recipe_names()
        if source not in names and path.exists() and not path.is_dir():
            reason = "its name does not end with .toml" if path.is_file() else absence(path)
            raise SettingsError(f"{source}: {reason}; give the name of a recipe, or a .toml file")
        if source not in names:
            near = difflib.get_close_matches(source, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}, or a .toml file"
            raise SettingsError(f"unknown recipe {source!r}; {hint}")
        text = (resources.files("unmask") / "recipes" / f"{source}.toml").read_text(encoding="utf-8")
        where = f"recipe {source}"
    try:
        return parse_toml(text), where
    except ValueError as error:
        raise SettingsError(f"{where}: not TOML: {error}") from error


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
