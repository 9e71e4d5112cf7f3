"""The text that a tokenizer is trained on: a share of the documents, a file for each task.

A file is written while the task is surveyed, and has its name once it is whole; all are read one behind another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from unmask.errors import DataError
from unmask.files import writing
from unmask.text.read_plan import ReadTask
from unmask.text.survey import text_hash

_BATCH = 1 << 22  # characters
_SCHEMA = pa.schema({"text": pa.large_string()})
_ODD, _RANGE = 0x9E3779B97F4A7C15, 1 << 64


class Sample(NamedTuple):
    """Which text a tokenizer is trained on.

    Attributes:
        share: Of the documents, chosen by their hashes; 1 takes all.
        held_too: Whether held-out text counts.
    """

    share: float
    held_too: bool

    def takes(self, beginning: str) -> bool:
        """Whether a document is in it; by other bits of its hash than those that hold it out."""
        return self.share >= 1.0 or (text_hash(beginning) * _ODD) % _RANGE < self.share * _RANGE


def sample_name(task: ReadTask) -> str:
    """The file of a task's share of the sample."""
    return f"sample-{task.number:05d}.arrow"


class SampleWriter:
    """Writes texts into an Arrow stream, which has its name only once it is whole.

    Args:
        path: The file; None where nothing is added.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._texts: list[str] = []
        self._num_chars = 0

    def __enter__(self) -> SampleWriter:
        if self._path is not None:
            with writing(self._path, pa.ArrowException):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._partial = self._path.with_name(f"{self._path.name}.partial")
                self._file = pa.OSFile(str(self._partial), "wb")
                self._stream = pa.ipc.new_stream(self._file, _SCHEMA)
        return self

    def add(self, text: str) -> None:
        """Takes a text; texts are written some at a time.

        Raises:
            WriteError: They cannot be written.
        """
        self._texts.append(text)
        self._num_chars += len(text)
        if self._num_chars >= _BATCH:
            self._write()

    def _write(self) -> None:
        assert self._path is not None, "there is somewhere to write"
        with writing(self._path, pa.ArrowException):
            texts = pa.array(self._texts, pa.large_string())
            self._stream.write_batch(pa.RecordBatch.from_arrays([texts], schema=_SCHEMA))
        self._texts, self._num_chars = [], 0

    def __exit__(self, kind: object, *_: object) -> None:
        if self._path is None:
            return
        if kind is None and self._texts:
            self._write()
        with writing(self._path, pa.ArrowException):
            self._stream.close()
            self._file.close()
            if kind is not None:
                self._partial.unlink(missing_ok=True)
                return
            with self._partial.open("rb") as file:
                os.fsync(file.fileno())
            self._partial.replace(self._path)


def sample_texts(files: Iterable[Path]) -> Iterator[str]:
    """The texts of samples, one after another.

    Raises:
        DataError: Somebody has changed the files meanwhile.
    """
    for path in files:
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    yield from batch["text"].to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: was changed by somebody else; run the same command again") from error
