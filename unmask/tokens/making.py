"""Jobs to parts: those that are done already are kept, the others are carried out here or by workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from unmask.annotation.annotator import Annotator
from unmask.tokens.jobs import Job
from unmask.tokens.parts import load_part
from unmask.tokens.pool import WorkerPool
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.work import finish_job


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_parts(
    jobs: Iterable[Job],
    root: Path,
    tokenizer: Tokenizer,
    *,
    made_by: str,
    annotator: Annotator | None = None,
    pool: WorkerPool,
    count: Callable[[int], None],
) -> int:
    """Sees to it that the part of each job is there.

    Args:
        jobs: In their order.
        root: The data folder, in which the tokenizer stands as well.
        tokenizer: That tokenizer.
        made_by: Fingerprint of what parts are made with.
        annotator: What is said of the text beside its tokens; None is nothing.
        pool: Workers; where it has 1, or there is a single job to do, this process does it.
        count: Told how many more bytes of text are done.

    Returns:
        The number of jobs.

    Raises:
        DataError: A file cannot be written, or a worker died.
    """
    num_jobs = 0

    def to_do() -> Iterator[Job]:
        nonlocal num_jobs
        for job in jobs:
            num_jobs += 1
            if _is_done(job, root, made_by):
                count(int(job.num_bytes.sum()))
            else:
                yield job

    left = to_do()
    first_two = list(islice(left, 2))
    alone = pool.workers == 1 or len(first_two) < 2
    left = chain(iter(first_two), left)
    del first_two  # so that the texts are not held to the end
    if alone:
        for job in left:
            finish_job(job, tokenizer, root, made_by=made_by, annotator=annotator, count=count)
    else:
        pool.run(left, made_by=made_by, plan=None if annotator is None else annotator.plan, count=count)
    return num_jobs


def _is_done(job: Job, root: Path, made_by: str) -> bool:
    part = load_part(root, job.number)
    return part is not None and (part.made_by, part.content_hash) == (made_by, job.content_hash) and part.is_whole(root)
