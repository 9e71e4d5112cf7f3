"""Reading a task into jobs, and writing down what its jobs came to."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.files import write_atomically
from unmask.shards.job_parts import PARTS, add_frequencies, load_part, npy_bytes
from unmask.shards.job_work import cannot_write
from unmask.shards.jobs import Job, cut_jobs
from unmask.shards.pass_files import TaskPart, Work, task_file
from unmask.text.documents import TextPiece
from unmask.text.read_plan import ReadTask
from unmask.text.split_check import HeldIndex, LeakSearch
from unmask.text.whole_corpus import Decisions

KEPT_BYTES = 1 << 25  # of text that is held in memory from one pass to the next
PIECE_BYTES = 250  # about what a piece takes beside its text
LEAKS = "training documents that nearly stand in the held-out text"


class KeptText:
    """A small text, which is read once: what one pass has read, the next one finds in memory.

    Attributes:
        may: Whether it is kept.
        pieces: Of the one task that there is; None where it is too large, or was not read.
        skipped: What was left out of it.
    """

    def __init__(self, *, may: bool) -> None:
        self.pieces: list[tuple[TextPiece, bool]] | None = None
        self.skipped: Counter[str] = Counter()
        self.may = may

    def keep(self, pieces: Iterable[tuple[TextPiece, bool]]) -> Iterator[tuple[TextPiece, bool]]:
        """Hands pieces through and remembers them."""
        kept, kept_bytes = [], 0
        for marked in pieces:
            if self.may:
                kept.append(marked)
                kept_bytes += sys.getsizeof(marked[0].text) + PIECE_BYTES
                if kept_bytes > KEPT_BYTES:
                    self.may = False
                    kept.clear()
            yield marked
        self.pieces = kept if self.may else None


class ShardReader:
    """The jobs of a task, compared with what is held out as they go by.

    Args:
        work: What is done.
        task: What is read.
        decisions: About all of the text.
        index: Of what is held out.
        kept: Where the text may be found in memory.
    """

    def __init__(self, work: Work, task: ReadTask, decisions: Decisions, index: HeldIndex, kept: KeptText) -> None:
        self.task = task
        self._work, self._decisions, self._kept = work, decisions, kept
        self._drops = work.corpus.settings.leaks == "drop"
        self._search = LeakSearch(index, every=self._drops)
        self._skipped: Counter[str] = Counter()
        self._made: dict[str, str] = {}
        self._key = work.key("shards", task)
        self._documents = self._left_out = 0
        self._leaking = -1  # the document that was left out last

    def jobs(self) -> Iterator[Job]:
        """The jobs, in their order; to be gone through to the end."""
        work, task = self._work, self.task
        with closing(self._pieces()) as pieces:
            for job in cut_jobs(pieces, work.size_bytes, work.classes, task=task.number):
                self._documents = int(job.document[-1]) - task.first_document + 1
                leaks = self._search.look(job.texts, job.held, job.offset)
                left = self._without_leaks(job, leaks) if self._drops else job
                if left.texts:
                    self._made[left.name] = left.content_hash
                    yield left

    def _pieces(self) -> Generator[tuple[TextPiece, bool]]:
        if self._kept.pieces is None:
            yield from self._work.corpus.read(self.task, self._decisions, self._skipped)
        else:
            self._skipped += self._kept.skipped
            yield from self._kept.pieces

    def _without_leaks(self, job: Job, leaks: NDArray[np.bool_]) -> Job:
        """The job without what nearly stands in the held-out text, and without what goes on behind it."""
        gone = leaks.copy()
        if not self._search.index.held.parts:
            number, offset = job.document.tolist(), job.offset.tolist()
            for place in np.flatnonzero(leaks | (job.offset > 0)).tolist():
                if leaks[place]:
                    self._leaking = number[place]
                gone[place] |= offset[place] > 0 and number[place] == self._leaking
        self._left_out += int(leaks.sum())
        return job.without(gone) if gone.any() else job

    def finish(self, vocab_size: int) -> None:
        """Writes down what the task came to, when the parts of all of its jobs are there.

        Raises:
            DataError: A part was changed by somebody else, or a file cannot be written.
        """
        root, name = self._work.root, f"{self.task.number:05d}"
        counts = np.zeros(vocab_size, dtype=np.int64)
        try:
            for job in self._made:
                add_frequencies(counts, root, job)
        except (OSError, ValueError) as error:
            raise DataError(f"{root / PARTS}: was changed by somebody else; run the same command again") from error
        skipped = self._skipped + Counter({LEAKS: self._left_out} if self._left_out else {})
        key = self._work.unchanged(self._key, "shards", self.task)
        leaks = self._search.found.plain()
        part = TaskPart(key, self._made, self._documents, dict(skipped), leaks, self._left_out)
        used = np.flatnonzero(counts)
        try:
            write_atomically(root / PARTS / f"{name}.npy", npy_bytes(np.stack([used, counts[used]])))
            write_atomically(task_file(root, self.task.number), json.dumps(vars(part)))
        except OSError as error:
            raise cannot_write(root, error) from error


def is_done(job: Job, work: Work) -> bool:
    """Whether a job's part is there, of the same text and made in the same way."""
    part = load_part(work.root, job.name)
    fits = part is not None and (part.made_by, part.content_hash) == (work.made_by, job.content_hash)
    return part is not None and fits and part.is_whole(work.root)
