"""Results on stdout: for a person in colours, for a pipe without; and what `--json` prints in their place."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.commands.cli.verbosity import Spoken
from unmask.core.errors import printable
from unmask.core.results import Readable, Sheet, Shown


def show(result: Readable, *, as_json: bool) -> None:
    """Prints a result.

    Args:
        result: Of a verb.
        as_json: Whether exactly one JSON object is printed, and nothing else.
    """
    if as_json:
        print_json(result.to_dict())
        return
    out = results_console()
    for each in result.shown():
        if isinstance(each, str):  # as it is: it may be read by a program, but for a terminal
            sys.stdout.write(f"{printable(each) if sys.stdout.isatty() else each}\n")
        else:
            out.print(drawn(each), soft_wrap=not isinstance(each, Sheet))


def note(text: str) -> None:
    """Says on stderr what is done now."""
    stderr_console().print(visible(text, "dim"), soft_wrap=True)


def stderr_console() -> Console:
    """The terminal behind stderr, which takes nothing where little is to be said."""
    return Console(stderr=True, highlight=False, emoji=False, quiet=Spoken.is_quiet)


def results_console() -> Console:
    """The terminal, or whatever stdout is; what is piped is as wide as it is."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 1000)


def print_json(content: Any) -> None:
    """Prints exactly one JSON object on stdout."""
    sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")


def drawn(shown: Shown) -> Table | Text:
    """What rich prints of it."""
    if isinstance(shown, tuple):
        return Text.assemble(*map(_text, shown))
    if not isinstance(shown, Sheet):
        return _text(shown)
    title = visible(shown.title, "dim") if shown.title else None
    table = Table(box=None, pad_edge=False, show_header=any(shown.columns), title=title, title_justify="left")
    for head in shown.columns:
        table.add_column(visible(head.removeprefix(">")), justify="right" if head.startswith(">") else "left")
    for row in shown.rows:
        table.add_row(*map(_text, row))
    return table


def visible(text: str, style: str = "") -> Text:
    """A text in a style, which does nothing to a terminal."""
    return Text(printable(text), style)


def _text(cell: object) -> Text:
    return visible(str(cell), getattr(cell, "style", ""))
