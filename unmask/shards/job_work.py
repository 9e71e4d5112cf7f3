"""The work on one job: text to annotated tokens, and these to shards.

Whoever carries jobs out, in this process or in another, calls this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.shards.job_parts import JobPart, SplitPart
from unmask.shards.jobs import Job
from unmask.shards.store import ShardWriter, TokenBatch, Widths
from unmask.text.annotation_plan import Annotator
from unmask.text.spans import Spans
from unmask.tokenizer.alignment import Aligned, TextPlaces, widths_of
from unmask.tokenizer.tokenizer import EncodedText, Tokenizer
from unmask.tokenizer.word_starts import WordCensus


def annotated_tokens(
    tokenizer: Tokenizer, annotator: Annotator, texts: Sequence[str], given: Sequence[Spans | None]
) -> tuple[EncodedText, NDArray[np.int64], dict[str, Aligned]]:
    """Tokenizes texts and annotates the tokens.

    Args:
        tokenizer: The tokenizer.
        annotator: Of the texts.
        texts: Any number.
        given: Annotations that came with each of them.

    Returns:
        The tokens of all texts one behind another, how many each text has, and the columns of annotation.

    Raises:
        TokenizerError: As `Tokenizer.encode_joined`.
        SettingsError: A pipeline cannot be used.
        DataError: A label was not announced.
    """
    encoded, places = tokenizer.encode_placed(texts)
    spans = annotator.annotate(texts, given)
    characters = TextPlaces(texts, places)
    aligned = {column: characters.align(column, spans, labels) for column, labels in annotator.plan.labels.items()}
    return encoded, places.lengths, aligned


BATCH_BYTES = 1 << 20
SLOW_BATCH_BYTES = 1 << 15  # where a pipeline annotates, which takes seconds for so much
TRAIN, VALIDATION = "train", "validation"


def run_job(
    job: Job,
    tokenizer: Tokenizer,
    root: Path,
    *,
    made_by: str = "",
    annotator: Annotator | None = None,
    count: Callable[[int], None] = lambda num_bytes: None,
) -> tuple[JobPart, NDArray[np.int64]]:
    """Tokenizes a job and writes its shards. The same job always gives the same files, byte for byte.

    Args:
        job: The text.
        tokenizer: The tokenizer.
        root: The data folder.
        made_by: Fingerprint for the part.
        annotator: What is said of the text beside its tokens; None is nothing.
        count: Told after each batch how many bytes of text were in it.

    Returns:
        What came of it, and how often each token stands in the training split ([vocab_size]). Saving the part makes
        the job count as done.

    Raises:
        DataError: The shards cannot be written, or annotations do not fit the plan.
        SettingsError: A pipeline that annotates cannot be loaded.
    """
    widths = {} if annotator is None else widths_of(annotator.plan.labels)
    labelled = job.label is not None
    splits = [
        _SplitWork(
            root, name, job.name, tokenizer, widths, labelled, grouped=name == VALIDATION and job.group is not None
        )
        for name in (TRAIN, VALIDATION)
    ]
    census = WordCensus()
    without_tokens = 0
    spans = {column: [0, 0] for column in widths}
    for batch, held, counted in _tokenize(job, tokenizer, annotator):
        for column, numbers in counted.items():
            spans[column] = [a + b for a, b in zip(spans[column], numbers, strict=True)]
        filled = batch.lengths > 0
        without_tokens += int((~filled).sum())
        census.add(batch.word_starts, batch.lengths)
        for split, rows in zip(splits, (filled & ~held, filled & held), strict=True):
            if rows.any():
                split.add(batch if rows.all() else batch.select(rows))
        count(int(batch.num_bytes.sum()))
    try:
        train, validation = (split.finish() for split in splits)
    except OSError as error:
        raise cannot_write(root, error) from error
    part = JobPart(
        name=job.name,
        content_hash=job.content_hash,
        made_by=made_by,
        bytes=int(job.num_bytes.sum()),
        without_tokens=without_tokens,
        texts=census.texts,
        single_words=census.single_words,
        train=train,
        validation=validation,
        spans=spans,
        labels=_documents_by_class(job),
    )
    return part, splits[0].counts


def _documents_by_class(job: Job) -> list[int]:
    """Documents that begin in a job: without a class, then of each class up to the last that there is."""
    return [] if job.label is None else np.bincount(job.label[job.offset == 0] + 1).tolist()


def finish_job(
    job: Job,
    tokenizer: Tokenizer,
    root: Path,
    *,
    made_by: str,
    annotator: Annotator | None,
    count: Callable[[int], None],
) -> None:
    """Runs a job and saves its part, with which the job counts as done.

    Args:
        job, tokenizer, root, made_by, annotator, count: As for `run_job`.

    Raises:
        DataError: A file cannot be written.
        SettingsError: As for `run_job`.
    """
    part, counts = run_job(job, tokenizer, root, made_by=made_by, annotator=annotator, count=count)
    try:
        part.save(root, counts)
    except OSError as error:
        raise cannot_write(root, error) from error


def cannot_write(root: Path, error: OSError) -> DataError:
    """The error for a full or failing disk."""
    return DataError(
        f"{root}: cannot be written ({error.strerror or error}); make room and run the same command again: "
        "`unmask prepare` goes on from what is done"
    )


def _tokenize(
    job: Job, tokenizer: Tokenizer, annotator: Annotator | None
) -> Iterator[tuple[TokenBatch, NDArray[np.bool_], dict[str, tuple[int, int]]]]:
    """Batches of about a megabyte, so that what the tokenizer holds at once stays small; what of them is held; and
    for each column of annotation how many spans there were, and how many of them were lost."""
    total = int(job.num_bytes.sum())
    batch_bytes = BATCH_BYTES if annotator is None or annotator.plan.pipeline is None else SLOW_BATCH_BYTES
    number_of = (np.cumsum(job.num_bytes) - 1) * max(round(total / batch_bytes), 1) // total
    cuts = [0, *(np.flatnonzero(np.diff(number_of)) + 1).tolist(), len(job.texts)]
    for begin, end in pairwise(cuts):
        rows, texts = slice(begin, end), job.texts[begin:end]
        columns = (job.document[rows], job.offset[rows], job.num_bytes[rows])
        label = None if job.label is None else job.label[rows]
        group = None if job.group is None else job.group[rows]
        if annotator is None:
            tokens, lengths = tokenizer.encode_joined(texts)
            yield (
                TokenBatch(tokens.input_ids, tokens.word_starts, lengths, *columns, {}, label, group),
                job.held[rows],
                {},
            )
            continue
        given = [None] * len(texts) if job.spans is None else job.spans[rows]
        tokens, lengths, aligned = annotated_tokens(tokenizer, annotator, texts, given)
        values = {column: found.values for column, found in aligned.items()}
        counted = {column: (found.spans, found.lost) for column, found in aligned.items()}
        batch = TokenBatch(tokens.input_ids, tokens.word_starts, lengths, *columns, values, label, group)
        yield batch, job.held[rows], counted


class _SplitWork:
    """The shard of one split, and counts of what goes into it."""

    def __init__(
        self,
        root: Path,
        split: str,
        job: str,
        tokenizer: Tokenizer,
        annotations: Widths,
        labelled: bool,
        *,
        grouped: bool,
    ) -> None:
        name = f"{split}/{job}.arrow"
        self.writer = ShardWriter(
            root,
            name,
            vocab_size=tokenizer.vocab_size,
            annotations=annotations,
            labelled=labelled,
            grouped=grouped,
        )
        self.counts: NDArray[np.int64] = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self.unknown_id = tokenizer.special.unk
        self.documents = self.bytes = 0
        self.first: int | None = None
        self.last: int | None = None

    def add(self, batch: TokenBatch) -> None:
        self.writer.write(batch)
        self.counts += np.bincount(batch.input_ids, minlength=len(self.counts))
        self.bytes += int(batch.num_bytes.sum())
        self.documents += 1 + int((np.diff(batch.document) != 0).sum()) - (batch.document[0] == self.last)
        self.first = int(batch.document[0]) if self.first is None else self.first
        self.last = int(batch.document[-1])

    def finish(self) -> SplitPart:
        shard = self.writer.save()
        return SplitPart(
            int(self.documents),
            self.first,
            self.last,
            self.bytes,
            0 if self.unknown_id is None else int(self.counts[self.unknown_id]),
            shard,
        )
