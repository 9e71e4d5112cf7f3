"""The text of a task cut into chunks, and a chunk tokenized into its shards: one a split.

How a task is cut depends on the sources alone, never on the number of processes or on what was done before, so that
the shards are the same files however the work was shared out, stopped and taken up again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import DataError
from unmask.data.store import ShardFile, ShardWriter, TokenBatch
from unmask.tokenizer.spans import Aligned, align, column_types
from unmask.tokenizer.tokenizer import EncodedText, Tokenizer
from unmask.tokenizer.words import count_single_words

if TYPE_CHECKING:
    from unmask.data.annotations import Annotator
    from unmask.data.documents import Document
    from unmask.tokenizer.spans import Spans

TRAIN, VALIDATION = "train", "validation"
SMALLEST_CHUNK_BYTES = 1 << 20
LARGEST_CHUNK_BYTES = 1 << 25  # a process holds some five times as much in memory
CHUNKS_A_CORPUS = 256
BATCH_BYTES = 1 << 20
SLOW_BATCH_BYTES = 1 << 15  # where a pipeline annotates, which takes seconds for so much


@dataclass(frozen=True)
class TextChunk:
    """Consecutive pieces of the corpus."""

    task: int  # number of the task that the text is read in
    number: int  # of the chunk in its task, counted from 0
    texts: list[str]
    document: NDArray[np.int64]  # [num_pieces], as what follows: number of the document
    offset: NDArray[np.int64]  # byte of the document's text at which the piece begins
    num_bytes: NDArray[np.int64]  # UTF-8 bytes of the piece
    held: NDArray[np.bool_]  # whether the piece is held out
    spans: list[Spans | None] | None = None  # annotations that came with the pieces
    label: NDArray[np.int64] | None = None  # number of the document's class, -1 where it has none
    # The group that the piece stays on one side with, a hash below 0; the number of the document where it is in none.
    group: NDArray[np.int64] | None = None

    def select(self, rows: NDArray[np.bool_]) -> TextChunk:
        """Some of its pieces."""
        columns = {entry.name: getattr(self, entry.name) for entry in fields(self)[2:]}
        for name, column in columns.items():
            if isinstance(column, list):
                columns[name] = [value for value, stays in zip(column, rows, strict=True) if stays]
            elif column is not None:
                columns[name] = column[rows]
        return replace(self, **columns)


def chunk_bytes(source_bytes: int, *, slow: bool = False) -> int:
    """How much text a chunk has: about 256 chunks a corpus, of 1 MiB at least and 32 MiB at most.

    Args:
        source_bytes: Size of the files, compressed or not.
        slow: Whether a pipeline annotates the text, some hundred times slower than it is tokenized: then a chunk has
            an eighth of a megabyte at least and 1 MiB at most.
    """
    smallest, largest = SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES
    if slow:
        smallest, largest = SMALLEST_CHUNK_BYTES >> 3, SMALLEST_CHUNK_BYTES
    return min(max(source_bytes // CHUNKS_A_CORPUS, smallest), largest)


def cut_chunks(
    pieces: Iterable[tuple[Document, bool]], size_bytes: int, classes: Sequence[str] | None = None, *, task: int = 0
) -> Iterator[TextChunk]:
    """Groups pieces into chunks.

    Args:
        pieces: Those of a task, each with whether it is held out.
        size_bytes: A chunk ends with the piece that reaches this much text.
        classes: Names of the documents' classes in the order of their numbers; None: documents have no classes.
        task: Number of the task.
    """
    class_numbers = None if classes is None else {name: number for number, name in enumerate(classes)}

    def made(number: int) -> TextChunk:
        documents = [piece for piece, _ in rows]
        labels = groups = None
        if class_numbers is not None:
            labels = np.array([class_numbers.get(piece.label or "", -1) for piece in documents], dtype=np.int64)
        if any(piece.group is not None for piece in documents):
            groups = np.array([piece.document for piece in documents], dtype=np.int64)
            for place, piece in enumerate(documents):
                if piece.group is not None:
                    digest = hashlib.blake2b(piece.group.encode(errors="surrogatepass"), digest_size=8).digest()
                    groups[place] = -1 - (int.from_bytes(digest, "little") >> 1)
        return TextChunk(
            task,
            number,
            [piece.text for piece in documents],
            np.array([piece.document for piece in documents], dtype=np.int64),
            np.array([piece.offset for piece in documents], dtype=np.int64),
            np.array(sizes, dtype=np.int64),
            np.array([held for _, held in rows], dtype=bool),
            spans=[p.spans for p in documents] if any(p.spans is not None for p in documents) else None,
            label=labels,
            group=groups,
        )

    number = num_bytes = 0
    rows: list[tuple[Document, bool]] = []
    sizes: list[int] = []
    for piece, held in pieces:
        rows.append((piece, held))
        sizes.append(utf8_bytes(piece.text))
        num_bytes += sizes[-1]
        if num_bytes >= size_bytes:
            yield made(number)
            number, num_bytes, rows, sizes = number + 1, 0, [], []
    if rows:
        yield made(number)


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8, at once where it is ASCII."""
    return len(text) if text.isascii() else len(text.encode())


@dataclass
class Split:
    """The training or the validation part of some text."""

    documents: int = 0  # documents with tokens in it; one that is held out in parts counts in both
    pieces: int = 0  # rows of the shards
    bytes: int = 0  # UTF-8 bytes of the text
    tokens: int = 0  # without special tokens
    unknown_tokens: int = 0  # those that stand for text outside the vocabulary
    files: tuple[ShardFile, ...] = ()
    first: int | None = field(default=None, compare=False)  # number of the first document, while the data is made
    last: int | None = field(default=None, compare=False)

    def add(self, later: Split) -> None:
        """Adds that of text behind this one. A document may span both; it counts once."""
        for name in ("documents", "pieces", "bytes", "tokens", "unknown_tokens", "files"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.documents -= later.first is not None and later.first == self.last
        self.first = later.first if self.first is None else self.first
        self.last = self.last if later.last is None else later.last


@dataclass
class TextCounts:
    """What some text came to: a chunk, a task, or the corpus."""

    frequencies: NDArray[np.int64]  # [vocab_size]: how often each token stands in the training split
    documents: int = 0  # those without tokens as well; counted by task
    bytes: int = 0  # UTF-8 bytes of the text, that of pieces without tokens included
    without_tokens: int = 0  # pieces that the tokenizer made nothing of
    texts: int = 0  # pieces of more than one token
    single_words: int = 0  # those of them that are one word
    left_out: int = 0  # training texts that were left out since they nearly stand in the held-out text
    train: Split = field(default_factory=Split)
    validation: Split = field(default_factory=Split)
    # By column of annotation: how many spans there were, and to how many of them no token belongs
    spans: dict[str, list[int]] = field(default_factory=dict)
    # How many documents begin here without a class, and with each class; empty where none are read
    labels: list[int] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # what was left out: reason to number

    def add(self, later: TextCounts) -> None:
        """Adds those of text behind this one."""
        self.frequencies += later.frequencies
        for name in ("documents", "bytes", "without_tokens", "texts", "single_words", "left_out"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.train.add(later.train)
        self.validation.add(later.validation)
        for column, (number, lost) in later.spans.items():
            before = self.spans.get(column, [0, 0])
            self.spans[column] = [before[0] + number, before[1] + lost]
        self.labels = [a + b for a, b in zip_longest(self.labels, later.labels, fillvalue=0)]
        self.skipped = dict(Counter(self.skipped) + Counter(later.skipped))


def annotated_tokens(
    tokenizer: Tokenizer, annotator: Annotator, texts: Sequence[str], read: Sequence[Spans | None]
) -> tuple[EncodedText, NDArray[np.int64], dict[str, Aligned]]:
    """Tokenizes texts and annotates the tokens; `read` are annotations that came with each text.

    Returns:
        The tokens of all texts one behind another, how many each text has, and the columns of annotation.

    Raises:
        UnmaskError: As `Tokenizer.encode_joined`; a pipeline cannot be used; or a label was not announced.
    """
    encoded, places = tokenizer.encode_placed(texts)
    spans = annotator.annotate(texts, read)
    return encoded, places.lengths, align(texts, places, spans, annotator.plan.labels)


def write_shards(
    chunk: TextChunk,
    tokenizer: Tokenizer,
    root: Path,
    *,
    annotator: Annotator | None = None,
    count: Callable[[int], None] = lambda num_bytes: None,
) -> TextCounts:
    """Tokenizes a chunk and writes its shards. The same chunk always gives the same files, byte for byte.

    Args:
        chunk: The text.
        tokenizer: The tokenizer.
        root: The data folder.
        annotator: What annotates the text; None annotates nothing.
        count: Called after each batch with its bytes of text.

    Raises:
        DataError: The shards cannot be written, or annotations do not fit the plan.
        SettingsError: A pipeline that annotates cannot be loaded.
    """
    widths = {} if annotator is None else column_types(annotator.plan.labels)
    vocab_size, unknown_id = tokenizer.vocab_size, tokenizer.special.unk
    writers = [
        ShardWriter(
            root, f"{split}/{chunk.task:05d}-{chunk.number:05d}.arrow", vocab_size=vocab_size, annotations=widths,
            labelled=chunk.label is not None, grouped=split == VALIDATION and chunk.group is not None,
        )
        for split in (TRAIN, VALIDATION)
    ]  # fmt: skip
    frequencies = np.zeros((2, vocab_size), dtype=np.int64)
    counts = TextCounts(frequencies[0], bytes=int(chunk.num_bytes.sum()), spans={column: [0, 0] for column in widths})
    splits = (counts.train, counts.validation)

    # 1. Batches of about a megabyte, so that what the tokenizer holds at once stays small.
    batch_bytes = BATCH_BYTES if annotator is None or annotator.plan.pipeline is None else SLOW_BATCH_BYTES
    batch_of = (np.cumsum(chunk.num_bytes) - 1) * max(round(counts.bytes / batch_bytes), 1) // counts.bytes
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(batch_of)) + 1).tolist(), len(chunk.texts)]):
        rows, texts = slice(begin, end), chunk.texts[begin:end]
        aligned: dict[str, Aligned] = {}
        if annotator is None:
            encoded, lengths = tokenizer.encode_joined(texts)
        else:
            spans = [None] * len(texts) if chunk.spans is None else chunk.spans[rows]
            encoded, lengths, aligned = annotated_tokens(tokenizer, annotator, texts, spans)
        batch = TokenBatch(
            encoded.input_ids, encoded.word_starts, lengths, chunk.document[rows], chunk.offset[rows],
            chunk.num_bytes[rows], {column: of_tokens.values for column, of_tokens in aligned.items()},
            None if chunk.label is None else chunk.label[rows],
            None if chunk.group is None else chunk.group[rows],
        )  # fmt: skip

        # 2. What each batch came to, and its rows in the shards of the two splits.
        filled, held = lengths > 0, chunk.held[rows]
        counts.without_tokens += int((~filled).sum())
        num_texts, single_words = count_single_words(batch.word_starts, lengths)
        counts.texts, counts.single_words = counts.texts + num_texts, counts.single_words + single_words
        for column, of_tokens in aligned.items():
            number, lost = counts.spans[column]
            counts.spans[column] = [number + of_tokens.spans, lost + of_tokens.lost]
        for side, chosen in enumerate((filled & ~held, filled & held)):
            if not chosen.any():
                continue
            part = batch if chosen.all() else batch.select(chosen)
            writers[side].write(part)
            frequencies[side] += np.bincount(part.input_ids, minlength=vocab_size)
            documents = 1 + int((np.diff(part.document) != 0).sum())
            first, last = int(part.document[0]), int(part.document[-1])
            splits[side].add(Split(documents, bytes=int(part.num_bytes.sum()), first=first, last=last))
        count(int(batch.num_bytes.sum()))
    if chunk.label is not None:
        counts.labels = np.bincount(chunk.label[chunk.offset == 0] + 1).tolist()

    # 3. The shards, each written whole.
    for split, writer, tokens in zip(splits, writers, frequencies, strict=True):
        split.unknown_tokens = 0 if unknown_id is None else int(tokens[unknown_id])
        try:
            shard = writer.save()
        except OSError as error:
            raise cannot_write(root, error) from error
        if shard is not None:
            split.pieces, split.tokens, split.files = shard.pieces, shard.tokens, (shard,)
    return counts


def cannot_write(root: Path, error: OSError) -> DataError:
    """The error for a full or failing disk."""
    return DataError(
        f"{root}: cannot be written ({error.strerror or error}); make room and run the same command again: "
        "`unmask prepare` goes on from what is done"
    )
