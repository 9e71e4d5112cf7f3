"""What is done with one task at a time, whoever does it: this process, a worker, or a node of a cluster.

    look     parts/look-00003.npz        what decisions about all of the text need, where there are any
    survey   parts/survey-00003.npz      its held-out texts, the names of its classes
             parts/sample-00003.arrow    its share of the text that a tokenizer is trained on
    shards   train/00003-00000.arrow, parts/00003-00000.json ...    of each job; see `unmask.shards.job_parts`
             parts/00003.npy, parts/00003.task                      what they come to

Between two passes all that was found is put together: `parts/decisions.npz` (before the survey), `parts/held.npz` and
the tokenizer (before the shards). Every file is written whole and says what it was made of, so a pass that was stopped,
or is done twice, does no harm.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np

from unmask.files import file_sha256
from unmask.shards.job_work import finish_job
from unmask.shards.jobs import Job, utf8_bytes
from unmask.shards.pass_files import HELD, Pass, Work, load_decisions, load_present, save_arrays
from unmask.shards.samples import SampleWriter, sample_name
from unmask.shards.shard_reader import KeptText, ShardReader, is_done
from unmask.text.annotation_plan import Annotator
from unmask.text.document_classes import check_number
from unmask.text.held_texts import HeldTexts, held_texts
from unmask.text.read_plan import ReadTask
from unmask.text.split_check import HeldIndex
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

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
