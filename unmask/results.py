"""What the verbs of the package return: figures as attributes, a table to read, and the object that `--json` prints.

    found = unmask.evaluate("runs/mine/model", ["corpus.txt"])
    found.loss            a figure
    found                 a table, in a terminal and in a notebook
    found.to_dict()       what `unmask evaluate --json` prints

A result says what is to be shown once, as sheets and lines without any library; the command line draws them in colour,
`repr` as text, and a notebook as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

_SPACE = "  "


@dataclass(frozen=True)
class Styled:
    """Some text in a style of rich's, such as `dim`, `bold` or `red`; where there are no colours it is text."""

    text: str
    style: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        columns: Heads; one that begins with `>` is that of a column to the right. All of them empty: there is no head.
        rows: As many cells each.
        title: What stands above it.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str | Styled]]
    title: str = ""


Line = tuple[Styled | str, ...]
"""A line of several styles, its parts without anything between them."""
Shown = Sheet | Line | Styled | str


class Readable(Protocol):
    """What a verb returns: JSON to keep, and something to read."""

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""

    def shown(self) -> Iterator[Shown]:
        """What a person reads of it."""

    def __repr__(self) -> str:
        return "\n".join(as_text(each) for each in self.shown())

    def _repr_html_(self) -> str:
        return "".join(as_html(each) for each in self.shown())


class Result(Readable):
    """Figures by name, frozen. A subclass says in annotations what they are, and in `shown` how they are read.

    It is a class to inherit from, since the names are those of a JSON object, which a dataclass would have to repeat.

    Args:
        figures: What `to_dict` gives: whatever JSON can hold.
    """

    def __init__(self, figures: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_figures", MappingProxyType(dict(figures)))

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_figures")[name]
        except (KeyError, AttributeError):
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is a result, which nobody changes")

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(object.__getattribute__(self, "_figures"))

    def keys(self) -> Iterator[str]:
        """Names of the figures, so that `{**result}` is a dictionary of them."""
        return iter(self)

    def __contains__(self, name: object) -> bool:
        return name in self._figures

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(),)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self})

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return dict(self._figures)

    def shown(self) -> Iterator[Shown]:
        """What a person reads of it."""
        yield json.dumps(self.to_dict(), indent=1)


@dataclass(frozen=True, repr=False)
class Finished(Readable):
    """What a verb leaves as a folder. What its summary says stands in attributes, too: `run.validation_loss`.

    Attributes:
        folder: Its folder.
        summary: What `summary.json` says.
    """

    folder: Path
    summary: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["summary"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints, and `summary.json` holds."""
        return self.summary


def legible(text: str) -> str:
    """A line break and a lone space by signs that can be seen."""
    return "␣" if text == " " else text.replace("\n", "⏎")


def as_text(shown: Shown) -> str:
    """A sheet in columns, or a line."""
    if isinstance(shown, tuple):
        return "".join(map(str, shown))
    if not isinstance(shown, Sheet):
        return str(shown)
    lines = [[head.removeprefix(">") for head in shown.columns]] if any(shown.columns) else []
    lines += [[str(cell) for cell in row] for row in shown.rows]
    widths = [max((len(line[n]) for line in lines), default=0) for n in range(len(shown.columns))]
    drawn = [
        _SPACE.join(
            cell.rjust(width) if head.startswith(">") else cell.ljust(width)
            for cell, width, head in zip(line, widths, shown.columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*([shown.title] if shown.title else []), *drawn])


def as_html(shown: Shown) -> str:
    """A sheet as a table, or a line as a paragraph, with what is styled of it in bold."""
    if isinstance(shown, tuple):
        parts = (f"<b>{escape(str(part))}</b>" if getattr(part, "style", "") else escape(str(part)) for part in shown)
        return f"<p>{''.join(parts)}</p>"
    if not isinstance(shown, Sheet):
        return f"<p>{escape(str(shown))}</p>"

    def row(cells: Sequence[str | Styled], tag: str) -> str:
        found = []
        for cell, head in zip(cells, shown.columns, strict=True):
            side = "right" if head.startswith(">") else "left"
            found.append(f"<{tag} style='text-align: {side}'>{escape(str(cell).removeprefix('>'))}</{tag}>")
        return f"<tr>{''.join(found)}</tr>"

    head = row(shown.columns, "th") if any(shown.columns) else ""
    title = f"<caption>{escape(shown.title)}</caption>" if shown.title else ""
    return f"<table>{title}{head}{''.join(row(cells, 'td') for cells in shown.rows)}</table>"
