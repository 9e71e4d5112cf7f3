"""The manifest, put together from the parts: jobs to tasks, where they were made, and tasks to the corpus, here."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.shards.job_parts import JobPart, SplitPart, add_frequencies, load_part, part_file
from unmask.shards.manifest import Manifest, Split
from unmask.shards.pass_files import TaskPart, Work, load_task_part, task_file
from unmask.shards.store import ShardFile
from unmask.text.held_texts import HeldTexts
from unmask.text.read_plan import ReadTask
from unmask.text.split_check import FoundLeaks, near_duplicates
from unmask.text.whole_corpus import Decisions
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.word_starts import WordCensus

log = logging.getLogger(__name__)


class _SplitLedger:
    """Adds up one split."""

    def __init__(self) -> None:
        self.documents = self.bytes = self.unknown_tokens = 0
        self.files: list[ShardFile] = []
        self._last_document: int | None = None

    def add(self, part: SplitPart) -> None:
        if part.shard is None:
            return
        self.documents += part.documents - (part.first_document == self._last_document)  # it spans two jobs
        self._last_document = part.last_document
        self.bytes += part.bytes
        self.unknown_tokens += part.unknown_tokens
        self.files.append(part.shard)

    def split(self) -> Split:
        return Split(
            documents=self.documents,
            pieces=sum(file.pieces for file in self.files),
            bytes=self.bytes,
            tokens=sum(file.tokens for file in self.files),
            unknown_tokens=self.unknown_tokens,
            files=tuple(self.files),
        )


def put_together(
    work: Work, settings: dict[str, Any], tokenizer: Tokenizer, decisions: Decisions, held: HeldTexts
) -> Manifest:
    """Adds up what all tasks came to.

    Args:
        work: What was done.
        settings: For the manifest.
        tokenizer: The one the parts were made with.
        decisions: About all of the text.
        held: What is held out.

    Raises:
        DataError: A part is missing or damaged, because somebody else changed the folder.
    """
    root, corpus = work.root, work.corpus
    train, validation = _SplitLedger(), _SplitLedger()
    frequencies = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    census, skipped, found = WordCensus(), Counter[str](), FoundLeaks()
    documents = num_bytes = without_tokens = left_out = 0
    spans = {} if work.plan is None else dict.fromkeys(work.plan.labels, (0, 0))
    per_class = np.zeros(1 + len(work.classes or ()), dtype=np.int64)
    for task in corpus.tasks:
        done = _of_task(work, task)
        _add(frequencies, root, f"{task.number:05d}")
        documents += done.documents
        skipped.update(done.skipped)
        left_out += done.left_out
        found.join(done.found)
        for name, content_hash in done.jobs.items():
            part = _of_job(root, name, content_hash)
            train.add(part.train)
            validation.add(part.validation)
            census.texts += part.texts
            census.single_words += part.single_words
            num_bytes += part.bytes
            without_tokens += part.without_tokens
            per_class[: len(part.labels)] += np.array(part.labels, dtype=np.int64)
            spans = {c: (all_ + part.spans[c][0], lost + part.spans[c][1]) for c, (all_, lost) in spans.items()}
    _tell_of_words(census)
    skipped += Counter({"documents without tokens": without_tokens})
    splits = train.split(), validation.split()
    near = near_duplicates(held, found, left_out=left_out)
    return Manifest(
        sources=tuple({"path": str(s.path), "bytes": s.path.stat().st_size} for s in corpus.all_sources()),
        settings=settings,
        plan=corpus.describe(decisions),
        tokenizer_sha256=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        documents=documents,
        bytes=num_bytes,
        tokens=sum(split.tokens for split in splits),
        skipped=dict(skipped),
        overlap=near.equal,
        train=splits[0],
        validation=splits[1],
        token_frequencies=tuple(frequencies.tolist()),
        annotations={} if work.plan is None else dict(work.plan.labels),
        spans=dict(spans),
        labels=dict(zip(work.classes or (), per_class[1:].tolist(), strict=True)),
        unlabelled=int(per_class[0]),
        near_duplicates=near,
        left_out=tuple(corpus.left_out_examples(decisions)),
    )


def _of_task(work: Work, task: ReadTask) -> TaskPart:
    part = load_task_part(work.root, task.number)
    if part is None or part.key != work.key("shards", task):
        raise _changed(task_file(work.root, task.number))
    return part


def _of_job(root: Path, name: str, content_hash: str) -> JobPart:
    part = load_part(root, name)
    if part is None or part.content_hash != content_hash:
        raise _changed(part_file(root, name))
    return part


def _add(frequencies: NDArray[np.int64], root: Path, name: str) -> None:
    try:
        add_frequencies(frequencies, root, name)
    except (OSError, ValueError) as error:
        raise _changed(part_file(root, name)) from error


def _changed(path: Path) -> DataError:
    return DataError(f"{path}: was changed by somebody else; run the same command again")


def _tell_of_words(census: WordCensus) -> None:
    if census.without_words:
        log.warning(
            "%s of %s texts are a single word each, so masking by words would hide whole texts: use --strategy random",
            f"{census.single_words:,}",
            f"{census.texts:,}",
        )
