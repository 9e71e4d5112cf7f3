"""What passes over tasks are asked to do, and the files that they leave: by which keys, and how these are read again.

Every file says what it was made of: its key is a hash of the text's stamp, of the settings, and of what was decided
before. A file with another key is none. `unmask.shards.passes` shows which files there are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.errors import CorpusError, DataError
from unmask.files import file_sha256, write_atomically
from unmask.shards.job_parts import PARTS, load_part
from unmask.shards.job_work import cannot_write
from unmask.shards.samples import Sample, sample_name, sample_texts
from unmask.text.annotation_plan import AnnotationPlan
from unmask.text.corpus import Corpus
from unmask.text.held_texts import packed
from unmask.text.read_plan import ReadTask
from unmask.text.split_check import FoundLeaks, found_leaks
from unmask.text.whole_corpus import Decisions, decisions_of
from unmask.values import parse_json

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
