"""What the page does, as it is typed in a terminal or in Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from unmask.commands.cli import OPTION_NAMES


def words_of(command: str, arguments: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The words of a command line. Options are named as parameters; None is left out, True a flag, a list repeated."""
    words = ["unmask", *command.split()]
    for name, value in options.items():
        flag = f"--{OPTION_NAMES.get(name, name).replace('_', '-')}"
        for each in value if isinstance(value, list) else [value]:
            if each is True:
                words.append(flag)
            elif each is not None and each is not False:
                words += [flag, str(each)]
    positional = [f"./{each}" if each.startswith("-") else each for each in arguments]
    return [*words[: 1 + len(command.split())], *positional, *words[1 + len(command.split()) :]]


def copied(
    command: str, arguments: Sequence[str], options: Mapping[str, Any], *, python: str | None = None
) -> dict[str, str]:
    """The same as a command and in Python, where it is a function of the command's name."""
    given = {name: value for name, value in options.items() if not (value is None or value is False or value == [])}
    called = [*map(repr, arguments), *(f"{name}={value!r}" for name, value in given.items())]
    return {
        "command": shlex.join(words_of(command, arguments, options)),
        "python": python or f"unmask.{command.replace('-', '_')}({', '.join(called)})",
    }
