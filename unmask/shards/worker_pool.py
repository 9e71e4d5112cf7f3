"""Jobs to parts: those that are done are kept, the others are carried out here or shared out to worker processes.

    corpus ──▶ queue of two jobs ──▶ a thread a worker ◀──pipes──▶ worker process ──▶ shards, parts

The process that reads the corpus holds at most two jobs that wait and one for each worker that is being sent. A
thread does nothing but talk to its worker, so the interpreter's lock is free for reading.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from unmask.errors import DataError
from unmask.shards.job_parts import load_part
from unmask.shards.job_work import finish_job
from unmask.shards.jobs import Job
from unmask.shards.worker import read_frame, write_frame
from unmask.text.annotation_plan import AnnotationPlan, Annotator
from unmask.tokenizer.tokenizer import Tokenizer

WAITING_JOBS = 2
LOOK_SECONDS = 0.05


class WorkerPool:
    """Worker processes, started as jobs arrive, or before.

    Args:
        root: The data folder; its tokenizer is there when the first job is.
        workers: Most processes.
    """

    def __init__(self, root: Path, *, workers: int) -> None:
        self.command = [sys.executable, "-P", "-m", "unmask.shards.worker", str(root.resolve())]
        self.workers = workers
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(WAITING_JOBS)
        self._answers: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts all processes, which import what they need while the caller has other things to do."""
        while len(self._processes) < self.workers:
            self._start_process()

    def run(
        self, jobs: Iterable[Job], *, made_by: str, plan: AnnotationPlan | None = None, count: Callable[[int], None]
    ) -> None:
        """Carries out jobs, once; returns when all are done.

        Args:
            jobs: In their order.
            made_by: Fingerprint for the parts.
            plan: What workers annotate; None is nothing.
            count: Told in the calling thread how many more bytes of text were tokenized.

        Raises:
            UnmaskError: What a worker raised.
            DataError: A worker died.
        """
        for job in jobs:
            if (number := len(self._threads)) < self.workers:
                if number == len(self._processes):
                    self._start_process()
                thread = threading.Thread(target=self._talk, args=(self._processes[number], made_by, plan), daemon=True)
                self._threads.append(thread)
                thread.start()
            self._put(job, count)
        self._end_threads()
        while any(thread.is_alive() for thread in self._threads):
            self._listen(count, LOOK_SECONDS)
        self._listen(count, 0.0)

    def _put(self, job: Job, count: Callable[[int], None]) -> None:
        self._listen(count, 0.0)
        while not self._room.acquire(timeout=LOOK_SECONDS):
            self._listen(count, 0.0)
        self._jobs.put(job)

    def _end_threads(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _listen(self, count: Callable[[int], None], seconds: float) -> None:
        """Takes the answers that are there, and waits for one."""
        with contextlib.suppress(queue.Empty):
            while True:
                answer = self._answers.get(timeout=seconds) if seconds else self._answers.get_nowait()
                if isinstance(answer, BaseException):
                    raise answer
                count(answer)
                seconds = 0.0

    def _start_process(self) -> None:
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            # Ctrl-C goes to this process alone, which ends its workers.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._processes.append(process)

    def _talk(self, process: subprocess.Popen[bytes], made_by: str, plan: AnnotationPlan | None) -> None:
        to, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        try:
            write_frame(to, (made_by, plan))
            while (job := self._jobs.get()) is not None:
                self._room.release()
                write_frame(to, job)
                del job  # the worker has it now
                while (answer := read_frame(answers))[0] != "done":
                    if answer[0] == "error":
                        raise answer[1](answer[2])
                    self._answers.put(answer[1])
        except (EOFError, OSError):
            self._answers.put(_death(process))
        except BaseException as error:
            self._answers.put(error)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the workers: they have nothing to do, or what they do is of no use any more."""
        if kind is not None:
            for process in self._processes:
                process.kill()
            with contextlib.suppress(queue.Empty):
                while True:  # threads that wait for a job shall not find one
                    self._jobs.get_nowait()
            self._end_threads()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not sent to a worker that is gone
                    cast(IO[bytes], stream).close()
            process.wait()


def _environment() -> dict[str, str]:
    """A worker imports what this process would, and uses one core."""
    one = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)
    return {**os.environ, **one, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}


def _death(process: subprocess.Popen[Any]) -> DataError:
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return DataError(
        f"a worker process {how}, perhaps for want of memory; `unmask prepare` goes on from what is done: "
        "run it again, with fewer --workers if memory is short (1 works without further processes)"
    )


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
