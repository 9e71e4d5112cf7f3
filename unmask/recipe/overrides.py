"""Single settings on top of a recipe: `section.key=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from unmask.errors import SettingsError
from unmask.tokenizer.settings import TokenizerSettings

# Setting one of these replaces what excludes it.
_REPLACES = {
    "training.steps": ("training.minutes", "training.tokens"),
    "training.tokens": ("training.minutes", "training.steps"),
    "training.minutes": ("training.steps", "training.tokens"),
    "tokenizer.path": tuple(f"tokenizer.{name}" for name in TokenizerSettings.model_fields if name != "path"),
    "masking.strategy": ("masking.units", "masking.weights"),
}


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Applies all of them. What replaces other settings comes first, wherever it stands, so that none is lost.

    Args:
        values: By section; changed in place.
        overrides: Each `section.key=value`; the value is TOML, `none` is no value, and anything else is taken as a
            string.

    Raises:
        SettingsError: One has no `=`, or no section, or goes through something that is not a table.
    """
    for override in sorted(overrides, key=_rank):
        _apply(values, override)


def _rank(override: str) -> tuple[int, int]:
    key = override.partition("=")[0].strip()
    if key in _REPLACES:
        return 0, 0
    return (1, key.count(".")) if key.endswith(".kind") else (2, 0)


def _apply(values: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    key = key.strip()
    if not sign or "." not in key:
        raise SettingsError(f"--set {override}: expected section.key=value, for example training.learning_rate=0.003")
    set_value(values, key, _parse(text.strip()))


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value by its dotted key, making tables on the way.

    Another `kind` replaces the whole table that it tags, since keys of one kind mean nothing to another.

    Raises:
        SettingsError: The key goes through something that is not a table.
    """
    for other in _REPLACES.get(key, ()):
        _remove(values, other)
    *path, name = key.split(".")
    table = values
    for depth, part in enumerate(path):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{key}: {'.'.join(path[: depth + 1])} is {inner!r}, which has no keys")
        table = inner
    if name == "kind" and table.get("kind", value) != value:
        table.clear()
    table[name] = value


def _remove(values: dict[str, Any], key: str) -> None:
    section, _, name = key.partition(".")
    if isinstance(table := values.get(section), dict):
        table.pop(name, None)


def _parse(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
