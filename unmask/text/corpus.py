"""The corpus: sources, read by a plan, cleaned and split. It is gone through as often as somebody needs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from unmask.errors import CorpusError, SettingsError
from unmask.text.cleaning import LeftOut, clean
from unmask.text.document_classes import with_labels
from unmask.text.documents import Fields, TextPiece, cut_pieces, read_documents
from unmask.text.groups import group_key, with_groups
from unmask.text.held_texts import SHOWN_CHARS
from unmask.text.near_duplicates import Ints, LeftOutPair
from unmask.text.read_plan import ReadTask, plan_reading
from unmask.text.reading import BadInput
from unmask.text.settings import CleaningSettings, ColumnGroups, CorpusSettings
from unmask.text.sources import Source, SourceSplit, find_sources, find_split
from unmask.text.survey import fraction, plan_corpus
from unmask.text.text_columns import in_words, with_columns
from unmask.text.whole_corpus import Decisions, Look, decide, what_is_wanted

log = logging.getLogger(__name__)


class Corpus:
    """A corpus as everything behind it sees it.

    Args:
        paths: Files, folders or patterns.
        settings: What the user asked for.
        hold_out: Whether a part of it is held out.
        fields: Annotations that are read with the text: column to the name of the field that holds it; None reads
            none.
        task_bytes: How much of them is read at once; None fits it to their size.

    Attributes:
        sources: The files.
        validation_sources: Files that are held out, where these were named, or say so by their names.
        plan: What a document is, and what is held out.
        tasks: What is read apart from each other, in the order of reading.
        wanted: What must be decided about all of the text before any of it is used.
        skipped: What the last pass left out: reason to number.

    Raises:
        CorpusError: As `find_split`, `with_labels`, `with_groups` and `plan_corpus`.
        SettingsError: Annotations are read, but cleaning would move the places that they name, or the text is joined of
            several columns; or files are held out by their names and the settings say otherwise.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        settings: CorpusSettings,
        *,
        hold_out: bool = True,
        fields: Fields | None = None,
        task_bytes: int | None = None,
    ) -> None:
        if fields and settings.cleaning.changes_text:
            raise SettingsError(
                f"{' and '.join(fields)}: annotations that come with the text name places in it, which corpus.cleaning "
                "would move; leave unicode, control_characters and white_space of corpus.cleaning alone, or let a "
                'pipeline annotate the cleaned text: --set annotation.source="pipeline"'
            )
        self.settings = settings
        self.fields = fields
        bad = BadInput(skip=settings.bad_input == "skip")
        found, held = _split(paths, settings, hold_out=hold_out)
        if settings.label is not None:
            labelled = with_labels([*found, *held], settings.label, bad, text=settings.column)
            found, held = labelled[: len(found)], labelled[len(found) :]
        if hold_out and isinstance(settings.holdout_groups, ColumnGroups):
            found = with_groups(found, settings.holdout_groups.column, bad, text=settings.column)
        self.sources = with_columns(found, settings.column, bad)
        self.validation_sources = with_columns(held, settings.column, bad)
        if fields:
            _check_one_text(self.all_sources())
        self.plan = plan_corpus(self.sources, settings, hold_out=hold_out, has_files=bool(held))
        self.tasks = plan_reading(self.sources, self.validation_sources, unit=self.plan.unit, size_bytes=task_bytes)
        self.wanted = what_is_wanted(settings, self.plan)
        self.skipped: Counter[str] = Counter()
        self._decisions: Decisions | None = None  # of a corpus that is gone through here

    @property
    def num_bytes(self) -> int | None:
        """Size of the files together, where none is compressed; about the size of the text."""
        plain = all(source.kind in ("text", "fasta") and source.path.suffix in _PLAIN for source in self.sources)
        return sum(source.path.stat().st_size for source in self.sources) if plain else None

    def pieces(self) -> Generator[tuple[TextPiece, bool]]:
        """Every piece with whether it is held out. Whole documents go by the hash of their first piece, or by that of
        their group. Where something must be decided about all of the text (`Wanted`), the first call goes through the
        corpus once more.

        Closing it closes the file that is being read.

        Raises:
            CorpusError: A file cannot be read, or there are no groups to choose among.
        """
        self.check_held()
        decisions = self.decided()
        self.skipped = Counter()
        for task in self.tasks:
            yield from self.read(task, decisions, self.skipped)

    def decided(self) -> Decisions:
        """What is decided about all of the text, after it was looked at where that is wanted.

        Raises:
            CorpusError: As `pieces`.
        """
        if self._decisions is None:
            looked = [(task.number, self.look(task).arrays()) for task in self.tasks] if any(self.wanted) else []
            self._decisions = self.decide(looked)
        return self._decisions

    def decide(self, looked: Sequence[tuple[int, Mapping[str, Any]]]) -> Decisions:
        """Decides, from what was seen in all tasks.

        Args:
            looked: As `unmask.text.whole_corpus.decide` takes it; none where nothing is wanted.

        Raises:
            CorpusError: As there.
        """
        return decide(looked, self.wanted, self.settings, self.plan) if any(self.wanted) else Decisions()

    def look(self, task: ReadTask) -> Look:
        """Goes through a task for what is wanted of it.

        Raises:
            CorpusError: A file cannot be read.
        """
        look = Look(self.wanted, parts=self.plan.holdout_unit == "part")
        look.all_of(self._read(task, Counter(), LeftOut(), first=0, through=look.whole))
        return look

    def read(self, task: ReadTask, decisions: Decisions, skipped: Counter[str]) -> Generator[tuple[TextPiece, bool]]:
        """The pieces of a task, each with whether it is held out.

        Args:
            task: One of `tasks`.
            decisions: About all of the text.
            skipped: Counts what is left out.

        Raises:
            CorpusError: A file cannot be read, or has changed since it was looked at.
        """
        pieces = self._read(task, skipped, decisions.left_out(task.number), first=task.first_document)
        with closing(pieces):
            if task.is_held:
                yield from ((piece, True) for piece in pieces)
            elif self.plan.holdout_unit == "end":
                yield from _with_end(pieces, decisions.end[task.number])
            elif task.number in decisions.cluster_of:
                yield from self._by_cluster(pieces, decisions, decisions.cluster_of[task.number])
            else:
                yield from self._by_hash(pieces, decisions)

    def left_out_examples(self, decisions: Decisions) -> Iterator[LeftOutPair]:
        """Some near-duplicates that are left out, each with the document that stays; they are read once more."""
        wanted: dict[int, set[int]] = {}
        for one, place, other, kept in decisions.pairs:
            wanted.setdefault(one, set()).add(place)
            wanted.setdefault(other, set()).add(kept)
        found = {
            (number, piece.document): piece.text[:SHOWN_CHARS]
            for number, places in wanted.items()
            for piece in self._beginnings(self.tasks[number], places)
        }
        for one, place, other, kept in decisions.pairs:
            if (one, place) in found and (other, kept) in found:  # unless a file has changed meanwhile
                yield LeftOutPair(found[one, place], found[other, kept])

    def _beginnings(self, task: ReadTask, places: Set[int]) -> Iterator[TextPiece]:
        """The first pieces of documents, by their places."""
        with closing(self._read(task, Counter(), LeftOut(), first=0)) as pieces:
            for piece in pieces:
                if piece.offset == 0 and piece.document in places:
                    yield piece
                if piece.document >= max(places):
                    return

    def check_held(self) -> None:
        """Makes sure that there is text in the files that are held out.

        Raises:
            CorpusError: There is none, or a file cannot be read.
        """
        held = [task for task in self.tasks if task.is_held]
        if held and not any(next(self._read(task, Counter(), None, first=0), None) for task in held):
            names = ", ".join(str(source.path) for source in self.validation_sources)
            raise CorpusError(f"{names}: there is no text in it")

    def unsplit(self) -> Iterator[TextPiece]:
        """Every piece of the text that is not in files of its own, without a choice of what is held out."""
        self.skipped = Counter()
        for task in self.tasks:
            if not task.is_held:
                yield from self._read(task, self.skipped, None, first=task.first_document)

    def describe(self, decisions: Decisions) -> str:
        """One line for the reader of a log: what a document is, and what is held out."""
        groups = decisions.groups
        return self.plan.describe() if groups is None else f"{self.plan.unit_in_words}; {groups.describe()}"

    def _by_hash(self, pieces: Iterable[TextPiece], decisions: Decisions) -> Iterator[tuple[TextPiece, bool]]:
        groups, unit, held = decisions.groups, self.plan.holdout_unit, False
        for piece in pieces:
            if piece.offset == 0 and groups is not None and piece.group is not None:
                held = groups.holds(group_key(piece.group))
            elif piece.offset == 0 and groups is not None:
                held = fraction(piece.text) < self.settings.holdout
            elif unit == "part" or (unit == "document" and piece.offset == 0):
                held = self.plan.holds_out(piece.text)
            yield piece, held

    def _by_cluster(
        self, pieces: Iterable[TextPiece], decisions: Decisions, cluster_of: Ints
    ) -> Iterator[tuple[TextPiece, bool]]:
        assert decisions.groups is not None, "they were chosen"
        held, group, text = False, "", 0
        for piece in pieces:
            if self.plan.holdout_unit == "part" or piece.offset == 0:
                if text == len(cluster_of):
                    raise CorpusError("the files have changed while they were read; run the same command again")
                key = int(cluster_of[text])
                held, group, text = decisions.groups.holds(key), str(key), text + 1
            yield replace(piece, group=group) if held else piece, held

    def _read(
        self,
        task: ReadTask,
        skipped: Counter[str],
        left_out: LeftOut | None,
        *,
        first: int,
        through: Callable[[Iterator[TextPiece]], Iterator[TextPiece]] | None = None,
    ) -> Generator[TextPiece]:
        bad, plan, cleaning = BadInput(skip=self.settings.bad_input == "skip"), self.plan, self.settings.cleaning
        if cleaning == CleaningSettings():
            yield from read_documents(
                task.sources, bad, unit=plan.unit, piece_chars=plan.piece_chars, fields=self.fields, first=first
            )
        else:
            documents = read_documents(task.sources, bad, unit=plan.unit, fields=self.fields, first=first)
            cleaned = clean(documents, cleaning, skipped, first=first, left_out=left_out)
            yield from cut_pieces(cleaned if through is None else through(cleaned), plan.piece_chars)
        skipped.update(+bad.counts)  # leaves out what was not met

    def all_sources(self) -> list[Source]:
        """Training and held-out files."""
        return list(chain(self.sources, self.validation_sources))


def _with_end(pieces: Iterable[TextPiece], left: int) -> Iterator[tuple[TextPiece, bool]]:
    """The text up to a character, and what stands behind it."""
    for piece in pieces:
        cut = min(max(left, 0), len(piece.text))
        left -= len(piece.text)
        if cut:
            yield piece.part(0, cut), False
        if cut < len(piece.text):
            yield piece.part(cut, len(piece.text)), True


def _check_one_text(sources: Sequence[Source]) -> None:
    """Annotations that come with the text count the characters of one."""
    if joined := next((source.column for source in sources if isinstance(source.column, tuple)), None):
        raise SettingsError(
            f"annotations that come with the text name places in it, but it is joined of {in_words(joined)}; name one "
            'in corpus.column, or let a pipeline annotate the joined text: --set annotation.source="pipeline"'
        )


def _split(paths: Sequence[str | Path], settings: CorpusSettings, *, hold_out: bool) -> SourceSplit:
    """What is trained on and what is held out; where nothing is, the part of a dataset that others hold out is read."""
    split = find_split(paths, by_name=settings.splits == "auto")
    if settings.validation:
        held = find_sources(settings.validation)
        return SourceSplit(_without(split.train, held), held)
    if not hold_out:
        if split.validation:
            log.warning("the part for validation is read, and no other: %d of the files", len(split.validation))
        return SourceSplit(split.validation or split.train, [])
    if split.validation and (settings.holdout_groups is not None or settings.holdout_from == "end"):
        name = "holdout_groups" if settings.holdout_groups is not None else "holdout_from"
        raise SettingsError(
            f"corpus.{name} says what is held out, but the folder has files that are held out by their names, such as "
            f'{split.validation[0].path}; leave it out, or train on all with corpus.splits = "ignore"'
        )
    return split


def _without(sources: Sequence[Source], held: Sequence[Source]) -> list[Source]:
    """The files that are not held out, where some of those lie in a folder that was given for training."""
    kept = {source.path.resolve() for source in held}
    left = [source for source in sources if source.path.resolve() not in kept]
    if not left:
        raise CorpusError("corpus.validation holds all files out; give others to train on")
    if len(left) < len(sources):
        log.warning("held out, so not trained on: %d of the files that were given", len(sources) - len(left))
    return left


_PLAIN = (".txt", ".fasta", ".fa")
