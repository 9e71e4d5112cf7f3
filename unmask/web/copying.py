"""The actions of the page as commands and as Python code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.commands.cli import option_of
from unmask.core.files import in_shell


def words_of(command: str, arguments: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The words of a command line. Options have the names of parameters; None is left out, a list is repeated."""
    flags = list[str]()
    for name, value in options.items():
        flag = option_of(name)
        for each in value if isinstance(value, list) else [value]:
            if each is True:
                flags.append(flag)
            elif each is not None and each is not False:
                flags += [flag, str(each)]
    # A text that begins with a hyphen would be taken for an option.
    words = [*flags, "--", *arguments] if any(each.startswith("-") for each in arguments) else [*arguments, *flags]
    return ["unmask", *command.split(), *words]


def copied(
    command: str, arguments: Sequence[str], options: Mapping[str, Any], *, python: str | None = None
) -> dict[str, str]:
    """An action as a command and as Python code, by default a call of the function with the command's name."""
    used = {name: value for name, value in options.items() if not (value is None or value is False or value == [])}
    call_arguments = [*map(repr, arguments), *(f"{name}={value!r}" for name, value in used.items())]
    return {
        "command": in_shell(words_of(command, arguments, options)),
        "python": python or f"unmask.{command.replace('-', '_')}({', '.join(call_arguments)})",
    }
