"""Which numbers of a recipe are searched, and between what: `KEY=LOW..HIGH` or `KEY=A,B,C`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from unmask.errors import SettingsError
from unmask.recipe.overrides import toml_value
from unmask.recipe.recipe import Recipe
from unmask.values import shortened

LOG_FROM = 4.0  # a range whose ends are that many times apart is searched by factors, not by sums


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included.

    Attributes:
        key: Of the setting, `section.key`.
        low, high: Both whole numbers, or both not.
    """

    key: str
    low: float
    high: float

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def log(self) -> bool:
        """Whether equal factors are equally likely."""
        return self.low > 0 and self.high / self.low >= LOG_FROM

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (not self.whole or float(value).is_integer())


@dataclass(frozen=True)
class DimensionChoice:
    """One of several values.

    Attributes:
        key: Of the setting, `section.key`.
        values: As TOML has them; texts, numbers and booleans.
    """

    key: str
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        return value in self.values


Dimension = Range | DimensionChoice


def read_dimension(text: str) -> Dimension:
    """What `--search` is given.

    Raises:
        SettingsError: It is neither a range nor a choice.
    """
    key, sign, values = (part.strip() for part in text.partition("="))
    if not sign or "." not in key:
        raise _malformed(text)
    low, dots, high = values.partition("..")
    if not dots:
        choice = tuple(_value(text, part) for part in values.split(","))
        if any(isinstance(each, list | dict) for each in choice):
            raise _malformed(text)
        if len(choice) < 2 or len(set(choice)) < len(choice):
            raise _malformed(text)
        return DimensionChoice(key, choice)
    ends = _value(text, low), _value(text, high)
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise _malformed(text)
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise SettingsError(f"--search {text}: the first end must be less than the second")
    whole = all(isinstance(end, int) for end in ends)
    return Range(key, *(ends if whole else map(float, ends)))


def _malformed(text: str) -> SettingsError:
    return SettingsError(
        f"--search {shortened(text)}: expected KEY=LOW..HIGH or KEY=A,B,..., for example "
        "training.learning_rate=0.001..0.02 or model.num_layers=2,4,6"
    )


def _value(text: str, part: str) -> Any:
    try:
        return toml_value(part.strip())
    except ValueError as error:
        raise SettingsError(f"--search {shortened(text)}: a value cannot be read: {error}") from error


def usual_dimensions(recipe: Recipe) -> tuple[Dimension, ...]:
    """What is searched unless something else is asked for: learning rate, tokens a step, layers and the mask rate.

    A checkpoint has the layers that it has.
    """
    training, layers = recipe.training, recipe.model.num_layers
    rate, tokens = training.learning_rate, training.batch_tokens
    smaller = max(training.sequence_length, tokens // 2)
    key = "masking.rate" if own_value(recipe, "masking.rate.start") is None else "masking.rate.start"
    depth = (Range("model.num_layers", max(1, layers // 2), layers * 2),) if recipe.start is None else ()
    return (
        Range("training.learning_rate", rate / 4.0, rate * 4.0),
        DimensionChoice("training.batch_tokens", tuple(sorted({smaller, tokens, tokens * 2}))),
        *depth,
        Range(key, 0.1, 0.5),
    )


def own_value(recipe: Recipe, key: str) -> Any:
    """What the recipe says; None where it has no such value."""
    value: Any = recipe.model_dump()
    for part in key.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def as_override(key: str, value: Any) -> str:
    """`section.key=value`, as `--set` takes it."""
    return f"{key}={tomli_w.dumps({'value': value}).partition('=')[2].strip()}"


def check_apart(dimensions: Sequence[Dimension]) -> None:
    """Raises: SettingsError: A key is searched twice, or beside one of its own keys."""
    keys = [dimension.key for dimension in dimensions]
    for place, key in enumerate(keys):
        for other in keys[place + 1 :]:
            if f"{other}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other}."):
                raise SettingsError(f"--search: {key} and {other} cannot both be searched")
