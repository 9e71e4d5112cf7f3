"""Single settings on top of a recipe: `section.key=value`, or a dict of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from tomllib import TOMLDecodeError
from typing import Any

from unmask.errors import SettingsError
from unmask.tokenizer.settings import TokenizerSettings
from unmask.values import parse_toml, shown

Overrides = Sequence[str] | Mapping[str, Any]


def as_overrides(settings: Overrides) -> tuple[str, ...]:
    """Settings as functions take them, as `--set` does.

    Args:
        settings: `section.key=value` each; or a dict, by section and key, or by dotted keys.

    Example: `{"masking": {"rate": 0.3}, "training.tokens": None}` is `masking.rate=0.3`, `training.tokens=none`.

    Raises:
        SettingsError: It is a string, or a value is nothing that a recipe can hold.
    """
    if isinstance(settings, str):
        raise SettingsError(f'settings: give a list of "section.key=value" or a dict, not the string {settings!r}')
    return tuple(_spelled("", settings)) if isinstance(settings, Mapping) else tuple(settings)


def _spelled(before: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _spelled(f"{key}.", value)
        else:
            yield f"{key}={'none' if value is None else _toml(key, value)}"


def _toml(key: str, value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise SettingsError(f"settings: {key} is a whole number of more than {_MOST_BITS} bits, which no recipe holds")
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, str | PurePath):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(key, each) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)} = {_toml(key, each)}' for name, each in value.items())}}}"
    raise SettingsError(f"settings: {key} = {shown(value)} is {type(value).__name__}, which no recipe holds")


_MOST_BITS = 64  # as TOML promises
_MOST_PARTS = 20  # of a key, which no setting has


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
    if key.count(".") >= _MOST_PARTS:
        raise SettingsError(f"--set {key[:40]}...: a key of {key.count('.') + 1:,} parts, which no setting has")
    try:
        value = _parse(text.strip())
    except ValueError as error:
        raise SettingsError(f"--set {key}: the value cannot be read: {error}") from error
    set_value(values, key, value)


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
            raise SettingsError(f"{key}: {'.'.join(path[: depth + 1])} is {shown(inner)}, which has no keys")
        table = inner
    if name == "kind" and table.get("kind", value) != value:
        table.clear()
    table[name] = value


def _remove(values: dict[str, Any], key: str) -> None:
    section, _, name = key.partition(".")
    if isinstance(table := values.get(section), dict):
        table.pop(name, None)


def _parse(text: str) -> Any:
    return None if text == "none" else toml_value(text)


def toml_value(text: str) -> Any:
    """A value in TOML's notation; what is none is taken as a string.

    Raises:
        ValueError: It is TOML that nobody holds: nested too deep, or a number of too many digits; the text says which.
    """
    try:
        return parse_toml(f"value = {text}")["value"]
    except TOMLDecodeError:
        return text
