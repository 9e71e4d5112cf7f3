"""Plug-ins: entries that installed packages add to this package's tables, each under a name.

    # pyproject.toml of such a package
    [project.entry-points."unmask.strategies"]
    pairs_of_words = "my_masking:PairsOfWords"

The groups are `strategies`, `readers`, `tasks`, `callbacks` and `poolings`. Entry points are read if a table lacks a
name, or when all names are listed. A plug-in is imported when it is used.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from unmask.core.errors import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Value = TypeVar("Value")


@cache
def entry_points(group: str) -> dict[str, EntryPoint]:
    from importlib import metadata  # takes a tenth of a second

    return {each.name: each for each in metadata.entry_points(group=f"unmask.{group}")}


class Table(UserDict[str, Value]):
    """Entries by name: first the package's own, then plug-ins, the entry points of the group. `made` makes an entry
    from a plug-in's name and object, and raises a ValueError if the object is unsuitable."""

    def __init__(
        self, group: str, items: dict[str, Value], made: Callable[[str, Any], Value] = lambda name, loaded: loaded
    ) -> None:
        super().__init__(items)
        self.group, self._made = group, made

    def __missing__(self, name: str) -> Value:
        point = entry_points(self.group)[name]
        try:
            return self._made(name, point.load())
        except Exception as error:  # a plug-in's code may raise anything
            package = point.dist.name if point.dist is not None else "unknown"
            raise SettingsError(
                f"the plug-in {name!r} (package {package}, {point.value}, group unmask.{self.group}) cannot be used: "
                f"{type(error).__name__}: {error}; fix or uninstall it"
            ) from error

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in entry_points(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from tuple(self.data)
        yield from (name for name in entry_points(self.group) if name not in self.data)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OrPlugIn:
    """Part of an annotation: a `Literal` also takes the names of a table. With a method, a union of settings by `kind`
    also takes settings from the table's entry of that kind, if they have the method."""

    def __init__(self, table: Table[Any], method: str | None = None) -> None:
        self._table, self._method = table, method

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema  # slow to import, and not needed by the command line

        unchanged = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(self._validate, handler(source), serialization=unchanged)

    def _validate(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import PydanticKnownError, ValidationError

        try:
            return handler(value)
        except ValidationError as error:
            what = error.errors()[0]
            reason: Any = "literal_error" if self._method is None else "union_tag_invalid"
            if what["loc"] or what["type"] != reason:
                raise
            name = value if self._method is None else what["ctx"]["tag"]
            if isinstance(name, str) and name in self._table:
                if self._method is None:
                    return name
                for settings in self._table[name].values():
                    if hasattr(settings, self._method) and settings.kind == name:
                        return type(settings).model_validate(value)
            key = "expected" if self._method is None else "expected_tags"
            known = (what["ctx"][key].replace(" or ", ", "), *(f"'{each}'" for each in entry_points(self._table.group)))
            expected = f"{', '.join(known)}, or that of an installed plug-in"
            raise PydanticKnownError(reason, {**what["ctx"], key: expected}) from error
