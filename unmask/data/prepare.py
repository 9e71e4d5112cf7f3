"""Text to token shards: in parallel, in bounded memory, and going on where a kill has stopped it.

    corpus ──▶ tasks ──look──▶ decisions ──survey──▶ tokenizer, held-out texts ──shards──▶ parts ──add up──▶ manifest

Each arrow is a pass over all tasks (`unmask.data.passes`), which somebody shares out (`unmask.data.workers`); most
corpora need no look. `DataFolder` tells what stands in the folder that comes out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.core.errors import DataError, SettingsError, TokenizerError, parse_json
from unmask.core.files import write_atomically
from unmask.core.results import Notify, counted, ignore
from unmask.data.annotations import AnnotationPlan, choose_origins, data_fields, plan_annotation, read_gazetteer
from unmask.data.corpus import Corpus, Decisions, ordered
from unmask.data.data_folder import DataFolder, Manifest, Split, Unfinished, load_manifest, stamp
from unmask.data.jobs import SMALLEST_JOB_BYTES, JobPart, SplitPart, add_frequencies, job_bytes, load_part, part_file
from unmask.data.near_duplicates import FoundLeaks, HeldTexts, held_texts, near_duplicates
from unmask.data.passes import (
    DECISIONS,
    HELD,
    KeptText,
    Pass,
    Sample,
    TaskPart,
    Work,
    key_of,
    load_arrays,
    load_decisions,
    load_task_part,
    save_arrays,
    task_file,
)
from unmask.data.reading import COMPRESSIONS
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.sources import InMemory, Named, Source, find_sources, is_stream, keep_given, names_to_keep
from unmask.data.store import ShardFile
from unmask.data.survey import ReadTask
from unmask.data.workers import OnRay, OnThisMachine, Sharing, WorkerPool, usable_cores
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_tokenizer
from unmask.tokenizer.words import WordCensus

# ----------------------------------------
# The manifest, put together from the parts: jobs to tasks, where they were made, and tasks to the corpus, here.

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


# ----------------------------------------
# The stages of a preparation: what is done between passes over the tasks, and by which files it goes on.
#
#     look ──▶ decide ──▶ survey ──▶ settle ──▶ make ──▶ put_together
#               │                      │
#         decisions.npz     held.npz, settled.state, tokenizer/, unfinished.json
#
# A stage's files say what they were made of, so whoever comes next, in this process or in another, knows where it
# stands.

MOST_UNKNOWN = 0.5
UNPACKED = 4  # times as much as the file, about, is in one that is compressed
SETTLED = "settled.state"
# Raised whenever the same text, settings and tokenizer come to other shards, so that no older part is kept.
PARTS_VERSION = 2


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
        "corpus": corpus.plain(),
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


class Stages:
    """A preparation that goes from stage to stage.

    Args:
        folder: The data folder.
        given: Text and settings.
        files: The text, where all of it is in files.
        notify: Called with the progress.
        note: Told what is done and kept, in a line.

    Attributes:
        corpus: What is read.
        work: What passes need, as far as it is known.

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
    ) -> None:
        self.folder, self.given = folder, given
        self._notify, self._note = notify, note
        self.corpus, plan = open_annotated(files, given.corpus, given.annotation, task_bytes=given.task_bytes)
        self.corpus.check_held()
        log.info("corpus: %s", self.corpus.plan.describe())
        if plan is not None:
            note(plan.describe())
        self._sources = stamp(self.corpus.all_sources())
        self._unchanged: Unfinished | None = None
        self._before: Unfinished | None = None
        slow = plan is not None and plan.pipeline is not None
        size_bytes = given.size_bytes or job_bytes(sum(size for _, size, _ in self._sources), slow=slow)
        sample = None if given.tokenizer.path is not None else _sample(given.tokenizer, self.corpus.all_sources())
        self.work = Work(folder.root, self.corpus, size_bytes, sample, plan)

    @property
    def tasks(self) -> list[ReadTask]:
        """Of the corpus."""
        return self.corpus.tasks

    @cached_property
    def _key(self) -> str:
        """What decisions about all of the text are made of."""
        return key_of([self.given.settings, [task.stamp for task in self.tasks]])

    def finished_before(self) -> Manifest | None:
        """The manifest of a try that was stopped when only tidying remained; that is done now."""
        before = self.folder.unfinished()
        if before is None or (before.settings, before.sources) != (self.given.settings, self._sources):
            return None
        return self.folder.finished(before)

    def go_on(self, before: Unfinished | None) -> None:
        """Takes up what an earlier try has left.

        Args:
            before: What it was making; None where there was none.
        """
        self._before = before
        if before is not None and (before.settings, before.sources) != (self.given.settings, self._sources):
            self._note("the settings or the files have changed since the last try; what still fits is kept")
        else:
            self._unchanged = before

    def look(self, sharing: Sharing, tasks: Sequence[ReadTask]) -> None:
        """Looks at tasks, where something must be decided about all of the text."""
        if any(self.corpus.wanted):
            self._do(sharing, "look", tasks, "comparing documents")

    def decide(self, *, in_parts: bool = False) -> None:
        """Decides what is left out and what is held out, from what was seen in all tasks.

        Args:
            in_parts: Others have looked, so that something may be missing yet.

        Raises:
            CorpusError: There is nothing to choose among.
            DataError: Some tasks were not looked at.
        """
        looked = []
        if any(self.corpus.wanted):
            looked = [(task.number, found) for task, found in self._results("look", in_parts=in_parts)]
        decisions = self.corpus.decide(looked)
        if looked:
            save_arrays(self.work.file(DECISIONS), decisions.arrays(), self._key)
        self.work = dataclasses.replace(self.work, decided=decisions.digest())

    def is_decided(self) -> bool:
        """Whether that is done, and known then."""
        if not any(self.corpus.wanted):
            self.decide()
            return True
        found = load_arrays(self.work.file(DECISIONS))
        if found is None or bytes(found["key"]).decode() != self._key:
            return False
        self.work = dataclasses.replace(self.work, decided=load_decisions(self.work).digest())
        return True

    def survey(self, sharing: Sharing, tasks: Sequence[ReadTask]) -> None:
        """Finds what is held out, classes, and the text that the tokenizer is trained on."""
        what = "reading what is held out" if self.work.sample is None else "reading words for the tokenizer"
        self._do(sharing, "survey", tasks, what)

    def settle(self, *, in_parts: bool = False) -> Manifest | None:
        """Puts together what the survey has found, trains the tokenizer, and makes the folder ready for shards.

        Args:
            in_parts: Others have surveyed, so that something may be missing yet.

        Returns:
            The manifest, where all was done before and only tidying remained.

        Raises:
            UnmaskError: There are no classes, some tasks were not surveyed, or no tokenizer can be trained.
        """
        held, labels = HeldTexts(parts=self.corpus.plan.holdout_unit in ("part", "end")), set[str]()
        for _, found in self._results("survey", in_parts=in_parts):
            held.join(held_texts(found))
            labels |= set(json.loads(bytes(found["labels"])))
        self.work.file(SETTLED).unlink(missing_ok=True)  # it speaks of a tokenizer that may go
        column = self.corpus.settings.label
        classes = None if column is None else ordered(labels, column)
        tokenizer = self._tokenizer()
        made_by = _made_by(self.given.settings, tokenizer, self.work.plan)
        unfinished = Unfinished(self.given.settings, self._sources, tokenizer.fingerprint, made_by)
        if self._unchanged == unfinished and (finished := self.folder.finished(unfinished)) is not None:
            return finished
        goes_on = self._before is not None and self._before.made_by == made_by
        self.folder.begin(unfinished, tokenizer, anew=not goes_on)
        if goes_on and (kept := self.folder.num_parts):
            self._note(f"going on: {kept:,} of the parts were done before")
        arrays = held.arrays()
        contents = [
            self.work.decided,
            classes,
            *(hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in arrays),
        ]
        save_arrays(self.work.file(HELD), arrays, self._key)
        self.work = dataclasses.replace(self.work, made_by=made_by, settled=key_of(contents), classes=classes)
        state = {"key": self._key, "made_by": made_by, "settled": self.work.settled, "classes": classes}
        write_atomically(self.work.file(SETTLED), json.dumps(state) + "\n")
        return None

    def is_settled(self) -> bool:
        """Whether that is done, and known then."""
        try:
            state = parse_json(self.work.file(SETTLED).read_text(encoding="utf-8"))
            classes = None if state["classes"] is None else tuple(state["classes"])
            known = {"made_by": state["made_by"], "settled": state["settled"], "classes": classes}
            if state["key"] != self._key:
                return False
        except (OSError, ValueError, KeyError, TypeError):
            return False
        try:
            tokenizer = load_tokenizer(self.folder.tokenizer)
        except TokenizerError:
            return False
        if _made_by(self.given.settings, tokenizer, self.work.plan) != state["made_by"]:
            return False  # also where another version of a library is used here
        self.work = dataclasses.replace(self.work, **known)
        return True

    def make(self, sharing: Sharing, tasks: Sequence[ReadTask]) -> None:
        """Makes the shards of tasks."""
        self._do(sharing, "shards", tasks, "tokenizing")

    def check_made(self) -> None:
        """Makes sure that the shards of all tasks are there, which others have made.

        Raises:
            DataError: Of some they are not; the text says of which.
        """
        missing = [task for task in self.tasks if self.work.finished(task) is None]
        if missing:
            raise self._missing(missing)

    def put_together(self) -> Manifest:
        """Adds up the parts and writes the manifest.

        Raises:
            DataError: The tokenizer does not know most of the text, or somebody has changed the folder.
        """
        held = load_arrays(self.work.file(HELD))
        if held is None:
            raise _changed_of_stages(self.work.root)
        if stamp(self.corpus.all_sources()) != self._sources:
            raise DataError("the text has changed while it was prepared; run the same command again")
        tokenizer = load_tokenizer(self.folder.tokenizer)
        decisions = load_decisions(self.work)
        manifest = put_together(self.work, self.given.settings, tokenizer, decisions, held_texts(held))
        _check_known(manifest)
        self.folder.finish(manifest)
        return manifest

    def _results(
        self, kind: Literal["look", "survey"], *, in_parts: bool
    ) -> Iterator[tuple[ReadTask, Mapping[str, Any]]]:
        """What a pass came to, task by task; each file is read and compared once.

        Raises:
            DataError: Over some tasks it did not go. Where parts do them, that is said in the end, of all of them.
        """
        missing = []
        for task in self.tasks:
            found = self.work.result(kind, task)
            if found is not None:
                yield task, found
            elif in_parts:
                missing.append(task)
            else:
                raise _changed_of_stages(self.work.root)
        if missing:
            raise self._missing(missing)

    def _missing(self, tasks: Sequence[ReadTask]) -> DataError:
        """What is said of tasks that no part has done."""
        shown = ", ".join(str(task.number + 1) for task in tasks[:8]) + (", ..." if len(tasks) > 8 else "")
        return DataError(
            f"{self.work.root}: {len(tasks):,} of {len(self.tasks):,} tasks are not done, or of other text or "
            f"settings ({shown}; of n parts, part 1 does 1, n + 1, 2 n + 1 ...); run the parts again that were "
            "stopped, then this"
        )

    def _do(self, sharing: Sharing, kind: Pass, tasks: Sequence[ReadTask], what: str) -> None:
        total = self.corpus.num_bytes
        if len(tasks) < len(self.tasks) and total is not None:
            total = sum(task.num_bytes for task in tasks)
        sharing.do(self.work, kind, tasks, counted(self._notify, what, total, "bytes"))

    def _tokenizer(self) -> Tokenizer:
        """Loads the tokenizer, takes the one that an earlier try has trained, or trains it."""
        settings = self.given.tokenizer
        if settings.path is not None:
            return load_tokenizer(settings.path)
        if self._unchanged is not None:
            with suppress(TokenizerError):  # where it is damaged, it is trained again
                trained = load_tokenizer(self.folder.tokenizer)
                if trained.fingerprint == self._unchanged.tokenizer_sha256:
                    return trained
        return train_tokenizer(self.work.sample_texts, settings)


def _sample(settings: TokenizerSettings, sources: Sequence[Source]) -> Sample:
    """All of the text, or of very much some; of characters always all, since each may be met once."""
    if settings.kind == "char":
        return Sample(1.0, bool(settings.bare))
    sizes = (
        source.path.stat().st_size * (UNPACKED if source.path.suffix.lower() in COMPRESSIONS else 1)
        for source in sources
    )
    return Sample(min(1.0, settings.sample_bytes / max(sum(sizes), 1)), bool(settings.bare))


def _made_by(settings: dict[str, Any], tokenizer: Tokenizer, plan: AnnotationPlan | None) -> str:
    annotated = [] if plan is None else [plan.fingerprint]
    return key_of([PARTS_VERSION, tokenizers.__version__, tokenizer.fingerprint, settings, *annotated])


def _changed_of_stages(root: Path) -> DataError:
    return DataError(f"{root}: was changed by somebody else, or the text was; run the same command again")


def _check_known(manifest: Manifest) -> None:
    unknown = manifest.train.unknown_tokens + manifest.validation.unknown_tokens
    if manifest.tokens == 0 or unknown > MOST_UNKNOWN * manifest.tokens:
        raise DataError(
            f"{unknown:,} of {manifest.tokens:,} tokens are unknown to the tokenizer: it does not fit this text "
            "(WordPiece takes no words of over 100 letters); take --tokenizer-kind bpe or char, or another --tokenizer"
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
        DataError: The tokenizer does not know most of the text; the folder is a file, holds files of somebody else
            or, with `resume`, data made with other settings or of other sources; a worker died; the disk is full; or
            an annotation that was asked for is not there.
        SettingsError: A number of workers that cannot be; both `resume` and `overwrite`; workers and a cluster; a
            cluster that is not there; or a pipeline that annotates is not installed.
    """
    _check_options(workers=workers, ray=ray, resume=resume, overwrite=overwrite)
    annotation = annotation or AnnotationSettings()
    folder = DataFolder(out)
    folder.check()
    with folder.claimed.held(), ExitStack() as stack:
        folder.check()  # again: nobody else comes from now on
        given = PreparationInput(paths, corpus, tokenizer, annotation, size_bytes, task_bytes)
        if resume and folder.is_complete:
            return _complete(folder, given.settings, note)
        folder.check_no_parts()
        stack.push(_forgetting(folder))
        before = None if overwrite else folder.unfinished()
        if overwrite:
            folder.forget()
        kept = KeptText(may=ray is None)
        sharing = _sharing(given, out, kept, stack, workers=workers, ray=ray)
        files = list(keep_given(given.paths, out, kept=before is not None, notify=notify))
        stages = Stages(folder, given, files, notify=notify, note=note)
        kept.may &= len(stages.tasks) == 1 and stages.corpus.fields is None
        if before is not None and (finished := stages.finished_before()) is not None:
            return finished
        stages.go_on(before)
        stages.look(sharing, stages.tasks)
        stages.decide()
        stages.survey(sharing, stages.tasks)
        if (finished := stages.settle()) is not None:
            return finished
        stages.make(sharing, stages.tasks)
        return stages.put_together()


def _sharing(
    given: PreparationInput, out: Path, kept: KeptText, stack: ExitStack, *, workers: int | None, ray: str | None
) -> Sharing:
    if ray is not None:
        return OnRay(ray)
    pool = stack.enter_context(WorkerPool(out, workers=usable_cores() if workers is None else workers))
    if pool.workers > 1 and given.size_bytes is None and _named_bytes(given.paths) >= 2 * SMALLEST_JOB_BYTES:
        pool.start()
    return OnThisMachine(pool, kept)


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
    _check_options(workers=workers, ray=None, resume=False, overwrite=False)
    if not 1 <= number <= of:
        raise SettingsError(f"--part {number}/{of}: give the number of the part, from 1 on, and how many there are")
    _check_files(given.paths)
    folder, is_new = DataFolder(out), not out.exists()
    folder.check()
    folder.claimed.make()
    if folder.is_complete:
        _complete(folder, given.settings, note, options=())
        return f"{out} is complete already"
    with ExitStack() as stack:
        stack.push(_forgetting(folder, is_new=is_new))
        stack.enter_context(folder.held_part(number, of))
        stages = Stages(folder, given, list(keep_given(given.paths, out)), notify=notify, note=note)
        if stages.finished_before() is not None:
            return f"{out} is complete already"
        kept = KeptText(may=False)
        sharing = _sharing(given, out, kept, stack, workers=workers, ray=None)
        mine = stages.tasks[number - 1 :: of]
        stages.look(sharing, mine)
        if not stages.is_decided():
            return "when all parts have come so far, put together what they found (--join), then run the parts again"
        stages.survey(sharing, mine)
        if not stages.is_settled():
            return "when all parts have come so far, put together what they found (--join), then run the parts again"
        stages.make(sharing, mine)
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
        stages = Stages(folder, given, list(keep_given(given.paths, out)), notify=notify, note=note)
        if (finished := stages.finished_before()) is not None:
            return finished
        if not stages.is_decided():
            stages.decide(in_parts=True)
            return "decided what is left out and what is held out; run the parts again, then this"
        if not stages.is_settled():
            stages.settle(in_parts=True)
            return "the tokenizer is there; run the parts again, then this"
        stages.check_made()
        return stages.put_together()


def _check_files(paths: Sequence[Named]) -> None:
    if any(isinstance(path, InMemory) or is_stream(path) for path in paths):
        raise SettingsError("parts of a preparation read files, which all of them see; write the text into some")


def _named_bytes(paths: Sequence[Named]) -> int:
    """Bytes of the files that are named as such, which is known before anything is read."""
    named = (Path(path) for path in paths if not isinstance(path, InMemory))
    return sum(path.stat().st_size for path in named if os.path.isfile(path))


def _check_options(*, workers: int | None, ray: str | None, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise SettingsError("--resume and --overwrite exclude each other")
    if workers is not None and workers < 1:
        raise SettingsError(f"--workers {workers}: there must be one at the least")
    if workers is not None and ray is not None:
        raise SettingsError(
            "--workers are processes of this machine, --ray takes the cores of a cluster; leave one out"
        )


def _forgetting(folder: DataFolder, *, is_new: bool = False) -> Callable[..., None]:
    """What removes, after an error, what nobody goes on from."""

    def ended(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            folder.forget_failure()
            if is_new:
                with suppress(OSError):
                    folder.root.rmdir()  # if it is empty

    return ended


def _complete(
    folder: DataFolder, settings: dict[str, Any], note: Callable[[str], None], *, options: tuple[str, ...] | None = None
) -> Manifest:
    """The manifest of data that needs no more work; by which options it may be written otherwise."""
    out, manifest = folder.root, load_manifest(folder.root)
    claimed = folder.claimed if options is None else replace(folder.claimed, options=options)
    claimed.check_same(manifest.settings, settings)
    for source in manifest.sources:
        path = Path(source["path"])
        if path.is_file() and path.stat().st_size != source["bytes"]:
            raise DataError(f"{path} has changed since {out} was prepared; prepare it again with --overwrite")
    note(f"{out} is complete already")
    return manifest
