"""Opening files whatever they are compressed with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from unmask.errors import CorpusError

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")


def bare_suffix(path: Path) -> str:
    """The suffix that says what kind of file it is, in lower case, without that of a compression."""
    name = path.name.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return Path(name).suffix


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading, unpacked.

    Raises:
        CorpusError: The file cannot be opened; or, while it is read, the compressed data is damaged or cut off.
    """
    try:
        with _opened(path) as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, pa.ArrowInvalid) as error:
        raise CorpusError(f"{path}: damaged or cut-off file: {error}") from error
    except OSError as error:
        kind = "damaged or cut-off file: " if error.errno is None else ""
        raise CorpusError(f"{path}: {kind}{error.strerror or error}") from error


def read_some(file: IO[bytes], most: int) -> bytes:
    """Reads what can be had at once, at least a byte before the end.

    Reading until so many bytes are there loses those that were unpacked before the file turned out to be cut off.

    Args:
        file: As `open_bytes` opens it.
        most: Bytes.
    """
    return cast(io.BufferedIOBase, file).read1(most)


def _opened(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        case ".xz":
            return cast(IO[bytes], lzma.open(path, "rb"))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path, "rb"))
        case ".zst":
            return cast(IO[bytes], pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return path.open("rb")
