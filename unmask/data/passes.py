"""What is done with one task at a time, whoever does it: this process, a worker, or a node of a cluster.

    look     parts/look-00003.npz        what decisions about all of the text need, where there are any
    survey   parts/survey-00003.npz      its held-out texts, the names of its classes
             parts/sample-00003.arrow    its share of the text that a tokenizer is trained on
    shards   train/00003-00000.arrow, parts/00003-00000.json ...    of each job; see `unmask.data.jobs`
             parts/00003.npy, parts/00003.task                      what they come to

Between two passes all that was found is put together: `parts/decisions.npz` (before the survey), `parts/held.npz` and
the tokenizer (before the shards). Every file is written whole and says what it was made of, so a pass that was stopped,
or is done twice, does no harm.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, DataError, parse_json
from unmask.core.files import file_sha256, write_atomically, writing
from unmask.data.annotations import AnnotationPlan, Annotator
from unmask.data.corpus import Corpus, Decisions, check_number, decisions_of
from unmask.data.documents import TextPiece
from unmask.data.jobs import (
    PARTS,
    Job,
    add_frequencies,
    cannot_write,
    cut_jobs,
    finish_job,
    load_part,
    npy_bytes,
    utf8_bytes,
)
from unmask.data.near_duplicates import FoundLeaks, HeldIndex, HeldTexts, LeakSearch, found_leaks, held_texts, packed
from unmask.data.survey import ReadTask, text_hash
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

# ----------------------------------------
# The text that a tokenizer is trained on: a share of the documents, a file for each task.
#
# A file is written while the task is surveyed, and has its name once it is whole; all are read one behind another.

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


# ----------------------------------------
# What passes over tasks are asked to do, and the files that they leave: by which keys, and how these are read again.
#
# Every file says what it was made of: its key is a hash of the text's stamp, of the settings, and of what was decided
# before. A file with another key is none. `unmask.data.passes` shows which files there are.

Pass = Literal["look", "survey", "shards"]
PASSES_VERSION = 1  # raised whenever a pass comes to something else with the same text and settings
DECISIONS, HELD = "decisions.npz", "held.npz"


@dataclass(frozen=True)
class Work:
    """All that whoever carries out passes must know.

    Attributes:
        root: The data folder.
        corpus: What is read, in tasks.
        size_bytes: Text of a job.
        sample: What the tokenizer is trained on; None: it is given.
        plan: What is annotated; None is nothing.
        made_by: Fingerprint of settings, tokenizer and libraries; empty before the tokenizer is known.
        decided: A hash of the decisions about all of the text; empty before they are made.
        settled: A hash of that, of the held-out texts and of the classes; empty before the survey is over.
        classes: Names of the documents' classes; None where none are read.
    """

    root: Path
    corpus: Corpus
    size_bytes: int
    sample: Sample | None
    plan: AnnotationPlan | None
    made_by: str = ""
    decided: str = ""
    settled: str = ""
    classes: tuple[str, ...] | None = None

    @cached_property
    def _corpus_key(self) -> str:
        corpus = self.corpus
        content = [PASSES_VERSION, corpus.settings.plain(), dataclasses.asdict(corpus.plan), dict(corpus.fields or {})]
        return key_of(content)

    def key(self, kind: Pass, task: ReadTask) -> str:
        """What a file of a pass says it was made of."""
        content: list[Any] = [kind, self._corpus_key, task.stamp]
        if kind == "survey":
            content += [self.decided, self.sample]
        if kind == "shards":
            content += [self.made_by, self.settled, self.size_bytes]
        return key_of(content)

    def unchanged(self, before: str, kind: Pass, task: ReadTask) -> str:
        """The key that was taken before a task was read, if it is the same by now.

        Raises:
            CorpusError: A file has changed while it was read.
        """
        if self.key(kind, task) != before:
            names = ", ".join(str(source.path) for source in task.sources[:3])
            raise CorpusError(f"{names}: has changed while it was read; run the same command again")
        return before

    def file(self, name: str) -> Path:
        """A file of what is there only while the data is made."""
        return self.root / PARTS / name

    def result(self, kind: Literal["look", "survey"], task: ReadTask) -> Mapping[str, Any] | None:
        """What a pass came to; None where it was not carried out, or of other text."""
        found = load_arrays(self.file(f"{kind}-{task.number:05d}.npz"))
        if found is None or bytes(found["key"]).decode() != self.key(kind, task):
            return None
        sample = self.file(sample_name(task))
        if kind == "look" or self.sample is None:
            return found
        return found if sample.is_file() and file_sha256(sample) == bytes(found["sample"]).decode() else None

    def finished(self, task: ReadTask) -> TaskPart | None:
        """What a task came to; None where its shards are not made, or not whole, or of something else."""
        part = load_task_part(self.root, task.number)
        if part is None or part.key != self.key("shards", task):
            return None
        for name, content_hash in part.jobs.items():
            job = load_part(self.root, name)
            if job is None or (job.content_hash, job.made_by) != (content_hash, self.made_by):
                return None  # another try has made it anew
            if not job.is_whole(self.root):
                return None
        return part

    def is_done(self, kind: Pass, task: ReadTask) -> bool:
        """Whether a pass was carried out."""
        return (self.finished(task) if kind == "shards" else self.result(kind, task)) is not None

    def sample_texts(self) -> Iterator[str]:
        """What the tokenizer is trained on, after the survey of all tasks.

        Raises:
            DataError: Somebody has changed the files meanwhile.
        """
        return sample_texts(self.file(sample_name(task)) for task in self.corpus.tasks)


def key_of(content: Any) -> str:
    """A hash of anything that JSON can say."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_arrays(path: Path, *, of_task: int | None = None) -> Mapping[str, Any] | None:
    """Arrays as `save_arrays` wrote them; None where they are not there, or damaged.

    Args:
        path: The file.
        of_task: Arrays that are of other tasks (`near-3`) are not loaded; None loads all.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            names = [name for name in arrays.files if of_task is None or name.partition("-")[2] in ("", str(of_task))]
            return {name: arrays[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def save_arrays(path: Path, arrays: Mapping[str, Any], key: str) -> None:
    """Writes arrays with what they were made of.

    Raises:
        DataError: They cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, packed({"key": np.frombuffer(key.encode(), dtype=np.uint8), **arrays}))
    except OSError as error:
        raise cannot_write(path.parent.parent, error) from error


def load_decisions(work: Work, task: ReadTask | None = None) -> Decisions:
    """What was decided about all of the text.

    Args:
        work: What is done.
        task: Whose documents are asked for; None asks for all.

    Raises:
        DataError: Somebody has removed it meanwhile.
    """
    if not any(work.corpus.wanted):
        return Decisions()
    return decisions_of(load_present(work, DECISIONS, of_task=None if task is None else task.number))


def load_present(work: Work, name: str, *, of_task: int | None = None) -> Mapping[str, Any]:
    """Arrays that are there once they are asked for; see `load_arrays`.

    Raises:
        DataError: Somebody has removed them meanwhile.
    """
    found = load_arrays(work.file(name), of_task=of_task)
    if found is None:
        raise DataError(f"{work.file(name)}: was changed by somebody else; run the same command again")
    return found


@dataclass(frozen=True)
class TaskPart:
    """What a task came to.

    Attributes:
        key: Of what it was made.
        jobs: Names of its jobs, in their order, with the hash of what is in each.
        documents: How many it has, those without tokens as well.
        skipped: What was left out: reason to number.
        leaks: What of the held-out text was found in it, as `FoundLeaks.plain` gives it.
        left_out: Training documents that were left out for that.
    """

    key: str
    jobs: dict[str, str]
    documents: int
    skipped: dict[str, int]
    leaks: Any
    left_out: int

    @property
    def found(self) -> FoundLeaks:
        """What of the held-out text was found in it."""
        return found_leaks(self.leaks)


def task_file(root: Path, number: int) -> Path:
    """Where it stands what a task came to."""
    return root / PARTS / f"{number:05d}.task"


def load_task_part(root: Path, number: int) -> TaskPart | None:
    """Reads what a task came to; None where it is not there or cannot be read."""
    try:
        return TaskPart(**parse_json(task_file(root, number).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


# ----------------------------------------
# Reading a task into jobs, and writing down what its jobs came to.

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


Count = Callable[[int], None]
TOLD_BYTES = 1 << 18  # of text, after which progress is told


class TaskDoer:
    """Carries out passes.

    Args:
        work: What is done.
        kept: What is read is kept there; None keeps nothing.
    """

    def __init__(self, work: Work, kept: KeptText | None = None) -> None:
        self.work, self.kept = work, kept or KeptText(may=False)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The one that stands in the folder."""
        return load_tokenizer(self.work.root / "tokenizer")

    @cached_property
    def annotator(self) -> Annotator | None:
        """What the texts are annotated by."""
        return None if self.work.plan is None else Annotator(self.work.plan)

    @cached_property
    def index(self) -> HeldIndex:
        """What is held out."""
        return HeldIndex(held_texts(load_present(self.work, HELD)))

    def do(self, kind: Pass, number: int, count: Count) -> None:
        """Carries out a pass over a task, unless that was done.

        Args:
            kind: Which.
            number: Of the task.
            count: Told how many more bytes of text are done.

        Raises:
            UnmaskError: The text cannot be read or tokenized, or a file not be written.
        """
        task = self.work.corpus.tasks[number]
        if self.work.is_done(kind, task):
            count(task.num_bytes)
        elif kind == "look":
            key = self.work.key("look", task)
            arrays = self.work.corpus.look(task).arrays()
            save_arrays(self.work.file(f"look-{number:05d}.npz"), arrays, self.work.unchanged(key, "look", task))
            count(task.num_bytes)
        elif kind == "survey":
            self._survey(task, count)
        else:
            reader = self.reader(task)
            for job in reader.jobs():
                if is_done(job, self.work):
                    count(int(job.num_bytes.sum()))
                else:
                    self.finish(job, count)
            reader.finish(self.tokenizer.vocab_size)

    def finish(self, job: Job, count: Count) -> None:
        """Carries out a job.

        Raises:
            UnmaskError: As `finish_job`.
        """
        root, made_by = self.work.root, self.work.made_by
        finish_job(job, self.tokenizer, root, made_by=made_by, annotator=self.annotator, count=count)

    def reader(self, task: ReadTask) -> ShardReader:
        """What reads a task's jobs."""
        return ShardReader(self.work, task, load_decisions(self.work, task), self.index, self.kept)

    def _survey(self, task: ReadTask, count: Count) -> None:
        corpus, sample = self.work.corpus, self.work.sample
        held = HeldTexts(parts=corpus.plan.holdout_unit in ("part", "end"))
        labels: set[str] = set()
        skipped: Counter[str] = Counter()
        takes, told, key = False, 0, self.work.key("survey", task)
        decisions = load_decisions(self.work, task)
        path = self.work.file(sample_name(task))
        with SampleWriter(path if sample is not None else None) as out:
            pieces = self.kept.keep(corpus.read(task, decisions, skipped))
            for piece, is_held in held.collect(pieces):
                told += utf8_bytes(piece.text)
                if told >= TOLD_BYTES:
                    count(told)
                    told = 0
                if piece.label is not None and piece.label not in labels:
                    labels.add(piece.label)
                    check_number(labels, corpus.settings.label, piece.label)
                if sample is not None and (not is_held or sample.held_too):
                    takes = sample.takes(piece.text) if piece.offset == 0 else takes
                    if takes or sample.share >= 1.0:
                        out.add(piece.text)
        self.kept.skipped = skipped
        count(told)
        names = np.frombuffer(json.dumps(sorted(labels)).encode(), dtype=np.uint8)
        written = "" if sample is None else file_sha256(path)
        arrays = {**held.arrays(), "labels": names, "sample": np.frombuffer(written.encode(), dtype=np.uint8)}
        file = self.work.file(f"survey-{task.number:05d}.npz")
        save_arrays(file, arrays, self.work.unchanged(key, "survey", task))
