"""The corpus: sources, read by a plan, cleaned and split. It is gone through as often as somebody needs."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, SettingsError
from unmask.data.documents import Fields, TextPiece, cut_pieces, find_names, read_documents, text_bytes
from unmask.data.groups import (
    ClusterGathering,
    Clusters,
    GroupChoice,
    GroupSizes,
    HeldGroups,
    group_key,
    groups_of_column,
    with_groups,
)
from unmask.data.near_duplicates import SHOWN_CHARS, LeftOutPair
from unmask.data.near_duplicates import Ints_of_near_duplicates as Ints
from unmask.data.reading import BadInput
from unmask.data.settings import CleaningSettings, ColumnGroups, CorpusSettings, NearDuplicateGroups
from unmask.data.sources import Source, SourceSplit, find_sources, find_split
from unmask.data.survey import CorpusPlan, LeftOut, ReadTask, clean, content_digest, fraction, plan_corpus, plan_reading
from unmask.data.tables import AskedColumn, has_column, in_order, in_words, names_in, rows_of, with_columns

# ----------------------------------------
# Classes of documents: which files name them, and which there are in a corpus, numbered once for all of it.

MOST_CLASSES = 10_000


def with_labels(
    sources: Sequence[Source], column: str | int, bad: BadInput, *, text: AskedColumn = None
) -> list[Source]:
    """The sources, tables among them with the column of classes. What has no such column has documents without class.

    Args:
        sources: All files of the corpus.
        column: What the user named.
        bad: As for reading.
        text: The column of the text, where it was named: a header is told by it.

    Raises:
        CorpusError: No file can have the column.
    """
    labelled = [replace(source, label=str(column)) if source.is_table else source for source in sources]
    tables = [source for source in labelled if source.is_table]
    if not tables:
        raise CorpusError(
            f"corpus.label = {str(column)!r} names a column of tables (JSON, CSV, TSV, Parquet), but "
            f"{sources[0].path} is {sources[0].kind}; give tables, or leave corpus.label out"
        )
    found: dict[str, str] = {}
    for source in tables:
        rows = [row for _, row in islice(rows_of(source, bad, text), 1)]
        # Rows of JSON have columns of their own; the pass over the corpus tells.
        if source.is_json or has_column(rows, str(column)):
            return labelled
        found[str(source.path)] = names_in(rows)
    path, names = next(iter(found.items()))
    raise CorpusError(f"{path}: there is no column {str(column)!r} for corpus.label; columns are {names}")


def label_names(pieces: Iterable[tuple[TextPiece, bool]], column: str | int) -> tuple[str, ...]:
    """The classes of a corpus in the order of their numbers, counted from 0.

    Args:
        pieces: All of the corpus.
        column: Of the labels, for the error's text.

    Raises:
        CorpusError: No document has a class, or they have more than 10,000.
    """
    seen: set[str] = set()
    for piece, _ in pieces:
        if piece.label is not None:
            seen.add(piece.label)
            check_number(seen, column, piece.label)
    return ordered(seen, column)


def check_number(seen: Collection[str], column: str | int | None, newest: str) -> None:
    """Makes sure that values of a column, the newest among them, may be classes.

    Raises:
        CorpusError: There are more than 10,000.
    """
    if len(seen) > MOST_CLASSES:
        raise CorpusError(
            f"corpus.label = {str(column)!r} has more than {MOST_CLASSES:,} different values, such as "
            f"{newest!r}: these are no classes; name another column"
        )


def ordered(seen: Collection[str], column: str | int | None) -> tuple[str, ...]:
    """The classes in the order of their numbers.

    Raises:
        CorpusError: There are none.
    """
    if not seen:
        raise CorpusError(
            f"corpus.label = {str(column)!r}: no row of the corpus has a value in this column; name another, or leave "
            "corpus.label out"
        )
    return in_order(seen)


# ----------------------------------------
# What can only be decided by looking at all of a corpus: which documents are left out, and which are held out.
#
#     task ──look──▶ Looked (hashes of documents, signatures, sizes of groups, length)  ─┐
#     task ──look──▶ Looked                                                              ├─decide─▶ Decisions
#     ...                                                                               ─┘
#
# What a task was found to hold is all that is known of it afterwards, and small beside its text, so tasks are looked at
# by whoever comes. Documents are known by their task and their place in it; of equal ones the first stays.

SHOWN_PAIRS = 5
_DOCUMENT = np.dtype(
    [("high", np.uint64), ("low", np.uint64), ("place", np.int64), ("size", np.int64), ("group", np.int64),
     ("is_grouped", np.bool_)]
)  # fmt: skip
_GATHERED = 1 << 16  # documents, after which what is known of them is packed
_AT_ONCE = 1 << 24  # hashes that are sorted together


class Wanted(NamedTuple):
    """What is looked for.

    Attributes:
        length: How much text there is, since its end is held out.
        equal: Equal documents.
        near: Near-duplicates, to leave out all but the first.
        groups: Groups of a column.
        clusters: Clusters of near-duplicates, to hold some of them out.
    """

    length: bool
    equal: bool
    near: bool
    groups: bool
    clusters: bool


def what_is_wanted(settings: CorpusSettings, plan: CorpusPlan) -> Wanted:
    """What a corpus must be looked at for; nothing, mostly."""
    by_hash = plan.holdout_unit in ("document", "part", "group")
    near = isinstance(settings.holdout_groups, NearDuplicateGroups)
    return Wanted(
        length=plan.holdout_unit == "end",
        equal=settings.cleaning.duplicates != "keep",
        near=settings.cleaning.duplicates == "drop_near",
        groups=plan.holdout_unit == "group",
        clusters=near and by_hash,
    )


class Look:
    """What one task holds, gathered as it goes by.

    Args:
        wanted: What is looked for.
        parts: Whether parts of documents are held out.
    """

    def __init__(self, wanted: Wanted, *, parts: bool) -> None:
        self.num_chars = 0
        self.groups = GroupSizes()
        self.clusters = Clusters()
        self._wanted = wanted
        self._gathering = ClusterGathering(parts=parts and wanted.clusters)
        self._documents: list[tuple[int, int, int, int, int, bool]] = []
        self._packed: list[NDArray[np.void]] = []

    def whole(self, pieces: Iterable[TextPiece]) -> Iterator[TextPiece]:
        """Hands documents through, as they are before they are cut into parts."""
        for piece in pieces:
            if self._wanted.equal and piece.offset == 0 and piece.last:
                digest = content_digest(piece.text)
                halves = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
                key = 0 if piece.group is None else group_key(piece.group)
                self._documents.append((*halves, piece.document, len(piece.text), key, piece.group is not None))
                if len(self._documents) == _GATHERED:
                    self._pack()
                if self._wanted.near:
                    self._gathering.add(piece)
            yield piece

    def all_of(self, pieces: Iterable[TextPiece]) -> None:
        """Takes the pieces, to the end."""
        for piece in pieces:
            self.num_chars += len(piece.text)
            if self._wanted.groups:
                self.groups.add(piece)
            if self._wanted.clusters:
                self._gathering.add(piece)
        self.clusters = self._gathering.finish()

    def _pack(self) -> None:
        self._packed.append(np.array(self._documents, dtype=_DOCUMENT))
        self._documents = []

    def arrays(self) -> dict[str, Any]:
        """All of it as arrays."""
        facts = {"num_chars": self.num_chars, "alone": self.groups.alone, "shown": self.groups.shown}
        keys = sorted(self.groups.sizes)
        self._pack()
        return {
            "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
            "documents": np.sort(np.concatenate(self._packed), order=["high", "low", "place"]),
            "group_keys": np.array(keys, dtype=np.int64),
            "group_sizes": np.array([self.groups.sizes[key] for key in keys], dtype=np.int64),
            **self.clusters.arrays(),
        }


@dataclass(frozen=True)
class Decisions:
    """What was decided of all documents.

    Attributes:
        duplicates: By task, the places of documents that are left out since they stood before.
        near: By task, those of near-duplicates of earlier ones.
        pairs: Some of these: task and place of what is left out, and of what stays.
        groups: Which groups are held out; None where there are none.
        cluster_of: By task, the key of the cluster of each text, in the order of reading.
        end: By task, the character of its text from which on it is held out.
    """

    duplicates: Mapping[int, Ints] = field(default_factory=dict)
    near: Mapping[int, Ints] = field(default_factory=dict)
    pairs: tuple[tuple[int, int, int, int], ...] = ()
    groups: HeldGroups | None = None
    cluster_of: Mapping[int, Ints] = field(default_factory=dict)
    end: Mapping[int, int] = field(default_factory=dict)

    def left_out(self, task: int) -> LeftOut:
        """Which documents of a task are left out."""
        nothing = np.empty(0, dtype=np.int64)
        return LeftOut(*(frozenset(each.get(task, nothing).tolist()) for each in (self.duplicates, self.near)))

    def arrays(self) -> dict[str, Any]:
        """All of it as arrays."""
        facts: dict[str, Any] = {"pairs": self.pairs, "end": {str(task): place for task, place in self.end.items()}}
        found: dict[str, Any] = {}
        if self.groups is not None:
            choice = self.groups.choice
            facts["groups"] = [self.groups.what, self.groups.asked, self.groups.alone]
            facts["choice"] = [choice.num_groups, choice.share, choice.num_large, choice.largest]
            found["held_keys"] = choice.keys
        for name in ("duplicates", "near", "cluster_of"):
            found |= {f"{name}-{task}": values for task, values in getattr(self, name).items()}
        return {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **found}

    def digest(self) -> str:
        """A hash of it."""
        digest = hashlib.sha256()
        for name, values in sorted(self.arrays().items()):
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def decisions_of(arrays: Mapping[str, Any]) -> Decisions:
    """Reads what `Decisions.arrays` gave."""
    facts = json.loads(bytes(arrays["facts"]))
    by_name: dict[str, dict[int, Ints]] = {"duplicates": {}, "near": {}, "cluster_of": {}}
    for key in arrays:
        name, _, task = key.partition("-")
        if name in by_name:
            by_name[name][int(task)] = arrays[key]
    groups = None
    if "groups" in facts:
        what, asked, alone = facts["groups"]
        groups = HeldGroups(GroupChoice(arrays["held_keys"], *facts["choice"]), what, asked=asked, alone=alone)
    return Decisions(
        by_name["duplicates"],
        by_name["near"],
        tuple(tuple(pair) for pair in facts["pairs"]),
        groups,
        by_name["cluster_of"],
        {int(task): place for task, place in facts["end"].items()},
    )


def decide(
    looked: Sequence[tuple[int, Mapping[str, Any]]], wanted: Wanted, settings: CorpusSettings, plan: CorpusPlan
) -> Decisions:
    """Decides what is left out and what is held out.

    Args:
        looked: Number of each task, in their order, and what `Look.arrays` gave of it.
        wanted: What was looked for.
        settings: Of the corpus.
        plan: How it is read.

    Raises:
        CorpusError: There are no groups to choose among, or there is too little text.
    """
    duplicates = _duplicates(looked) if wanted.equal else {}
    clusters = Clusters()
    begins = [0]
    for _, arrays in looked if wanted.near or wanted.clusters else ():
        clusters.join(arrays)
        begins.append(begins[-1] + len(arrays["cluster_texts"]))
    near, pairs = _near_duplicates(looked, begins, clusters, duplicates) if wanted.near else ({}, ())
    gone = {
        task: arrays["documents"][np.isin(arrays["documents"]["place"], _all_of(task, duplicates, near))]
        for task, arrays in looked
    }
    groups: HeldGroups | None = None
    cluster_of: dict[int, Ints] = {}
    if wanted.groups:
        groups = groups_of_column(_group_sizes(looked, gone), settings)
    elif wanted.clusters:
        stays = [
            ~np.isin(arrays["cluster_texts"]["document"], duplicates.get(task, np.empty(0, dtype=np.int64)))
            for task, arrays in looked
        ]
        choice, cluster_keys = clusters.choose(settings.holdout, stays=np.concatenate(stays))
        what = f"clusters of near-duplicate {'parts' if plan.holdout_unit == 'part' else 'documents'}"
        groups = HeldGroups(choice, what, asked=settings.holdout)
        of_task = np.split(cluster_keys, begins[1:-1])
        cluster_of = {task: part[stay] for (task, _), part, stay in zip(looked, of_task, stays, strict=True)}
    end = _end(looked, gone, plan) if wanted.length else {}
    return Decisions(duplicates, near, pairs, groups, cluster_of, end)


def _all_of(task: int, *left_out: Mapping[int, Ints]) -> Ints:
    """The places of a task's documents that are left out, for whatever reason."""
    return np.concatenate([np.empty(0, dtype=np.int64), *(places[task] for places in left_out if task in places)])


def _group_sizes(looked: Sequence[tuple[int, Mapping[str, Any]]], gone: Mapping[int, NDArray[np.void]]) -> GroupSizes:
    """How much text groups have, without documents that are left out."""
    sizes = GroupSizes()
    for task, arrays in looked:
        facts = json.loads(bytes(arrays["facts"]))
        keys = dict(zip(arrays["group_keys"].tolist(), arrays["group_sizes"].tolist(), strict=True))
        for row in gone[task][gone[task]["is_grouped"]]:
            keys[int(row["group"])] -= int(row["size"])
        alone = facts["alone"] - int((~gone[task]["is_grouped"]).sum())
        sizes.join(GroupSizes(keys, alone, facts["shown"]))
    return sizes


def _duplicates(looked: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[int, Ints]:
    """By task, the places of documents that stood before; hashes are compared a part at a time, by their beginnings."""
    tables = [(task, arrays["documents"]) for task, arrays in looked]
    num_parts = 1 + sum(len(table) for _, table in tables) // _AT_ONCE
    edges = [np.uint64(part * (1 << 64) // num_parts) for part in range(1, num_parts)]
    found: dict[int, list[Ints]] = {}
    cuts = [[0, *np.searchsorted(table["high"], edges).tolist(), len(table)] for _, table in tables]
    for part in range(num_parts):
        some = [table[cut[part] : cut[part + 1]] for (_, table), cut in zip(tables, cuts, strict=True)]
        owner = np.repeat([task for task, _ in tables], [len(rows) for rows in some])
        rows = np.concatenate([np.empty(0, dtype=_DOCUMENT), *some])[["high", "low", "place"]]
        order = np.lexsort((rows["place"], owner, rows["low"], rows["high"]))
        rows, owner = rows[order], owner[order]
        again = np.zeros(len(rows), dtype=np.bool_)
        again[1:] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
        for task in np.unique(owner[again]).tolist():
            found.setdefault(task, []).append(rows["place"][again & (owner == task)])
    return {task: np.sort(np.concatenate(places)) for task, places in sorted(found.items())}


def _near_duplicates(
    looked: Sequence[tuple[int, Mapping[str, Any]]],
    begins: Sequence[int],
    clusters: Clusters,
    equal: Mapping[int, Ints],
) -> tuple[dict[int, Ints], tuple[tuple[int, int, int, int], ...]]:
    """By task, the places of documents whose cluster has an earlier one; and some of them with that one."""
    owner = np.repeat([task for task, _ in looked], np.diff(begins))
    place = clusters.texts()["document"]
    cluster = clusters.of_texts()
    order = np.argsort(cluster, kind="stable")  # texts of a cluster in the order in which they were read
    is_first = np.diff(cluster[order], prepend=-1) != 0
    first_of = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
    near: dict[int, Ints] = {}
    pairs: list[tuple[int, int, int, int]] = []
    later, kept = order[~is_first], first_of[~is_first]
    for task, _ in looked:
        of_task = owner[later] == task
        places = np.setdiff1d(place[later[of_task]], equal.get(task, np.empty(0, dtype=np.int64)))
        if len(places):
            near[task] = places
        chosen = np.flatnonzero(of_task & np.isin(place[later], places))
        shown = chosen[np.argsort(place[later[chosen]], kind="stable")][: SHOWN_PAIRS - len(pairs)]  # soon read again
        pairs += [(task, int(place[later[n]]), int(owner[kept[n]]), int(place[kept[n]])) for n in shown.tolist()]
    return near, tuple(pairs)


def _end(
    looked: Sequence[tuple[int, Mapping[str, Any]]], gone: Mapping[int, NDArray[np.void]], plan: CorpusPlan
) -> dict[int, int]:
    """By task, where the end of the text begins that is held out."""
    lengths = {
        task: json.loads(bytes(arrays["facts"]))["num_chars"] - int(gone[task]["size"].sum()) for task, arrays in looked
    }
    total = sum(lengths.values())
    left = total - round(total * plan.threshold)
    if not 0 < left < total:
        raise CorpusError("too little text to hold its end out for validation; give more")
    ends = {}
    for task, length in lengths.items():
        ends[task] = min(max(left, 0), length)
        left -= length
    return ends


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
        titles: Column of titles in tables, which documents then carry; True finds it; False reads none.

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
        titles: str | bool = False,
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
        if titles:
            for sources in (self.sources, self.validation_sources):
                sources[:] = [find_names(s, bad, title=titles) if s.is_table else s for s in sources]
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
        return text_bytes(self.sources)

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
            looked: As `unmask.data.corpus.decide` takes it; none where nothing is wanted.

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
