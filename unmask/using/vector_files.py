"""Files of vectors, written part by part: .npy, and Parquet with the texts' ids, which takes sparse ones too.

A file has its name only when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unmask.claimed import check_file, held_file
from unmask.errors import CorpusError, RunError
from unmask.text.reading import broken_character
from unmask.using.sparse_vectors import SparseVectors


class VectorFile(Protocol):
    """A file that is being written."""

    def add(self, ids: Sequence[str | int], vectors: NDArray[np.float32] | SparseVectors) -> None:
        """Writes some more vectors [texts, dimension], float32, with their ids."""

    def close(self) -> None:
        """Writes what stands at the file's end or depends on it."""


class NpyFile:
    """One array [texts, dimension], float32, in the order of the texts; ids are not kept."""

    def __init__(self, path: Path, dimension: int) -> None:
        self._file = path.open("wb")
        self._shape = (0, dimension)
        self._write_header()

    def _write_header(self) -> None:
        """The format leaves room for the number of rows to grow, so the header is as long at the end."""
        header = {"descr": "<f4", "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def add(self, ids: Sequence[str | int], vectors: NDArray[np.float32] | SparseVectors) -> None:
        """As `VectorFile`; dense ones."""
        if isinstance(vectors, SparseVectors):
            raise TypeError("an array of sparse vectors would be mostly zeros")
        self._shape = (self._shape[0] + len(ids), self._shape[1])
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").data)

    def close(self) -> None:
        """As `VectorFile`."""
        with self._file:
            self._file.seek(0)
            self._write_header()


class ParquetFile:
    """Columns `id` (whole numbers or texts, as they were given) and `embedding` (lists of one length, float32).

    Of sparse vectors `indices` and `values` stand in place of `embedding`: lists of which numbers are not 0 (int32,
    ascending) and what they are (float32); the file's metadata tell the `dimension`.
    """

    def __init__(self, path: Path, dimension: int) -> None:
        self._file, self._dimension = path.open("wb"), dimension
        self._writer: pq.ParquetWriter | None = None
        self._kind: type[str] | type[int] = int

    def add(self, ids: Sequence[str | int], vectors: NDArray[np.float32] | SparseVectors) -> None:
        """As `VectorFile`.

        Raises:
            CorpusError: Some ids are texts and some are numbers; or one cannot be stored.
        """
        columns = _columns(vectors)
        if self._writer is None:
            self._kind = type(ids[0])
            kinds = {"id": pa.string() if self._kind is str else pa.int64()}
            kinds |= {name: column.type for name, column in columns.items()}
            self._writer = pq.ParquetWriter(self._file, pa.schema(kinds, {"dimension": str(self._dimension)}))
        if odd := [id_ for id_ in ids if type(id_) is not self._kind]:
            raise CorpusError(f"the id {odd[0]!r} is {type(odd[0]).__name__}, but the first was {self._kind.__name__}")
        if wrong := next(filter(None, map(_what_is_wrong, ids)), None):
            raise CorpusError(wrong)
        self._writer.write_table(pa.table({"id": ids, **columns}, schema=self._writer.schema))

    def close(self) -> None:
        """As `VectorFile`."""
        with self._file:
            if self._writer is not None:
                try:
                    self._writer.close()
                finally:
                    self._writer.is_open = False  # where that failed, it would try again when nobody listens


def _what_is_wrong(id_: str | int) -> str | None:
    """Why an id cannot be stored; None where it can."""
    if isinstance(id_, str):
        broken = broken_character(id_)
        return None if broken is None else f"the id {id_!r} holds {broken}, which is no character; take it out"
    if -(2**63) <= id_ < 2**63:
        return None
    return f"the id {id_} does not fit into 64 bits; give ids as texts (in quotes), or other ones with --id-column"


def _columns(vectors: NDArray[np.float32] | SparseVectors) -> dict[str, pa.Array]:
    if isinstance(vectors, SparseVectors):
        begins = pa.array(vectors.begins.astype(np.int32))
        numbers = {"indices": vectors.tokens, "values": vectors.values}
        return {name: pa.ListArray.from_arrays(begins, pa.array(each)) for name, each in numbers.items()}
    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return {"embedding": pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])}


KEEPS_IDS = TAKES_SPARSE = {".parquet"}
KINDS: dict[str, Callable[[Path, int], VectorFile]] = {".npy": NpyFile, ".parquet": ParquetFile}


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuses, before any work is done, a file that cannot be written.

    Raises:
        RunError: It is a folder, of no kind that is known, there already, or where nobody may look.
    """
    with _as_run_error(out):
        check_file(out, overwrite=overwrite)
        if out.suffix not in KINDS:
            raise RunError(f"{out}: vectors are written as {' or '.join(KINDS)}; give --out one of these endings")
        if not out.parent.is_dir():
            raise RunError(f"{out}: there is no folder {out.parent}; make it first")


@contextmanager
def _as_run_error(out: Path) -> Iterator[None]:
    """Tells what the system has against a file in one line."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{out}: vectors cannot be written there ({error.strerror or error}); mend that, or give another --out"
        ) from error


class Writing:
    """Gives a file its name once all was written, and takes it away where something failed.

    Args:
        out: Ends in one of `KINDS`.
        dimension: Of the vectors.

    Raises:
        RunError: When it is entered, added to or left: the file cannot be written.
    """

    def __init__(self, out: Path, dimension: int) -> None:
        self.out = out
        self._partial = out.with_name(out.name + ".partial")
        self._dimension = dimension

    @property
    def keeps_ids(self) -> bool:
        """Whether the file tells which text a vector is of."""
        return self.out.suffix in KEEPS_IDS

    def __enter__(self) -> Self:
        with ExitStack() as held, _as_run_error(self.out):
            held.enter_context(held_file(self.out))
            self._file = KINDS[self.out.suffix](self._partial, self._dimension)
            self._held = held.pop_all()
        return self

    def add(self, ids: Sequence[str | int], vectors: NDArray[np.float32] | SparseVectors) -> None:
        """As `VectorFile`."""
        with _as_run_error(self.out):
            self._file.add(ids, vectors)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with _as_run_error(self.out):
                self._file.close()
                if kind is None:
                    os.replace(self._partial, self.out)
        except RunError:
            if kind is None:  # else another error is on its way
                raise
        finally:
            with self._held, suppress(OSError):
                self._partial.unlink(missing_ok=True)
