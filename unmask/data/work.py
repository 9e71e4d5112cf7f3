"""The tasks of a preparation, and where they run.

A task is a function of the sources, wherever it runs, and leaves one file:

    look     parts/look-00003.npz       what decisions about all of the text need, if there are any
    survey   parts/survey-00003.npz     held-out texts, names of classes, labels of annotations
             parts/sample-00003.arrow   the share of the text on which a tokenizer is trained
    shards   parts/shards-00003.npz     counts; the shards themselves are train/00003-00000.arrow ...

A task is done if its file exists with its key: a hash of the text's stamp, of the settings, and of earlier decisions.
So stopping a task, or doing it twice, does no harm, and it is done again for any other text or settings.

Tasks run in this process and in worker processes of this machine, or on a Ray cluster, with the same results. If there
are enough tasks, each worker does whole tasks. Otherwise, and for long files that can only be read from their
beginning, this process reads and workers tokenize the chunks:

    tasks ─────────────────────────▶ worker processes ──▶ shards
    chunks of what is read here ──▶
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from unmask.core.errors import CorpusError, DataError, SettingsError, UnmaskError
from unmask.core.files import file_sha256, write_atomically, writing
from unmask.core.interruption import held_signals
from unmask.data.annotations import AnnotationPlan, Annotator
from unmask.data.corpus import Corpus, Decisions
from unmask.data.data_folder import (
    PARTS,
    SETTLED,
    TOKENIZER,
    Split,
    TextChunk,
    TextCounts,
    cut_chunks,
    write_shards,
)
from unmask.data.documents import Document, in_groups
from unmask.data.near_duplicates import HeldTexts, Leaks, LeakSearch
from unmask.data.store import ShardFile
from unmask.data.survey import ReadTask, text_hash
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer, UnknownText

Kind = Literal["look", "survey", "shards"]
Count = Callable[[int], None]
"""Called with the number of further bytes of text that are done."""
VERSION = 12  # raised when the same text, settings and tokenizer give different files, so older ones are not used
AFTERWARDS = {"max_unknown"}  # settings of the corpus that no task needs
DECISIONS, SAMPLE = "decisions.npz", "sample-{}.arrow"
MOST_CLASSES = 10_000
COUNT_BYTES = 1 << 18  # bytes of text between counts of the survey
LEAKS = "training texts that nearly repeat held-out text"
_SAMPLE_BATCH_CHARS = 1 << 22
_SAMPLE_SCHEMA = pa.schema({"text": pa.large_string()})
_ODD, _RANGE = 0x9E3779B97F4A7C15, 1 << 64


class Sample(NamedTuple):
    """The text on which a tokenizer is trained."""

    share: float  # share of the pieces, chosen by their hashes; 1: all
    held_too: bool  # whether it includes held-out text

    def takes(self, text: str) -> bool:
        """Whether it includes a piece; uses other bits of the hash than holding out does."""
        return self.share >= 1.0 or (text_hash(text) * _ODD) % _RANGE < self.share * _RANGE


@dataclass(frozen=True)
class Work:
    """What each task of a preparation must know. It travels with the task, without objects loaded for it, so it is
    small."""

    root: Path  # the data folder
    corpus: Corpus  # how text is read; tasks name the files
    size_bytes: int  # bytes of text in a chunk
    sample: Sample | None  # text for training the tokenizer; None: none is trained
    plan: AnnotationPlan | None  # what is annotated; None: nothing
    decided: str  # a hash of all text and settings, if decisions need all of the text; else empty
    settled: str = ""  # a hash of these, the tokenizer and the libraries; empty until they are settled
    classes: tuple[str, ...] | None = None  # classes of the documents; None: not read

    def key(self, kind: Kind, task: ReadTask, bad_input: str | None = None) -> str:
        corpus = self.corpus
        plan = dataclasses.asdict(corpus.plan)
        settings = corpus.settings.model_dump(mode="json", exclude=AFTERWARDS)
        settings["bad_input"] = bad_input or settings["bad_input"]
        content: list[Any] = [VERSION, kind, task.stamp, settings, plan, dict(corpus.fields or {})]
        if kind == "survey":
            content += [self.decided, self.sample]
        if kind == "shards":
            content += [self.settled, self.size_bytes]
        return key_of(content)

    def file(self, name: str, task: ReadTask | None = None) -> Path:
        """A temporary file of the preparation, or of one of its tasks."""
        return self.root / PARTS / (name if task is None else name.format(f"{task.number:05d}"))

    def result(self, kind: Kind, task: ReadTask) -> Mapping[str, Any] | None:
        path = self.file(f"{kind}-{{}}.npz", task)
        arrays = load_arrays(path, self.key(kind, task))
        if arrays is None and self.corpus.settings.bad_input == "skip":
            arrays = load_arrays(path, self.key(kind, task, "error"))  # without an error, there was nothing to skip
        if arrays is not None and kind == "survey":
            sample = self.file(SAMPLE, task)
            if not sample.is_file() or file_sha256(sample) != str(arrays["sample_sha256"]):
                return None
        return arrays

    def decisions(self, task: ReadTask | None = None) -> Decisions:
        if not self.corpus.needs:
            return Decisions()
        return Decisions(self._needed(DECISIONS, of_task=None if task is None else task.number))

    def held(self) -> HeldTexts:
        held = HeldTexts()
        held.join(self._needed(SETTLED))
        return held

    def _needed(self, name: str, of_task: int | None = None) -> Mapping[str, Any]:
        if (arrays := load_arrays(self.file(name), of_task=of_task)) is None:
            raise changed(self.file(name))
        return arrays

    # Objects that a process loads once for many tasks

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.root / TOKENIZER)

    @cached_property
    def annotator(self) -> Annotator | None:
        return None if self.plan is None else Annotator(self.plan)

    @cached_property
    def search(self) -> LeakSearch:
        return LeakSearch(self.held(), every=self.corpus.settings.leaks == "drop")

    def __getstate__(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    def write(self, chunk: TextChunk, count: Count) -> TextCounts:
        return write_shards(chunk, self.tokenizer, self.root, annotator=self.annotator, count=count)


EachChunk = Callable[[Iterator[TextChunk]], Iterator[TextCounts]]
"""Writes the shards of chunks, here or elsewhere, and yields the counts of each, in order."""


def do_task(work: Work, kind: Kind, task: ReadTask, count: Count, each: EachChunk | None = None) -> None:
    """Does a task unless it is done; `each` tokenizes its chunks (None: this process does)."""
    done = work.result(kind, task)
    if done is not None and kind == "shards":  # another try may have written other shards under the same names
        files = [file for split in ("train", "validation") for file in getattr(read_counts(done)[0], split).files]
        paths = [(work.root / file.name, file.sha256) for file in files]
        done = done if all(path.is_file() and file_sha256(path) == sha256 for path, sha256 in paths) else None
    if done is not None:
        count(task.num_bytes)
        return
    key = work.key(kind, task)
    if kind == "look":
        arrays = work.corpus.look(task)
        count(task.num_bytes)
    elif kind == "survey":
        arrays = _survey(work, task, count)
    else:
        arrays = _make_shards(work, task, count, each)
    if work.key(kind, task) != key:
        names = ", ".join(str(source.path) for source in task.sources[:3])
        raise CorpusError(f"{names}: changed while it was read; run the same command again")
    save_arrays(work.file(f"{kind}-{{}}.npz", task), arrays, key)


def _survey(work: Work, task: ReadTask, count: Count) -> dict[str, Any]:
    """Collects held-out texts, names of classes and labels of the data's annotations, and writes a file with the text
    on which the tokenizer is trained."""
    sample, path = work.sample, work.file(SAMPLE, task)
    held, labels = HeldTexts(parts=work.corpus.plan.holdout_unit in ("part", "end")), set[str]()
    span_labels: dict[str, set[str]] = {column: set() for column in work.corpus.fields or ()}

    def sampled() -> Iterator[Document]:
        uncounted = 0
        for piece, is_held in held.collect(work.corpus.read(task, work.decisions(task), Counter())):
            uncounted += len(piece.text.encode())
            if uncounted >= COUNT_BYTES:
                count(uncounted)
                uncounted = 0
            if piece.label is not None and piece.label not in labels:
                labels.add(piece.label)
                if len(labels) > MOST_CLASSES:
                    raise CorpusError(
                        f"corpus.label = {str(work.corpus.settings.label)!r} has more than {MOST_CLASSES:,} "
                        f"different values, such as {piece.label!r}: these are not classes; name another "
                        "column"
                    )
            for column, spans in (piece.spans or {}).items():
                span_labels[column].update(span.label for span in spans)
            if sample is not None and (not is_held or sample.held_too) and sample.takes(piece.text):
                yield piece
        count(uncounted)

    with writing(path, pa.ArrowException):
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, _SAMPLE_SCHEMA) as stream:
            for pieces in in_groups(sampled(), most=_SAMPLE_BATCH_CHARS, most_chars=_SAMPLE_BATCH_CHARS):
                texts = pa.array([piece.text for piece in pieces], pa.large_string())
                stream.write_batch(pa.record_batch([texts], schema=_SAMPLE_SCHEMA))
        sample_sha256 = file_sha256(path)
    return {
        **held.arrays(),
        "labels": json_array(sorted(labels)),
        "span_labels": json_array({column: sorted(names) for column, names in span_labels.items()}),
        "sample_sha256": np.array(sample_sha256),
    }


def _make_shards(work: Work, task: ReadTask, count: Count, each: EachChunk | None) -> dict[str, Any]:
    """Writes the shards of a task's chunks, and compares the text with the held-out texts."""
    search, skipped = work.search, Counter[str]()
    search.begin()
    documents = 0

    def chunks() -> Iterator[TextChunk]:
        nonlocal documents
        leaking = -1  # the document that was left out last
        with closing(work.corpus.read(task, work.decisions(task), skipped)) as pieces:
            for chunk in cut_chunks(pieces, work.size_bytes, work.classes, task=task.number):
                documents = int(chunk.document[-1]) - task.first_document + 1
                leaks = search.look(chunk.texts, chunk.held, chunk.offset)
                dropped = leaks.copy() if search.every else np.zeros(len(leaks), dtype=np.bool_)
                skipped[LEAKS] += int(dropped.sum())
                if search.every and not search.held.parts:  # the rest of a leaking document is left out, too
                    number, offset = chunk.document.tolist(), chunk.offset.tolist()
                    for place in np.flatnonzero(leaks | (chunk.offset > 0)).tolist():
                        if leaks[place]:
                            leaking = number[place]
                        dropped[place] |= offset[place] > 0 and number[place] == leaking
                if not dropped.all():
                    yield chunk.select(~dropped) if dropped.any() else chunk

    text = TextCounts(np.zeros(work.tokenizer.vocab_size, dtype=np.int64))
    for counts in (work.write(chunk, count) for chunk in chunks()) if each is None else each(chunks()):
        text.add(counts)
    # If parts are compared, the rest of a document stays.
    text.documents = documents if search.held.parts else documents - skipped[LEAKS]
    text.skipped = dict(+skipped)
    used = np.flatnonzero(text.frequencies)
    facts = json_array({"text": {**vars(text), "frequencies": None}, "leaks": search.leaks})
    return {"facts": facts, "used": used, "counts": text.frequencies[used]}


def read_counts(arrays: Mapping[str, Any], vocab_size: int = 0) -> tuple[TextCounts, Leaks]:
    """The counts of a task's shards, and the held-out texts that its text nearly repeats; without frequencies if
    `vocab_size` is 0."""
    facts = json.loads(bytes(arrays["facts"]))
    text = facts["text"]
    for split in ("train", "validation"):
        text[split] = Split(**{**text[split], "files": tuple(ShardFile(**file) for file in text[split]["files"])})
    text["unknown"] = UnknownText(**text["unknown"])
    text["frequencies"] = np.zeros(vocab_size, dtype=np.int64)
    if vocab_size:
        text["frequencies"][arrays["used"]] = arrays["counts"]
    return TextCounts(**text), facts["leaks"]


def changed(path: Path) -> DataError:
    return DataError(f"{path}: it or the text has changed in the meantime; run the same command again")


def key_of(content: Any) -> str:
    """A hash of any JSON value."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def json_array(content: Any) -> Any:
    """JSON as bytes in an array, to be saved with other arrays."""
    return np.frombuffer(json.dumps(content, default=vars).encode(), dtype=np.uint8)


def load_arrays(path: Path, key: str | None = None, *, of_task: int | None = None) -> Mapping[str, Any] | None:
    """Loads arrays that `save_arrays` wrote, those of one task (`near-3`) or of all; None if they are missing or
    damaged, or were made for another `key`."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if key is not None and bytes(arrays["key"]).decode() != key:
                return None
            names = [name for name in arrays.files if of_task is None or name.partition("-")[2] in ("", str(of_task))]
            return {name: arrays[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def save_arrays(path: Path, arrays: Mapping[str, Any], key: str) -> None:
    content = io.BytesIO()  # equal arrays, equal bytes
    np.savez(content, key=np.frombuffer(key.encode(), dtype=np.uint8), **arrays)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())


# ----------------------------------------
# Worker processes of this machine

ONE_THREAD = {
    **dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
WAITING_CHUNKS = 2  # chunks read ahead of the workers
FED_BY_A_READER = 5  # workers that tokenize what one process reads
LOOK_SECONDS = 0.05
_starting = threading.Lock()  # two threads at once would each restore what the other has set


class WorkerProcesses:
    """Does tasks in this process and in at most `workers` worker processes, which are started as work comes.

    A worker is a fresh interpreter, never a fork: a fork of a process with threads may hang. It ends with this process,
    even if that is killed: it waits for the other end of a pipe to close.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._counted = 0

    def run(self, work: Work, kind: Kind, tasks: Sequence[ReadTask], count: Count) -> None:
        """Does those tasks that are not done; raises the errors of `do_task`, or a DataError if a worker died."""
        # Whole tasks need no reader here. One feeds about five workers that tokenize chunks, or all if a pipeline
        # annotates; other kinds of tasks have no chunks.
        slow = work.plan is not None and work.plan.pipeline is not None
        least = min(self.workers, 2 if kind != "shards" else self.workers if slow else FED_BY_A_READER)
        share = sum(task.num_bytes for task in tasks) / least
        short = [task for task in tasks if task.num_bytes <= share] if least > 1 else []
        for_workers = short if len(short) >= least else []
        pending = {self.submit(_do_in_worker, work, kind, task) for task in for_workers}

        def listen(num_bytes: int = 0, seconds: float = 0.0) -> None:
            """Counts the work done here and in workers; an error in a worker is raised here, too."""
            done = _wait_for_any(pending, seconds)
            if self._pool is not None:
                # Without the lock, which a killed worker may still hold.
                before, self._counted = self._counted, self._done_bytes.get_obj().value
                num_bytes += self._counted - before
            if num_bytes:
                count(num_bytes)
            for future in done:
                pending.remove(future)
                with _death_of_workers():
                    future.result()

        def each_chunk(chunks: Iterator[TextChunk]) -> Iterator[TextCounts]:
            waiting: deque[Future[TextCounts]] = deque()
            for chunk in chain(chunks, [None]):
                if chunk is not None:
                    waiting.append(self.submit(_do_in_worker, work, kind, chunk))
                most = 0 if chunk is None else self.workers + WAITING_CHUNKS
                del chunk
                while len(waiting) > most:
                    future = waiting.popleft()
                    while not _wait_for_any([future], LOOK_SECONDS):
                        listen()
                    listen()
                    with _death_of_workers():
                        counts = future.result()
                    yield counts

        for task in tasks:
            if task not in for_workers:
                # One chunk, even if it is compressed: not worth starting workers
                is_small = self._pool is None and 4 * task.num_bytes < work.size_bytes
                do_task(work, kind, task, listen, None if self.workers == 1 or is_small else each_chunk)
        while pending:
            listen(seconds=LOOK_SECONDS)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Calls a function in a worker. Workers use one core, import no `__main__`, and ignore Ctrl-C."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            ending, self._alive = context.Pipe(duplex=False)
            self._done_bytes = context.Value("q", 0)
            workers = min(self.workers, 61) if sys.platform == "win32" else self.workers  # Windows waits for no more
            self._pool = ProcessPoolExecutor(workers, context, _start_worker, (ending, self._done_bytes))
        with _starting:
            environment, main = {name: os.environ.get(name) for name in ONE_THREAD}, sys.modules["__main__"]
            in_main_thread = threading.current_thread() is threading.main_thread()
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
            os.environ.update(ONE_THREAD)
            sys.modules["__main__"] = ModuleType("__main__")  # a script without a main guard would run again
            try:
                with _death_of_workers(), held_signals():
                    return self._pool.submit(function, *arguments)  # it may start a process
            finally:
                sys.modules["__main__"] = main
                for name, value in environment.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value
                if in_main_thread:
                    signal.signal(signal.SIGINT, handler)

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._alive.close()
            self._pool.shutdown()


def _wait_for_any(futures: Collection[Future[Any]], seconds: float) -> set[Future[Any]]:
    """The futures that are done, once one is, or after some seconds."""
    with held_signals():
        return wait_for(futures, seconds, "FIRST_COMPLETED").done if futures else set()


@contextmanager
def _death_of_workers() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died, perhaps for lack of memory; run the same command again to resume. If memory is "
            "short, prepare the text by itself (`unmask prepare TEXT --workers 1 --out DATA`), then give DATA instead "
            "of the text"
        ) from error


# In a worker: `work`, with its loaded objects, and `done_bytes`, which all workers share.
_worker: dict[str, Any] = {}


def _start_worker(ending: Connection, done_bytes: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # stderr may be closed
        os.dup2(2, 1)  # what a library prints is not the command's result
    _worker["done_bytes"] = done_bytes

    def end() -> None:
        with suppress(EOFError, OSError):
            ending.recv()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _do_in_worker(work: Work, kind: Kind, job: ReadTask | TextChunk) -> TextCounts | None:
    """In a worker, does a task or writes the shards of a chunk, with the objects already loaded for the same work."""
    shape = attrgetter("root", "decided", "settled", "sample", "corpus.settings", "corpus.plan", "corpus.fields")
    loaded: Work = _worker.setdefault("work", work)
    if shape(loaded) != shape(work):
        _worker["work"] = loaded = work

    def count(num_bytes: int) -> None:
        if "done_bytes" in _worker:
            with _worker["done_bytes"].get_lock():
                _worker["done_bytes"].value += num_bytes

    if isinstance(job, TextChunk):
        return loaded.write(job, count)
    do_task(loaded, kind, job, count)
    return None


# ----------------------------------------
# A Ray cluster. Each of our tasks is a task of Ray's. No text is transferred: a node reads the files and writes into
# the data folder, so all nodes must see both. If a node dies, another one does its tasks.

RAY_LOOK_SECONDS = 0.5
_REACHED_SECONDS, _CANCELLED_SECONDS = 10.0, 30.0
RETRIES = 5  # for a task whose node dies
AUTO = "auto"


class OnRay:
    """Does tasks on the nodes of the Ray cluster at an address (`ray://host:10001`, `host:6379`); `auto` uses the
    cluster of this machine, or starts one here. Raises a SettingsError without Ray or a cluster."""

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
            except ConnectionError:  # this machine belongs to no cluster
                ray.init(include_dashboard=False, **options)
            return
        try:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError("expected host:port")
            socket.create_connection((host, int(port)), timeout=_REACHED_SECONDS).close()  # Ray tries for minutes
            ray.init(address=address, **options)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SettingsError(
                f"{address}: there is no Ray cluster ({reason}); start one with `ray start`, and give its host:port",
                options=["ray"],
            ) from error

    def run(self, work: Work, kind: Kind, tasks: Sequence[ReadTask], count: Count) -> None:
        """As `WorkerProcesses.run`."""
        ray = self._ray

        @ray.remote(num_cpus=1, max_retries=RETRIES)  # type: ignore[untyped-decorator]
        def do_on_node(work: Work, kind: Kind, task: ReadTask, folder: str) -> None:
            if os.path.isdir(folder):  # paths may be relative to the command's working directory
                os.chdir(folder)
            os.environ.update(ONE_THREAD)
            for path in (work.root, task.sources[0].path):
                if not path.exists():
                    raise DataError(
                        f"{path}: a node cannot read it; data and text must be on a disk that all nodes share"
                    )
            _do_in_worker(work, kind, task)

        shared = ray.put(work)
        waiting = {do_on_node.remote(shared, kind, task, os.getcwd()): task for task in tasks}
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
                        name = type(error).__name__
                        raise DataError(f"a Ray task failed ({name}); run the same command again") from error
                    count(task.num_bytes)
        finally:  # so that nothing is written into the folder afterwards
            for reference in waiting:
                ray.cancel(reference, force=True)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCELLED_SECONDS)


Executor = WorkerProcesses | OnRay
