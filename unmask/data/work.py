"""What is done with one task of a preparation: a function of the sources, wherever it runs, that leaves one file.

    look     parts/look-00003.npz       what decisions about all of the text need, where there are any
    survey   parts/survey-00003.npz     held-out texts and names of classes
             parts/sample-00003.arrow   the share of the text that a tokenizer is trained on
    shards   parts/shards-00003.npz     counts; the shards themselves are train/00003-00000.arrow ...

A task is done if its file is there with its key: a hash of the text's stamp, of the settings, and of what was decided
before. So a task that was stopped, or is done twice, does no harm, and any other text or setting does it anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from unmask.core.errors import CorpusError, DataError
from unmask.core.files import file_sha256, write_atomically, writing
from unmask.data.annotations import AnnotationPlan, Annotator
from unmask.data.corpus import Corpus, Decisions
from unmask.data.data_folder import PARTS, SETTLED, TOKENIZER
from unmask.data.near_duplicates import HeldIndex, HeldTexts, Leaks, LeakSearch, held_texts
from unmask.data.shards import Split, TextChunk, TextCounts, cannot_write, cut_chunks, utf8_bytes, write_shards
from unmask.data.store import ShardFile
from unmask.data.survey import ReadTask, text_hash
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

Kind = Literal["look", "survey", "shards"]
Count = Callable[[int], None]
"""Called with how many more bytes of text are done."""
VERSION = 4  # raised whenever the same text, settings and tokenizer come to other files, so that no older one is kept
DECISIONS = "decisions.npz"
MOST_CLASSES = 10_000
COUNT_BYTES = 1 << 18  # of text, after which the survey counts
LEAKS = "training documents that nearly stand in the held-out text"
_SAMPLE_BATCH_CHARS = 1 << 22
_SAMPLE_SCHEMA = pa.schema({"text": pa.large_string()})
_ODD, _RANGE = 0x9E3779B97F4A7C15, 1 << 64


class Sample(NamedTuple):
    """Which text a tokenizer is trained on."""

    share: float  # of the documents, chosen by their hashes; 1 takes all
    held_too: bool  # whether held-out text counts

    def takes(self, beginning: str) -> bool:
        """Whether a document is in it; by other bits of its hash than those that hold it out."""
        return self.share >= 1.0 or (text_hash(beginning) * _ODD) % _RANGE < self.share * _RANGE


@dataclass(frozen=True)
class Work:
    """What each task of a preparation must know. It travels with the task, so it is small."""

    root: Path  # the data folder
    corpus: Corpus  # how text is read; without its files, which the task names
    size_bytes: int  # text of a chunk
    sample: Sample | None  # what the tokenizer is trained on; None where none is trained
    plan: AnnotationPlan | None  # what is annotated; None is nothing
    decided: str  # a hash of all of the text and settings, where something is decided about all of it; else empty
    settled: str = ""  # one of these, the tokenizer and the libraries; empty before they are there
    classes: tuple[str, ...] | None = None  # of the documents; None where none are read

    def key(self, kind: Kind, task: ReadTask) -> str:
        """What the file of a task says it was made of."""
        corpus = self.corpus
        plan = dataclasses.asdict(corpus.plan)
        settings = corpus.settings.model_dump(mode="json")
        content: list[Any] = [VERSION, kind, task.stamp, settings, plan, dict(corpus.fields or {})]
        if kind == "survey":
            content += [self.decided, self.sample]
        if kind == "shards":
            content += [self.settled, self.size_bytes]
        return key_of(content)

    def file(self, name: str) -> Path:
        """A file that is there only while the data is made."""
        return self.root / PARTS / name

    def sample_of(self, task: ReadTask) -> Path:
        """The file of a task's share of the sample."""
        return self.file(f"sample-{task.number:05d}.arrow")

    def result(self, kind: Kind, task: ReadTask) -> Mapping[str, Any] | None:
        """What a task came to; None where it was not done, or of other text."""
        arrays = load_arrays(self.file(f"{kind}-{task.number:05d}.npz"), self.key(kind, task))
        if arrays is not None and kind == "survey" and self.sample is not None:
            sample = self.sample_of(task)
            if not sample.is_file() or sample.stat().st_size != int(arrays["sample_bytes"]):
                return None
        return arrays

    def decisions(self, task: ReadTask | None = None) -> Decisions:
        """What was decided about all of the text, or about a task's documents."""
        if not self.corpus.needs:
            return Decisions()
        return Decisions(self._joined(DECISIONS, None if task is None else task.number))

    def held(self) -> HeldTexts:
        """What is held out."""
        return held_texts(self._joined(SETTLED))

    def _joined(self, name: str, of_task: int | None = None) -> Mapping[str, Any]:
        arrays = load_arrays(self.file(name), of_task=of_task)
        if arrays is None:
            raise changed(self.file(name))
        return arrays


class Tools:
    """What is loaded once for many tasks of some work."""

    def __init__(self, work: Work) -> None:
        self.work = work

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The one in the folder."""
        return load_tokenizer(self.work.root / TOKENIZER)

    @cached_property
    def annotator(self) -> Annotator | None:
        """None where nothing is annotated."""
        return None if self.work.plan is None else Annotator(self.work.plan)

    @cached_property
    def index(self) -> HeldIndex:
        """Of what is held out."""
        return HeldIndex(self.work.held())

    def write(self, chunk: TextChunk, count: Count) -> TextCounts:
        """Writes the shards of a chunk; see `write_shards`."""
        return write_shards(chunk, self.tokenizer, self.work.root, annotator=self.annotator, count=count)


EachChunk = Callable[[Iterator[TextChunk]], Iterator[TextCounts]]
"""Writes the shards of chunks, here or elsewhere, and gives what each came to, in their order."""


def do_task(tools: Tools, kind: Kind, task: ReadTask, count: Count, each: EachChunk | None = None) -> None:
    """Does a task, unless that was done; `each` tokenizes its chunks, or this process where that is None.

    Raises:
        UnmaskError: The text cannot be read or tokenized, or a file not be written.
    """
    work = tools.work
    done = work.result(kind, task)
    if done is not None and kind == "shards":  # another try may have made other shards of the same names
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
        arrays = _survey(tools, task, count)
    else:
        arrays = _make_shards(tools, task, count, each)
    if work.key(kind, task) != key:
        names = ", ".join(str(source.path) for source in task.sources[:3])
        raise CorpusError(f"{names}: has changed while it was read; run the same command again")
    save_arrays(work.file(f"{kind}-{task.number:05d}.npz"), arrays, key)


def _survey(tools: Tools, task: ReadTask, count: Count) -> dict[str, Any]:
    """Held-out texts, names of classes, and the text that the tokenizer is trained on."""
    work = tools.work
    sample, path = work.sample, work.sample_of(task)
    held = HeldTexts(parts=work.corpus.plan.holdout_unit in ("part", "end"))
    labels: set[str] = set()
    texts: list[str] = []
    takes, num_chars, uncounted = False, 0, 0
    with nullcontext(list[str].clear) if sample is None else _sample_file(path) as write:
        for piece, is_held in held.collect(work.corpus.read(task, work.decisions(task), Counter())):
            uncounted += utf8_bytes(piece.text)
            if uncounted >= COUNT_BYTES:
                count(uncounted)
                uncounted = 0
            if piece.label is not None and piece.label not in labels:
                labels.add(piece.label)
                if len(labels) > MOST_CLASSES:
                    raise CorpusError(
                        f"corpus.label = {str(work.corpus.settings.label)!r} has more than {MOST_CLASSES:,} different "
                        f"values, such as {piece.label!r}: these are no classes; name another column"
                    )
            if sample is not None and (not is_held or sample.held_too):
                takes = sample.takes(piece.text) if piece.offset == 0 else takes
                if takes or sample.share >= 1.0:
                    texts.append(piece.text)
                    num_chars += len(piece.text)
                    if num_chars >= _SAMPLE_BATCH_CHARS:
                        write(texts)
                        num_chars = 0
        write(texts)
    count(uncounted)
    sample_bytes = 0 if sample is None else path.stat().st_size
    return {**held.arrays(), "labels": json_array(sorted(labels)), "sample_bytes": np.array(sample_bytes)}


@contextmanager
def _sample_file(path: Path) -> Iterator[Callable[[list[str]], None]]:
    """Gives what moves texts into an Arrow stream; the file has its name only once it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with writing(path, pa.ArrowException):
            path.parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, _SAMPLE_SCHEMA) as stream:

                def write(texts: list[str]) -> None:
                    stream.write_batch(pa.record_batch([pa.array(texts, pa.large_string())], schema=_SAMPLE_SCHEMA))
                    texts.clear()

                yield write
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sample_texts(files: Iterable[Path]) -> Iterator[str]:
    """The texts of samples, one after another.

    Raises:
        DataError: The files were changed meanwhile.
    """
    for path in files:
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    yield from batch["text"].to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise changed(path) from error


def _make_shards(tools: Tools, task: ReadTask, count: Count, each: EachChunk | None) -> dict[str, Any]:
    """The shards of a task's chunks, compared with what is held out as they go by."""
    work = tools.work
    search = LeakSearch(tools.index, every=work.corpus.settings.leaks == "drop")
    skipped: Counter[str] = Counter()
    documents = left_out = 0

    def chunks() -> Iterator[TextChunk]:
        nonlocal documents, left_out
        leaking = -1  # the document that was left out last
        with closing(work.corpus.read(task, work.decisions(task), skipped)) as pieces:
            for chunk in cut_chunks(pieces, work.size_bytes, work.classes, task=task.number):
                documents = int(chunk.document[-1]) - task.first_document + 1
                leaks = search.look(chunk.texts, chunk.held, chunk.offset)
                gone = leaks.copy() if search.every else np.zeros(len(leaks), dtype=np.bool_)
                left_out += int(gone.sum())
                if search.every and not search.index.held.parts:  # what goes on behind a leak is left out, too
                    number, offset = chunk.document.tolist(), chunk.offset.tolist()
                    for place in np.flatnonzero(leaks | (chunk.offset > 0)).tolist():
                        if leaks[place]:
                            leaking = number[place]
                        gone[place] |= offset[place] > 0 and number[place] == leaking
                if not gone.all():
                    yield chunk.select(~gone) if gone.any() else chunk

    text = TextCounts(np.zeros(tools.tokenizer.vocab_size, dtype=np.int64))
    for counts in (tools.write(chunk, count) for chunk in chunks()) if each is None else each(chunks()):
        text.add(counts)
    if left_out:
        skipped[LEAKS] += left_out
    text.documents, text.left_out, text.skipped = documents, left_out, dict(skipped)
    used = np.flatnonzero(text.frequencies)
    facts = json_array({"text": {**vars(text), "frequencies": None}, "leaks": search.leaks})
    return {"facts": facts, "used": used, "counts": text.frequencies[used]}


def read_counts(arrays: Mapping[str, Any], vocab_size: int = 0) -> tuple[TextCounts, Leaks]:
    """What the shards of a task came to, and the held-out texts that nearly stand in it; without frequencies where
    `vocab_size` is 0."""
    facts = json.loads(bytes(arrays["facts"]))
    text = facts["text"]
    for split in ("train", "validation"):
        text[split] = Split(**{**text[split], "files": tuple(ShardFile(**file) for file in text[split]["files"])})
    text["frequencies"] = np.zeros(vocab_size, dtype=np.int64)
    if vocab_size:
        text["frequencies"][arrays["used"]] = arrays["counts"]
    return TextCounts(**text), facts["leaks"]


def changed(path: Path) -> DataError:
    """The error that a file of the preparation is gone or damaged."""
    return DataError(f"{path}: was changed meanwhile, or the text was; run the same command again")


def key_of(content: Any) -> str:
    """A hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def json_array(content: Any) -> Any:
    """JSON as bytes in an array, to be saved beside others."""
    return np.frombuffer(json.dumps(content, default=vars).encode(), dtype=np.uint8)


def load_arrays(path: Path, key: str | None = None, *, of_task: int | None = None) -> Mapping[str, Any] | None:
    """Arrays as `save_arrays` wrote them, those of one task only (`near-3`) or of all; None where they are not there,
    are damaged, or were made of something else than `key` says."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if key is not None and bytes(arrays["key"]).decode() != key:
                return None
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
        content = io.BytesIO()  # equal arrays, equal bytes
        np.savez(content, key=np.frombuffer(key.encode(), dtype=np.uint8), **arrays)
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise cannot_write(path.parent.parent, error) from error
