"""The base of every settings class: frozen, and an unknown key is an error.

A settings class lives beside the part that it configures; `unmask.commands.recipe` combines them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from unmask.core.declarations import nearest_settings, settings_of
from unmask.core.errors import SettingsError, shown


class Settings(BaseModel):
    """A frozen group of settings. Unknown keys, values out of range and numbers that are not finite raise pydantic's
    `ValidationError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# A path that is made absolute, so that a run's records name the same file from any working directory.
AbsolutePath = Annotated[str, AfterValidator(lambda name: str(Path(name).absolute()))]


def check_places(places: Sequence[float], **values: Sequence[object]) -> None:
    """Raises a ValueError unless places start at 0 and increase, and each list of values has one for every place."""
    for name, each in values.items():
        if len(places) != len(each):
            raise ValueError(f"{len(places)} places but {len(each)} {name}; give as many of each")
    if not places or places[0] != 0.0 or list(places) != sorted(set(places)):
        raise ValueError(f"places must start at 0 and increase, not {list(places)}")


Kind = TypeVar("Kind", bound=Settings)


def settings_within(value: object) -> Iterator[Settings]:
    """All settings in a value, including itself: through settings, tables and lists, in the order of their fields."""
    if isinstance(value, Settings):
        yield value
        for name in type(value).model_fields:
            yield from settings_within(getattr(value, name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from settings_within(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from settings_within(inner)


def validated(
    kind: type[Kind], values: dict[str, Any], *, where: str, prefix: str = "", given: Mapping[str, str] | None = None
) -> Kind:
    """Makes settings from plain values, nested dictionaries as in TOML. A SettingsError names the first mistake: the
    key, its value, what is allowed, the nearest settings.

    Args:
        where: The file or section that the values come from.
        prefix: Prefix of their names in overrides.
        given: Parameters by the settings that they have set, with the prefix: errors name these instead of a file.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        # The first mistake; but if one member of a union takes a table, the others' complaints do not count.
        details = error.errors()
        others = (d for d in details if not (d["type"].endswith("_type") and isinstance(d["input"], dict)))
        detail = next(others, details[0])

        # The keys that lead to it; pydantic puts names of union members between them.
        place: list[str] = []
        table: Any = values
        for part in detail["loc"]:
            is_list = isinstance(table, list | tuple) and isinstance(part, int) and part < len(table)
            if is_list or (isinstance(table, dict) and part in table):
                table = table[part]
            elif part != detail["loc"][-1] or not isinstance(table, dict):
                continue
            place.append(str(part))
        key, setting = prefix + ".".join(place), ""

        if detail["type"] == "extra_forbidden":
            while isinstance(table, dict) and table:  # an unknown table: named by its first setting
                key, table = f"{key}.{next(iter(table))}", next(iter(table.values()))
            near = nearest_settings(key, settings_of(kind.__module__.removeprefix("unmask."), kind.__name__, prefix))
            reason, setting = f"unknown setting {key!r}; the nearest are {', '.join(near)}", near[0]
        else:
            message = detail["msg"].removeprefix("Value error, ")
            if detail["type"] == "union_tag_invalid":  # of the `kind` of a table
                key, expected = f"{key}.kind", detail["ctx"]["expected_tags"]
                detail |= {"type": "literal_error", "input": detail["ctx"]["tag"], "ctx": {"expected": expected}}
                message = f"input should be one of {expected}"
            allowed = re.findall(r"'([^']+)'", str({**detail.get("ctx", {})}.get("expected", "")))
            if detail["type"] == "literal_error" and (near := get_close_matches(str(detail["input"]), allowed, n=1)):
                message += f"; did you mean {near[0]!r}?"
            if detail["type"] == "tuple_type":
                message = "input should be a list"
                if isinstance(text := detail["input"], str):  # in brackets: a list that lost its quotes to a shell
                    items = text[1:-1].split(",") if text[:1] + text[-1:] == "[]" else [text]
                    example = json.dumps([item.strip() for item in items])
                    message += f", such as {example} (in a shell, put KEY=VALUE in single quotes)"
            message = message[:1].lower() + message[1:]
            is_table = isinstance(detail["input"], dict | Settings)
            key = "" if key == prefix else key
            name = key if is_table else f"{key} = {shown(detail['input'])}"
            reason = f"{name}: {message}" if name else message
        named = (f"{key}.", f"{key.removeprefix(prefix)}.")  # `card.license` is short for `finetune.card.license`
        parameter = next(
            (by for name, by in (given or {}).items() if any(n.startswith(f"{name}.") for n in named)), None
        )
        if parameter is None:
            raise SettingsError(f"{where}: {reason}") from error
        options = ["set" if parameter == "settings" else parameter]
        raise SettingsError(f"{parameter}: {reason}", options=options, setting=setting) from error
