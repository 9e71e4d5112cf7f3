"""Text to token shards: in parallel, in bounded memory, and going on where a kill has stopped it.

    corpus ──cut──▶ jobs ──tokenize, in worker processes──▶ parts with their shards ──add up──▶ manifest

Reading is one stream, in this process; which job a text falls into depends on the sources alone. `DataFolder` tells
what stands in the folder that comes out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import tokenizers

from unmask.errors import DataError, SettingsError, TokenizerError
from unmask.progress import Notify, Progress, counted, ignore
from unmask.shards.data_folder import DataFolder, Unfinished, stamp
from unmask.shards.jobs import SMALLEST_JOB_BYTES, Job, cut_jobs, job_bytes, utf8_bytes
from unmask.shards.ledger import put_together
from unmask.shards.manifest import Manifest, load_manifest
from unmask.shards.worker_pool import WorkerPool, make_parts, usable_cores
from unmask.text.annotation_choice import choose_origins, data_fields, plan_annotation
from unmask.text.annotation_plan import AnnotationPlan, Annotator
from unmask.text.annotators import read_gazetteer
from unmask.text.corpus import Corpus
from unmask.text.document_classes import label_names
from unmask.text.documents import TextPiece
from unmask.text.given import InMemory, Named, keep_given
from unmask.text.settings import AnnotationSettings, CorpusSettings
from unmask.text.sources import find_sources
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_tokenizer

log = logging.getLogger(__name__)

MOST_UNKNOWN = 0.5
TOLD_BYTES = 1 << 18  # of text, after which progress is told
KEPT_BYTES = 1 << 25  # of text that is held in memory from one pass to the next
PIECE_BYTES = 250  # about what a piece takes beside its text
# Raised whenever the same text, settings and tokenizer come to other shards, so that no older part is kept.
PARTS_VERSION = 1


def prepare(  # noqa: PLR0913  (what goes in, how it is done, and who is told)
    paths: Sequence[Named],
    out: Path,
    *,
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    annotation: AnnotationSettings | None = None,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    size_bytes: int | None = None,
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
        workers: Processes that tokenize; None takes as many as there are cores. 1 works in this process, with the
            threads of the tokenizers library. The data is the same for any number.
        resume: Data that is complete, and was made with the same settings, is returned as it is.
        overwrite: Nothing that is there is kept.
        size_bytes: Text of a shard; None fits it to the sources.
        notify: Told of the progress, in bytes of text.
        note: Told what is kept, in a line.

    Raises:
        CorpusError: A file cannot be read, there is too little text, or the column of labels holds no classes.
        TokenizerError: The tokenizer cannot be used, or not be trained with these settings.
        DataError: The tokenizer does not know most of the text; the folder is a file, holds files of somebody else
            or, with `resume`, data made with other settings or of other sources; a worker died; the disk is full; or
            an annotation that was asked for is not there.
        SettingsError: A number of workers that cannot be; both `resume` and `overwrite`; or a pipeline that
            annotates is not installed.
    """
    _check_options(workers=workers, resume=resume, overwrite=overwrite)
    folder = DataFolder(out)
    folder.check()
    annotation = annotation or AnnotationSettings()
    with folder.claimed.held():
        folder.check()  # again: nobody else comes from now on
        settings = preparation_settings(paths, corpus, tokenizer, annotation)
        if resume and folder.is_complete:
            return _complete(folder, settings, note)
        before = None if overwrite else folder.unfinished()
        with WorkerPool(out, workers=usable_cores() if workers is None else workers) as pool:
            if pool.workers > 1 and size_bytes is None and _named_bytes(paths) >= 2 * SMALLEST_JOB_BYTES:
                pool.start()
            files = list(keep_given(paths, out, kept=before is not None, notify=notify))
            opened, plan = open_annotated(files, corpus, annotation)
            log.info("corpus: %s", opened.plan.describe())
            if plan is not None:
                note(plan.describe())
            classes = _classes(opened)
            sources = stamp(opened.all_sources())
            if before is not None and (before.settings, before.sources) != (settings, sources):
                note("the settings or the files have changed since the last try; what still fits is kept")
                unchanged = None
            else:
                unchanged = before
            reader = _Reader(opened, notify)
            ready = _obtain_tokenizer(reader, tokenizer, folder, unchanged)
            work = Unfinished(settings, sources, ready.fingerprint, _made_by(settings, ready, plan))
            if unchanged == work and (finished := folder.finished(work)) is not None:
                return finished
            goes_on = before is not None and before.made_by == work.made_by
            folder.begin(work, ready, anew=not goes_on)
            if goes_on and (kept := folder.num_parts):
                note(f"going on: {kept:,} of the parts were done before")
            size_bytes = size_bytes or job_bytes(sum(size for _, size, _ in sources), slow=_is_slow(plan))
            with closing(reader.jobs(size_bytes, classes)) as jobs:
                num_parts = make_parts(
                    jobs,
                    out,
                    ready,
                    made_by=work.made_by,
                    annotator=None if plan is None else Annotator(plan),
                    pool=pool,
                    count=counted(notify, "tokenizing", reader.num_bytes, "bytes"),
                )
        labels = {} if plan is None else plan.labels
        manifest = put_together(
            out,
            num_parts,
            corpus=opened,
            tokenizer=ready,
            settings=settings,
            labels=labels,
            classes=classes,
            near_duplicates=reader.check.result(),
        )
        _check_known(manifest)
        folder.finish(manifest)
        return manifest


def _named_bytes(paths: Sequence[Named]) -> int:
    """Bytes of the files that are named as such, which is known before anything is read."""
    named = (Path(path) for path in paths if not isinstance(path, InMemory))
    return sum(path.stat().st_size for path in named if path.is_file())


def _check_options(*, workers: int | None, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise SettingsError("--resume and --overwrite exclude each other")
    if workers is not None and workers < 1:
        raise SettingsError(f"--workers {workers}: there must be one at the least")


def open_annotated(
    paths: Sequence[str | Path], corpus: CorpusSettings, annotation: AnnotationSettings
) -> tuple[Corpus, AnnotationPlan | None]:
    """Opens a corpus and settles what is annotated in it.

    Raises:
        UnmaskError: As for `prepare`.
    """
    if not annotation.columns:
        return Corpus(paths, corpus), None
    origins = choose_origins(annotation, find_sources([*paths, *corpus.validation]))
    opened = Corpus(paths, corpus, fields=data_fields(annotation, origins))
    return opened, plan_annotation(annotation, origins, opened)


def preparation_settings(
    paths: Sequence[Named],
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    annotation: AnnotationSettings,
) -> dict[str, Any]:
    """What shapes the data, as the manifest keeps it: sources and settings; those of annotation where there is any."""
    settings: dict[str, Any] = {
        "sources": [str(path) for path in paths],
        "corpus": corpus.plain(),
        "tokenizer": tokenizer.model_dump(mode="json"),
    }
    if annotation.columns:
        settings["annotation"] = annotation.model_dump(mode="json")
    if annotation.gazetteer is not None:  # its content, since the file may change under its name
        settings["gazetteer"] = [list(phrase) for phrase in read_gazetteer(Path(annotation.gazetteer))]
    return settings


def _classes(corpus: Corpus) -> tuple[str, ...] | None:
    """The documents' classes, which take a pass over the text; None where none are asked for."""
    if corpus.settings.label is None:
        return None
    with closing(corpus.pieces()) as pieces:
        return label_names(pieces, corpus.settings.label)


def _is_slow(plan: AnnotationPlan | None) -> bool:
    return plan is not None and plan.pipeline is not None


def _made_by(settings: dict[str, Any], tokenizer: Tokenizer, plan: AnnotationPlan | None) -> str:
    annotated = [] if plan is None else [plan.fingerprint]
    content = [PARTS_VERSION, tokenizers.__version__, tokenizer.fingerprint, settings, *annotated]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _complete(folder: DataFolder, settings: dict[str, Any], note: Callable[[str], None]) -> Manifest:
    """The manifest of data that needs no more work."""
    out, manifest = folder.root, load_manifest(folder.root)
    folder.claimed.check_same(manifest.settings, settings)
    for source in manifest.sources:
        path = Path(source["path"])
        if path.is_file() and path.stat().st_size != source["bytes"]:
            raise DataError(f"{path} has changed since {out} was prepared; prepare it again with --overwrite")
    note(f"{out} is complete already")
    return manifest


class _Reader:
    """Passes over the text, which look at what is held out as well. A small text is read once and kept in memory.

    Attributes:
        check: Finds near-duplicates of the held-out text.
        num_bytes: Of the text; None where that is not known.
    """

    def __init__(self, corpus: Corpus, notify: Notify) -> None:
        self.check, self.num_bytes = corpus.check(), corpus.num_bytes
        self._corpus = corpus
        self._notify = notify
        self._kept: list[tuple[TextPiece, bool]] | None = None
        self._is_small = corpus.fields is None  # annotations take more memory than their text

    def pieces(self) -> Generator[tuple[TextPiece, bool]]:
        """All of the corpus, each piece with whether it is held out."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[tuple[TextPiece, bool]] = []
        kept_bytes = 0
        with closing(self._corpus.pieces()) as pieces:
            for piece, held in pieces:
                if self._is_small:
                    kept.append((piece, held))
                    kept_bytes += sys.getsizeof(piece.text) + PIECE_BYTES
                    if kept_bytes > KEPT_BYTES:
                        self._is_small = False
                        kept.clear()
                yield piece, held
        self._kept = kept if self._is_small else None

    def texts(self, what: str, *, held_too: bool) -> Iterator[str]:
        """The training text, or all of it."""
        num_bytes = told = 0
        with closing(self.pieces()) as pieces:
            for piece, held in self.check.collect(pieces):
                if not held or held_too:
                    num_bytes += utf8_bytes(piece.text)
                    if num_bytes >= told + TOLD_BYTES:
                        self._tell(what, told := num_bytes)
                    yield piece.text
        self._tell(what, num_bytes)

    def _tell(self, what: str, done: int) -> None:
        self._notify(Progress(what, done, self.num_bytes, "bytes"))

    def jobs(self, size_bytes: int, classes: Sequence[str] | None) -> Generator[Job]:
        """The text cut into jobs, compared with what is held out.

        Where the tokenizer was trained, that is known, and texts are compared as they go by. Else those that may be
        near-duplicates are compared in a further pass, which begins while the last jobs are tokenized.
        """
        look = self.check.look if self.check.is_collected else self.check.gather
        with closing(self.pieces()) as pieces:
            for job in cut_jobs(pieces, size_bytes, classes):
                look(job.texts, job.held, job.offset)
                yield job
        if self.check.is_collected:
            return
        wanted = self.check.gathered()
        if wanted is None or wanted.any():
            skipped = self._corpus.skipped.copy()
            with closing(self.pieces()) as pieces:
                self.check.compare(self._told(pieces, "comparing with what is held out"), wanted)
            self._corpus.skipped = skipped  # since that pass may end early

    def _told(self, pieces: Iterator[tuple[TextPiece, bool]], what: str) -> Iterator[tuple[TextPiece, bool]]:
        num_bytes = told = 0
        for piece, held in pieces:
            num_bytes += utf8_bytes(piece.text)
            if num_bytes >= told + TOLD_BYTES:
                self._tell(what, told := num_bytes)
            yield piece, held


def _obtain_tokenizer(
    reader: _Reader, settings: TokenizerSettings, folder: DataFolder, unchanged: Unfinished | None
) -> Tokenizer:
    """Loads the tokenizer, takes the one that an earlier try has trained, or trains it on the training text alone."""
    if settings.path is not None:
        return load_tokenizer(settings.path)
    if unchanged is not None:
        with suppress(TokenizerError):  # where it is damaged, it is trained again
            trained = load_tokenizer(folder.tokenizer)
            if trained.fingerprint == unchanged.tokenizer_sha256:
                return trained
    what = "reading words for the tokenizer"
    return train_tokenizer(lambda: reader.texts(what, held_too=bool(settings.bare)), settings)


def _check_known(manifest: Manifest) -> None:
    unknown = manifest.train.unknown_tokens + manifest.validation.unknown_tokens
    if manifest.tokens == 0 or unknown > MOST_UNKNOWN * manifest.tokens:
        raise DataError(
            f"{unknown:,} of {manifest.tokens:,} tokens are unknown to the tokenizer: it does not fit this text "
            "(WordPiece takes no words of over 100 letters); take --tokenizer-kind bpe or char, or another --tokenizer"
        )
