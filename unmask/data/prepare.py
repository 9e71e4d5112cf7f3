"""Text to token shards: in parallel, in bounded memory, and going on where a kill has stopped it.

    corpus ──▶ tasks ──look──▶ decisions ──survey──▶ tokenizer, held-out texts ──shards──▶ counts ──add up──▶ manifest

A task is a function of the sources (`unmask.data.work`), and any process or machine may run it
(`unmask.data.executors`). What needs all of the text is put together here, between the tasks; most corpora need no
look. `DataFolder` tells what stands in the folder that comes out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from unmask.core.errors import DataError, SettingsError, TokenizerError
from unmask.core.results import Notify, counted, ignore
from unmask.data.annotations import AnnotationPlan, choose_origins, data_fields, plan_annotation, read_gazetteer
from unmask.data.corpus import Corpus, ordered
from unmask.data.data_folder import DataFolder, Manifest, Unfinished, load_manifest, split_of, stamp
from unmask.data.executors import Executor, OnRay, WorkerProcesses, usable_cores
from unmask.data.near_duplicates import HeldTexts, held_texts, join_leaks, near_duplicates, no_leaks
from unmask.data.reading import COMPRESSIONS
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.shards import SMALLEST_CHUNK_BYTES, TextCounts, chunk_bytes
from unmask.data.sources import InMemory, Named, find_sources, is_stream, keep_as_files, names_to_keep
from unmask.data.survey import ReadTask
from unmask.data.work import (
    DECISIONS,
    SETTLED,
    KeptText,
    Kind,
    Sample,
    TaskCounts,
    Work,
    changed,
    from_json_array,
    json_array,
    key_of,
    load_arrays,
    sample_texts,
    save_arrays,
)
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_tokenizer
from unmask.tokenizer.words import WordCensus

log = logging.getLogger(__name__)

MOST_UNKNOWN = 0.5
UNPACKED = 4  # times the size of a compressed file, about, is its text
DOING = {"look": "comparing documents", "survey": "reading words for the tokenizer", "shards": "tokenizing"}
RUN_PARTS = "when all parts have come so far, put together what they found (--join), then run the parts again"


@dataclass(frozen=True)
class PreparationInput:
    """What is prepared, and how.

    Attributes:
        paths: Files, folders or patterns; `-` is standard input; or texts in memory.
        corpus: What a document is, what is cleaned, and how much is held out.
        tokenizer: Which tokenizer is used or trained.
        annotation: What is said of the text beside its tokens.
        size_bytes: Text of a shard; None fits it to the sources.
        task_bytes: What is read at once; None fits it to the sources.
    """

    paths: Sequence[Named]
    corpus: CorpusSettings
    tokenizer: TokenizerSettings
    annotation: AnnotationSettings
    size_bytes: int | None = None
    task_bytes: int | None = None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What shapes the data, as the manifest keeps it."""
        return preparation_settings(self.paths, self.corpus, self.tokenizer, self.annotation)


def preparation_settings(
    paths: Sequence[Named],
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    annotation: AnnotationSettings,
) -> dict[str, Any]:
    """What shapes the data, as the manifest keeps it: sources and settings; those of annotation where there is any."""
    settings: dict[str, Any] = {
        "sources": names_to_keep(paths),
        "corpus": corpus.model_dump(mode="json"),
        "tokenizer": tokenizer.model_dump(mode="json"),
    }
    if annotation.columns:
        settings["annotation"] = annotation.model_dump(mode="json")
    if annotation.gazetteer is not None:  # its content, since the file may change under its name
        settings["gazetteer"] = [list(phrase) for phrase in read_gazetteer(Path(annotation.gazetteer))]
    return settings


def open_annotated(
    paths: Sequence[str | Path],
    corpus: CorpusSettings,
    annotation: AnnotationSettings,
    *,
    task_bytes: int | None = None,
) -> tuple[Corpus, AnnotationPlan | None]:
    """Opens a corpus and settles what is annotated in it.

    Raises:
        UnmaskError: As for `prepare`.
    """
    if not annotation.columns:
        return Corpus(paths, corpus, task_bytes=task_bytes), None
    origins = choose_origins(annotation, find_sources([*paths, *corpus.validation]))
    opened = Corpus(paths, corpus, fields=data_fields(annotation, origins), task_bytes=task_bytes)
    return opened, plan_annotation(annotation, origins, opened)


class Preparation:
    """A preparation that is going on: its tasks, and what is put together of them.

        look ──▶ decide ──▶ survey ──▶ settle ──▶ shards ──▶ finish
                   │                      │
             decisions.npz     settled.npz, tokenizer/, unfinished.json

    These files say what they were made of, so that any process that comes next knows how far the work is.

    Args:
        folder: The data folder.
        given: Text and settings.
        files: The text, where all of it is in files.
        notify: Called with the progress.
        note: Told what is done and kept, in a line.
        before: What an earlier try was making; None where there was none.

    Raises:
        UnmaskError: The text cannot be read, or not be annotated as was asked for.
    """

    def __init__(
        self,
        folder: DataFolder,
        given: PreparationInput,
        files: Sequence[str | Path],
        *,
        notify: Notify,
        note: Callable[[str], None],
        before: Unfinished | None,
    ) -> None:
        self.folder, self.given, self._before = folder, given, before
        self._notify, self._note = notify, note
        self.corpus, plan = open_annotated(files, given.corpus, given.annotation, task_bytes=given.task_bytes)
        self.corpus.check_held()
        self.tasks = self.corpus.tasks
        log.info("corpus: %s", self.corpus.plan.describe())
        if plan is not None:
            note(plan.describe())
        self._sources = stamp(self.corpus.all_sources())
        self._is_same = before is not None and (before.settings, before.sources) == (given.settings, self._sources)
        # Decisions and the tokenizer are made of all of the text.
        self._key = key_of([given.settings, [task.stamp for task in self.tasks]])
        slow = plan is not None and plan.pipeline is not None
        size_bytes = given.size_bytes or chunk_bytes(sum(size for _, size, _ in self._sources), slow=slow)
        self.work = Work.on(folder.root, self.corpus, size_bytes, self._sample(), plan)

    def _sample(self) -> Sample | None:
        """All of the text, or some of very much; of characters always all, since each may be met once."""
        settings = self.given.tokenizer
        if settings.path is not None:
            return None
        if settings.kind == "char":
            return Sample(1.0, bool(settings.bare))
        sizes = (
            source.path.stat().st_size * (UNPACKED if source.path.suffix.lower() in COMPRESSIONS else 1)
            for source in self.corpus.all_sources()
        )
        return Sample(min(1.0, settings.sample_bytes / max(sum(sizes), 1)), bool(settings.bare))

    def finished_before(self) -> Manifest | None:
        """The manifest of a try that was stopped when only tidying remained; that is done now."""
        return self.folder.finished(self._before) if self._before is not None and self._is_same else None

    def run(self, executor: Executor, kind: Kind, tasks: Sequence[ReadTask]) -> None:
        """Does some of the tasks, as far as they are not done."""
        if kind == "look" and not any(self.corpus.wanted):
            return
        if kind == "shards" and (done := sum(self.work.result("shards", task) is not None for task in tasks)):
            self._note(f"going on: {done:,} of {len(tasks):,} tasks were done before")
        total = self.corpus.num_bytes
        if len(tasks) < len(self.tasks) and total is not None:
            total = sum(task.num_bytes for task in tasks)
        what = "reading what is held out" if kind == "survey" and self.work.sample is None else DOING[kind]
        executor.run(self.work, kind, tasks, counted(self._notify, what, total, "bytes"))

    def _results(self, kind: Kind) -> Iterator[tuple[ReadTask, Mapping[str, Any]]]:
        """What the tasks came to, one by one.

        Raises:
            DataError: Some are not done; said in the end, of all of them.
        """
        missing = []
        for task in self.tasks:
            arrays = self.work.result(kind, task)
            if arrays is not None:
                yield task, arrays
            else:
                missing.append(str(task.number + 1))
        if missing:
            shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise DataError(
                f"{self.work.root}: {len(missing):,} of {len(self.tasks):,} tasks are not done, or of other text or "
                f"settings ({shown}; of n parts, part 1 does 1, n + 1, 2 n + 1 ...); run the same command again, or "
                "the parts that were stopped"
            )

    def decide(self) -> None:
        """Decides what is left out and what is held out, from what was seen in all tasks.

        Raises:
            CorpusError: There is nothing to choose among.
            DataError: Some tasks were not looked at.
        """
        looked = []
        if any(self.corpus.wanted):
            looked = [(task.number, arrays) for task, arrays in self._results("look")]
        decisions = self.corpus.decide(looked)
        if looked:
            save_arrays(self.work.file(DECISIONS), decisions.arrays(), self._key)
        self.work = replace(self.work, decided=decisions.digest())

    def is_decided(self) -> bool:
        """Whether that is done; takes over what was decided."""
        if not any(self.corpus.wanted):
            self.decide()
            return True
        if load_arrays(self.work.file(DECISIONS), self._key) is None:
            return False
        self.work = replace(self.work, decided=self.work.decisions().digest())
        return True

    def settle(self) -> Manifest | None:
        """Puts together what the survey has found, trains the tokenizer, and makes the folder ready for shards.

        Returns:
            The manifest, where all was done before and only tidying remained.

        Raises:
            UnmaskError: There are no classes, some tasks were not surveyed, or no tokenizer can be trained.
        """
        if self._before is not None and not self._is_same:
            self._note("the settings or the files have changed since the last try; what still fits is kept")
        held, labels = HeldTexts(parts=self.corpus.plan.holdout_unit in ("part", "end")), set[str]()
        for _, arrays in self._results("survey"):
            held.join(held_texts(arrays))
            labels |= set(from_json_array(arrays["labels"]))
        self.work.file(SETTLED).unlink(missing_ok=True)  # it speaks of a tokenizer that may go
        column = self.corpus.settings.label
        classes = None if column is None else ordered(labels, column)
        tokenizer = self._tokenizer()
        made_by = self._made_by(tokenizer)
        unfinished = Unfinished(self.given.settings, self._sources, tokenizer.fingerprint, made_by)
        if self._before == unfinished and (finished := self.folder.finished(unfinished)) is not None:
            return finished
        self.folder.begin(unfinished, tokenizer)
        arrays = held.arrays()
        digests = [hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in arrays]
        settled = key_of([self.work.decided, classes, digests])
        facts = {"made_by": made_by, "settled": settled, "classes": classes}
        save_arrays(self.work.file(SETTLED), {**arrays, "facts": json_array(facts)}, self._key)
        self.work = replace(self.work, made_by=made_by, settled=settled, classes=classes)
        return None

    def is_settled(self) -> bool:
        """Whether that is done, with the libraries that are used here; takes over what was settled."""
        arrays = load_arrays(self.work.file(SETTLED), self._key)
        if arrays is None:
            return False
        facts = from_json_array(arrays["facts"])
        try:
            if self._made_by(load_tokenizer(self.folder.tokenizer)) != facts["made_by"]:
                return False
        except TokenizerError:
            return False
        classes = None if facts["classes"] is None else tuple(facts["classes"])
        self.work = replace(self.work, made_by=facts["made_by"], settled=facts["settled"], classes=classes)
        return True

    def _made_by(self, tokenizer: Tokenizer) -> str:
        annotated = [] if self.work.plan is None else [self.work.plan.fingerprint]
        return key_of([tokenizers.__version__, tokenizer.fingerprint, self.given.settings, *annotated])

    def _tokenizer(self) -> Tokenizer:
        """Loads the tokenizer, takes the one that an earlier try has trained, or trains it."""
        settings = self.given.tokenizer
        if settings.path is not None:
            return load_tokenizer(settings.path)
        if self._before is not None and self._is_same:
            with suppress(TokenizerError):  # where it is damaged, it is trained again
                trained = load_tokenizer(self.folder.tokenizer)
                if trained.fingerprint == self._before.tokenizer_sha256:
                    return trained
        return train_tokenizer(lambda: sample_texts(map(self.work.sample_of, self.tasks)), settings)

    def finish(self) -> Manifest:
        """Adds up what the tasks came to, and writes the manifest.

        Raises:
            DataError: A task is not done, the tokenizer does not know most of the text, or the text has changed.
        """
        tokenizer = load_tokenizer(self.folder.tokenizer)
        whole = TaskCounts(TextCounts(np.zeros(tokenizer.vocab_size, dtype=np.int64)), 0, 0, {}, no_leaks())
        skipped: Counter[str] = Counter()
        for _, arrays in self._results("shards"):
            counts = TaskCounts.from_arrays(arrays, tokenizer.vocab_size)
            whole.text.add(counts.text)
            join_leaks(whole.leaks, counts.leaks)
            whole.documents += counts.documents
            whole.left_out += counts.left_out
            skipped.update(counts.skipped)
        if stamp(self.corpus.all_sources()) != self._sources:
            raise changed(self.work.root)
        manifest = self._manifest(whole, skipped, tokenizer)
        self.folder.finish(manifest)
        return manifest

    def _manifest(self, whole: TaskCounts, skipped: Counter[str], tokenizer: Tokenizer) -> Manifest:
        text, decisions, plan = whole.text, self.work.decisions(), self.work.plan
        if WordCensus(text.texts, text.single_words).without_words:
            log.warning(
                "%s of %s texts are a single word each, so masking by words would hide whole texts: use the strategy "
                "random",
                f"{text.single_words:,}",
                f"{text.texts:,}",
            )
        train, validation = split_of(text.train), split_of(text.validation)
        tokens, unknown = train.tokens + validation.tokens, train.unknown_tokens + validation.unknown_tokens
        if tokens == 0 or unknown > MOST_UNKNOWN * tokens:
            raise DataError(
                f"{unknown:,} of {tokens:,} tokens are unknown to the tokenizer: it does not fit this text (WordPiece "
                "takes no words of over 100 letters); take a bpe or char tokenizer, or another one",
                options=["tokenizer_kind", "tokenizer"],
            )
        near = near_duplicates(self.work.held(), whole.leaks, left_out=whole.left_out)
        classes = self.work.classes or ()
        labels = [*text.labels, *([0] * (1 + len(classes) - len(text.labels)))]
        return Manifest(
            sources=tuple({"path": str(s.path), "bytes": s.path.stat().st_size} for s in self.corpus.all_sources()),
            settings=self.given.settings,
            plan=self.corpus.describe(decisions),
            tokenizer_sha256=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            documents=whole.documents,
            bytes=text.bytes,
            tokens=tokens,
            skipped=dict(skipped + Counter({"documents without tokens": text.without_tokens})),
            overlap=near.equal,
            train=train,
            validation=validation,
            token_frequencies=tuple(text.frequencies.tolist()),
            annotations={} if plan is None else dict(plan.labels),
            spans={name: (text.spans[name][0], text.spans[name][1]) for name in (() if plan is None else plan.labels)},
            labels=dict(zip(classes, labels[1:], strict=True)),
            unlabelled=labels[0],
            near_duplicates=near,
            left_out=tuple(self.corpus.left_out_examples(decisions)),
        )


def prepare(  # noqa: PLR0913  (what goes in, how it is done, and who is told)
    paths: Sequence[Named],
    out: Path,
    *,
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    annotation: AnnotationSettings | None = None,
    workers: int | None = None,
    ray: str | None = None,
    size_bytes: int | None = None,
    task_bytes: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    notify: Notify = ignore,
    note: Callable[[str], None] = log.info,
) -> Manifest:
    """Tokenizes a corpus into shards. What a try with the same settings has done, before it was stopped, is kept.

    Args:
        paths: Files, folders or patterns; `-` is standard input. Texts in memory are kept in the folder.
        out: The data folder; made where missing. Data that is complete is replaced, unless `resume` is given.
        corpus: What a document is, what is cleaned, and how much is held out.
        tokenizer: Which tokenizer is used or trained.
        annotation: What is said of the text beside its tokens; None is nothing.
        workers: Processes that read and tokenize; None takes as many as there are cores. 1 works in this process, with
            the threads of the tokenizers library. The data is the same for any number.
        ray: Address of a Ray cluster whose nodes do the work instead, and see text and folder.
        size_bytes: Text of a shard; None fits it to the sources.
        task_bytes: What is read at once; None fits it to the sources.
        resume: Data that is complete, and was made with the same settings, is returned as it is.
        overwrite: Nothing that is there is kept.
        notify: Told of the progress, in bytes of text.
        note: Told what is kept, in a line.

    Raises:
        CorpusError: A file cannot be read, there is too little text, or the column of labels holds no classes.
        TokenizerError: The tokenizer cannot be used, or not be trained with these settings.
        DataError: The tokenizer does not know most of the text; the folder is a file, holds other files or, with
            `resume`, data made with other settings or of other sources; a worker died; the disk is full; or an
            annotation that was asked for is not there.
        SettingsError: A number of workers that cannot be; both `resume` and `overwrite`; workers and a cluster; a
            cluster that is not there; or a pipeline that annotates is not installed.
    """
    if resume and overwrite:
        raise SettingsError("resume goes on with what is there, overwrite replaces it: leave one out")
    if workers is not None and ray is not None:
        raise SettingsError("workers are processes of this machine, ray takes the cores of a cluster: leave one out")
    _check_workers(workers)
    given = PreparationInput(paths, corpus, tokenizer, annotation or AnnotationSettings(), size_bytes, task_bytes)
    folder = DataFolder(out)
    folder.check()
    with folder.claimed.held(), ExitStack() as stack:
        folder.check()  # again: nothing else comes from now on
        if resume and folder.is_complete:
            return _complete(folder, given.settings, note)
        folder.check_no_parts()
        stack.enter_context(_forgetting_failure(folder))
        if overwrite:
            folder.forget()
        before = None if overwrite else folder.unfinished()
        kept = KeptText(may=ray is None)
        executor = OnRay(ray) if ray is not None else _processes(given, workers, kept, stack)
        files = list(keep_as_files(given.paths, out, reuse=before is not None, notify=notify))
        preparation = Preparation(folder, given, files, notify=notify, note=note, before=before)
        kept.may &= len(preparation.tasks) == 1 and preparation.corpus.fields is None
        if (finished := preparation.finished_before()) is not None:
            return finished
        preparation.run(executor, "look", preparation.tasks)
        preparation.decide()
        preparation.run(executor, "survey", preparation.tasks)
        if (finished := preparation.settle()) is not None:
            return finished
        preparation.run(executor, "shards", preparation.tasks)
        return preparation.finish()


def prepare_part(
    given: PreparationInput,
    out: Path,
    part: tuple[int, int],
    *,
    workers: int | None = None,
    notify: Notify = ignore,
    note: Callable[[str], None] = log.info,
) -> str:
    """Does one of several parts of a preparation, as far as it can be done by now; see `join_parts`.

    Args:
        given, out, workers, notify, note: As for `prepare`; the folder is one that all parts see.
        part: Which, counted from 1, and of how many.

    Returns:
        What is to be done next, in words.

    Raises:
        UnmaskError: As `prepare`; or text comes by standard input, a pipe or from memory.
    """
    number, of = part
    _check_workers(workers)
    if not 1 <= number <= of:
        raise SettingsError(f"part {number}/{of}: give the number of the part, from 1 on, and how many there are")
    _check_files(given.paths)
    folder, is_new = DataFolder(out), not out.exists()
    folder.check()
    folder.claimed.make()
    if folder.is_complete:
        _complete(folder, given.settings, note, options=())
        return f"{out} is complete already"
    with _forgetting_failure(folder, is_new=is_new), ExitStack() as stack:
        stack.enter_context(folder.held_part(number, of))
        files = list(keep_as_files(given.paths, out))
        preparation = Preparation(folder, given, files, notify=notify, note=note, before=folder.unfinished())
        if preparation.finished_before() is not None:
            return f"{out} is complete already"
        executor = _processes(given, workers, KeptText(may=False), stack)
        mine = preparation.tasks[number - 1 :: of]
        preparation.run(executor, "look", mine)
        if not preparation.is_decided():
            return RUN_PARTS
        preparation.run(executor, "survey", mine)
        if not preparation.is_settled():
            return RUN_PARTS
        preparation.run(executor, "shards", mine)
        return "when all parts have come so far, put the data together (--join)"


def join_parts(
    given: PreparationInput, out: Path, *, notify: Notify = ignore, note: Callable[[str], None] = log.info
) -> Manifest | str:
    """Puts together what parts of a preparation have found up to now.

        parts 1 to n ──▶ join: the tokenizer ──▶ parts 1 to n ──▶ join: the manifest

    Where documents are left out, or groups or the end of the text held out, parts and join come once more before that.

    Returns:
        The manifest, or what is to be done next, in words.

    Raises:
        UnmaskError: As `prepare`; or something of a part is missing.
    """
    _check_files(given.paths)
    folder = DataFolder(out)
    folder.check()
    with folder.claimed.held():
        if folder.is_complete:
            return _complete(folder, given.settings, note, options=())
        folder.check_no_parts()
        files = list(keep_as_files(given.paths, out))
        preparation = Preparation(folder, given, files, notify=notify, note=note, before=folder.unfinished())
        if (finished := preparation.finished_before()) is not None:
            return finished
        if not preparation.is_decided():
            preparation.decide()
            return "decided what is left out and what is held out; run the parts again, then this"
        if not preparation.is_settled():
            preparation.settle()
            return "the tokenizer is there; run the parts again, then this"
        return preparation.finish()


def _processes(given: PreparationInput, workers: int | None, kept: KeptText, stack: ExitStack) -> WorkerProcesses:
    """Worker processes, started at once where the files that are named are large enough to need them."""
    processes = stack.enter_context(WorkerProcesses(usable_cores() if workers is None else workers, kept))
    named = (Path(path) for path in given.paths if not isinstance(path, InMemory))
    num_bytes = sum(path.stat().st_size for path in named if os.path.isfile(path))
    if processes.workers > 1 and given.size_bytes is None and num_bytes >= 2 * SMALLEST_CHUNK_BYTES:
        processes.start()
    return processes


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise SettingsError(f"{workers} workers: there must be one at least", options=["workers"])


def _check_files(paths: Sequence[Named]) -> None:
    if any(isinstance(path, InMemory) or is_stream(path) for path in paths):
        raise SettingsError("parts of a preparation read files, which all of them see; write the text into some")


@contextmanager
def _forgetting_failure(folder: DataFolder, *, is_new: bool = False) -> Iterator[None]:
    """After an error, removes what no later try goes on from."""
    try:
        yield
    except BaseException:
        folder.forget_failure()
        if is_new:
            with suppress(OSError):
                folder.root.rmdir()  # if it is empty
        raise


def _complete(
    folder: DataFolder, settings: dict[str, Any], note: Callable[[str], None], *, options: tuple[str, ...] | None = None
) -> Manifest:
    """The manifest of data that needs no more work; by which options it may be written otherwise."""
    out, manifest = folder.root, load_manifest(folder.root)
    claimed = folder.claimed if options is None else dataclasses.replace(folder.claimed, options=options)
    claimed.check_same(manifest.settings, settings)
    for source in manifest.sources:
        path = Path(source["path"])
        if path.is_file() and path.stat().st_size != source["bytes"]:
            raise DataError(f"{path} has changed since {out} was prepared; prepare it again", options=["overwrite"])
    note(f"{out} is complete already")
    return manifest
