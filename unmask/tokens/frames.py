"""Messages between a process and its workers: pickled values, each with its length before it."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Sends a value.

    Raises:
        OSError: The other side is gone.
    """
    content = pickle.dumps(value, protocol=5)
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Receives a value.

    Raises:
        EOFError: The other side is gone, perhaps in the middle of a message.
    """
    (size,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    return pickle.loads(_read(stream, size))


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content
