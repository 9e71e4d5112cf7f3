"""The folder of prepared data, while it is made and afterwards.

    manifest.json            written last: a folder with a manifest is complete
    tokenizer/               tokenizer.json and the files that transformers needs beside it
    train/00000-00000.arrow ...    token shards (see `unmask.data.store`): number of task and of chunk
    validation/00000-00000.arrow ...
    stdin.txt                text from standard input, if that was a source
    pipes/                   text from pipes, if any were sources
    given/                   texts from memory, if any were sources
    parts/                   a file for each finished task (see `unmask.data.work`); removed at the end

A kill at any moment leaves complete data with its manifest, or finished tasks from which the same command continues.

    text of a task ──cut_chunks──▶ TextChunk ──write_shards──▶ a shard per split, TextCounts ──added up──▶ Manifest
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter

from unmask.core.errors import DataError, parse_json, shortened
from unmask.core.files import ClaimedFolder, file_sha256, locked, write_atomically, writing
from unmask.data.annotations import Annotator
from unmask.data.documents import Document
from unmask.data.near_duplicates import NearDuplicates
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.data.store import GROUP, LABEL, OPENED_AT_ONCE, ShardFile, TokenStore
from unmask.tokenizer.spans import Aligned, Spans, align, column_types
from unmask.tokenizer.tokenizer import Tokenizer, UnknownText

MANIFEST, TOKENIZER, PARTS, SETTLED = "manifest.json", "tokenizer", "parts", "settled.npz"
VERSION = 1
ANY_LENGTH = int(1e9)  # maximum length of the data's tokenizer; a model writes its own
CHECKED_AT_ONCE = 1 << 24  # tokens; about 64 MB
_PART_LOCK = ".part-"
_SHARD = re.compile(r"\d{5,}(-\d{5,})?\.arrow(\.partial)?")
_RESULT = re.compile(r".+\.(npz|arrow)(\.partial)?|\.part-.+")
TRAIN, VALIDATION = "train", "validation"
SMALLEST_CHUNK_BYTES = 1 << 20
LARGEST_CHUNK_BYTES = 1 << 25  # a process needs about five times as much memory
CHUNKS_A_CORPUS = 256
SLOW_CHUNKS_A_CORPUS = 4096
BATCH_BYTES = 1 << 20
SLOW_BATCH_BYTES = 1 << 15  # if a pipeline annotates, which takes seconds for this much
MOST_EXAMPLES, EXAMPLE_CHARS, EXAMPLE_EVERY = 16, 300, 2048  # of held-out text to show; characters
_WHOLE_WORDS = re.compile(rf"(?<!\S)\S(?s:.{{0,{EXAMPLE_CHARS - 1}}})(?!\S)")


def is_prepared(paths: Sequence[str | Path]) -> bool:
    return len(paths) == 1 and os.path.isfile(Path(paths[0]) / MANIFEST)


# ----------------------------------------
# A task's text is cut into chunks, and each chunk is tokenized into shards, one for each split.
#
# How a task is cut depends only on the sources, not on the number of processes or on earlier work. So the shards are
# the same files however the work was divided, stopped and resumed.


@dataclass(frozen=True)
class TextChunk:
    task: int  # number of the task that reads the text
    number: int  # of the chunk in its task, counted from 0
    texts: list[str]
    document: NDArray[np.int64]  # [num_pieces], like the next ones: number of the document
    offset: NDArray[np.int64]  # byte of the document's text where the piece begins
    num_bytes: NDArray[np.int64]  # UTF-8 bytes of the piece
    held: NDArray[np.bool_]  # whether the piece is held out
    spans: list[Spans | None] | None = None  # annotations that came with the pieces
    label: NDArray[np.int64] | None = None  # number of the document's class; -1: none
    # The piece's group: a hash below 0; for a document without a group, the document's number.
    group: NDArray[np.int64] | None = None

    def select(self, rows: NDArray[np.bool_]) -> TextChunk:
        columns = {entry.name: getattr(self, entry.name) for entry in fields(self)[2:]}
        for name, column in columns.items():
            if isinstance(column, list):
                columns[name] = [value for value, stays in zip(column, rows, strict=True) if stays]
            elif column is not None:
                columns[name] = column[rows]
        return replace(self, **columns)


def chunk_bytes(source_bytes: int, *, slow: bool = False) -> int:
    """Bytes of text per chunk: about 256 chunks a corpus, of 1 MiB to 32 MiB. With `slow`, of 128 KiB to 1 MiB: a
    pipeline annotates the text, about a hundred times slower than tokenizing. Above 4 GiB of files these
    grow: a process maps at most about 65,530 shards, and compressed files hold about four times as much text."""
    smallest, largest = SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES
    if slow:
        smallest, largest = smallest >> 3, max(smallest, source_bytes // SLOW_CHUNKS_A_CORPUS)
    return min(max(source_bytes // CHUNKS_A_CORPUS, smallest), largest)


def cut_chunks(
    pieces: Iterable[tuple[Document, bool]], size_bytes: int, classes: Sequence[str] | None = None, *, task: int = 0
) -> Iterator[TextChunk]:
    """Groups the pieces of a task, each with whether it is held out, into chunks; a chunk ends with the piece that
    reaches `size_bytes`. `classes` are the names of the documents' classes by number; None: no classes."""
    class_numbers = None if classes is None else {name: number for number, name in enumerate(classes)}

    def make_chunk(number: int) -> TextChunk:
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
        sizes.append(len(piece.text.encode()))
        num_bytes += sizes[-1]
        if num_bytes >= size_bytes:
            yield make_chunk(number)
            number, num_bytes, rows, sizes = number + 1, 0, [], []
    if rows:
        yield make_chunk(number)


@dataclass
class Split:
    documents: int = 0  # documents with tokens; one held out in part counts in both splits
    pieces: int = 0  # rows of the shards
    bytes: int = 0  # UTF-8 bytes of the text
    tokens: int = 0  # without special tokens
    unknown_tokens: int = 0  # tokens for text outside the vocabulary
    files: tuple[ShardFile, ...] = ()
    first: int | None = field(default=None, compare=False)  # number of the first document; only during preparation
    last: int | None = field(default=None, compare=False)

    def add(self, later: Split) -> None:
        """Adds the counts of the text that follows. A document that spans both counts once."""
        for name in ("documents", "pieces", "bytes", "tokens", "unknown_tokens", "files"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.documents -= later.first is not None and later.first == self.last
        self.first = later.first if self.first is None else self.first
        self.last = self.last if later.last is None else later.last


@dataclass
class TextCounts:
    """Counts for a chunk, a task, or the corpus."""

    frequencies: NDArray[np.int64]  # [vocab_size]: counts of each token in the training split
    documents: int = 0  # including those without tokens; counted per task
    bytes: int = 0  # UTF-8 bytes of the text, including pieces without tokens
    without_tokens: int = 0  # pieces without any token
    train: Split = field(default_factory=Split)
    validation: Split = field(default_factory=Split)
    unknown: UnknownText = field(default_factory=UnknownText)  # of both splits
    # By column of annotation: number of spans, and of those without a token
    spans: dict[str, list[int]] = field(default_factory=dict)
    # Number of documents that begin here without a class, then with each class; empty if no classes are read
    labels: list[int] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # what was left out: reason to number
    examples: list[str] = field(default_factory=list)  # excerpts of held-out text, unchanged

    def add(self, later: TextCounts) -> None:
        self.frequencies += later.frequencies
        for name in ("documents", "bytes", "without_tokens"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.unknown = self.unknown.joined(later.unknown)
        self.train.add(later.train)
        self.validation.add(later.validation)
        for column, (number, lost) in later.spans.items():
            before = self.spans.get(column, [0, 0])
            self.spans[column] = [before[0] + number, before[1] + lost]
        self.labels = [a + b for a, b in zip_longest(self.labels, later.labels, fillvalue=0)]
        self.skipped = dict(Counter(self.skipped) + Counter(later.skipped))
        self.examples = some_examples([*self.examples, *later.examples])


def some_examples(texts: Iterable[str]) -> list[str]:
    """Selects a few of some texts, the same ones in whatever order they come."""
    return sorted(set(texts), key=lambda text: (zlib.crc32(text.encode()), text))[:MOST_EXAMPLES]


def excerpts(text: str) -> list[str]:
    """Short excerpts of a text, in whole words and unchanged; its beginning if no words are short enough."""
    begins = range(0, min(len(text), MOST_EXAMPLES * EXAMPLE_EVERY), EXAMPLE_EVERY)
    matches = [match[0] for begin in begins if (match := _WHOLE_WORDS.search(text, begin))]
    return matches or [text[:EXAMPLE_CHARS]]


def write_shards(
    chunk: TextChunk,
    tokenizer: Tokenizer,
    root: Path,
    *,
    annotator: Annotator | None = None,
    count: Callable[[int], None] = lambda num_bytes: None,
) -> TextCounts:
    """Tokenizes a chunk and writes its shards, byte for byte the same for the same chunk. `count` is called after each
    batch with its bytes of text."""
    widths = {} if annotator is None else column_types(annotator.plan.labels)
    vocab_size, unknown_id = tokenizer.vocab_size, tokenizer.special.unk
    frequencies = np.zeros((2, vocab_size), dtype=np.int64)
    counts = TextCounts(frequencies[0], bytes=int(chunk.num_bytes.sum()), spans={column: [0, 0] for column in widths})
    splits = counts.train, counts.validation
    batches_of: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])

    # 1. Batches of about a megabyte, so that the tokenizer needs little memory.
    batch_bytes = BATCH_BYTES if annotator is None or annotator.plan.pipeline is None else SLOW_BATCH_BYTES
    batch_of = (np.cumsum(chunk.num_bytes) - 1) * max(round(counts.bytes / batch_bytes), 1) // counts.bytes
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(batch_of)) + 1).tolist(), len(chunk.texts)]):
        rows, texts = slice(begin, end), chunk.texts[begin:end]
        aligned: dict[str, Aligned] = {}
        if annotator is None:
            encoded, lengths = tokenizer.encode_joined(texts)
        else:
            of_data = [None] * len(texts) if chunk.spans is None else chunk.spans[rows]
            encoded, places = tokenizer.encode_placed(texts)
            lengths = places.lengths
            aligned = align(texts, places, annotator.annotate(texts, of_data), annotator.plan.labels)
        columns = {name: getattr(chunk, name) for name in ("document", "offset", "num_bytes", LABEL, GROUP)}
        numbers = {name: column[rows] for name, column in columns.items() if column is not None}
        annotations = {name: aligned[name].values.astype(width) for name, width in widths.items()}
        ids = encoded.input_ids.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        batch = token_rows(ids, encoded.word_starts, lengths, numbers, annotations)

        # 2. The counts of each batch, and its rows for the shards of the two splits.
        counts.unknown = counts.unknown.joined(encoded.unknown)
        filled, held = lengths > 0, chunk.held[rows]
        counts.without_tokens += int((~filled).sum())
        for column, of_tokens in aligned.items():
            number, lost = counts.spans[column]
            counts.spans[column] = [number + of_tokens.spans, lost + of_tokens.lost]
        for side, selected in enumerate((filled & ~held, filled & held)):
            if not selected.any():
                continue
            part = batch if selected.all() else batch.filter(pa.array(selected))
            if side == 0:
                part = part.select([name for name in part.schema.names if name != GROUP])
            batches_of[side].append(part)
            frequencies[side] += np.bincount(part["input_ids"].flatten().to_numpy(), minlength=vocab_size)
            document, num_bytes = part["document"].to_numpy(), int(part["num_bytes"].to_numpy().sum())
            documents = 1 + int((np.diff(document) != 0).sum())
            splits[side].add(Split(documents, bytes=num_bytes, first=int(document[0]), last=int(document[-1])))
        samples = chain.from_iterable(excerpts(texts[number]) for number in np.flatnonzero(filled & held).tolist())
        counts.examples = some_examples([*counts.examples, *samples])
        count(int(chunk.num_bytes[rows].sum()))
    if chunk.label is not None:
        counts.labels = np.bincount(chunk.label[chunk.offset == 0] + 1).tolist()

    # 3. The shards, each written whole.
    for name, split, batches, tokens in zip((TRAIN, VALIDATION), splits, batches_of, frequencies, strict=True):
        split.unknown_tokens = 0 if unknown_id is None else int(tokens[unknown_id])
        if (shard := save_shard(root, f"{name}/{chunk.task:05d}-{chunk.number:05d}.arrow", batches)) is not None:
            split.pieces, split.tokens, split.files = shard.pieces, shard.tokens, (shard,)
    return counts


def token_rows(
    input_ids: NDArray[Any],
    word_starts: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    numbers: Mapping[str, NDArray[np.int64]],
    annotations: Mapping[str, NDArray[np.unsignedinteger]] | None = None,
) -> pa.RecordBatch:
    """Rows of a shard, see `unmask.data.store`: `lengths` and the columns of `numbers` are [num_rows]; the others are
    [num_tokens], row after row."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)  # of Arrow's lists; a batch is far below 2^31 tokens
    np.cumsum(lengths, out=offsets[1:])

    def in_lists(columns: Mapping[str, NDArray[Any]]) -> dict[str, pa.Array]:
        return {name: pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)) for name, values in columns.items()}

    tokens = in_lists({"input_ids": input_ids, "word_starts": word_starts.view(np.uint8)})
    columns = tokens | {name: pa.array(column) for name, column in numbers.items()} | in_lists(annotations or {})
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def save_shard(root: Path, name: str, batches: Sequence[pa.RecordBatch]) -> ShardFile | None:
    """Writes rows, if there are any, as a shard with this `name` in the data folder. A file with its name is complete
    and on the disk."""
    if not batches:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    content = memoryview(sink.getvalue())
    path = root / name
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    tokens = sum(len(batch["input_ids"].flatten()) for batch in batches)
    return ShardFile(name, sum(map(len, batches)), tokens, hashlib.sha256(content).hexdigest())


# ----------------------------------------
# The manifest, and the folder while it is made


@dataclass(frozen=True)
class Manifest:
    """The contents of a data folder: its sources, the results, and how to check it."""

    sources: tuple[dict[str, Any], ...]  # the source files: path, size in bytes
    settings: dict[str, Any]  # settings that determine the data
    plan: str  # what a document is and what is held out, in words
    tokenizer_sha256: str  # fingerprint of the tokenizer in `tokenizer/`
    vocab_size: int
    documents: int  # used, including those without tokens
    bytes: int  # UTF-8 bytes of their text
    tokens: int  # of both splits
    skipped: dict[str, int]  # what was left out: reason to number of documents
    near_duplicates: NearDuplicates  # held-out text with near-duplicates in the training text
    train: Split
    validation: Split
    token_frequencies: tuple[int, ...]  # [vocab_size]: counts of each id in the training split
    # By column of annotation: its labels, numbered from 1; number of spans, and of those without a token
    annotations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Names of the documents' classes, numbered from 0, with numbers of documents; empty: no classes
    labels: dict[str, int] = field(default_factory=dict)
    unlabelled: int = 0  # documents without a class, if classes were read
    unknown: UnknownText = field(default_factory=UnknownText)  # how much of the text became `[UNK]`
    # What is held out, if the rest of its files is trained on: `unmask.data.corpus.Corpus.held_within`
    held_within: str | None = None
    examples: tuple[str, ...] = ()  # short excerpts of held-out text, unchanged

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal data has equal fingerprints in any folder."""
        files = [file.sha256 for split in (self.train, self.validation) for file in split.files]
        # Label numbers in the shards mean nothing without their names.
        labels: list[Any] = [self.annotations] if self.annotations else []
        labels += [list(self.labels)] if self.labels else []
        return hashlib.sha256(json.dumps([VERSION, self.tokenizer_sha256, files, *labels]).encode()).hexdigest()

    def save(self, root: Path) -> None:
        content = {"version": VERSION, "fingerprint": self.fingerprint, **asdict(self)}
        content["near_duplicates"] = self.near_duplicates.plain()
        for split in (TRAIN, VALIDATION):
            del content[split]["first"], content[split]["last"]
        write_atomically(root / MANIFEST, json.dumps(content, indent=1) + "\n")


def load_manifest(root: Path) -> Manifest:
    """Reads the manifest of a data folder; raises a DataError if it is missing, damaged or of another version."""
    file = root / MANIFEST
    if not file.is_file():
        raise DataError(f"{root}: there is no {MANIFEST}; make the folder with `unmask prepare`")
    try:
        content = parse_json(file)
        version, fingerprint = content.pop("version"), content.pop("fingerprint")
        manifest = TypeAdapter(Manifest).validate_python(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{file}: damaged ({shortened(repr(error))}); prepare the data again") from error
    if version != VERSION or manifest.fingerprint != fingerprint:
        raise DataError(f"{file}: its fingerprint does not match its content; prepare the data again")
    return manifest


def data_folder(root: Path) -> ClaimedFolder:
    """The folder as a whole, while it is made; see the module's docstring. A claimed folder is complete."""
    early = {STDIN_FILE, PIPES, GIVEN, PARTS, TRAIN, VALIDATION}
    if (root / TRAIN).is_dir() or (root / PARTS).is_dir():  # made before the tokenizer; else a tokenizer is a user's
        early.add(TOKENIZER)
    return ClaimedFolder(
        root=root, marker=MANIFEST, what="prepared data", ours={MANIFEST, TOKENIZER, *early}, early=early,
        is_shared=False, error=DataError,
    )  # fmt: skip


@contextmanager
def holding(folder: ClaimedFolder, part: tuple[int, int] | None = None) -> Iterator[None]:
    """While it is entered, no other process writes here or, with a part (number, of how many), does that part; others
    may do theirs. After an error, removes what no later try can use. Raises a DataError if another process writes here,
    the folder is a file, or it holds files that are not ours."""
    root, parts = folder.root, folder.root / PARTS
    folder.check(resume=True)
    for inner, ours in ((root / TRAIN, _SHARD), (root / VALIDATION, _SHARD), (parts, _RESULT)):
        paths = inner.iterdir() if inner.is_dir() else [inner] if inner.exists() else []
        others = sorted(str(path.relative_to(root)) for path in paths if not ours.fullmatch(path.name))
        if others:
            raise DataError(f"{root} holds other files ({', '.join(others[:3])}); give a new or empty folder")
    lock: AbstractContextManager[None] = folder.held()
    if part is not None:
        with writing(parts):
            parts.mkdir(parents=True, exist_ok=True)
        with folder.held(wait=60):  # fails during a whole preparation or a join; hundreds of parts may start at once
            pass
        lock = locked(root, lock=parts / f"{_PART_LOCK}{part[0]}-of-{part[1]}.lock", error=DataError)
    with lock:
        try:
            yield
        except BaseException:
            if all(path.name.startswith(_PART_LOCK) for path in parts.glob("*")):
                shutil.rmtree(parts, ignore_errors=True)
            raise


# ----------------------------------------
# Opening prepared data. A shard is checked against its checksum when a process first reads it. Data of up to
# `CHECKED_AT_ONCE` tokens is checked completely when it is opened, so that damage is reported before any work.


def open_split(root: Path, manifest: Manifest, split: Split) -> TokenStore:
    """Opens a split of the prepared data in `root`. Raises a DataError if a file is missing or damaged (for large data,
    later)."""
    is_small = manifest.tokens <= CHECKED_AT_ONCE
    files = checked_files(root, split, content=is_small)
    check = (lambda number: None) if is_small else (lambda number: _check_shard(root, split.files[number]))
    return TokenStore(files, split.files, check=check)


def checked_files(root: Path, split: Split, *, content: bool = True) -> list[Path]:
    """The files of a split. Checks that all exist and, with `content`, match their checksums, several at a time; a
    DataError names the first that is missing or damaged."""
    with ThreadPoolExecutor(OPENED_AT_ONCE) as threads:
        list(threads.map(lambda entry: _check_shard(root, entry, content=content), split.files))
    return [root / entry.name for entry in split.files]


def _check_shard(root: Path, entry: ShardFile, *, content: bool = True) -> None:
    path = root / entry.name
    if not path.is_file():
        raise DataError(f"{path}: this file is in the manifest but missing; prepare the data again")
    try:
        if content and file_sha256(path) != entry.sha256:
            raise DataError(f"{path}: its content does not match its checksum; prepare the data again")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); prepare the data again") from error
