"""Who carries out passes over tasks: this process and workers on this machine, or the nodes of a Ray cluster.

What comes out does not depend on it. Tasks are read by workers where there are enough of them for all; few tasks, and
long files that cannot be read from their middle, are read here, and workers tokenize what comes of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, cast

from unmask.core.errors import DataError, SettingsError, UnmaskError
from unmask.data.annotations import AnnotationPlan
from unmask.data.jobs import Job
from unmask.data.passes import KeptText, Pass, ShardReader, TaskDoer, Work, is_done
from unmask.data.survey import ReadTask
from unmask.data.worker import read_frame, write_frame

# ----------------------------------------
# Passes over tasks on the nodes of a Ray cluster, a task of ours a task of Ray's.
#
# No text travels: whoever carries a task out reads its files and writes into the data folder, so all nodes must see
# both.
# What a node that dies was at, another one does again.

LOOK_SECONDS = 0.5
_REACHED_SECONDS, _CANCELLED_SECONDS = 10.0, 30.0
RETRIES = 5  # of a task whose node dies
AUTO = "auto"
_ONE = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class OnRay:
    """Shares passes out to a Ray cluster.

    Args:
        address: Of the cluster (`ray://host:10001`, `host:6379`); `auto` takes the one that this machine belongs to, or
            starts one here.

    Raises:
        SettingsError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str = AUTO) -> None:
        try:
            import ray
        except ImportError as error:
            raise SettingsError("--ray needs Ray: pip install 'unmask[ray]'") from error
        self._ray: Any = ray
        if not ray.is_initialized():
            self._join(address)

    def _join(self, address: str) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == AUTO:
            try:
                self._ray.init(address=AUTO, **options)
            except ConnectionError:  # there is none that this machine belongs to
                self._ray.init(include_dashboard=False, **options)
            return
        try:
            _reach(address)  # Ray itself tries for minutes
            self._ray.init(address=address, **options)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SettingsError(
                f"--ray {address}: there is no Ray cluster ({reason}); start it with ray start, and name host:port"
            ) from error

    @property
    def num_cores(self) -> int:
        """Of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def do(self, work: Work, kind: Pass, tasks: Sequence[ReadTask], count: Callable[[int], None]) -> None:
        """See `unmask.data.workers.Sharing`.

        Raises:
            UnmaskError: What a task raised.
            DataError: Nodes died again and again, or do not see the files.
        """
        ray = self._ray
        shared = ray.put(work)
        carry_out = ray.remote(num_cpus=1, max_retries=RETRIES)(_carry_out)
        waiting = {carry_out.remote(shared, kind, task.number, os.getcwd()): task for task in tasks}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=LOOK_SECONDS)
                for reference in done:
                    task = waiting.pop(reference)
                    self._get(reference)
                    count(task.num_bytes)
        finally:  # nobody writes into the folder afterwards
            for reference in waiting:
                ray.cancel(reference, force=True)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCELLED_SECONDS)

    def _get(self, reference: Any) -> None:
        exceptions = self._ray.exceptions
        try:
            self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise _of_task(error) from error
        except exceptions.RayError as error:
            raise DataError(
                f"Ray could not carry a task out ({type(error).__name__}); what is done is kept: run the same command "
                "again"
            ) from error


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("that is no host:port")
    socket.create_connection((host, int(port)), timeout=_REACHED_SECONDS).close()


def _of_task(error: Any) -> Exception:
    """What went wrong in a task of Ray's."""
    return error.cause if isinstance(error.cause, UnmaskError) else RuntimeError(f"on a node of the cluster:\n{error}")


def _carry_out(work: Work, kind: Pass, number: int, folder: str) -> None:
    if os.path.isdir(folder):  # paths may be relative to where the command was started
        os.chdir(folder)
    source = work.corpus.tasks[number].sources[0].path
    os.environ.update({**_ONE, "TOKENIZERS_PARALLELISM": "false"})
    for path in (work.root, source):
        if not path.exists():
            raise DataError(f"{path}: a node of the cluster does not see it; data and text must lie on a disk of all")
    TaskDoer(work).do(kind, number, lambda num_bytes: None)


# ----------------------------------------
# Worker processes: passes over whole tasks are shared out to them, and jobs of tasks that are read here.
#
#     tasks ──────────────────────────────────▶ a thread a worker ◀──pipes──▶ worker process ──▶ shards, parts
#     what is read here ──▶ queue of two jobs ──▶ (jobs come first)
#
# The process that reads holds at most two jobs that wait and one for each worker that is being sent. A thread does
# nothing but talk to its worker, so the interpreter's lock is free for reading.

WAITING_JOBS = 2
LOOK_SECONDS_OF_WORKER_POOL = 0.05


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
        self.command = [sys.executable, "-P", "-m", "unmask.data.worker", str(root.resolve())]
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
            self._listen(count, LOOK_SECONDS_OF_WORKER_POOL)
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
        while not self._room.acquire(timeout=LOOK_SECONDS_OF_WORKER_POOL):
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
