"""Declarations read from the source: what a module assigns, and settings with their types and meanings.

Sources are parsed, not imported, so that help and errors appear at once: some settings stand beside code that needs
torch. A setting is a field of a `Settings` class. The string below it is its meaning, written nowhere else.
"""

from __future__ import annotations

import ast
import difflib
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.core.plugins import entry_points

PACKAGE = Path(__file__).resolve().parents[1]
UNSET = "none"  # an absent value, as `--set` takes it
_WORDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "Path": "path"}
_LIMITS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@cache
def source_of(module: str) -> str:
    """The source of a module below `unmask`, or of a plug-in's module."""
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    if not path.is_file() and (spec := find_spec(module)) is not None:
        path = Path(str(spec.origin))
    return path.read_text(encoding="utf-8")


@cache
def statements_of(module: str) -> list[ast.stmt]:
    return ast.parse(source_of(module)).body


@cache
def declared(module: str, name: str) -> tuple[str, ast.expr | ast.ClassDef | None]:
    """Finds the class or the value that a module assigns to a name, following imports; returns it with its module."""
    for node in statements_of(module):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and any(getattr(each, "id", "") == name for each in targets):
            return module, node.value
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unmask."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return declared((node.module or "").removeprefix("unmask."), alias.name)
    return module, None


def value_of(module: str, node: ast.AST | None) -> Any:
    """Evaluates an expression of constants and their names, such as `2**31 - 1000`."""
    assert isinstance(node, ast.expr), f"{module}: not a value"
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return eval(ast.unparse(node), {name: value_of(*declared(module, name)) for name in names})


# ----------------------------------------
# Settings.


@dataclass(frozen=True)
class Setting:
    """A setting of a recipe, of fine-tuning or of an embedder."""

    name: str  # dotted; `[]` follows the name of a list of tables
    type: str  # in words; empty: only the choices
    choices: tuple[str, ...]
    range: str  # of its numbers
    default: str | None  # as `--set` takes it; None: required; empty: a table, whose settings have defaults
    kinds: tuple[str, ...]  # kinds of its table that have it; empty: all
    meaning: str

    @property
    def values(self) -> str:
        """The values that it takes, in words."""
        typed = f"{self.type} {self.range}".strip()
        *most, last = [*self.choices, *([typed] if typed else [])] or ["any value"]
        return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True)
class _Type:
    """A parsed annotation."""

    words: tuple[str, ...] = ()  # plain types
    choices: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    tables: tuple[tuple[str, ast.ClassDef], ...] = ()  # classes of settings, each with its module
    is_list: bool = False  # of these tables

    def __or__(self, other: _Type) -> _Type:
        words = dict.fromkeys((*self.words, *other.words))
        sums = (self.choices + other.choices, self.limits + other.limits, self.tables + other.tables)
        return _Type(tuple(words), *sums, self.is_list or other.is_list)

    @property
    def kinds(self) -> list[tuple[str, ...]]:
        """The values of `kind` for each of its tables."""
        fields = [_fields(*table).get("kind") for table in self.tables]
        return [() if kind is None else _type_of(kind[0], kind[1].annotation).choices for kind in fields]


def _type_of(module: str, node: ast.AST | None) -> _Type:  # noqa: PLR0911  (a case each)
    match node:
        case ast.ClassDef():
            return _Type(tables=((module, node),))
        case ast.Name(id=name):
            return _Type((_WORDS[name],)) if name in _WORDS else _type_of(*declared(module, name))
        case ast.Constant(value=str(place)):  # `module:Class`, not imported there
            return _type_of(*declared(*place.split(":")))
        case ast.BinOp(left=left, right=right):
            return _type_of(module, left) | _type_of(module, right)
        case ast.Call(func=ast.Name(id="OrPlugIn"), args=[ast.Name(id=table), *method]):
            return _of_plugins(*declared(module, table), *map(ast.literal_eval, method))
        case ast.Call():
            return _Type(limits=_limits(module, node))
        case ast.Subscript(value=ast.Name(id=outer), slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if outer == "Literal":
                return _Type(choices=tuple(str(ast.literal_eval(each)) for each in parts))
            if outer == "Annotated":
                return reduce(operator.or_, (_type_of(module, each) for each in parts))
            each = _type_of(module, parts[1] if outer == "dict" else parts[0])
            if each.tables:
                return replace(each, is_list=True)
            plural = " or ".join(f"{word}s" for word in each.words)
            of = Setting("", plural, each.choices, " and ".join(each.limits), "", (), "").values
            number = "" if ast.unparse(parts[-1]) == "..." else f"{len(parts)} "
            return _Type((f"table of names to {of}" if outer == "dict" else f"list of {number}{of}",))
    return _Type()  # None and Any


def _of_plugins(module: str, table: ast.AST | None, method: str = "") -> _Type:
    """The names that plug-ins add to a table; with a `method`, the plug-ins' classes that have it."""
    assert isinstance(table, ast.Call), f"{module}: not a table"
    points, tables = entry_points(ast.literal_eval(table.args[0])), []
    for point in points.values() if method else ():
        try:
            at, node = declared(point.module, point.attr)
            assert isinstance(node, ast.ClassDef), f"{point.value}: not a class"
            tuple(_settings_in(at, node, "", (), {}))
        except Exception:  # a plug-in's source may be anything; using it reports the error
            continue
        if any(isinstance(each, ast.FunctionDef) and each.name == method for each in node.body):
            tables.append((at, node))
    return _Type(tables=tuple(tables)) if method else _Type(choices=tuple(points))


def _limits(module: str, node: ast.AST | None) -> tuple[str, ...]:
    limits = _keywords(node) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Field" else {}
    return tuple(f"{sign} {value_of(module, limits[name]):.10g}" for name, sign in _LIMITS.items() if name in limits)


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {str(each.arg): each.value for each in call.keywords}


def _fields(module: str, node: ast.ClassDef) -> dict[str, tuple[str, ast.AnnAssign, str]]:
    """The fields of a class, those of its bases first, each with its module and the string below it."""
    fields: dict[str, tuple[str, ast.AnnAssign, str]] = {}
    for base in node.bases:
        at, parent = declared(module, ast.unparse(base))
        fields |= _fields(at, parent) if isinstance(parent, ast.ClassDef) else {}
    for each, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation):
            text = below.value if isinstance(below, ast.Expr) else ast.Constant("")
            fields[ast.unparse(each.target)] = module, each, " ".join(str(ast.literal_eval(text)).split())
    return fields


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.)]) (?=[A-Z`])", " ".join(text.partition("\n\n")[0].split()), maxsplit=1)[0]


def nearest_settings(key: str, settings: Iterable[Setting]) -> list[str]:
    """The three settings whose names are most like a key, as wholes and in their last parts."""

    def likeness(name: str) -> float:
        pairs = ((key, name), (key.rpartition(".")[2], name.rpartition(".")[2]))
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    names = {each.name: None for each in settings if each.type != "table"}
    return sorted(names, key=likeness, reverse=True)[:3]


@cache
def settings_of(module: str, name: str, prefix: str = "") -> tuple[Setting, ...]:
    """All settings of a settings class in the order of its fields, including those of tables within it."""
    at, node = declared(module, name)
    assert isinstance(node, ast.ClassDef), f"{name} is a class"
    same: dict[Setting, Setting] = {}  # kinds may share a setting
    for each in _settings_in(at, node, prefix, (), {}):
        key = replace(each, kinds=())
        same[key] = replace(each, kinds=same[key].kinds + each.kinds if key in same else each.kinds)
    return tuple(same.values())


def _settings_in(
    module: str, node: ast.ClassDef, prefix: str, kinds: tuple[str, ...], values: Mapping[str, ast.expr]
) -> Iterator[Setting]:
    """The settings of a class; `values` replace its defaults where the enclosing field sets them."""
    for field, (at, declaration, meaning) in _fields(module, node).items():
        name, default = f"{prefix}{field}", values.get(field, declaration.value)
        accepted = _type_of(at, declaration.annotation) | _Type(limits=_limits(at, default))
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":
            keywords = _keywords(default)
            factory = keywords.get("default_factory")
            call = factory.body if isinstance(factory, ast.Lambda) else factory and ast.Call(factory, [], [])
            default = keywords.get("default", call)
        made_by = ast.unparse(default.func) if isinstance(default, ast.Call) else ""  # `MuonSettings(kind="muon")`
        tables = () if "[]" in prefix else accepted.tables  # those within lists are listed elsewhere, too
        pairs, is_union = list(zip(accepted.kinds, tables, strict=False)), len(tables) > 1

        words = accepted.words or (("list of tables" if accepted.is_list else "table",) if accepted.tables else ())
        if not is_union or accepted.words:
            about = meaning or first_sentence(ast.get_docstring(node) or "")  # for `kind`, its class's
            limits = " and ".join(accepted.limits)
            yield Setting(name, " or ".join(words), accepted.choices, limits, _spelled(at, default), kinds, about)
        if is_union:
            of_kinds = [
                f"`{'`, `'.join(of)}`: {first_sentence(ast.get_docstring(table) or '')}" for of, (_, table) in pairs
            ]
            chosen = next((of[0] for of, (_, table) in pairs if table.name == made_by), UNSET)
            choices = tuple(kind for of, _ in pairs for kind in of)
            yield Setting(f"{name}.kind", "", choices, "", chosen, kinds, " ".join([meaning, *of_kinds]))
        for of, (where, table) in pairs:
            inner = _keywords(default) if isinstance(default, ast.Call) and table.name == made_by else {}
            prefix_there = f"{name}[]." if accepted.is_list else f"{name}."
            for each in _settings_in(where, table, prefix_there, of if is_union else kinds, inner):
                if not is_union or each.name != f"{name}.kind":
                    yield each


def _spelled(module: str, default: ast.expr | None) -> str | None:
    """A default, as `--set` takes it."""
    if default is None or isinstance(default, ast.Call):
        return None if default is None else ""
    value = value_of(module, default)
    return UNSET if value is None else json.dumps(value).strip('"')
