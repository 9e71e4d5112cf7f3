"""The corpus: sources, read by a plan, cleaned and split. It is gone through as often as somebody needs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

from unmask.errors import CorpusError, SettingsError
from unmask.text.cleaning import read_cleaned
from unmask.text.document_classes import with_labels
from unmask.text.documents import Fields, TextPiece
from unmask.text.groups import HeldGroups, clusters_of, group_key, groups_of_column, with_groups
from unmask.text.near_duplicates import Ints
from unmask.text.reading import BadInput
from unmask.text.settings import ColumnGroups, CorpusSettings
from unmask.text.sources import Source, SourceSplit, find_sources, find_split
from unmask.text.split_check import SplitCheck
from unmask.text.survey import fraction, plan_corpus
from unmask.text.text_columns import in_words, with_columns

log = logging.getLogger(__name__)


class Corpus:
    """A corpus as everything behind it sees it.

    Args:
        paths: Files, folders or patterns.
        settings: What the user asked for.
        hold_out: Whether a part of it is held out.
        fields: Annotations that are read with the text: column to the name of the field that holds it; None reads
            none.

    Attributes:
        sources: The files.
        validation_sources: Files that are held out, where these were named, or say so by their names.
        plan: How they are read.
        skipped: What the last pass left out: reason to number.
        groups: Which groups are held out, where these are asked for, after the first pass.

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
        self.skipped: Counter[str] = Counter()
        self.groups: HeldGroups | None = None
        self._cluster_of: Ints | None = None  # key of each text's, in the order of reading
        self._num_chars: int | None = None  # of the whole text, counted where its end is held out

    @property
    def num_bytes(self) -> int | None:
        """Size of the files together, where none is compressed; about the size of the text."""
        plain = all(source.kind in ("text", "fasta") and source.path.suffix in _PLAIN for source in self.sources)
        return sum(source.path.stat().st_size for source in self.sources) if plain else None

    def pieces(self) -> Generator[tuple[TextPiece, bool]]:
        """Every piece with whether it is held out. Whole documents go by the hash of their first piece, or by that of
        their group: then the first call goes through the corpus once more, to choose among the groups.

        Closing it closes the file that is being read.

        Raises:
            CorpusError: A file cannot be read, or there are no groups to choose among.
        """
        self.skipped = Counter()
        plan, held = self.plan, False
        if plan.holdout_unit == "file":
            yield from self._with_files()
            return
        if plan.holdout_unit == "end":
            yield from self._with_end()
            return
        if self.settings.holdout_groups is not None and plan.holdout_unit != "nothing":
            self._choose_groups()
            yield from self._by_column() if plan.holdout_unit == "group" else self._by_cluster()
            return
        for piece in self._read(self.sources):
            if plan.holdout_unit == "part" or piece.offset == 0:
                held = plan.holds_out(piece.text)
            yield piece, held

    def unsplit(self) -> Iterator[TextPiece]:
        """Every piece of the text that is not in files of its own, without a choice of what is held out."""
        self.skipped = Counter()
        yield from self._read(self.sources)

    def describe(self) -> str:
        """One line for the reader of a log: what a document is, and what is held out, as far as it is known."""
        return self.plan.describe() if self.groups is None else f"{self.plan.unit_in_words}; {self.groups.describe()}"

    def check(self) -> SplitCheck:
        """What finds near-duplicates between both sides, in two passes."""
        return SplitCheck(parts=self.plan.holdout_unit in ("part", "end"))

    def _choose_groups(self) -> None:
        if self.groups is not None:
            return
        pieces = self._read(self.sources)
        if self.plan.holdout_unit == "group":
            self.groups = groups_of_column(pieces, self.settings)
        else:
            parts = self.plan.holdout_unit == "part"
            choice, self._cluster_of = clusters_of(pieces, parts=parts).choose(self.settings.holdout)
            what = f"clusters of near-duplicate {'parts' if parts else 'documents'}"
            self.groups = HeldGroups(choice, what, asked=self.settings.holdout)
        self.skipped.clear()

    def _by_column(self) -> Iterator[tuple[TextPiece, bool]]:
        assert self.groups is not None, "they were chosen"
        held = False
        for piece in self._read(self.sources):
            if piece.offset == 0 and piece.group is not None:
                held = self.groups.holds(group_key(piece.group))
            elif piece.offset == 0:
                held = fraction(piece.text) < self.settings.holdout
            yield piece, held

    def _by_cluster(self) -> Iterator[tuple[TextPiece, bool]]:
        assert self.groups is not None, "they were chosen"
        assert self._cluster_of is not None, "with them"
        held, group, text = False, "", 0
        for piece in self._read(self.sources):
            if self.plan.holdout_unit == "part" or piece.offset == 0:
                if text == len(self._cluster_of):
                    raise CorpusError("the files have changed while they were read; run the same command again")
                key = int(self._cluster_of[text])
                held, group, text = self.groups.holds(key), str(key), text + 1
            yield replace(piece, group=group) if held else piece, held

    def _with_end(self) -> Iterator[tuple[TextPiece, bool]]:
        """The text up to a character, and what stands behind it."""
        if self._num_chars is None:
            self._num_chars = sum(len(piece.text) for piece in self._read(self.sources))
            self.skipped.clear()
        left = self._num_chars - round(self._num_chars * self.plan.threshold)
        if not 0 < left < self._num_chars:
            raise CorpusError("too little text to hold its end out for validation; give more")
        for piece in self._read(self.sources):
            cut = min(max(left, 0), len(piece.text))
            left -= len(piece.text)
            if cut:
                yield piece.part(0, cut), False
            if cut < len(piece.text):
                yield piece.part(cut, len(piece.text)), True

    def _with_files(self) -> Iterator[tuple[TextPiece, bool]]:
        """Training text, then the files that are held out, numbered on."""
        with closing(self._read(self.validation_sources)) as pieces:
            if next(pieces, None) is None:
                names = ", ".join(str(source.path) for source in self.validation_sources)
                raise CorpusError(f"{names}: there is no text in it")
        self.skipped.clear()
        documents = 0
        for piece in self._read(self.sources):
            documents = piece.document + 1
            yield piece, False
        for piece in self._read(self.validation_sources):
            yield replace(piece, document=documents + piece.document), True

    def _read(self, sources: Sequence[Source]) -> Generator[TextPiece]:
        bad = BadInput(skip=self.settings.bad_input == "skip")
        yield from read_cleaned(
            sources,
            bad,
            self.settings.cleaning,
            self.skipped,
            unit=self.plan.unit,
            piece_chars=self.plan.piece_chars,
            fields=self.fields,
        )
        self.skipped += bad.counts  # leaves out what was not met

    def all_sources(self) -> list[Source]:
        """Training and held-out files."""
        return list(chain(self.sources, self.validation_sources))


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
