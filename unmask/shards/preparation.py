"""Text to token shards: in parallel, in bounded memory, and going on where a kill has stopped it.

    corpus ──▶ tasks ──look──▶ decisions ──survey──▶ tokenizer, held-out texts ──shards──▶ parts ──add up──▶ manifest

Each arrow is a pass over all tasks (`unmask.shards.passes`), which somebody shares out (`unmask.shards.sharing`); most
corpora need no look. `DataFolder` tells what stands in the folder that comes out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.errors import DataError, SettingsError
from unmask.progress import Notify, ignore
from unmask.shards.data_folder import DataFolder
from unmask.shards.jobs import SMALLEST_JOB_BYTES
from unmask.shards.manifest import Manifest, load_manifest
from unmask.shards.ray_cluster import OnRay
from unmask.shards.shard_reader import KeptText
from unmask.shards.sharing import OnThisMachine, Sharing
from unmask.shards.stages import PreparationInput, Stages, log
from unmask.shards.worker_pool import WorkerPool, usable_cores
from unmask.text.given import InMemory, Named, keep_given
from unmask.text.pipes import is_stream
from unmask.text.settings import AnnotationSettings, CorpusSettings
from unmask.tokenizer.settings import TokenizerSettings


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
