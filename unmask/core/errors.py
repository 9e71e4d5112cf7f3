"""The errors a user can cause. Each text says what was found, where, and the way out.

All are `ValueError`s, so that library users may catch them without importing this module. Whatever is not one of
these is a defect of ours and keeps its traceback.

An error carries the options that help as data, and the command line spells them behind its text:

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
# Addresses; in them a name with its password, and what signs a request
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]+:/{1,2}[^\s'\"]*")
_PASSWORD = re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,2})[^/\s?#]*@")
_OPEN = r"X-Amz-(?:Date|Expires|Algorithm|SignedHeaders)|X-Goog-(?:Date|Expires|Algorithm)|versionId|generation"
_VALUE = re.compile(rf"([?&#](?!(?:{_OPEN})=)[\w.-]+=)[^&#\s'\")]*", re.IGNORECASE)
_OF_MEMORY = (
    "not enough memory", "can't allocate memory", "Cannot allocate memory", "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED", "Failed to launch worker thread", "failed to map segment",
)  # fmt: skip


def without_secrets(text: str) -> str:
    """A text whose addresses have no password, and of a query no value that may be a signature; to be called before
    one is written or shown.

    Example: `s3://me:secret@host/a` is `s3://host/a`, and `https://host/a?X-Amz-Signature=1f2e`
    `https://host/a?X-Amz-Signature=***`.
    """
    return _ADDRESS.sub(lambda match: _VALUE.sub(r"\1***", _PASSWORD.sub(r"\1", match.group())), text)


def without_secrets_of(address: str, text: str) -> str:
    """What a library says of an address, without what is secret in that."""
    secrets = [each.group()[len(each[1]) : -1] for each in _PASSWORD.finditer(address)]
    secrets += [each.group()[len(each[1]) :] for each in _VALUE.finditer(address)]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_secrets(text)


def printable(text: str) -> str:
    """A text that does nothing to a terminal and tells no secret of an address: control characters but line breaks and
    tabs are spelled out (`\\x1b`)."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", without_secrets(text))


def _one_line(text: str) -> str:
    """A text on one line, the middle of a long one left out: what libraries say of damaged files may have pages."""
    line = without_secrets(" ".join(part.strip() for part in text.splitlines() if part.strip()))
    return printable(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 200]} ... {line[-150:]}")


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so. Of PyTorch's many are plain RuntimeErrors: the CPU's allocator's, those of CUDA itself
    and its libraries; pyarrow and the loader of shared libraries have their own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno is not None:  # whose text has the name of a file
        return error.errno == errno.ENOMEM
    return not isinstance(error, UnmaskError) and any(phrase in str(error) for phrase in _OF_MEMORY)


class UnmaskError(ValueError):
    """Base of everything that a user's input, settings or environment can cause.

    Args:
        args: The text: what was found, where, and the way out.
        options: Parameters of the public function that help; options of the command, with `_` for `-`.
        setting: The setting that was probably meant; shown as Python takes it, and by the command line as it does.
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
        """What a notebook shows instead of a traceback: the frames within the package help no user."""
        return [f"{type(self).__name__}: {self}"]


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

    options = ("resume",)  # of commands that have it

    def __str__(self) -> str:
        text = OSError.__str__(self)
        if self.filename is not None:  # else it was made of a text alone
            text = f"{self.filename}: cannot be written ({self.strerror}); fix that or free space, then run it again"
        return _one_line(text)


class DivergedError(UnmaskError):
    """Training produced a loss that is not a finite number."""


class EndedElsewhereError(UnmaskError):
    """Another of several processes says what is wrong; this one only ends."""


class MemoryFullError(UnmaskError):
    """Not even the smallest part of a training step fits into memory."""


# JSON and TOML within Python's limits: lists within lists by the thousand and numbers of thousands of digits are a
# `ValueError` with a sentence, like all else that is wrong with a text. Rows of a corpus are read by `data.json_rows`.

_SEAL = "sha256"


def parse_json(source: str | bytes | Path, parse: Callable[[Any], Any] = json.loads) -> Any:
    """The value of a JSON text of settings, states and the like, or of such a file; bytes and files are UTF-8.

    A ValueError says why it is none: not JSON, not UTF-8, nested too deep, or a number of too many digits.
    """
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    try:
        return parse(text)
    except (JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:  # Python's own, of a number beyond the digits that it converts
        raise ValueError("it holds an integer with too many digits") from error


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum, under `sha256`."""
    return {**content, _SEAL: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def unsealed(content: Any) -> dict[str, Any]:
    """What was sealed, without its checksum. Raises a ValueError where it has changed since, or is no such object."""
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    plain = {name: value for name, value in content.items() if name != _SEAL}
    if content != sealed(plain):
        raise ValueError("its content does not match its checksum")
    return plain


def whole_number(text: str) -> int | None:
    """The number that up to 18 of the digits 0 to 9 spell; None for anything else, such as `-5` and `²`."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60
_SHOWN.maxlong, _SHOWN.maxlevel = 40, 3


def shortened(text: str, most: int = 200) -> str:
    """A text of many words for an error: cut in the middle where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def listed(names: Iterable[str], most: int = 40) -> str:
    """Names of columns for an error: the first ones, each cut where it is long, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return (", ".join(shortened(name, 60) for name in every[:most]) or "none") + more


def unknown(what: str, value: object, known: Iterable[str]) -> str:
    """What an error says of a value that is none of the known ones, with the nearest of them."""
    names = list(known)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return f"unknown {what} {shown(value)}; {hint} are {', '.join(names)}"


def shown(value: object) -> str:
    """A value for an error's text: as `repr`, cut in the middle where it is long, whatever it holds."""
    try:
        return _SHOWN.repr(value)
    except ValueError:  # Python refuses to spell numbers of thousands of digits
        return "an integer with thousands of digits"
