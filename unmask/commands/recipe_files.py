"""Recipes as files: the packaged ones, their TOML, and single settings on top (`section.key=value`, or a dict of them).

Nothing here loads torch, so that a misspelt recipe or setting is reported at once.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from unmask.commands.settings import CLASSES
from unmask.core.declarations import PACKAGE, nearest_settings, settings_of
from unmask.core.errors import SettingsError, parse_json, shown, unknown
from unmask.core.files import absence
from unmask.core.public import public
from unmask.core.results import Result, Sheet, Shown, Styled
from unmask.core.settings import Settings, validated
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.model.card_head import CardSettings
from unmask.model.config import ModelSettings
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.settings import CheckpointSettings, EvaluationSettings, ObjectivesSettings, TrainingSettings

DEFAULT = "tiny"
AUTO = "auto"  # the default recipe if no size is set: `unmask.commands.sizing` chooses it
CONTINUING = "continue"  # the default recipe with a checkpoint
_PACKAGED = PACKAGE / "recipes"
_OURS = (AUTO, "tiny", "mini", "small", "base", CONTINUING)

# ----------------------------------------
# Files.


class PackagedRecipes(Result):
    """The packaged recipes."""

    recipes: dict[str, str]  # what each is for, by name

    def shown(self) -> Iterator[Shown]:
        yield Sheet(("", ""), [(Styled(name, "bold"), text) for name, text in self.recipes.items()])


@public
def recipes() -> PackagedRecipes:
    """Lists the packaged recipes."""
    names = sorted(recipe_names(), key=lambda name: (_OURS.index(name) if name in _OURS else len(_OURS), name))
    return PackagedRecipes({"recipes": {name: read_recipe(name)[0].get("description", "") for name in names}})


def recipe_names() -> list[str]:
    return sorted(path.stem for path in _PACKAGED.glob("*.toml"))


def read_recipe(
    source: str, options: Mapping[str, Any] | None = None, overrides: Overrides = ()
) -> tuple[dict[str, Any], str]:
    """The values of a packaged recipe or of a TOML file, by section; and its name for error messages.

    Options, by dotted key (None is skipped), and then overrides are applied on top.
    """
    path, where = Path(source), source
    if path.suffix != ".toml":
        if source not in (names := recipe_names()):
            raise SettingsError(f"{unknown('recipe', source, names)}, or a .toml file", options=["recipe"])
        path, where = _PACKAGED / f"{source}.toml", f"recipe {source}"
    if not path.is_file():
        raise SettingsError(f"{path}: {absence(path, 'recipe file')}")
    try:
        values = parse_json(path.read_text(encoding="utf-8-sig"), tomllib.loads)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    except ValueError as error:
        raise SettingsError(f"{where}: not TOML: {error}") from error
    training, kind = values.get("training"), _optimizer_of(values)
    rate = training.pop("learning_rate", None) if isinstance(training, dict) else None
    for key, value in (options or {}).items():
        if value is not None:
            set_value(values, key, value)
    apply_overrides(values, overrides)
    if rate is not None and _optimizer_of(values) == kind:  # a rate belongs to its optimizer
        training.setdefault("learning_rate", rate)
    return values, where


def _optimizer_of(values: Mapping[str, Any]) -> str:
    with suppress(LookupError, TypeError):  # none is named, or a value is no table
        return str(values["training"]["optimizer"]["kind"])
    return "muon"


# ----------------------------------------
# Single settings on top.

Override = tuple[str, Any]  # the key of a setting, and its value
Overrides = Sequence[str | Override] | Mapping[str, Any]
OPTIONS = {  # settings that options of `unmask.pretrain` and `unmask.prepare` set
    "minutes": "training.minutes",
    "steps": "training.steps",
    "tokens": "training.tokens",
    "seed": "training.seed",
    "strategy": "masking.strategy",
    "tokenizer": "tokenizer.path",
    "tokenizer_kind": "tokenizer.kind",
    "vocab_size": "tokenizer.vocab_size",
    "encoding": "corpus.encoding",
    "annotate": "annotation.columns",
    "from_": "start.checkpoint",
    "extend_vocab": "start.extend_vocab",
    "old_data": "start.old_data",
}

# Sizes were measured with the defaults of these settings: if one is set, no size is chosen.
_SIZED_BY_HAND = (
    "model.", "training.steps", "training.tokens", "training.batch_tokens", "training.learning_rate",
    "training.length_schedule", "training.optimizer", "training.schedule", "objectives.",
)  # fmt: skip

# Setting one of these replaces what excludes it.
_REPLACES = {
    "training.steps": ("training.minutes", "training.tokens"),
    "training.tokens": ("training.minutes", "training.steps"),
    "training.minutes": ("training.steps", "training.tokens"),
    "start.checkpoint": ("start.sha256",),
    "tokenizer.path": tuple(f"tokenizer.{name}" for name in TokenizerSettings.model_fields if name != "path"),
    "masking.strategy": ("masking.units", "masking.weights"),
}


def usual_recipe(keys: Iterable[str]) -> str:
    """The default recipe of a training, by the keys that it sets."""
    keys = set(keys)
    if "start.checkpoint" in keys:
        return CONTINUING
    return DEFAULT if any(key.startswith(_SIZED_BY_HAND) for key in keys) else AUTO


def parameters_of(options: Mapping[str, Any] | None, overrides: Overrides) -> dict[str, str]:
    """The parameter that sets each setting, for error messages."""
    names = {key: name for name, key in OPTIONS.items() if (options or {}).get(key) is not None}
    return names | {key: "settings" for key, _ in as_overrides(overrides)}


def as_overrides(settings: Overrides) -> tuple[Override, ...]:
    """Settings as functions take them (`section.key=value` each, or a dict by keys), as pairs of a key and its value.

    The value in a text is TOML, `none` is no value, and anything else is taken as a string.

    Example: `{"masking": {"rate": 0.3}, "corpus.column": None}` is `("masking.rate", 0.3), ("corpus.column", None)`.
    """
    if isinstance(settings, str):
        raise SettingsError(f'settings: give a list of "section.key=value" or a dict, not the string {settings!r}')
    overrides: list[Override] = []
    for each in settings.items() if isinstance(settings, Mapping) else settings:
        key, sign, value = each.partition("=") if isinstance(each, str) else (each[0], "=", each[1])
        key = key.strip()
        # Empty tables, and tables keyed by the user's own names ("62.01"), are values; the others hold settings.
        if (
            isinstance(settings, Mapping)
            and isinstance(value, Mapping)
            and ("." not in key or (value and all(str(name).isidentifier() for name in value)))
        ):
            overrides += as_overrides({f"{key}.{name}": inner for name, inner in value.items()})
            continue
        if not sign or "." not in key:
            text, example = each if isinstance(each, str) else key, "for example training.learning_rate=0.003"
            raise SettingsError(f"{text}: expected section.key=value, {example}", options=["set"])
        try:
            if isinstance(each, str):
                value = None if value.strip() == "none" else toml_value(value.strip())
            overrides.append((key, json.loads(json.dumps(value, default=os.fspath))))  # paths become texts
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{key}: a recipe cannot hold {shown(value)}: {error}", options=["set"]) from error
    return tuple(overrides)


def apply_overrides(values: dict[str, Any], overrides: Overrides) -> None:
    """Applies overrides to `values` (by section), in place: those that replace others first, so that none is lost."""

    def turn(override: Override) -> tuple[int, int]:
        key, _ = override
        if key in _REPLACES:
            return 0, 0
        return (1, key.count(".")) if key.endswith(".kind") else (2, 0)

    for key, value in sorted(as_overrides(overrides), key=turn):
        set_value(values, key, value)


def section_values(overrides: Overrides, section: str, *others: str) -> dict[str, dict[str, Any]]:
    """Values of one section of settings, and of `others`; `card.key=value` is short for `SECTION.card.key=value`."""
    values: dict[str, Any] = {}
    apply_overrides(values, overrides)
    sections = [section, *others, *(["card"] if section in CLASSES else [])]
    if unknown := sorted(set(values) - set(sections)):
        key = next(key for key, _ in as_overrides(overrides) if key.startswith(unknown[0]))
        known = settings_of(*CLASSES.get(section, CLASSES["recipe"]))
        near = nearest_settings(key, [each for each in known if each.name.partition(".")[0] in sections])
        raise SettingsError(
            f"{key}: there is no such section of settings here, only {' and '.join(sections)}; "
            f"the nearest settings are {', '.join(near)}",
            setting=near[0],
        )
    for name, value in values.get("card", {}).items():
        set_value(values, f"{section}.card.{name}", value)
    return {name: values.get(name, {}) for name in (section, *others)}


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value by its dotted key, and makes the tables that are missing.

    A different `kind` replaces its whole table, or the number in its place, since keys of one kind mean nothing to
    another; kinds of tokenizers share theirs, but for `bare`.
    """
    for other in _REPLACES.get(key, ()):
        section, _, name = other.partition(".")
        if isinstance(table := values.get(section), dict):
            table.pop(name, None)
    *path, name = key.split(".")
    table = values
    for depth, part in enumerate(path):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict) and name == "kind" and 0 < depth == len(path) - 1:  # a rate that is a number
            inner = table[part] = {}
        if not isinstance(inner, dict):
            parent = ".".join(path[: depth + 1])
            way_out = f"; for a schedule, set {parent}.kind as well" if parent == "masking.rate" else ""
            raise SettingsError(f"{key}: {parent} is {shown(inner)}, which has no keys{way_out}")
        table = inner
    if name == "kind" and table.get("kind", value) != value:
        for other in ("path", "bare") if path == ["tokenizer"] else list(table):
            table.pop(other, None)
    table[name] = value


def toml_value(text: str) -> Any:
    """A value in TOML's notation; anything that is not TOML is taken as a string."""
    try:
        return parse_json(f"value = {text}", tomllib.loads)["value"]
    except tomllib.TOMLDecodeError:
        return text


# ----------------------------------------
# Recipes.


class LightRecipe(Settings):
    """The part of a recipe that can be checked without torch.

    `masking` and `start` are checked in `unmask.commands.recipe.Recipe`: the classes of the one contain the masking
    itself, and the other needs a checkpoint.
    """

    description: str | None = None
    """What the recipe is for, in a line."""
    sizing: Literal["budget"] | None = None
    """Chooses the model's size, positions per step and learning rate from the minutes, this machine and the text."""
    start: Annotated[Any, "commands.recipe:StartSettings"] = None
    """The checkpoint that training starts from. Unset: new weights are drawn."""
    corpus: CorpusSettings = CorpusSettings()
    """How files become documents, and what is held out."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Which tokenizer to use or train."""
    annotation: AnnotationSettings = AnnotationSettings()
    """Which annotations the text has."""
    masking: Annotated[Any, "masking.settings:MaskingSettings"] = Field(default_factory=dict)
    """What is masked."""
    model: ModelSettings = ModelSettings()
    """Size and parts of the encoder."""
    objectives: ObjectivesSettings = ObjectivesSettings()
    """What is learned besides the masked tokens."""
    training: TrainingSettings
    """How the model is trained."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When checkpoints are written."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How often the model is evaluated, and on how much text."""
    card: CardSettings = CardSettings()
    """What you state about the model on its card."""


def light_recipe(
    source: str = DEFAULT, *, options: Mapping[str, Any] | None = None, overrides: Overrides = ()
) -> LightRecipe:
    """Reads and checks a recipe without loading torch; arguments are those of `read_recipe`."""
    values, where = read_recipe(source, options, overrides)
    if values.get("start"):
        values.setdefault("training", {})  # filled in from the checkpoint
    return validated(LightRecipe, values, where=where, given=parameters_of(options, overrides))
