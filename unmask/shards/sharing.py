"""Who carries out passes over tasks: this process and workers on this machine, or the nodes of a Ray cluster.

What comes out does not depend on it. Tasks are read by workers where there are enough of them for all; few tasks, and
long files that cannot be read from their middle, are read here, and workers tokenize what comes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from unmask.shards.jobs import Job
from unmask.shards.pass_files import Pass, Work
from unmask.shards.passes import TaskDoer
from unmask.shards.shard_reader import KeptText, ShardReader, is_done
from unmask.shards.worker_pool import Asked, WorkerPool
from unmask.text.read_plan import ReadTask


class Sharing(Protocol):
    """Carries out passes."""

    def do(self, work: Work, kind: Pass, tasks: Sequence[ReadTask], count: Callable[[int], None]) -> None:
        """Carries out a pass over tasks, those that were done before excepted.

        Args:
            work: What is done.
            kind: Which pass.
            tasks: Some of the corpus.
            count: Told how many more bytes are done.

        Raises:
            UnmaskError: The text cannot be read or tokenized, or a file not be written.
        """
        ...


class OnThisMachine:
    """Shares passes out to this process and some workers.

    Args:
        pool: The workers; where it has 1, this process does all.
        kept: Where a small text stays between passes.
    """

    def __init__(self, pool: WorkerPool, kept: KeptText) -> None:
        self._pool, self._kept = pool, kept

    def do(self, work: Work, kind: Pass, tasks: Sequence[ReadTask], count: Callable[[int], None]) -> None:
        """See `Sharing`."""
        theirs = self._for_workers(tasks)
        mine = [task for task in tasks if task not in theirs]
        doer = TaskDoer(work, self._kept)
        if kind != "shards":
            asked = Asked(work=work, kind=kind, tasks=[task.number for task in theirs])

            def counted_here(num_bytes: int) -> None:
                count(num_bytes)
                self._pool.listen(count)  # a worker's error ends what is done here, too

            self._pool.run(asked, _done_here(doer, kind, mine, counted_here), count=count)
            return
        if self._pool.workers == 1:
            for task in mine:
                doer.do(kind, task.number, count)
            return
        readers: list[ShardReader] = []
        left = self._jobs(work, doer, mine, readers, count)
        first_two = list(islice(left, 2))
        alone = not theirs and len(first_two) < 2
        left = chain(iter(first_two), left)
        del first_two  # so that the texts are not held to the end
        if alone:
            for job in left:
                doer.finish(job, count)
        else:
            asked = Asked(work.made_by, work.plan, work, kind, [task.number for task in theirs])
            self._pool.run(asked, left, count=count)
        for reader in readers:
            reader.finish(doer.tokenizer.vocab_size)

    def _for_workers(self, tasks: Sequence[ReadTask]) -> list[ReadTask]:
        """What workers read: where there are enough tasks, all but those that are longer than the share of one."""
        workers = self._pool.workers
        share = sum(task.num_bytes for task in tasks) / workers
        short = [task for task in tasks if task.num_bytes <= share]
        return short if len(short) >= workers > 1 else []

    def _jobs(
        self,
        work: Work,
        doer: TaskDoer,
        tasks: Sequence[ReadTask],
        readers: list[ShardReader],
        count: Callable[[int], None],
    ) -> Iterator[Job]:
        """What is to be done of tasks that are read here."""
        for task in tasks:
            if work.finished(task) is not None:
                count(task.num_bytes)
                continue
            reader = doer.reader(task)
            readers.append(reader)
            for job in reader.jobs():
                if is_done(job, work):
                    count(int(job.num_bytes.sum()))
                else:
                    yield job


def _done_here(doer: TaskDoer, kind: Pass, tasks: Sequence[ReadTask], count: Callable[[int], None]) -> Iterator[Job]:
    """Carries a pass out, beside the workers; it comes to no jobs."""
    for task in tasks:
        doer.do(kind, task.number, count)
    yield from ()
