"""Where the tasks of a preparation run: in this process and worker processes of this machine, or on a Ray cluster.

What comes out does not depend on it. Workers do whole tasks where there are enough of them for all. Few tasks, and long
files that cannot be read from their middle, are read here, and workers tokenize their chunks:

    tasks ─────────────────────────▶ worker processes ──▶ shards
    chunks of what is read here ──▶
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from unmask.core.errors import DataError, SettingsError, UnmaskError
from unmask.data.shards import TextChunk, TextCounts
from unmask.data.survey import ReadTask
from unmask.data.work import Count, Kind, Tools, Work, do_task

ONE_THREAD = {
    **dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
WAITING_CHUNKS = 2  # that are read ahead of the workers
LOOK_SECONDS = 0.05


class WorkerProcesses:
    """Does tasks in this process and in worker processes, which are started as there is work, or before.

    A worker is a fresh interpreter, never a fork: a fork of a process that has threads may hang. It does not outlive
    this process, even where that is killed: it waits for the other end of a pipe to close.

    Args:
        workers: Most processes; 1 does all in this one.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._counted = 0

    def run(self, work: Work, kind: Kind, tasks: Sequence[ReadTask], count: Count) -> None:
        """Does tasks, those that were done before excepted.

        Raises:
            UnmaskError: The text cannot be read or tokenized, a file not be written, or a worker died.
        """
        share = sum(task.num_bytes for task in tasks) / self.workers
        short = [task for task in tasks if task.num_bytes <= share]
        for_workers = short if len(short) >= self.workers > 1 else []
        pending = {self._submit(_do_task, work, kind, task) for task in for_workers}

        def listen(seconds: float = 0.0) -> None:
            """Counts what workers have done; an error of one of them ends what is done here, too."""
            done = wait_for(pending, seconds, "FIRST_COMPLETED").done if pending else set()
            if self._pool is not None:
                # Without its lock, which a worker may have held when it was killed.
                before, self._counted = self._counted, self._done_bytes.get_obj().value
                if self._counted > before:
                    count(self._counted - before)
            for future in done:
                pending.remove(future)
                with _death_of_workers():
                    future.result()

        def count_here(num_bytes: int) -> None:
            count(num_bytes)
            listen()

        tools = Tools(work)
        each = partial(self._each_chunk, tools, count, listen) if self.workers > 1 else None
        for task in tasks:
            if task not in for_workers:
                do_task(tools, kind, task, count_here, each)
        while pending:
            listen(LOOK_SECONDS)

    def _each_chunk(
        self, tools: Tools, count: Count, listen: Callable[[], None], chunks: Iterator[TextChunk]
    ) -> Iterator[TextCounts]:
        """Has workers write the shards of chunks; a text of one chunk is not worth starting them."""
        first_two = list(islice(chunks, 2))
        if len(first_two) < 2 and self._pool is None:
            for chunk in first_two:
                yield tools.write(chunk, count)
            return
        waiting: deque[Future[TextCounts]] = deque()
        pending = chain(iter(first_two), chunks)
        del first_two  # so that the texts are not held to the end

        def finished(future: Future[TextCounts]) -> TextCounts:
            while not future.done():
                wait_for([future], LOOK_SECONDS)
                listen()
            listen()
            with _death_of_workers():
                return future.result()

        for chunk in pending:
            waiting.append(self._submit(_write_shards, tools.work, chunk))
            del chunk
            while len(waiting) > self.workers + WAITING_CHUNKS:
                yield finished(waiting.popleft())
        while waiting:
            yield finished(waiting.popleft())

    def start(self) -> None:
        """Starts all workers, which import what they need while the caller has other things to do."""
        for _ in range(self.workers):
            self._submit(os.getpid)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            ending, self._alive = context.Pipe(duplex=False)
            self._done_bytes = context.Value("q", 0)
            self._pool = ProcessPoolExecutor(self.workers, context, _begin, (ending, self._done_bytes))
        with _death_of_workers(), _for_workers():  # it may start a process
            return self._pool.submit(function, *arguments)

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the workers: they have nothing to do, or what they do is of no use any more."""
        if self._pool is not None:
            self._alive.close()
            self._pool.shutdown()


@contextmanager
def _death_of_workers() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process ended, perhaps for want of memory; `unmask prepare` goes on from what is done: run it "
            "again, with fewer workers if memory is short (1 works without further processes)",
            options=["workers"],
        ) from error


@contextmanager
def _for_workers() -> Iterator[None]:
    """Processes that are started meanwhile use one core, import no `__main__`, and leave Ctrl-C to this one."""
    environment = {name: os.environ.get(name) for name in ONE_THREAD}
    main = sys.modules["__main__"]
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    os.environ.update(ONE_THREAD)
    sys.modules["__main__"] = ModuleType("__main__")  # a script without a guard would run again
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)


_worker: dict[str, Any] = {}
"""In a worker: the bytes that all workers have done."""
_loaded: dict[str, Tools] = {}
"""What this process has loaded, by the work that it belongs to."""


def _begin(ending: Connection, done_bytes: Any) -> None:
    """Makes a worker of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # stderr may be closed
        os.dup2(2, 1)  # what a library prints is no result of the command
    _worker["done_bytes"] = done_bytes

    def end() -> None:
        with suppress(EOFError, OSError):
            ending.recv()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _count(num_bytes: int) -> None:
    with _worker["done_bytes"].get_lock():
        _worker["done_bytes"].value += num_bytes


def _tools(work: Work) -> Tools:
    key = f"{work.root} {work.decided} {work.settled}"
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = Tools(work)
    return _loaded[key]


def _write_shards(work: Work, chunk: TextChunk) -> TextCounts:
    return _tools(work).write(chunk, _count)


def _do_task(work: Work, kind: Kind, task: ReadTask, count: Count = _count) -> None:
    do_task(_tools(work), kind, task, count)


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ----------------------------------------
# A task of ours is a task of Ray's. No text travels: a node reads the files and writes into the data folder, so all
# nodes must see both. What a node that dies was at, another one does again.

RAY_LOOK_SECONDS = 0.5
_REACHED_SECONDS, _CANCELLED_SECONDS = 10.0, 30.0
RETRIES = 5  # of a task whose node dies
AUTO = "auto"


class OnRay:
    """Does tasks on the nodes of a Ray cluster.

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
            raise SettingsError("ray needs Ray: pip install 'unmask[ray]'") from error
        self._ray: Any = ray
        if ray.is_initialized():
            return
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == AUTO:
            try:
                ray.init(address=AUTO, **options)
            except ConnectionError:  # there is none that this machine belongs to
                ray.init(include_dashboard=False, **options)
            return
        try:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError("that is no host:port")
            socket.create_connection((host, int(port)), timeout=_REACHED_SECONDS).close()  # Ray tries for minutes
            ray.init(address=address, **options)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SettingsError(
                f"{address}: there is no Ray cluster ({reason}); start it with ray start, and name host:port",
                options=["ray"],
            ) from error

    def run(self, work: Work, kind: Kind, tasks: Sequence[ReadTask], count: Count) -> None:
        """As `WorkerProcesses.run`."""
        ray = self._ray
        do_task = ray.remote(num_cpus=1, max_retries=RETRIES)(_do_on_node)
        shared = ray.put(work)
        waiting = {do_task.remote(shared, kind, task, os.getcwd()): task for task in tasks}
        try:
            while waiting:
                for reference in ray.wait(list(waiting), timeout=RAY_LOOK_SECONDS)[0]:
                    task = waiting.pop(reference)
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        if isinstance(error.cause, UnmaskError):
                            raise error.cause from error
                        raise RuntimeError(f"on a node of the cluster:\n{error}") from error
                    except ray.exceptions.RayError as error:
                        raise DataError(
                            f"Ray could not carry a task out ({type(error).__name__}); what is done is kept: run the "
                            "same command again"
                        ) from error
                    count(task.num_bytes)
        finally:  # nothing is written into the folder afterwards
            for reference in waiting:
                ray.cancel(reference, force=True)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCELLED_SECONDS)


def _do_on_node(work: Work, kind: Kind, task: ReadTask, folder: str) -> None:
    if os.path.isdir(folder):  # paths may be relative to where the command was started
        os.chdir(folder)
    os.environ.update(ONE_THREAD)
    for path in (work.root, task.sources[0].path):
        if not path.exists():
            raise DataError(f"{path}: a node of the cluster does not see it; data and text must lie on a disk of all")
    _do_task(work, kind, task, lambda num_bytes: None)


Executor = WorkerProcesses | OnRay
