"""JSON in the small files beside weights and tokenizers, which anybody may have made: read in bounded memory.

What Python's reader raises, it raises for several reasons; here each file that cannot be used is a `ValueError` (or the
system's `OSError`), and whoever reads it says what the file is for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20  # of a file; the largest of released models, with their labels, have one or two million
_DEPTH = 64  # of tables and lists within each other; configurations have three or four
_LETTERS = 100  # of a value that an error shows


def load_json(file: Path) -> Any:
    """The content of a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too large, not UTF-8, no JSON, nested too deep, or holds what is no character or a number
            that Python does not take.
    """
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{size:,} bytes, more than the {MOST_BYTES:,} that such a file may have")
    text = file.read_text(encoding="utf-8")
    deep = f"nested deeper than {_DEPTH}"
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise ValueError(deep) from error
    except ValueError as error:  # the only other that Python raises here, with advice for programmers
        raise ValueError("a number of thousands of digits") from error
    level = [content]
    for _ in range(_DEPTH):
        level = [inner for value in level for inner in _within(value)]
    if level:
        raise ValueError(deep)
    return content


def _within(value: Any) -> list[Any]:
    """What a table or a list holds; strings are looked at, since half a character cannot be printed."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, str) and not value.isascii():
        value.encode()
    return value if isinstance(value, list) else []


def short(value: object) -> str:
    """A value as an error shows it, which may be of anybody's making."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"some {type(value).__name__} too long to be shown"
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} ..."
