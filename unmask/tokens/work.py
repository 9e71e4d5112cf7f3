"""The work on one job: text to shards. Whoever carries jobs out, in this process or in another, calls this."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.tokens.jobs import Job
from unmask.tokens.parts import Part, SplitPart
from unmask.tokens.shards import ShardWriter, TokenBatch
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.words import WordCensus

BATCH_BYTES = 1 << 20
TRAIN, VALIDATION = "train", "validation"


def run_job(
    job: Job,
    tokenizer: Tokenizer,
    root: Path,
    *,
    made_by: str = "",
    notify: Callable[[int], None] = lambda num_bytes: None,
) -> Part:
    """Tokenizes a job and writes its shards. The same job always gives the same files, byte for byte.

    Args:
        job: The text.
        tokenizer: The tokenizer.
        root: The data folder.
        made_by: Fingerprint for the part.
        notify: Told after each batch how many bytes of text were in it.

    Returns:
        What came of it. Saving the part makes the job count as done.

    Raises:
        DataError: The shards cannot be written.
    """
    splits = [_SplitWork(root, name, job.number, tokenizer) for name in (TRAIN, VALIDATION)]
    census = WordCensus()
    without_tokens = 0
    for batch, held in _tokenize(job, tokenizer):
        filled = batch.lengths > 0
        without_tokens += int((~filled).sum())
        census.add(batch.word_starts, batch.lengths)
        for split, rows in zip(splits, (filled & ~held, filled & held), strict=True):
            if rows.any():
                split.add(batch if rows.all() else batch.select(rows))
        notify(int(batch.num_bytes.sum()))
    counts = splits[0].counts
    used = np.flatnonzero(counts)
    try:
        train, validation = (split.finish() for split in splits)
    except OSError as error:
        raise cannot_write(root, error) from error
    return Part(
        number=job.number,
        content_hash=job.content_hash,
        made_by=made_by,
        last_document=int(job.document[-1]),
        bytes=int(job.num_bytes.sum()),
        without_tokens=without_tokens,
        texts=census.texts,
        single_words=census.single_words,
        train=train,
        validation=validation,
        frequencies=(used.tolist(), counts[used].tolist()),
    )


def finish_job(job: Job, tokenizer: Tokenizer, root: Path, *, made_by: str, notify: Callable[[int], None]) -> None:
    """Runs a job and saves its part, with which the job counts as done.

    Args:
        job, tokenizer, root, made_by, notify: As for `run_job`.

    Raises:
        DataError: A file cannot be written.
    """
    part = run_job(job, tokenizer, root, made_by=made_by, notify=notify)
    try:
        part.save(root)
    except OSError as error:
        raise cannot_write(root, error) from error


def cannot_write(root: Path, error: OSError) -> DataError:
    """The error for a full or failing disk."""
    return DataError(
        f"{root}: cannot be written ({error.strerror or error}); make room and run the same command again: "
        "`unmask prepare` goes on from what is done"
    )


def _tokenize(job: Job, tokenizer: Tokenizer) -> Iterator[tuple[TokenBatch, NDArray[np.bool_]]]:
    """Batches of about a megabyte, so that what the tokenizer holds at once stays small; and what of them is held."""
    total = int(job.num_bytes.sum())
    number_of = (np.cumsum(job.num_bytes) - 1) * max(round(total / BATCH_BYTES), 1) // total
    cuts = [0, *(np.flatnonzero(np.diff(number_of)) + 1).tolist(), len(job.texts)]
    for begin, end in pairwise(cuts):
        tokens, lengths = tokenizer.encode_joined(job.texts[begin:end])
        rows = slice(begin, end)
        columns = (job.document[rows], job.offset[rows], job.num_bytes[rows])
        yield TokenBatch(tokens.input_ids, tokens.word_starts, lengths, *columns), job.held[rows]


class _SplitWork:
    """The shard of one split, and counts of what goes into it."""

    def __init__(self, root: Path, split: str, number: int, tokenizer: Tokenizer) -> None:
        self.writer = ShardWriter(root, f"{split}/{number:05d}.arrow", vocab_size=tokenizer.vocab_size)
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
