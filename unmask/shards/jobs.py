"""A task's text cut into jobs: stretches that are tokenized apart from each other.

How it is cut depends on the sources alone, never on the number of workers or on what was done before, so that the
shards, one a job and split, are the same files however the work was shared out, stopped and taken up again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # workers start faster without the readers of files
    from unmask.text.documents import TextPiece
    from unmask.text.spans import Spans

SMALLEST_JOB_BYTES = 1 << 20
LARGEST_JOB_BYTES = 1 << 25  # a worker holds some five times as much in memory
JOBS_A_CORPUS = 256


@dataclass(frozen=True)
class Job:
    """Consecutive pieces of the corpus.

    Attributes:
        task: Number of the task that the text is read in.
        number: Of the job in its task, counted from 0.
        texts: The pieces' texts.
        document: [num_pieces], int64: number of the document.
        offset: [num_pieces], int64: byte of the document's text at which the piece begins.
        num_bytes: [num_pieces], int64: UTF-8 bytes of the piece.
        held: [num_pieces], bool: whether the piece is held out.
        spans: Annotations that came with the pieces; None where none did.
        label: [num_pieces], int64: number of the document's class, -1 where it has none; None where none are read.
        group: [num_pieces], int64: the group that the piece stays on one side with, a hash below 0; the number of the
            document where it is in none. None where no piece is in any.
    """

    task: int
    number: int
    texts: list[str]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    held: NDArray[np.bool_]
    spans: list[Spans | None] | None = None
    label: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        """Of its part and shards."""
        return f"{self.task:05d}-{self.number:05d}"

    def without(self, left_out: NDArray[np.bool_]) -> Job:
        """The job without some of its pieces."""
        stays = ~left_out
        places = np.flatnonzero(stays).tolist()
        return Job(
            self.task,
            self.number,
            [self.texts[place] for place in places],
            self.document[stays],
            self.offset[stays],
            self.num_bytes[stays],
            self.held[stays],
            None if self.spans is None else [self.spans[place] for place in places],
            None if self.label is None else self.label[stays],
            None if self.group is None else self.group[stays],
        )

    @cached_property
    def content_hash(self) -> str:
        """A hash of all of it but the numbers."""
        digest = hashlib.blake2b("".join(self.texts).encode(), digest_size=16)
        for column in (self.document, self.offset, self.num_bytes, self.held):
            digest.update(column.tobytes())
        if self.spans is not None:
            digest.update(json.dumps(self.spans).encode())
        if self.label is not None:
            digest.update(self.label.tobytes())
        if self.group is not None:
            digest.update(b"group" + self.group.tobytes())
        return digest.hexdigest()


def job_bytes(source_bytes: int, *, slow: bool = False) -> int:
    """How much text a job takes: about 256 jobs a corpus, of 1 MiB at the least and 32 MiB at the most.

    Args:
        source_bytes: Size of the files, compressed or not.
        slow: Whether a pipeline annotates the text, some hundred times slower than it is tokenized: then a job takes
            an eighth of a megabyte at the least and 1 MiB at the most.
    """
    smallest, largest = (
        (SMALLEST_JOB_BYTES >> 3, SMALLEST_JOB_BYTES) if slow else (SMALLEST_JOB_BYTES, LARGEST_JOB_BYTES)
    )
    return min(max(source_bytes // JOBS_A_CORPUS, smallest), largest)


def cut_jobs(
    pieces: Iterable[tuple[TextPiece, bool]], size_bytes: int, classes: Sequence[str] | None = None, *, task: int = 0
) -> Iterator[Job]:
    """Groups pieces into jobs.

    Args:
        pieces: Those of a task, each with whether it is held out.
        size_bytes: A job ends with the piece that reaches this much text.
        classes: Names of the documents' classes in the order of their numbers; None numbers none.
        task: Number of the task.
    """
    numbers: dict[str | None, int] | None = None
    if classes is not None:
        numbers = {name: number for number, name in enumerate(classes)}
    number = gathered = 0
    group: list[tuple[TextPiece, bool]] = []
    sizes: list[int] = []
    for piece, held in pieces:
        group.append((piece, held))
        sizes.append(utf8_bytes(piece.text))
        gathered += sizes[-1]
        if gathered >= size_bytes:
            yield _job((task, number), group, sizes, numbers)
            number, gathered, group, sizes = number + 1, 0, [], []
    if group:
        yield _job((task, number), group, sizes, numbers)


def _job(
    which: tuple[int, int],
    group: list[tuple[TextPiece, bool]],
    sizes: list[int],
    numbers: Mapping[str | None, int] | None,
) -> Job:
    grouped = any(piece.group is not None for piece, _ in group)
    return Job(
        *which,
        [piece.text for piece, _ in group],
        np.array([piece.document for piece, _ in group], dtype=np.int64),
        np.array([piece.offset for piece, _ in group], dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array([held for _, held in group], dtype=bool),
        [piece.spans for piece, _ in group] if any(piece.spans is not None for piece, _ in group) else None,
        None if numbers is None else np.array([numbers.get(piece.label, -1) for piece, _ in group], dtype=np.int64),
        np.array([_group_number(piece) for piece, _ in group]) if grouped else None,
    )


def _group_number(piece: TextPiece) -> int:
    if piece.group is None:
        return piece.document
    digest = hashlib.blake2b(piece.group.encode(errors="surrogatepass"), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "little") >> 1)


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8, at once where it is ASCII."""
    return len(text) if text.isascii() else len(text.encode())
