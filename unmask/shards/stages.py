"""The stages of a preparation: what is done between passes over the tasks, and by which files it goes on.

    look ──▶ decide ──▶ survey ──▶ settle ──▶ make ──▶ put_together
              │                      │
        decisions.npz     held.npz, settled.state, tokenizer/, unfinished.json

A stage's files say what they were made of, so whoever comes next, in this process or in another, knows where it stands.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tokenizers

from unmask.errors import DataError, TokenizerError
from unmask.files import write_atomically
from unmask.progress import Notify, counted
from unmask.shards.data_folder import DataFolder, Unfinished, stamp
from unmask.shards.jobs import job_bytes
from unmask.shards.ledger import put_together
from unmask.shards.manifest import Manifest
from unmask.shards.pass_files import DECISIONS, HELD, Pass, Work, key_of, load_arrays, load_decisions, save_arrays
from unmask.shards.samples import Sample
from unmask.shards.sharing import Sharing
from unmask.text.annotation_choice import choose_origins, data_fields, plan_annotation
from unmask.text.annotation_plan import AnnotationPlan
from unmask.text.annotators import read_gazetteer
from unmask.text.corpus import Corpus
from unmask.text.document_classes import ordered
from unmask.text.given import Named
from unmask.text.held_texts import HeldTexts, held_texts
from unmask.text.pipes import names_to_keep
from unmask.text.read_plan import ReadTask
from unmask.text.reading import COMPRESSIONS
from unmask.text.settings import AnnotationSettings, CorpusSettings
from unmask.text.sources import Source, find_sources
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_tokenizer
from unmask.values import parse_json

log = logging.getLogger(__name__)

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
        notify: Told of the progress.
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
            raise _changed(self.work.root)
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
                raise _changed(self.work.root)
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


def _changed(root: Path) -> DataError:
    return DataError(f"{root}: was changed by somebody else, or the text was; run the same command again")


def _check_known(manifest: Manifest) -> None:
    unknown = manifest.train.unknown_tokens + manifest.validation.unknown_tokens
    if manifest.tokens == 0 or unknown > MOST_UNKNOWN * manifest.tokens:
        raise DataError(
            f"{unknown:,} of {manifest.tokens:,} tokens are unknown to the tokenizer: it does not fit this text "
            "(WordPiece takes no words of over 100 letters); take --tokenizer-kind bpe or char, or another --tokenizer"
        )
