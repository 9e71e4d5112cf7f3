"""The errors a user can cause. Each text says what was found, where, and the way out.

All are `ValueError`s, so that library users may catch them without importing this module. Whatever is not one of
these is a defect of ours and keeps its traceback.

An error carries the options that help as data, and the command line spells them behind its text:

    RunError("runs/a already holds a run: resume or overwrite it, or give another folder", options=("resume", "out"))
    unmask: runs/a already holds a run: resume or overwrite it, or give another folder (--resume, --out)
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any

_LONGEST = 1000


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


class UnmaskError(ValueError):
    """Base of everything that a user's input, settings or environment can cause.

    Args:
        args: The text: what was found, where, and the way out.
        options: Parameters of the public function that help; options of the command, with `_` for `-`.
    """

    options: Sequence[str] = ()

    def __init__(self, *args: object, options: Sequence[str] = ()) -> None:
        super().__init__(*args)
        self.options = options

    def __str__(self) -> str:
        return printable(_one_line(super().__str__()))

    def for_command_line(self) -> str:
        """The text, with options as the command line spells them."""
        spelled = ", ".join(f"--{name.rstrip('_').replace('_', '-')}" for name in self.options)
        return f"{self} ({spelled})" if spelled else str(self)


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

    options = ("resume",)

    def __str__(self) -> str:
        if self.filename is None:  # made of a text alone
            return printable(_one_line(OSError.__str__(self)))
        return printable(
            _one_line(
                f"{self.filename}: cannot be written ({self.strerror}); make room or mend that, and run the same "
                "again, resuming where a run had begun"
            )
        )


class DivergedError(UnmaskError):
    """Training produced a loss that is not a finite number."""


class EndedElsewhereError(UnmaskError):
    """Another of several processes has found what is wrong, and says it. This one only ends."""


class MemoryFullError(UnmaskError):
    """Not even the smallest part of a training step fits into memory."""


# ----------------------------------------
# Values out of files and off the command line: JSON and TOML as far as Python holds them, and how errors show a value.
#
# What is JSON or TOML by its grammar may still be more than Python takes: lists within lists by the thousand, whole
# numbers of thousands of digits. Here all of it is a `ValueError` with a sentence, like everything else that is wrong
# with such a text. Rows of a corpus are read by `unmask.data.reading`, piece by piece.

MOST_BYTES = 64 << 20  # of a file beside weights; the largest of released models, with labels, have one or two million
MOST_LEVELS = 100  # of tables and lists within each other; configurations have three or four
TOO_DEEP = "it is nested too deep to be read"
TOO_MANY_DIGITS = "it holds a whole number of too many digits to be read"
_MOST_DIGITS = 18
_MOST_BITS = 64
_MOST_DOTS = 1000
_QUOTED = re.compile(r'"[^"]*+"|' + r"'[^']*+'")
_SEAL = "sha256"
_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
# Of a configuration: what is called so is made, or gone through, so many times by whoever reads it.
_COUNTS = re.compile(r"layers?(_|$)|blocks?(_|$)|group|label|head|depth|expert|repeat|memb")
_NO_KEY = re.compile(r"[^\w.\s-]")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text of settings, states and the like.

    Args:
        text: UTF-8 where it is bytes.

    Raises:
        ValueError: It is not JSON, not UTF-8, nested deeper than 100 levels, or holds a number of too many digits;
            the text says which.
    """
    try:
        return _checked(json.loads(text), most_bits=None)
    except (JSONDecodeError, UnicodeDecodeError):
        raise
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except ValueError as error:
        raise ValueError(_reason(error)) from error


def load_json(file: Path) -> Any:
    """The content of a small file beside weights or a tokenizer, which anybody may have made.

    Raises:
        OSError: It cannot be read.
        ValueError: As `parse_json` says; or it has more than 64 MiB, or holds half a character, which no file takes.
    """
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{size:,} bytes, more than the {MOST_BYTES:,} that such a file may have")
    text = file.read_text(encoding="utf-8")
    content = parse_json(text)
    if _HALF.search(text):
        json.dumps(content, ensure_ascii=False).encode()
    return content


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object of JSON with the checksum of what it says, under `sha256`."""
    return {**content, _SEAL: _seal(content)}


def unsealed(content: Any) -> dict[str, Any]:
    """What was sealed, without its checksum. An object that has none is of an earlier version.

    Raises:
        ValueError: It is no object, or has changed since it was sealed.
    """
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    kept = {name: value for name, value in content.items() if name != _SEAL}
    if content.get(_SEAL) not in (None, _seal(kept)):
        raise ValueError("what it says does not fit its checksum")
    return kept


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def too_high(content: Any, most: int) -> tuple[str, int] | None:
    """The first number of layers, labels, heads, ... in a model's configuration that is above `most`, or below 0.

    Programs make lists of so many entries when they read it.
    """
    for key, value in _numbers("", content):
        if (_COUNTS.search(key) and value > most) or (key.endswith("layers") and value < 0):
            return key, value
    return None


def _numbers(key: str, value: Any) -> Iterator[tuple[str, int]]:
    """All integers of a configuration, with the innermost key that each stands under."""
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("id2label", "label2id"):  # whose numbers are in the file, one by one
                yield from _numbers(str(name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(key, inner)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text.

    Raises:
        ValueError: It is not TOML (`tomllib.TOMLDecodeError`), nested deeper than 100 levels, or holds a whole number
            of more than 64 bits, which is what TOML promises; the text says which.
    """
    try:
        if any(line.count(".") > _MOST_DOTS and _longest_key(line) > MOST_LEVELS for line in text.splitlines()):
            raise ValueError(TOO_DEEP)  # such a key takes time and memory by the square of its length
        return dict(_checked(tomllib.loads(text), most_bits=_MOST_BITS))
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except ValueError as error:
        raise ValueError(_reason(error)) from error


def _reason(error: ValueError) -> str:
    """Ours are told as they are; Python's own is of a number beyond the digits that it converts."""
    return str(error) if str(error) in (TOO_DEEP, TOO_MANY_DIGITS) else TOO_MANY_DIGITS


def _longest_key(line: str) -> int:
    """Parts of the longest stretch that may be a dotted key; what stands between quotes is one part."""
    return max(part.count(".") + 1 for part in _NO_KEY.split(_QUOTED.sub("q", line)))


def _checked(value: Any, *, most_bits: int | None) -> Any:
    """The value, none of which is too deep or too large; goes level by level, so that no depth is too much for it."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
            elif most_bits is not None and isinstance(each, int) and each.bit_length() > most_bits:
                raise ValueError(TOO_MANY_DIGITS)
        if not inner:
            return value
        level = inner
    raise ValueError(TOO_DEEP)


def whole_number(text: str) -> int | None:
    """The number that up to 18 of the digits 0 to 9 spell; None for anything else: signs, digits of other scripts.

    Example: `07` is 7; `-5`, `²` and the empty text are None.
    """
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


class _Shown(reprlib.Repr):
    """Short forms of any value; those of usual length are what `repr` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlong = 40
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to spell numbers of thousands of digits."""
        return super().repr_int(x, level) if x.bit_length() < 10_000 else "a whole number of thousands of digits"


_SHOWN = _Shown()


def shortened(text: str, most: int = 200) -> str:
    """A text of many words for an error: cut in the middle where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def listed(names: Iterable[str], most: int = 40) -> str:
    """Names of columns for an error: the first ones, each cut where it is long, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return (", ".join(shortened(name, 60) for name in found[:most]) or "none") + more


def shown(value: object) -> str:
    """A value for an error's text: as `repr`, cut in the middle where it is long, whatever it holds."""
    return _SHOWN.repr(value)
