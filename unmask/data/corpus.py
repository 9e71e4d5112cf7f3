"""The corpus: sources, read by a plan, cleaned and split into training and held-out text.

    sources ──plan──▶ tasks, each a part of the files (survey.py)
    task ──look──▶ arrays (hashes of documents, signatures, sizes of groups, length) ─┐       only if a decision needs
    task ──look──▶ arrays                                                             ├─decide─▶ Decisions    all text
    ...                                                                               ─┘
    task, Decisions ──read──▶ pieces, each with whether it is held out

The result of a look is small compared with the text, so any process may look at any task. A document is identified by
its task and its position in it; of equal documents the first is kept, and those in held-out files count as first.
`Corpus.why` says why a document is held out.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, SettingsError
from unmask.data.documents import Document, Fields, cut_pieces, read_documents, text_bytes
from unmask.data.groups import WAY_OUT, Clusters, HeldGroups, choose_groups, group_key
from unmask.data.near_duplicates import Ints
from unmask.data.reading import SKIP_BAD, BadInput
from unmask.data.settings import CleaningSettings, CorpusSettings
from unmask.data.sources import Source, SourceSplit, find_sources, find_split
from unmask.data.survey import (
    PLACE_BITS,
    ReadTask,
    content_digest,
    fraction,
    plan_corpus,
    plan_reading,
    without_repeats,
)
from unmask.data.tables import WITHOUT, in_words, with_columns

log = logging.getLogger(__name__)


# ----------------------------------------
# Decisions that need a look at all text: which documents are left out, and which are held out

_DOCUMENT = np.dtype(
    [("high", np.uint64), ("low", np.uint64), ("place", np.int64), ("size", np.int64), ("group", np.int64),
     ("is_grouped", np.bool_)]
)  # fmt: skip
_HASHED = np.dtype(_DOCUMENT.descr[:3])  # if only equal ones are left out
_AT_ONCE = 1 << 16  # documents that are packed into an array at a time
_NONE = np.empty(0, dtype=np.int64)
Looked = Sequence[tuple[int, Mapping[str, Any]]]  # each task's number, in order, and result of `Corpus.look`


@dataclass(frozen=True)
class Decisions:
    """What was decided about all documents, as arrays that numpy saves.

    duplicates-3    places of documents of task 3 that repeat earlier ones
    near-3          places of near-duplicates of earlier documents
    end-3           the character from which on it is held out
    held_...        the groups that are held out, see `HeldGroups`
    """

    arrays: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str, task: int) -> Ints:
        """The array of this name for a task; empty if there is none."""
        return self.arrays.get(f"{name}-{task}", _NONE)

    @cached_property
    def groups(self) -> HeldGroups | None:
        """Which groups are held out; None if text is not held out by groups."""
        if "held_keys" not in self.arrays:
            return None
        return HeldGroups(self.arrays["held_keys"], *json.loads(bytes(self.arrays["held_facts"])))


# ----------------------------------------
# The corpus


class Corpus:
    """A corpus: its documents, and which of them are held out.

    Args:
        fields: Annotations to read with the text: column to the name of its field.
        titles: Column of titles in tables, which documents then carry; True finds it; False reads none.
        way_out: Ends errors about input that cannot be read; None if the user has no setting to skip it.

    Attributes:
        sources, validation_sources: Files to train on, and files that are held out, by name or by setting.
        num_bytes: Total size of the sources if none is compressed: about the size of the text.
        plan: What a document is, and what is held out.
        tasks: The parts of the files, in the order of reading.
        needs: What must be decided about all of the text before any of it is used.
        skipped: What the last reading left out: reason to number.

    Raises:
        CorpusError: A file or a column is missing, or there is too little text.
        SettingsError: Annotated text joins several columns, or held-out files are named in two ways.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        settings: CorpusSettings,
        *,
        hold_out: bool = True,
        fields: Fields | None = None,
        titles: str | bool = False,
        way_out: str | None = SKIP_BAD,
    ) -> None:
        self.settings, self.fields, self.way_out = settings, fields, way_out
        bad = self._bad_input()
        train, held = _split(paths, settings, hold_out=hold_out)
        groups = settings.holdout_groups
        by_column = str(groups) if hold_out and groups is not None else None
        label = None if settings.label is None else str(settings.label)
        sources = with_columns([*train, *held], settings.column, bad, title=titles, label=label, group=by_column)
        self.sources, self.validation_sources = sources[: len(train)], sources[len(train) :]
        if fields:  # annotations in the data count characters of one unchanged text
            ways = 'or let a pipeline annotate the text that is read: annotation.source="pipeline"'
            if several := next((s.column for s in self.all_sources() if isinstance(s.column, tuple)), None):
                raise SettingsError(
                    "the text's own annotations refer to positions in one column, but the text joins "
                    f"{in_words(several)}; name one in corpus.column, {ways}"
                )
        self.num_bytes = text_bytes(self.sources)
        self.plan = plan_corpus(self.sources, settings, bad, hold_out=hold_out, has_files=bool(held))
        unit, encoding = self.plan.unit, settings.encoding
        self.tasks = plan_reading(self.sources, self.validation_sources, unit=unit, encoding=encoding)
        holdout_unit, duplicates = self.plan.holdout_unit, settings.cleaning.duplicates
        decided = {
            "length": holdout_unit == "end",  # of the text, whose end is held out
            "equal": duplicates != "keep",  # equal documents
            "near": duplicates == "drop_near",  # near-duplicates, all but the first left out
            "groups": holdout_unit == "group",  # groups of a column
        }
        self.needs = frozenset(name for name, is_needed in decided.items() if is_needed)
        self.skipped: Counter[str] = Counter()
        self._decisions: Decisions | None = None

    @property
    def held_within(self) -> str | None:
        """What is held out, in words, if the rest of the same file or document is trained on, such as blocks of a book.
        None if whole files are held out, or units that stand alone: rows of tables, records."""
        unit, of_text = self.plan.holdout_unit, {source.kind for source in self.sources} & {"text", "conll", "conllu"}
        if unit == "part":
            return "short documents, and parts of long ones whose other parts are trained on"
        if unit == "end" and len(self.sources) == 1:
            return "the end of a file whose beginning is trained on"
        if unit in ("document", "group") and of_text and self.plan.unit != "file":
            return f"{self.plan.unit}s of files whose other {self.plan.unit}s are trained on"
        return None

    def all_sources(self) -> list[Source]:
        return [*self.sources, *self.validation_sources]

    def pieces(self) -> Generator[tuple[Document, bool]]:
        """Every piece, with whether it is held out. If decisions need all of the text, the first call reads it once
        more. Closing the generator closes the file that is being read."""
        self.check_held()
        decisions, self.skipped = self.decided(), Counter()
        for task in self.tasks:
            yield from self.read(task, decisions, self.skipped)

    def unsplit(self) -> Iterator[Document]:
        """Every piece, without deciding what is held out, which may need all of the text."""
        self.skipped = Counter()
        for task in self.tasks:
            yield from self._read(task, self.skipped, None, first=task.first_document)

    def check_held(self) -> None:
        """Raises a CorpusError if the held-out files have no text, or cannot be read."""
        held = [task for task in self.tasks if task.is_held]
        if held and not any(next(self._read(task, Counter(), None, first=0), None) for task in held):
            names = ", ".join(str(source.path) for source in self.validation_sources)
            raise CorpusError(f"{names}: contains no text")

    def decided(self) -> Decisions:
        """The decisions about all of the text; looks at it once if they need that."""
        if self._decisions is None:
            looked = [(task.number, self.look(task)) for task in self.tasks] if self.needs else []
            self._decisions = self.decide(looked)
        return self._decisions

    def look(self, task: ReadTask) -> dict[str, Any]:
        """Collects what decisions need from a task: hashes, sizes and groups of its documents, as arrays."""
        needs, clusters = self.needs, Clusters()
        has_sizes = bool(needs & {"groups", "length"})
        dtype = _DOCUMENT if has_sizes else _HASHED
        documents: list[tuple[int, ...]] = []
        packed: list[NDArray[np.void]] = []

        def whole(pieces: Iterator[Document]) -> Iterator[Document]:
            """Records documents before they are cut into parts."""
            for piece in pieces:
                if "equal" in needs and piece.offset == 0 and piece.last:
                    digest = content_digest(piece.text)
                    halves = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
                    fact: tuple[int, ...] = (*halves, piece.document)
                    if has_sizes:
                        key = 0 if piece.group is None else group_key(piece.group)
                        fact = (*fact, len(piece.text), key, piece.group is not None)
                    documents.append(fact)
                    if len(documents) == _AT_ONCE:
                        packed.append(np.array(documents, dtype=dtype))
                        documents.clear()
                    if "near" in needs:
                        clusters.add_one(piece.text, piece.document)
                yield piece

        sizes: Counter[int] = Counter()  # characters by group key: about 100 bytes of memory a group
        num_chars, alone, shown = 0, 0, ""  # alone: documents without a group
        for piece in self._read(task, Counter(), {}, first=0, through=whole):
            num_chars += len(piece.text)
            if piece.group is not None:
                sizes[group_key(piece.group)] += len(piece.text)
                shown = shown or piece.group
            else:
                alone += piece.offset == 0
        packed.append(np.array(documents, dtype=dtype))
        return {
            "facts": np.frombuffer(json.dumps([num_chars, alone, shown]).encode(), dtype=np.uint8),
            "documents": np.concatenate(packed),
            "group_keys": np.array(list(sizes), dtype=np.int64),
            "group_sizes": np.array(list(sizes.values()), dtype=np.int64),
            **clusters.arrays(),
        }

    def decide(self, looked: Looked) -> Decisions:
        """Decides what is left out and what is held out, from looks at all tasks. Raises a CorpusError if there are no
        groups to choose from, or too little text."""
        decided: dict[str, Any] = {}
        # Held-out files come first, so they stay whole, and their copies in the training text are dropped.
        looked = sorted(looked, key=lambda each: not self.tasks[each[0]].is_held)
        tasks = [task for task, _ in looked]

        def by_task(name: str, owner: Ints, places: Ints) -> None:
            decided.update({f"{name}-{task}": np.sort(places[owner == task]) for task in np.unique(owner).tolist()})

        # 1. Equal documents: all but the first are left out.
        if "equal" in self.needs:
            rows = [arrays["documents"] for _, arrays in looked]
            high, low, place = (np.concatenate([each[name] for each in rows]) for name in ("high", "low", "place"))
            owner, order = np.repeat(tasks, list(map(len, rows))), np.lexsort((low, high))  # a stable order
            high, low = high[order], low[order]
            repeated = order[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]
            by_task("duplicates", owner[repeated], place[repeated])

        # 2. Near-duplicates: all but the first of a cluster are left out.
        if "near" in self.needs:
            clusters = Clusters()
            for _, arrays in looked:
                clusters.join(arrays)
            place = clusters.texts()["document"]
            owner = np.repeat(tasks, [len(arrays["cluster_texts"]) for _, arrays in looked])
            _, first, cluster = np.unique(clusters.of_texts(), return_index=True, return_inverse=True)
            is_later = first[cluster] != np.arange(len(place))
            for task in tasks:  # equal ones are left out already
                is_later[owner == task] &= ~np.isin(place[owner == task], decided.get(f"duplicates-{task}", _NONE))
            by_task("near", owner[is_later], place[is_later])

        # 3. What is held out of the rest
        if self.needs & {"groups", "length"}:
            decided |= self._hold_out(looked, decided)
        return Decisions(decided)

    def _hold_out(self, looked: Looked, decided: Mapping[str, Any]) -> dict[str, Any]:
        """The groups of a column that are held out, or the position in each task where the held-out end begins;
        documents that are left out do not count."""
        sizes: Counter[int] = Counter()
        num_chars: dict[int, int] = {}
        alone, shown = 0, ""
        for task, arrays in looked:
            num_chars[task], without, value = json.loads(bytes(arrays["facts"]))
            left_out = [decided.get(f"{name}-{task}", _NONE) for name in ("duplicates", "near")]
            dropped = arrays["documents"][np.isin(arrays["documents"]["place"], np.concatenate(left_out))]
            num_chars[task] -= int(dropped["size"].sum())
            sizes.update(dict(zip(arrays["group_keys"].tolist(), arrays["group_sizes"].tolist(), strict=True)))
            for row in dropped[dropped["is_grouped"]]:
                sizes[int(row["group"])] -= int(row["size"])
            alone, shown = alone + without - int((~dropped["is_grouped"]).sum()), shown or value
        total = sum(num_chars.values())
        if self.plan.holdout_unit == "group":
            column = repr(str(self.settings.holdout_groups))
            if len(sizes) < 2:
                what = f"all rows have the same value in it ({shown!r}), so none can be held out"
                what = what if sizes else "no row has a value in it"
                raise CorpusError(f"corpus.holdout_groups = {column}: {what}; name another column, or {WAY_OUT}")
            keys, counts = (np.array(list(values), dtype=np.int64) for values in (sizes, sizes.values()))
            what = f"groups by column {column}"
            alone_chars = total - int(counts.sum())
            share = self.settings.holdout
            return choose_groups(keys, counts, share, what=what, alone=alone, alone_chars=alone_chars).arrays()
        left = total - round(total * self.plan.threshold)
        if not 0 < left < total:
            raise CorpusError("too little text to hold out its end for validation; give more")
        ends = {}
        for task, length in num_chars.items():
            ends[f"end-{task}"] = np.array(min(max(left, 0), length))
            left -= length
        return ends

    def read(self, task: ReadTask, decisions: Decisions, skipped: Counter[str]) -> Generator[tuple[Document, bool]]:
        """The pieces of a task, each with whether it is held out; `skipped` counts what is left out."""
        left_out = dict.fromkeys(decisions.of("duplicates", task.number).tolist(), "duplicates")
        left_out |= dict.fromkeys(decisions.of("near", task.number).tolist(), "near-duplicates")
        pieces = self._read(task, skipped, left_out, first=task.first_document)
        unit, groups = self.plan.holdout_unit, decisions.groups
        held_keys = frozenset(() if groups is None else groups.keys.tolist())
        share = self.plan.threshold if unit in ("document", "part", "group") else 0.0
        left, held = int(decisions.of("end", task.number)) if unit == "end" else 0, task.is_held
        with closing(pieces):
            for piece in pieces:
                if unit == "end":
                    cut = min(max(left, 0), len(piece.text))
                    left -= len(piece.text)
                    if cut:
                        yield piece.part(0, cut), False
                    if cut < len(piece.text):
                        yield piece.part(cut, len(piece.text)), True
                    continue
                # A part, or the first piece of a document, is assigned by its group or its text.
                if not task.is_held and (unit == "part" or piece.offset == 0):
                    if groups is not None and piece.group is not None:
                        held = group_key(piece.group) in held_keys
                    else:
                        held = share > 0 and fraction(piece.text) < share
                yield piece, held

    def why(self, document: int) -> str:
        """Why a document is held out or not, by its number, as in documents and shards. Reads its task up to the
        document."""
        decisions = self.decided()
        task = self.tasks[number] if (number := document >> PLACE_BITS) < len(self.tasks) else None
        split = self.read(task, decisions, Counter()) if task is not None else iter([])
        piece, held = next(((piece, held) for piece, held in split if piece.document == document), (None, False))
        if piece is None or task is None:
            raise CorpusError(f"there is no document {document}; corpus.cleaning may have dropped it")
        groups, share = decisions.groups, self.plan.threshold
        if task.is_held:
            files = ", ".join(str(source.path) for source in task.sources)
            reason = f"it is in a held-out file ({files})"
        elif self.plan.holdout_unit == "end":
            reason = f"the last {share:.1%} of the text is held out"
        elif groups is not None and piece.group is not None:
            among = f"{'is' if held else 'is not'} among the {len(groups.keys):,} of {groups.num_groups:,} groups"
            reason = f"its group {piece.group!r} {among} that are held out by a hash of their names"
        elif self.plan.holdout_unit in ("document", "part", "group"):
            below = "below" if held else "not below"
            what = "text" if piece.last or self.plan.holdout_unit != "part" else "first part"
            reason = f"the hash of its {what}, {fraction(piece.text):.4f}, is {below} {share:.4f}"
        else:
            reason = "only separate files, or nothing, are held out"
        return f"{'held out' if held else 'trained on'}: {reason}"

    def describe(self, decisions: Decisions) -> str:
        """One line for the log: what a document is, and what is held out."""
        groups = decisions.groups
        return self.plan.describe() if groups is None else f"a document is {self.plan.reason}; {groups.description}"

    def _bad_input(self) -> BadInput:
        """A new count of what is skipped, or errors in its place."""
        return BadInput(skip=self.settings.bad_input == "skip", way_out=self.way_out, reading=self.settings)

    def _read(
        self,
        task: ReadTask,
        skipped: Counter[str],
        left_out: Mapping[int, str] | None,
        *,
        first: int,
        through: Callable[[Iterator[Document]], Iterator[Document]] | None = None,
    ) -> Generator[Document]:
        plan, bad = self.plan, self._bad_input()
        blank = Counter[str]()
        options: dict[str, Any] = {"unit": plan.unit, "fields": self.fields, "first": first, "skipped": blank}
        if self.settings.cleaning == CleaningSettings():
            yield from read_documents(task.sources, bad, piece_chars=plan.piece_chars, **options)
        else:
            documents = read_documents(task.sources, bad, **options)
            left = without_repeats(documents, skipped, first=first, left_out=left_out)
            yield from cut_pieces(left if through is None else through(left), plan.piece_chars)
        bad.counts[WITHOUT] += blank[WITHOUT]
        skipped.update(+bad.counts)  # without zeros


def _split(paths: Sequence[str | Path], settings: CorpusSettings, *, hold_out: bool) -> SourceSplit:
    """Separates training from held-out files. If nothing is to be held out, a dataset's validation split is read
    instead, or all files if it has none."""
    by_name = settings.splits == "auto"
    if not hold_out and not settings.validation:
        by_name = by_name and bool(find_split(paths, announce=False).validation)
    split = find_split(paths, by_name=by_name)
    if settings.validation:
        held = find_sources(settings.validation)
        taken = {source.path.resolve() for source in held}
        train = [source for source in split.train if source.path.resolve() not in taken]
        if not train:
            raise CorpusError("corpus.validation holds out all files; give others to train on")
        if len(train) < len(split.train):
            log.warning("%d of the training files are held out (corpus.validation)", len(split.train) - len(train))
        if unread := [source.path for source in split.validation if source.path.resolve() not in taken]:
            what = "corpus.validation names others, so files that are validation data by their names are not read"
            log.warning("%s: %d, such as %s", what, len(unread), unread[0])
        return SourceSplit(train, held)
    if not hold_out:
        if split.validation:
            log.warning("reading only the validation split: %d of the files", len(split.validation))
        return SourceSplit(split.validation or split.train, [])
    if split.validation and (settings.holdout_groups is not None or settings.holdout_from == "end"):
        name = "holdout_groups" if settings.holdout_groups is not None else "holdout_from"
        raise SettingsError(
            f"corpus.{name} chooses what to hold out, but file names in the folder do so already, such as "
            f"{split.validation[0].path}; remove the setting, or train on all files with corpus.splits = "
            '"ignore"'
        )
    return split
