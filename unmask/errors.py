"""The errors a user can cause. Each text says what was found, where, and the way out.

All are `ValueError`s, so that library users may catch them without importing this module. Whatever is not one of
these is a defect of ours and keeps its traceback.

Texts name options as the command line has them. In Python the same text names parameters:

    runs/a already holds a run: go on with --resume, or give another --out
    runs/a already holds a run: go on with resume=True, or give another out
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_FLAGS = ("resume", "overwrite")
# A command that is named whole stays as it is typed.
_OPTION = re.compile(
    r"(?P<command>unmask [a-z]+ [^`;,()]*--[^`;,()]*)"
    r"|--set (?P<quote>')?(?P<setting>[a-z_]+\.[a-z_.]+=(?(quote)[^']*|[^\s;,()]*[^\s;,():]))(?(quote)')"
    r"|--(?P<name>[a-z]+(?:-[a-z]+)*)(?: (?P<number>\d+)(?!\.?\w))?"
)
_LONGEST = 1000
_on_command_line = False


@contextmanager
def on_command_line() -> Iterator[None]:
    """While it is entered, errors name options and not parameters."""
    global _on_command_line  # noqa: PLW0603  (who is spoken to is a matter of the whole process)
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


def addressed(text: str) -> str:
    """A text that names options, as it is said to whoever is there: on the command line unchanged.

    Example: `take --vocab-size 300 with --set model.num_layers=2` is, in Python,
    `take vocab_size=300 with settings=['model.num_layers=2']`.
    """
    return text if _on_command_line else _OPTION.sub(_in_python, text)


def _in_python(found: re.Match[str]) -> str:
    if found["command"]:
        return found["command"]
    if found["setting"]:
        return f"settings=[{found['setting']!r}]"
    name = {"from": "from_", "set": "settings"}.get(found["name"], found["name"].replace("-", "_"))
    if name in _FLAGS:
        return f"{name}=True"
    return name if found["number"] is None else f"{name}={found['number']}"


def _one_line(text: str) -> str:
    """A text on one line, the middle of a long one left out: what libraries say of damaged files may have pages."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 200]} ... {line[-150:]}"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """A text that does nothing to a terminal: control characters but line breaks and tabs are spelled out.

    Example: a file whose name begins with the sequence that clears the screen is `\\x1b[2Jname`.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def _said(text: str) -> str:
    """An error's text, fit for whoever is there."""
    return printable(addressed(_one_line(text)))


class UnmaskError(ValueError):
    """Base of everything that a user's input, settings or environment can cause."""

    def __str__(self) -> str:
        return _said(super().__str__())


class CorpusError(UnmaskError):
    """A source of text cannot be read, or holds too little."""


class TokenizerError(UnmaskError):
    """A tokenizer is missing, incomplete, or of a kind that is not supported."""


class SettingsError(UnmaskError):
    """A recipe or a setting is unknown, malformed or out of range."""


class DataError(UnmaskError):
    """Prepared token shards are missing, damaged, or do not fit the tokenizer."""


class ModelError(UnmaskError):
    """A model folder is missing, incomplete, or of a layout that is not supported."""


class UnsupportedError(ModelError):
    """A model of one of our layouts has a part that our encoder lacks; transformers may run it."""


class RunError(UnmaskError):
    """An output folder cannot be used as asked."""


class WriteError(OSError, RunError):  # in this order, so that Python's own `OSError` reads the arguments
    """A file cannot be written: the disk is full, or the folder is closed to us. What stood there before is kept.

    Made of the system's number or None, the reason, and the file or folder. It is an `OSError` too, so that callers
    that know a better way out can catch both.
    """

    def __str__(self) -> str:
        if self.filename is None:  # made of a text alone
            return _said(OSError.__str__(self))
        text = (
            f"{self.filename}: cannot be written ({self.strerror}); make room or mend that, and run the same command "
            "again, with --resume where it had begun a run"
        )
        return _said(text)


class DivergedError(UnmaskError):
    """Training produced a loss that is not a finite number."""


class EndedElsewhereError(UnmaskError):
    """Another of several processes has found what is wrong, and says it. This one only ends."""


class MemoryFullError(UnmaskError):
    """Not even the smallest part of a training step fits into memory."""
