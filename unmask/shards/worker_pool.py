"""Worker processes: passes over whole tasks are shared out to them, and jobs of tasks that are read here.

    tasks ──────────────────────────────────▶ a thread a worker ◀──pipes──▶ worker process ──▶ shards, parts
    what is read here ──▶ queue of two jobs ──▶ (jobs come first)

The process that reads holds at most two jobs that wait and one for each worker that is being sent. A thread does
nothing but talk to its worker, so the interpreter's lock is free for reading.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, cast

from unmask.errors import DataError
from unmask.shards.jobs import Job
from unmask.shards.pass_files import Work
from unmask.shards.worker import read_frame, write_frame
from unmask.text.annotation_plan import AnnotationPlan

WAITING_JOBS = 2
LOOK_SECONDS = 0.05


class Asked(NamedTuple):
    """What workers do of some work.

    Attributes:
        made_by: Fingerprint for the parts of jobs.
        plan: What is annotated in jobs; None is nothing.
        work: All that passes over tasks need; None where there are none.
        kind: Of the passes.
        tasks: Numbers of the tasks.
    """

    made_by: str = ""
    plan: AnnotationPlan | None = None
    work: Work | None = None
    kind: str = "shards"
    tasks: Sequence[int] = ()


_JOB, _TASK, _END = range(3)  # in the order in which workers take what waits


class WorkerPool:
    """Worker processes, started as there is work, or before.

    Args:
        root: The data folder; its tokenizer is there when the first job is.
        workers: Most processes.
    """

    def __init__(self, root: Path, *, workers: int) -> None:
        self.command = [sys.executable, "-P", "-m", "unmask.shards.worker", str(root.resolve())]
        self.workers = workers
        self._waiting: queue.PriorityQueue[tuple[int, int, Any]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._room = threading.Semaphore(WAITING_JOBS)
        self._answers: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts all processes, which import what they need while the caller has other things to do."""
        while len(self._processes) < self.workers:
            self._start_process()

    def run(self, asked: Asked, jobs: Iterable[Job] = (), *, count: Callable[[int], None]) -> None:
        """Carries out passes over tasks, and jobs; returns when all are done.

        Args:
            asked: What is done, and over which tasks.
            jobs: Read here meanwhile.
            count: Told in the calling thread how many more bytes of text are done.

        Raises:
            UnmaskError: What a worker raised.
            DataError: A worker died.
        """
        self._threads = []
        for number in asked.tasks:
            self._wait(_TASK, number)
            self._start_thread(asked)
        for job in jobs:
            self._start_thread(asked)
            self._put(job, count)
        self._end_threads()
        while any(thread.is_alive() for thread in self._threads):
            self._listen(count, LOOK_SECONDS)
        self._listen(count, 0.0)

    def _start_thread(self, asked: Asked) -> None:
        if (number := len(self._threads)) == self.workers:
            return
        if number == len(self._processes):
            self._start_process()
        thread = threading.Thread(target=self._talk, args=(self._processes[number], asked), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait(self, order: int, what: Any) -> None:
        self._waiting.put((order, next(self._numbers), what))

    def _put(self, job: Job, count: Callable[[int], None]) -> None:
        self._listen(count, 0.0)
        while not self._room.acquire(timeout=LOOK_SECONDS):
            self._listen(count, 0.0)
        self._wait(_JOB, job)

    def _end_threads(self) -> None:
        for _ in self._threads:
            self._wait(_END, None)

    def listen(self, count: Callable[[int], None]) -> None:
        """Takes the answers that are there, while the caller has other things to do.

        Raises:
            UnmaskError: What a worker raised.
        """
        self._listen(count, 0.0)

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

    def _talk(self, process: subprocess.Popen[bytes], asked: Asked) -> None:
        to, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        told: set[int] = set()
        try:
            while (found := self._waiting.get())[0] != _END:
                order, _, what = found
                del found
                if order == _JOB:
                    self._room.release()
                if order not in told:
                    write_frame(
                        to, ("jobs_of", asked.made_by, asked.plan) if order == _JOB else ("tasks_of", asked.work)
                    )
                    told.add(order)
                write_frame(to, ("job", what) if order == _JOB else ("task", asked.kind, what))
                del what  # the worker has it now
                while (answer := read_frame(answers))[0] != "done":
                    if answer[0] == "error":  # not raised here: it may be an `OSError`, as that of a dead worker is
                        self._answers.put(answer[1](answer[2]))
                        return
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
                while True:  # threads that wait for something shall not find it
                    self._waiting.get_nowait()
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
