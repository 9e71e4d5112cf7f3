"""Errors that a user can cause. Each text says what was found, where, and the way out.

All are `ValueError`s, so that library users can catch them without importing this module. Any other exception is a bug
and keeps its traceback.

An error carries the options that help as data. The command line appends them, spelled as options:

    RunError("runs/a already holds a run: resume or overwrite it, or give another folder", options=("resume", "out"))
    unmask: runs/a already holds a run: resume or overwrite it, or give another folder (--resume, --out)
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any

_LONGEST = 1000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Addresses; within them user and password; values of a query, which may be signatures
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]+:/{1,2}[^\s'\"]*")
_PASSWORD = re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,2})[^/\s?#]*@")
_OPEN = r"X-Amz-(?:Date|Expires|Algorithm|SignedHeaders)|X-Goog-(?:Date|Expires|Algorithm)|versionId|generation"
_VALUE = re.compile(rf"([?&#](?!(?:{_OPEN})=)[\w.-]+=)[^&#\s'\")]*", re.IGNORECASE)
_OF_MEMORY = (
    "not enough memory", "can't allocate memory", "Cannot allocate memory", "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED", "Failed to launch worker thread", "failed to map segment",
)  # fmt: skip


def without_secrets(text: str) -> str:
    """Removes passwords from the addresses in a text, and values of their queries that may be signatures. Call it
    before an address is written or shown.

    Example: `s3://me:secret@host/a` becomes `s3://host/a`, and `https://host/a?X-Amz-Signature=1f2e` becomes
    `https://host/a?X-Amz-Signature=***`.
    """
    return _ADDRESS.sub(lambda match: _VALUE.sub(r"\1***", _PASSWORD.sub(r"\1", match.group())), text)


def without_secrets_of(address: str, text: str) -> str:
    """A library's message about an address, without the address's secrets."""
    secrets = [each.group()[len(each[1]) : -1] for each in _PASSWORD.finditer(address)]
    secrets += [each.group()[len(each[1]) :] for each in _VALUE.finditer(address)]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_secrets(text)


def printable(text: str) -> str:
    """A text that is safe to print: escaped, and without the secrets of addresses."""
    return escaped(without_secrets(text))


def escaped(text: str) -> str:
    """A text with control characters, except line breaks and tabs, as `\\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _one_line(text: str) -> str:
    """A text on one line, cut in the middle if it is long: libraries may report a damaged file in pages."""
    line = without_secrets(" ".join(part.strip() for part in text.splitlines() if part.strip()))
    return printable(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 200]} ... {line[-150:]}")


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports a lack of memory. Many of PyTorch's are plain RuntimeErrors: from the CPU's allocator,
    CUDA and its libraries. pyarrow and the loader of shared libraries have their own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno is not None:  # its text may contain a file's name
        return error.errno == errno.ENOMEM
    return not isinstance(error, UnmaskError) and any(phrase in str(error) for phrase in _OF_MEMORY)


class UnmaskError(ValueError):
    """Base of all errors that a user's input, settings or environment can cause.

    Args:
        args: The text: what was found, where, and the way out.
        options: Parameters of the public function that help; the command's options, with `_` for `-`.
        setting: The setting that was probably meant. The text spells it for Python, the command line for itself.
    """

    options: Sequence[str] = ()
    setting: str = ""

    def __init__(self, *args: object, options: Sequence[str] = (), setting: str = "") -> None:
        super().__init__(*(without_secrets(each) if isinstance(each, str) else each for each in args))
        self.options, self.setting = options, setting

    def __str__(self) -> str:
        text, cause = super().__str__(), self.__cause__ or self.__context__
        if cause is not None and says_out_of_memory(cause) and not isinstance(self, MemoryFullError):
            text = f"{text.partition(': ')[0]}: not enough memory, or damaged ({cause or 'no memory left'})"
        text += f', as in settings={{"{self.setting}": ...}}' if self.setting else ""
        return _one_line(text)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback, whose frames within the package help no user."""
        return [f"{type(self).__name__}: {self}"]


class CorpusError(UnmaskError):
    """A source of text cannot be read, or holds too little."""


class TokenizerError(UnmaskError):
    """A tokenizer is missing, incomplete, or of an unsupported kind."""


class SettingsError(UnmaskError):
    """A recipe or a setting is unknown, malformed or out of range."""


class DataError(UnmaskError):
    """Prepared token shards are missing, damaged, or do not fit the tokenizer."""


class ModelError(UnmaskError):
    """A model folder is missing, incomplete, or of an unsupported layout."""


class UnsupportedError(ModelError):
    """A model of a supported layout has a part that our encoder lacks; transformers may run it."""


class RunError(UnmaskError):
    """An output folder cannot be used as asked."""


class WriteError(OSError, RunError):  # in this order, so that Python's own `OSError` reads the arguments
    """A file cannot be written: the disk is full, or permission is denied. The previous content is kept.

    Its arguments are the system's error number or None, the reason, and the file or folder. It is an `OSError` too, so
    that callers that know a better way out can catch both.
    """

    options = ("resume",)  # of commands that have it

    def __str__(self) -> str:
        text = OSError.__str__(self)
        if self.filename is not None:  # otherwise its only argument is a text
            way_out = "free space or fix that, then run the same command again"
            text = f"{self.filename}: cannot be written ({self.strerror}); {way_out}"
        return _one_line(text)


class DivergedError(UnmaskError):
    """Training produced a loss that is not a finite number."""


class EndedElsewhereError(UnmaskError):
    """Another process reports the error; this one only ends."""


class MemoryFullError(UnmaskError):
    """Not even the smallest part of a training step fits into memory."""


# JSON and TOML within Python's limits: thousands of nested lists and numbers of thousands of digits raise a
# `ValueError` with a reason, like any malformed text. `data.json_rows` reads the rows of a corpus.

_SEAL = "sha256"


def parse_json(source: str | bytes | Path, parse: Callable[[Any], Any] = json.loads) -> Any:
    """The value of a JSON text (settings, states and the like) or of a JSON file; bytes and files are UTF-8.

    A ValueError says what is wrong: not JSON, not UTF-8, nested too deeply, or a number of too many digits.
    """
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    try:
        return parse(text)
    except (JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:  # Python's, for more digits than it converts
        raise ValueError("it holds an integer with too many digits") from error


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum added, under `sha256`."""
    return {**content, _SEAL: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def unsealed(content: Any) -> dict[str, Any]:
    """A sealed object without its checksum. Raises a ValueError if it has changed since, or is not an object."""
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    plain = {name: value for name, value in content.items() if name != _SEAL}
    if content != sealed(plain):
        raise ValueError("its content does not match its checksum")
    return plain


def whole_number(text: str) -> int | None:
    """The number that a text of at most 18 digits (0 to 9) spells; None for anything else, such as `-5` and `²`."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60
_SHOWN.maxlong, _SHOWN.maxlevel = 40, 3


def shortened(text: str, most: int = 200) -> str:
    """A text for an error, cut in the middle if it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def listed(names: Iterable[str], most: int = 40) -> str:
    """Names for an error, such as columns: the first ones, each cut if it is long, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return (", ".join(shortened(name, 60) for name in every[:most]) or "none") + more


def unknown(what: str, value: object, known: Iterable[str]) -> str:
    """The text of an error about a value that is not among the known ones, with the nearest of them."""
    names = list(known)
    nearest = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? Known" if nearest else "known"
    return f"unknown {what} {shown(value)}; {hint} are {', '.join(names)}"


def shown(value: object) -> str:
    """A value for an error's text: its `repr`, cut in the middle if it is long. It never fails."""
    try:
        return _SHOWN.repr(value)
    except ValueError:  # Python refuses to spell numbers of thousands of digits
        return "an integer with thousands of digits"
