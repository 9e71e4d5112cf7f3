"""Text to token shards: in parallel, in bounded memory, and resumable after a kill.

    corpus ──▶ tasks ──look──▶ decisions ──survey──▶ tokenizer, held-out texts ──shards──▶ counts ──add up──▶ manifest

A task is a function of the sources, and any process or machine may run it (`unmask.data.work`). Between the tasks, this
module combines what needs all of the text; most corpora need no look. `unmask.data.data_folder` describes the result.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers

from unmask.core.compiled import cores
from unmask.core.errors import CorpusError, DataError, SettingsError, TokenizerError, listed
from unmask.core.files import writing
from unmask.core.remote import lasting_source
from unmask.core.results import Notify, counted, ignore
from unmask.data.annotations import AnnotationPlan, SpacyPipeline, choose_origins
from unmask.data.columns import in_order
from unmask.data.corpus import Corpus
from unmask.data.data_folder import (
    ANY_LENGTH,
    MANIFEST,
    PARTS,
    SETTLED,
    SMALLEST_CHUNK_BYTES,
    TOKENIZER,
    TRAIN,
    VALIDATION,
    Manifest,
    TextCounts,
    chunk_bytes,
    data_folder,
    holding,
    load_manifest,
)
from unmask.data.near_duplicates import KINDS, HeldTexts, Leaks, near_duplicates
from unmask.data.reading import COMPRESSIONS
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.sources import (
    InMemory,
    Named,
    SourceSplit,
    find_sources,
    find_split,
    is_stream,
    keep_as_files,
    names_to_keep,
)
from unmask.data.survey import ReadTask
from unmask.data.work import (
    AFTERWARDS,
    DECISIONS,
    LEAKS,
    SAMPLE,
    VERSION,
    Executor,
    Kind,
    OnRay,
    Sample,
    Work,
    WorkerProcesses,
    changed,
    json_array,
    key_of,
    load_arrays,
    read_counts,
    save_arrays,
)
from unmask.tokenizer.loading import load_for_new_model, load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings, train_tokenizer

log = logging.getLogger(__name__)

UNPACKED = 4  # text is about this many times as large as its compressed file
DOING = {"look": "comparing documents", "survey": "reading words for the tokenizer", "shards": "tokenizing"}
RUN_PARTS = "when all parts have reached this point, join their results (--join), then run the parts again"


class Unfinished(Exception):
    """A part, or a join, has gone as far as it can for now. The text says what to do next."""


def open_annotated(
    paths: Sequence[str | Path], corpus: CorpusSettings, annotation: AnnotationSettings
) -> tuple[Corpus, AnnotationPlan | None]:
    """Opens a corpus and decides what is annotated and by what, with the labels that a pipeline can give; labels in the
    data are known only after all of it was read. Raises the errors of `prepare`."""
    if not annotation.columns:
        return Corpus(paths, corpus), None
    sources = find_sources([*paths, *corpus.validation], announce=False)
    origins, fields = choose_origins(annotation, sources)
    opened = Corpus(paths, corpus, fields=fields)
    by_pipeline = [column for column, origin in origins.items() if origin == "pipeline"]
    if not by_pipeline:
        return opened, AnnotationPlan(origins, {})
    pipeline = SpacyPipeline(annotation.pipeline, by_pipeline)
    labels = {column: pipeline.labels(column) for column in by_pipeline}
    return opened, AnnotationPlan(origins, labels, annotation.pipeline, pipeline.version)


def settings_of(
    paths: Sequence[Named], corpus: CorpusSettings, tokenizer: TokenizerSettings, annotation: AnnotationSettings
) -> dict[str, Any]:
    """What determines the data, as in the manifest: sources and settings, with those of annotation if there is any."""
    settings: dict[str, Any] = {
        "sources": names_to_keep(paths),
        "corpus": corpus.model_dump(mode="json"),
        "tokenizer": tokenizer.model_dump(mode="json"),
    }
    if annotation.columns:
        settings["annotation"] = annotation.model_dump(mode="json")
    return settings


def text_files(paths: Sequence[str | Path], corpus: CorpusSettings) -> list[Path]:
    """The files that a corpus reads, to train on or to hold out; no streams, which can be read only once. Raises the
    errors of `find_split`."""
    files = [path for path in paths if not is_stream(path)]
    split = find_split(files, by_name=corpus.splits == "auto", announce=False) if files else SourceSplit([], [])
    held = find_sources(corpus.validation, announce=False) if corpus.validation else split.validation
    return [source.path for source in (*split.train, *held)]


def check_unchanged(
    root: Path, manifest: Manifest, paths: Sequence[Named], corpus: CorpusSettings, *, shared: bool = False
) -> None:
    """Checks that the text has not changed since this data was completed. If all of it is gone, it is no longer
    needed."""
    sizes = {os.path.abspath(source["path"]): source["bytes"] for source in manifest.sources}
    status = {path: os.stat(path) for path in sizes if os.path.isfile(path)}
    changed = [path for path, now in status.items() if now.st_size != sizes[path]]
    files = [path for path in paths if not isinstance(path, InMemory) and not is_stream(path)]
    files = [path for path in files if lasting_source(path) == str(path)]  # fetched files are named by their hashes
    if status and len(files) == len(paths):  # copies of streams and of objects in memory may be gone
        changed += sorted(sizes.keys() - status.keys())
    with suppress(CorpusError):  # there are no files, or some are gone
        changed += sorted(set(map(os.path.abspath, text_files(files, corpus))) - sizes.keys())
    if changed:
        what = f"{changed[0]} was added, removed or changed after {root} was prepared"
        if shared:  # parts cannot overwrite
            raise DataError(f"{what}; give another folder, or remove {root}", options=["out"])
        raise DataError(f"{what}; prepare the text again", options=["overwrite"])


def prepare(  # noqa: PLR0913  (input, execution and callbacks)
    paths: Sequence[Named],
    out: Path,
    *,
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    annotation: AnnotationSettings | None = None,
    workers: int | None = None,
    ray: str | None = None,
    part: tuple[int, int] | None = None,
    join: bool = False,
    resume: bool = False,
    notify: Notify = ignore,
    note: Callable[[str], None] = log.info,
) -> Manifest:
    """Tokenizes a corpus into shards. It continues from the results of an earlier try with the same settings.

    Args:
        paths: Files, folders or patterns; `-` is standard input. Texts in memory are written into the folder.
        out: The data folder; made if missing. Complete data is replaced, unless `resume` is given.
        workers: Processes that read and tokenize; None: one per core. 1 works in this process, with the threads of the
            tokenizers library. The data is the same for any number.
        ray: Address of a Ray cluster whose nodes do the work instead; they must see text and folder.
        part: Which part of the work to do, counted from 1, and the number of parts. Each part does what it can for now,
            in a folder that all share.
        join: Joins the results of the parts, in turns with them:

                parts 1 to n ──▶ join: the tokenizer ──▶ parts 1 to n ──▶ join: the manifest

            If documents are left out, or groups or the end of the text held out, another round of both comes first.
        notify: Called with the progress, in bytes of text.
        note: Called with remarks, a line each.

    Raises:
        Unfinished: Parts, or a join, have gone as far as they can for now.
        CorpusError: A file cannot be read, there is too little text, or the column of labels holds no classes.
        TokenizerError: The tokenizer cannot be used, or cannot be trained with these settings.
        DataError: The tokenizer does not know enough of the text (`corpus.max_unknown`); the folder is a file, holds
            other files or, with `resume`, other data; a worker died; or an annotation is missing.
        SettingsError: An impossible number of workers; arguments that exclude each other; no cluster at the address;
            parts of text from a pipe or from memory; or a pipeline that is not installed.
    """
    # 1. Arguments that exclude each other
    shared = part is not None or join
    if workers is not None and ray is not None:
        raise SettingsError("workers are processes of this machine and ray uses a cluster: give only one")
    if workers is not None and workers < 1:
        raise SettingsError(f"{workers} workers: give at least 1", options=["workers"])
    if part is not None and not 1 <= part[0] <= part[1]:
        raise SettingsError(
            f"part {part[0]}/{part[1]}: give the number of the part, counted from 1, and how many parts there are"
        )
    if shared and any(isinstance(path, InMemory) or is_stream(path) for path in paths):
        raise SettingsError("preparing in parts needs files that all parts can read; write the text to files first")

    # 2. Data that is already complete
    annotation = annotation or AnnotationSettings()
    folder, settings = data_folder(out), settings_of(paths, corpus, tokenizer, annotation)
    if (resume or shared) and folder.is_claimed:
        manifest = load_manifest(out)
        replace(folder, options=() if shared else folder.options).check_same(manifest.settings, settings)
        check_unchanged(out, manifest, paths, corpus, shared=shared)
        note(f"{out} is already complete")
        return manifest

    # 3. The work: a part stops before each join, and a join after it
    with holding(folder, part), ExitStack() as stack:
        executor: Executor | None = None
        if ray is not None:
            executor = OnRay(ray)
        elif not join:
            executor = processes = stack.enter_context(WorkerProcesses(cores() if workers is None else workers))
            # For large files, workers start importing while this process does other things.
            named = (Path(path) for path in paths if not isinstance(path, InMemory))
            num_bytes = sum(path.stat().st_size for path in named if os.path.isfile(path))
            is_large = num_bytes >= 2 * SMALLEST_CHUNK_BYTES
            for _ in range(processes.workers if is_large and processes.workers > 1 else 0):
                processes.submit(os.getpid)
        preparation = Preparation(
            out, paths, corpus, tokenizer, annotation, settings=settings, notify=notify, note=note
        )
        tasks = preparation.tasks if part is None else preparation.tasks[part[0] - 1 :: part[1]]
        result = preparation.go_on(executor, tasks, is_part=part is not None)
    if isinstance(result, str):
        raise Unfinished(result)
    return result


class Preparation:
    """A preparation in progress: its tasks, and what is combined from their results.

        look ──▶ decide ──▶ survey ──▶ settle ──▶ shards ──▶ finish
                   │                      │
             decisions.npz     settled.npz, tokenizer/

    These files record what they were made from, so that any later process knows how far the work is. Arguments are
    those of `prepare`, with the locked folder and the settings for the manifest.
    """

    def __init__(
        self,
        root: Path,
        paths: Sequence[Named],
        corpus: CorpusSettings,
        tokenizer: TokenizerSettings,
        annotation: AnnotationSettings,
        *,
        settings: dict[str, Any],
        notify: Notify,
        note: Callable[[str], None],
    ) -> None:
        self._root, self._settings, self._tokenizer_settings = root, settings, tokenizer
        self._notify, self._note = notify, note
        is_resumed = any((root / PARTS).glob("*.npz"))
        files = list(keep_as_files(paths, root, reuse=is_resumed, notify=notify))
        self.corpus, plan = open_annotated(files, corpus, annotation)
        self.corpus.check_held()
        self.tasks = self.corpus.tasks
        log.info("corpus: %s", self.corpus.plan.describe())
        if plan is not None:
            note(plan.describe())
        # Decisions and the tokenizer depend on all of the text.
        made_by = {**settings, "corpus": corpus.model_dump(mode="json", exclude=AFTERWARDS)}
        self._key = key_of([VERSION, made_by, [task.stamp for task in self.tasks]])
        # The tokenizer is trained on all of the text, or on a sample of very much text; a tokenizer of characters
        # always on all, since a character may occur once.
        sample, sizes = None, [(each.path, each.path.stat().st_size) for each in self.corpus.all_sources()]
        if tokenizer.path is None:
            text = (size * (UNPACKED if path.suffix.lower() in COMPRESSIONS else 1) for path, size in sizes)
            share = min(1.0, tokenizer.sample_bytes / max(sum(text), 1))
            sample = Sample(1.0 if tokenizer.kind == "char" else share, bool(tokenizer.bare))
        slow = plan is not None and plan.pipeline is not None
        size_bytes = chunk_bytes(sum(size for _, size in sizes), slow=slow)
        decided = self._key if self.corpus.needs else ""
        light = copy.copy(self.corpus)  # how text is read; tasks name the files
        light.tasks, light.sources, light.validation_sources = [], [], []
        self.work = Work(root, light, size_bytes, sample, plan, decided)

    def go_on(self, executor: Executor | None, tasks: Sequence[ReadTask], *, is_part: bool) -> Manifest | str:
        """Does the given tasks and, unless this is a part of the work, joins the results of all. Without an executor it
        stops where tasks must be done next. Returns the manifest, or what to do next, in words."""
        self._run(executor, "look", tasks)
        if self.corpus.needs and load_arrays(self.work.file(DECISIONS), self._key) is None:
            if is_part:
                return RUN_PARTS
            decisions = self.corpus.decide([(task.number, arrays) for task, arrays in self._results("look")])
            save_arrays(self.work.file(DECISIONS), decisions.arrays, self._key)
            if executor is None:
                return "decided what to drop and what to hold out; run the parts again, then this command"
        self._run(executor, "survey", tasks)

        # The tokenizer and all held-out texts may exist already, made with the same versions of libraries.
        is_settled = False
        if (arrays := load_arrays(self.work.file(SETTLED), self._key)) is not None:
            facts = json.loads(bytes(arrays["facts"]))
            classes = None if facts["classes"] is None else tuple(facts["classes"])
            plan = self.work.plan and self.work.plan.with_labels(facts["labels"])
            self.work = replace(self.work, plan=plan, classes=classes)
            with suppress(TokenizerError):  # a damaged trained one is trained again
                path = self._tokenizer_settings.path
                tokenizer = load_tokenizer(self._root / TOKENIZER) if path is None else load_for_new_model(path)
                self.work = replace(self.work, settled=self._settled_by(tokenizer))
                is_settled = self.work.settled == facts["settled"]
        if not is_settled:
            if is_part:
                return RUN_PARTS
            self._settle()
            if executor is None:
                return "the tokenizer is ready; run the parts again, then this command"
        self._run(executor, "shards", tasks)
        return "when all parts have reached this point, assemble the data (--join)" if is_part else self._finish()

    def _run(self, executor: Executor | None, kind: Kind, tasks: Sequence[ReadTask]) -> None:
        if executor is None or (kind == "look" and not self.corpus.needs):
            return
        if kind == "shards" and (done := sum(self.work.result("shards", task) is not None for task in tasks)):
            self._note(f"resuming: {done:,} of {len(tasks):,} tasks are already done")
        total = self.corpus.num_bytes
        if len(tasks) < len(self.tasks) and total is not None:
            total = sum(task.num_bytes for task in tasks)
        what = "reading held-out text" if kind == "survey" and self.work.sample is None else DOING[kind]
        executor.run(self.work, kind, tasks, counted(self._notify, what, total, "bytes"))

    def _results(self, kind: Kind) -> Iterator[tuple[ReadTask, Mapping[str, Any]]]:
        """The results of the tasks, one by one; at the end, a DataError lists all tasks that are not done."""
        missing = []
        for task in self.tasks:
            if (arrays := self.work.result(kind, task)) is not None:
                yield task, arrays
            else:
                missing.append(str(task.number + 1))
        if missing:
            raise DataError(
                f"{self.work.root}: {len(missing):,} of {len(self.tasks):,} tasks are not done, or were done "
                f"for other text or settings ({listed(missing, 8)}; of n parts, part 1 does tasks 1, n + 1, 2 "
                "n + 1 ...); run the same command again, or the parts that were interrupted"
            )

    def _settled_by(self, tokenizer: Tokenizer) -> str:
        annotated = None if self.work.plan is None else asdict(self.work.plan)
        return key_of([self._key, tokenizers.__version__, tokenizer.fingerprint, annotated])

    def _settle(self) -> None:
        held, labels, span_labels = HeldTexts(), set[str](), defaultdict[str, set[str]](set)
        for _, arrays in self._results("survey"):
            held.join(arrays)
            labels |= set(json.loads(bytes(arrays["labels"])))
            for name, column_labels in json.loads(bytes(arrays["span_labels"])).items():
                span_labels[name].update(column_labels)
        plan = self.work.plan and self.work.plan.with_labels(span_labels)

        def samples() -> Iterator[str]:
            for path in [self.work.file(SAMPLE, task) for task in self.tasks]:
                try:
                    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                        for batch in stream:
                            yield from batch["text"].to_pylist()
                except (OSError, pa.ArrowException) as error:
                    raise changed(path) from error

        column, settings = self.corpus.settings.label, self._tokenizer_settings
        if column is not None and not labels:
            raise CorpusError(f"corpus.label = {str(column)!r}: no row has a value in this column; name another")
        classes = None if column is None else in_order(labels)
        path = settings.path
        tokenizer = train_tokenizer(samples, settings) if path is None else load_for_new_model(path)
        with writing(self._root):  # from here on, existing complete data is replaced
            for name in (TRAIN, VALIDATION, PARTS, TOKENIZER):
                (self._root / name).mkdir(parents=True, exist_ok=True)
            (self._root / MANIFEST).unlink(missing_ok=True)
            tokenizer.save(self._root / TOKENIZER, max_length=ANY_LENGTH)
        self.work = replace(self.work, plan=plan, classes=classes)
        self.work = replace(self.work, settled=self._settled_by(tokenizer))
        facts = json_array({"settled": self.work.settled, "classes": classes, "labels": plan and plan.labels})
        save_arrays(self.work.file(SETTLED), {**held.arrays(), "facts": facts}, self._key)

    def _finish(self) -> Manifest:
        # 1. The counts of all tasks
        tokenizer = load_tokenizer(self._root / TOKENIZER)
        text = TextCounts(np.zeros(tokenizer.vocab_size, dtype=np.int64))
        leaks: Leaks = {kind: {} for kind in KINDS}
        for _, arrays in self._results("shards"):
            of_task, leaks_of_task = read_counts(arrays, tokenizer.vocab_size)
            text.add(of_task)
            for kind, texts in leaks.items():  # the first matches are kept
                leaks[kind] = leaks_of_task[kind] | texts

        # 2. Errors about them
        train, validation = text.train, text.validation
        tokens, most = train.tokens + validation.tokens, self.corpus.settings.max_unknown
        if tokens == 0:
            raise DataError("the tokenizer makes no tokens of this text; use another", options=["tokenizer"])
        if text.unknown.share > most and train.unknown_tokens:  # unless all of it is held out, as in a tiny corpus
            raise DataError(f"{text.unknown.describe()}; to accept the loss, set corpus.max_unknown=1 (it is {most:g})")

        # 3. The manifest
        decisions, columns = self.work.decisions(), {} if self.work.plan is None else dict(self.work.plan.labels)
        near = near_duplicates(self.work.held(), leaks, left_out=text.skipped.get(LEAKS, 0))
        classes = self.work.classes or ()
        labels = [*text.labels, *([0] * (1 + len(classes) - len(text.labels)))]
        manifest = Manifest(
            sources=tuple({"path": str(s.path), "bytes": s.path.stat().st_size} for s in self.corpus.all_sources()),
            settings=self._settings,
            plan=self.corpus.describe(decisions),
            tokenizer_sha256=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            documents=text.documents,
            bytes=text.bytes,
            tokens=tokens,
            skipped=dict(Counter(text.skipped) + Counter({"documents without tokens": text.without_tokens})),
            near_duplicates=near,
            train=train,
            validation=validation,
            token_frequencies=tuple(text.frequencies.tolist()),
            annotations=columns,
            spans={name: (text.spans[name][0], text.spans[name][1]) for name in columns},
            labels=dict(zip(classes, labels[1:], strict=True)),
            unlabelled=labels[0],
            unknown=text.unknown,
            held_within=self.corpus.held_within,
            examples=tuple(text.examples),
        )

        # 4. Removes everything that the manifest does not list, writes the manifest, and removes intermediate results.
        listed = {file.name for split in (train, validation) for file in split.files}
        with writing(self._root):
            for folder in (self._root / TRAIN, self._root / VALIDATION):
                for path in folder.iterdir():
                    if f"{folder.name}/{path.name}" not in listed:
                        path.unlink()
        manifest.save(self._root)
        for path in self._root.glob("*.partial"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self._root / PARTS, ignore_errors=True)
        return manifest
