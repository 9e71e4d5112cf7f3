"""A task's text cut into jobs: stretches that are tokenized apart from each other.

How it is cut depends on the sources alone, never on the number of workers or on what was done before, so that the
shards, one a job and split, are the same files however the work was shared out, stopped and taken up again.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import DataError, parse_json
from unmask.core.files import file_sha256, write_atomically
from unmask.data.annotations import Annotator
from unmask.data.store import ShardFile, ShardWriter, TokenBatch, Widths
from unmask.tokenizer.alignment import Aligned, TextPlaces, widths_of
from unmask.tokenizer.spans import Spans
from unmask.tokenizer.tokenizer import EncodedText, Tokenizer
from unmask.tokenizer.words import WordCensus

if TYPE_CHECKING:
    from unmask.data.documents import TextPiece
    from unmask.tokenizer.spans import Spans

SMALLEST_JOB_BYTES = 1 << 20
LARGEST_JOB_BYTES = 1 << 25  # a worker holds some five times as much in memory
JOBS_A_CORPUS = 256


@dataclass(frozen=True)
class Job:
    """Consecutive pieces of the corpus.

    Attributes:
        task: Number of the task that the text is read in.
        number: Of the job in its task, counted from 0.
        texts: The pieces' texts.
        document: [num_pieces], int64: number of the document.
        offset: [num_pieces], int64: byte of the document's text at which the piece begins.
        num_bytes: [num_pieces], int64: UTF-8 bytes of the piece.
        held: [num_pieces], bool: whether the piece is held out.
        spans: Annotations that came with the pieces; None where none did.
        label: [num_pieces], int64: number of the document's class, -1 where it has none; None where none are read.
        group: [num_pieces], int64: the group that the piece stays on one side with, a hash below 0; the number of the
            document where it is in none. None where no piece is in any.
    """

    task: int
    number: int
    texts: list[str]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    held: NDArray[np.bool_]
    spans: list[Spans | None] | None = None
    label: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        """Of its part and shards."""
        return f"{self.task:05d}-{self.number:05d}"

    def without(self, left_out: NDArray[np.bool_]) -> Job:
        """The job without some of its pieces."""
        stays = ~left_out
        places = np.flatnonzero(stays).tolist()
        return Job(
            self.task,
            self.number,
            [self.texts[place] for place in places],
            self.document[stays],
            self.offset[stays],
            self.num_bytes[stays],
            self.held[stays],
            None if self.spans is None else [self.spans[place] for place in places],
            None if self.label is None else self.label[stays],
            None if self.group is None else self.group[stays],
        )

    @cached_property
    def content_hash(self) -> str:
        """A hash of all of it but the numbers."""
        digest = hashlib.blake2b("".join(self.texts).encode(), digest_size=16)
        for column in (self.document, self.offset, self.num_bytes, self.held):
            digest.update(column.tobytes())
        if self.spans is not None:
            digest.update(json.dumps(self.spans).encode())
        if self.label is not None:
            digest.update(self.label.tobytes())
        if self.group is not None:
            digest.update(b"group" + self.group.tobytes())
        return digest.hexdigest()


def job_bytes(source_bytes: int, *, slow: bool = False) -> int:
    """How much text a job takes: about 256 jobs a corpus, of 1 MiB at the least and 32 MiB at the most.

    Args:
        source_bytes: Size of the files, compressed or not.
        slow: Whether a pipeline annotates the text, some hundred times slower than it is tokenized: then a job takes
            an eighth of a megabyte at the least and 1 MiB at the most.
    """
    smallest, largest = (
        (SMALLEST_JOB_BYTES >> 3, SMALLEST_JOB_BYTES) if slow else (SMALLEST_JOB_BYTES, LARGEST_JOB_BYTES)
    )
    return min(max(source_bytes // JOBS_A_CORPUS, smallest), largest)


def cut_jobs(
    pieces: Iterable[tuple[TextPiece, bool]], size_bytes: int, classes: Sequence[str] | None = None, *, task: int = 0
) -> Iterator[Job]:
    """Groups pieces into jobs.

    Args:
        pieces: Those of a task, each with whether it is held out.
        size_bytes: A job ends with the piece that reaches this much text.
        classes: Names of the documents' classes in the order of their numbers; None numbers none.
        task: Number of the task.
    """
    numbers: dict[str | None, int] | None = None
    if classes is not None:
        numbers = {name: number for number, name in enumerate(classes)}
    number = gathered = 0
    group: list[tuple[TextPiece, bool]] = []
    sizes: list[int] = []
    for piece, held in pieces:
        group.append((piece, held))
        sizes.append(utf8_bytes(piece.text))
        gathered += sizes[-1]
        if gathered >= size_bytes:
            yield _job((task, number), group, sizes, numbers)
            number, gathered, group, sizes = number + 1, 0, [], []
    if group:
        yield _job((task, number), group, sizes, numbers)


def _job(
    which: tuple[int, int],
    group: list[tuple[TextPiece, bool]],
    sizes: list[int],
    numbers: Mapping[str | None, int] | None,
) -> Job:
    grouped = any(piece.group is not None for piece, _ in group)
    return Job(
        *which,
        [piece.text for piece, _ in group],
        np.array([piece.document for piece, _ in group], dtype=np.int64),
        np.array([piece.offset for piece, _ in group], dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array([held for _, held in group], dtype=bool),
        [piece.spans for piece, _ in group] if any(piece.spans is not None for piece, _ in group) else None,
        None if numbers is None else np.array([numbers.get(piece.label, -1) for piece, _ in group], dtype=np.int64),
        np.array([_group_number(piece) for piece, _ in group]) if grouped else None,
    )


def _group_number(piece: TextPiece) -> int:
    if piece.group is None:
        return piece.document
    digest = hashlib.blake2b(piece.group.encode(errors="surrogatepass"), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "little") >> 1)


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8, at once where it is ASCII."""
    return len(text) if text.isascii() else len(text.encode())


# ----------------------------------------
# What came of a job: counts and shards, kept in small files until the manifest is put together from all of them.
#
#     parts/00003-00012.npy     how often each token stands in the training text of job 12 of task 3
#     parts/00003-00012.json    all else; written last, so a part that can be read is complete
#
# It says which text, settings and tokenizer it was made of, so that a preparation that goes on knows what it may keep.

PARTS = "parts"


@dataclass(frozen=True)
class SplitPart:
    """What of a job went into one split.

    Attributes:
        documents: Documents with tokens; one that spans jobs is counted in each, see `first_document`.
        first_document: Number of the first of them, None where there are none.
        last_document: Number of the last.
        bytes: UTF-8 bytes of the text.
        unknown_tokens: Tokens that stand for text outside the vocabulary.
        shard: None where there are no rows.
    """

    documents: int = 0
    first_document: int | None = None
    last_document: int | None = None
    bytes: int = 0
    unknown_tokens: int = 0
    shard: ShardFile | None = None


@dataclass(frozen=True)
class JobPart:
    """The result of a job.

    Attributes:
        name: Of the job.
        content_hash: Of the job's content.
        made_by: Fingerprint of settings, tokenizer and libraries.
        bytes: UTF-8 bytes of the text, that of pieces without tokens included.
        without_tokens: Pieces that the tokenizer made nothing of.
        texts: Pieces of more than one token.
        single_words: Those of them that are one word.
        train: The training split.
        validation: The held-out split.
        spans: By column of annotation: how many spans there were, and to how many of them no token belongs.
        labels: How many documents begin here without a class, and with each class; empty where none are read.
    """

    name: str
    content_hash: str
    made_by: str
    bytes: int
    without_tokens: int
    texts: int
    single_words: int
    train: SplitPart
    validation: SplitPart
    spans: dict[str, list[int]] = field(default_factory=dict)
    labels: list[int] = field(default_factory=list)

    @property
    def shards(self) -> list[ShardFile]:
        """Of both splits."""
        return [split.shard for split in (self.train, self.validation) if split.shard is not None]

    def save(self, root: Path, counts: NDArray[np.int64]) -> None:
        """Writes the part's files; its shards must be there.

        Args:
            root: The data folder.
            counts: [vocab_size]: how often each token stands in the training split.

        Raises:
            OSError: They cannot be written.
        """
        used = np.flatnonzero(counts)
        write_atomically(root / PARTS / f"{self.name}.npy", npy_bytes(np.stack([used, counts[used]])))
        write_atomically(part_file(root, self.name), json.dumps(vars(self), default=vars))

    def is_whole(self, root: Path) -> bool:
        """Whether its shards are there and fit their checksums: a power failure may have cost a file its name."""
        return all((root / s.name).is_file() and file_sha256(root / s.name) == s.sha256 for s in self.shards)


def part_file(root: Path, name: str) -> Path:
    """Where the part of a job stands."""
    return root / PARTS / f"{name}.json"


def load_part(root: Path, name: str) -> JobPart | None:
    """Reads a part; None where there is none, or none that this version can read (it is then made anew)."""
    try:
        content = parse_json(part_file(root, name).read_text(encoding="utf-8"))
        for split_name in ("train", "validation"):
            split = content[split_name]
            split["shard"] = None if split["shard"] is None else ShardFile(**split["shard"])
            content[split_name] = SplitPart(**split)
        return JobPart(**content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def add_frequencies(counts: NDArray[np.int64], root: Path, name: str) -> None:
    """Adds what a part, or a whole task, has counted.

    Args:
        counts: [vocab_size], changed in place.
        root: The data folder.
        name: Of the job or task.

    Raises:
        OSError, ValueError: The file is missing or damaged.
    """
    used, found = np.load(root / PARTS / f"{name}.npy", allow_pickle=False)
    counts[used] += found


def npy_bytes(array: NDArray[Any]) -> bytes:
    """An array as the bytes of a file of numpy's."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


# ----------------------------------------
# The work on one job: text to annotated tokens, and these to shards.
#
# Whoever carries jobs out, in this process or in another, calls this.


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
