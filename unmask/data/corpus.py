"""The corpus: sources, read by a plan, cleaned and split into training and held-out text.

    sources ──plan──▶ tasks, each a part of the files (survey.py)
    task ──look──▶ arrays (hashes of documents, signatures, sizes of groups, length) ─┐   only where something must be
    task ──look──▶ arrays                                                             ├─decide─▶ Decisions   decided
    ...                                                                               ─┘         about all of the text
    task, Decisions ──read──▶ pieces, each with whether it is held out

What a look says of a task is small beside its text, so any process may look at any task. Documents are known by their
task and their place in it; of equal ones the first stays. `Corpus.why` says why a document is held out.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, SettingsError
from unmask.data.documents import Document, Fields, cut_pieces, read_documents, text_bytes
from unmask.data.groups import Clusters, GroupSizes, HeldGroups, group_key
from unmask.data.near_duplicates import SHOWN_CHARS, Ints, LeftOutPair
from unmask.data.reading import BadInput
from unmask.data.settings import CleaningSettings, ColumnGroups, CorpusSettings, NearDuplicateGroups
from unmask.data.sources import Source, SourceSplit, find_sources, find_split
from unmask.data.survey import (
    PLACE_BITS,
    ReadTask,
    clean,
    content_digest,
    fraction,
    plan_corpus,
    plan_reading,
)
from unmask.data.tables import ColumnNames, first_rows, in_words, with_columns
from unmask.data.values import has_column, names_in

log = logging.getLogger(__name__)


def _with_column(
    sources: Sequence[Source], name: Literal["label", "group"], column: str, bad: BadInput, text: ColumnNames
) -> list[Source]:
    """The sources, tables among them with the column of classes or groups. All must have the column of groups, and one
    that of classes: documents of others have no class."""
    is_group = name == "group"
    setting = "corpus.holdout_groups" if is_group else "corpus.label"
    ways = "keep near-duplicates together: corpus.holdout_groups=near_duplicates"
    no_tables = [source for source in sources if not source.is_table]
    if no_tables and (is_group or len(no_tables) == len(sources)):
        raise CorpusError(
            f"{setting} = {column!r} names a column of tables (JSON, CSV, TSV, Parquet), but {no_tables[0].path} is "
            f"{no_tables[0].kind}; give tables, or {ways if is_group else 'leave corpus.label out'}"
        )
    named = [
        source if not source.is_table else replace(source, group=column) if is_group else replace(source, label=column)
        for source in sources
    ]
    missing = []
    for source in named:
        if source.is_table:
            rows = first_rows(source, bad, text)
            if not has_column(rows, column) and (is_group or not source.is_json):  # in JSON, a class may come later
                missing.append(
                    f"{source.path}: there is no column {column!r} for {setting}; columns are {names_in(rows)}"
                )
            elif not is_group:
                return named
    if missing:
        raise CorpusError(missing[0])
    return named


# ----------------------------------------
# What can only be decided by looking at all of the text: which documents are left out, and which are held out

SHOWN_PAIRS = 5
_DOCUMENT = np.dtype(
    [("high", np.uint64), ("low", np.uint64), ("place", np.int64), ("size", np.int64), ("group", np.int64),
     ("is_grouped", np.bool_)]
)  # fmt: skip
_AT_ONCE = 1 << 16  # documents, after which what is known of them is packed
_NONE = np.empty(0, dtype=np.int64)
Looked = Sequence[tuple[int, Mapping[str, Any]]]  # number of each task, in their order, and what `Corpus.look` gave


class Needs(NamedTuple):
    """What must be known of all of the text; nothing, mostly."""

    length: bool  # how much text there is, since its end is held out
    equal: bool  # equal documents
    near: bool  # near-duplicates, to leave out all but the first
    groups: bool  # groups of a column
    clusters: bool  # clusters of near-duplicates, to hold some of them out


@dataclass(frozen=True)
class Decisions:
    """What was decided of all documents, by task."""

    duplicates: Mapping[int, Ints] = field(default_factory=dict)  # places of documents that stood before
    near: Mapping[int, Ints] = field(default_factory=dict)  # those of near-duplicates of earlier ones
    pairs: tuple[tuple[int, int, int, int], ...] = ()  # some of these: task and place, and those of what stays
    groups: HeldGroups | None = None  # which groups are held out
    cluster_of: Mapping[int, Ints] = field(default_factory=dict)  # key of each text's cluster, in the order of reading
    end: Mapping[int, int] = field(default_factory=dict)  # character of its text from which on it is held out

    def arrays(self) -> dict[str, Any]:
        """All of it as arrays."""
        facts: dict[str, Any] = {"pairs": self.pairs, "end": {str(task): place for task, place in self.end.items()}}
        arrays: dict[str, Any] = {}
        if self.groups is not None:
            facts["groups"] = {each.name: getattr(self.groups, each.name) for each in fields(HeldGroups)[1:]}
            arrays["held_keys"] = self.groups.keys
        for name in ("duplicates", "near", "cluster_of"):
            arrays |= {f"{name}-{task}": values for task, values in getattr(self, name).items()}
        return {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **arrays}

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
    groups = HeldGroups(arrays["held_keys"], **facts["groups"]) if "groups" in facts else None
    pairs = tuple(tuple(pair) for pair in facts["pairs"])
    end = {int(task): place for task, place in facts["end"].items()}
    return Decisions(by_name["duplicates"], by_name["near"], pairs, groups, by_name["cluster_of"], end)


def _near_duplicates(
    looked: Looked, begins: Sequence[int], clusters: Clusters, equal: Mapping[int, Ints]
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
    later, stays = order[~is_first], first_of[~is_first]
    for task, _ in looked:
        of_task = owner[later] == task
        places = np.setdiff1d(place[later[of_task]], equal.get(task, _NONE))
        if len(places):
            near[task] = places
        chosen = np.flatnonzero(of_task & np.isin(place[later], places))
        shown = chosen[np.argsort(place[later[chosen]], kind="stable")][: SHOWN_PAIRS - len(pairs)]  # soon read again
        pairs += [(task, int(place[later[n]]), int(owner[stays[n]]), int(place[stays[n]])) for n in shown.tolist()]
    return near, tuple(pairs)


# ----------------------------------------
# The corpus


class Side(NamedTuple):
    """Why a document, or a part of one, is held out or not."""

    is_held_out: bool
    rule: str  # what decides: `file`, `end`, `group`, `cluster`, `hash`, or `nothing`
    reason: str  # in words


class Corpus:
    """A corpus: which documents there are, and which of them are held out.

    Args:
        paths: Files, folders or patterns.
        settings: How it is read, cleaned and split.
        hold_out: Whether a part of it is held out.
        fields: Annotations that are read with the text: column to the name of the field that holds it; None reads
            none.
        task_bytes: How much of them is read at once; None fits it to their size.
        titles: Column of titles in tables, which documents then carry; True finds it; False reads none.

    Attributes:
        sources: The files.
        validation_sources: Files that are held out, where these were named, or say so by their names.
        plan: What a document is, and what is held out.
        tasks: The parts of the files, in the order of reading.
        needs: What must be decided about all of the text before any of it is used.
        skipped: What the last reading left out: reason to number.

    Raises:
        CorpusError: As `find_split` and `plan_corpus`; or there is no column of classes or groups.
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
        self.settings, self.fields = settings, fields
        bad = BadInput(skip=settings.bad_input == "skip")
        train, held = _split(paths, settings, hold_out=hold_out)
        if settings.label is not None:
            labelled = _with_column([*train, *held], "label", str(settings.label), bad, settings.column)
            train, held = labelled[: len(train)], labelled[len(train) :]
        groups = settings.holdout_groups
        if hold_out and isinstance(groups, ColumnGroups):
            train = _with_column(train, "group", str(groups.column), bad, settings.column)
        self.sources, self.validation_sources = (
            with_columns(each, settings.column, bad, title=titles) for each in (train, held)
        )
        if fields:
            self._check_one_text(fields)
        self.plan = plan_corpus(self.sources, settings, hold_out=hold_out, has_files=bool(held))
        self.tasks = plan_reading(self.sources, self.validation_sources, unit=self.plan.unit, size_bytes=task_bytes)
        unit, duplicates = self.plan.holdout_unit, settings.cleaning.duplicates
        self.needs = Needs(
            length=unit == "end",
            equal=duplicates != "keep",
            near=duplicates == "drop_near",
            groups=unit == "group",
            clusters=isinstance(groups, NearDuplicateGroups) and unit in ("document", "part", "group"),
        )
        self.skipped: Counter[str] = Counter()
        self._decisions: Decisions | None = None

    def _check_one_text(self, fields: Fields) -> None:
        """Annotations that come with the text count the characters of one text, as it is."""
        ways = 'or let a pipeline annotate the text that is read: annotation.source="pipeline"'
        if self.settings.cleaning.changes_text:
            raise SettingsError(
                f"{' and '.join(fields)}: annotations that come with the text name places in it, which corpus.cleaning "
                f"would move; leave unicode, control_characters and white_space of corpus.cleaning alone, {ways}"
            )
        if joined := next((s.column for s in self.all_sources() if isinstance(s.column, tuple)), None):
            raise SettingsError(
                "annotations that come with the text name places in it, but it is joined of "
                f"{in_words(joined)}; name one in corpus.column, {ways}"
            )

    def without_files(self) -> Corpus:
        """How text is read, without the files, which tasks name: it is small."""
        light = copy.copy(self)
        light.tasks, light.sources, light.validation_sources = [], [], []
        return light

    @property
    def num_bytes(self) -> int | None:
        """Size of the files together, where none is compressed; about the size of the text."""
        return text_bytes(self.sources)

    def all_sources(self) -> list[Source]:
        """Training and held-out files."""
        return [*self.sources, *self.validation_sources]

    def pieces(self) -> Generator[tuple[Document, bool]]:
        """Every piece with whether it is held out. Where something must be decided about all of the text (`needs`),
        the first call reads it once more. Closing it closes the file that is being read.

        Raises:
            CorpusError: A file cannot be read, or there are no groups to choose among.
        """
        self.check_held()
        decisions = self.decided()
        self.skipped = Counter()
        for task in self.tasks:
            yield from self.read(task, decisions, self.skipped)

    def unsplit(self) -> Iterator[Document]:
        """Every piece of the text that is not in files of its own, without a choice of what is held out."""
        self.skipped = Counter()
        for task in self.tasks:
            if not task.is_held:
                yield from self._read(task, self.skipped, None, first=task.first_document)

    def check_held(self) -> None:
        """Raises a CorpusError where the files that are held out have no text, or cannot be read."""
        held = [task for task in self.tasks if task.is_held]
        if held and not any(next(self._read(task, Counter(), None, first=0), None) for task in held):
            names = ", ".join(str(source.path) for source in self.validation_sources)
            raise CorpusError(f"{names}: there is no text in it")

    def decided(self) -> Decisions:
        """What is decided about all of the text, which is looked at once where that is needed."""
        if self._decisions is None:
            looked = [(task.number, self.look(task)) for task in self.tasks] if any(self.needs) else []
            self._decisions = self.decide(looked)
        return self._decisions

    def look(self, task: ReadTask) -> dict[str, Any]:
        """Gathers what decisions need of a task: hashes, sizes and groups of its documents as arrays."""
        needs, in_parts = self.needs, self.plan.holdout_unit == "part"
        groups, clusters = GroupSizes(), Clusters()
        documents: list[tuple[int, int, int, int, int, bool]] = []
        packed: list[NDArray[np.void]] = []

        def whole(pieces: Iterator[Document]) -> Iterator[Document]:
            """Documents as they are before they are cut into parts."""
            for piece in pieces:
                if needs.equal and piece.offset == 0 and piece.last:
                    digest = content_digest(piece.text)
                    halves = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
                    key = 0 if piece.group is None else group_key(piece.group)
                    documents.append((*halves, piece.document, len(piece.text), key, piece.group is not None))
                    if len(documents) == _AT_ONCE:
                        packed.append(np.array(documents, dtype=_DOCUMENT))
                        documents.clear()
                    if needs.near:
                        clusters.add_piece(piece, parts=False)
                yield piece

        num_chars = 0
        for piece in self._read(task, Counter(), {}, first=0, through=whole):
            num_chars += len(piece.text)
            if needs.groups:
                groups.add(piece)
            if needs.clusters:
                clusters.add_piece(piece, parts=in_parts)
        packed.append(np.array(documents, dtype=_DOCUMENT))
        facts = {"num_chars": num_chars, "alone": groups.alone, "shown": groups.shown}
        keys = sorted(groups.sizes)
        return {
            "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
            "documents": np.sort(np.concatenate(packed), order=["high", "low", "place"]),
            "group_keys": np.array(keys, dtype=np.int64),
            "group_sizes": np.array([groups.sizes[key] for key in keys], dtype=np.int64),
            **clusters.arrays(),
        }

    def decide(self, looked: Looked) -> Decisions:
        """Decides what is left out and what is held out, from looks at all tasks; a CorpusError where there are no
        groups to choose among, or there is too little text."""
        # 1. Equal documents: by task, the places of those that stood before.
        duplicates: dict[int, Ints] = {}
        if self.needs.equal:
            rows = np.concatenate([np.empty(0, dtype=_DOCUMENT), *(arrays["documents"] for _, arrays in looked)])
            owner = np.repeat([task for task, _ in looked], [len(arrays["documents"]) for _, arrays in looked])
            order = np.lexsort((rows["place"], owner, rows["low"], rows["high"]))
            high, low = rows["high"][order], rows["low"][order]
            again = order[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]
            for task in np.unique(owner[again]).tolist():
                duplicates[task] = np.sort(rows["place"][again[owner[again] == task]])

        # 2. Clusters of near-duplicates: of each but the first document may stay.
        clusters, begins = Clusters(), [0]
        for _, arrays in looked if self.needs.near or self.needs.clusters else ():
            clusters.join(arrays)
            begins.append(begins[-1] + len(arrays["cluster_texts"]))
        near, pairs = _near_duplicates(looked, begins, clusters, duplicates) if self.needs.near else ({}, ())
        gone = {}  # by task, the documents that are left out, for whatever reason
        for task, arrays in looked:
            places = np.concatenate([_NONE, *(each[task] for each in (duplicates, near) if task in each)])
            gone[task] = arrays["documents"][np.isin(arrays["documents"]["place"], places)]

        # 3. What of the rest is held out: groups of a column, clusters, or the end.
        groups: HeldGroups | None = None
        cluster_of: dict[int, Ints] = {}
        end: dict[int, int] = {}
        if self.needs.groups:
            sizes = GroupSizes()
            for task, arrays in looked:
                facts = json.loads(bytes(arrays["facts"]))
                keys = dict(zip(arrays["group_keys"].tolist(), arrays["group_sizes"].tolist(), strict=True))
                for row in gone[task][gone[task]["is_grouped"]]:
                    keys[int(row["group"])] -= int(row["size"])
                sizes.join(GroupSizes(keys, facts["alone"] - int((~gone[task]["is_grouped"]).sum()), facts["shown"]))
            groups = sizes.choose(self.settings)
        elif self.needs.clusters:
            stays = [
                ~np.isin(arrays["cluster_texts"]["document"], duplicates.get(task, _NONE)) for task, arrays in looked
            ]  # fmt: skip
            what = f"clusters of near-duplicate {'parts' if self.plan.holdout_unit == 'part' else 'documents'}"
            groups, cluster_keys = clusters.choose(self.settings.holdout, stays=np.concatenate(stays), what=what)
            of_task = np.split(cluster_keys, begins[1:-1])
            cluster_of = {task: part[stay] for (task, _), part, stay in zip(looked, of_task, stays, strict=True)}
        if self.needs.length:
            lengths = {
                task: json.loads(bytes(arrays["facts"]))["num_chars"] - int(gone[task]["size"].sum())
                for task, arrays in looked
            }
            total = sum(lengths.values())
            left = total - round(total * self.plan.threshold)
            if not 0 < left < total:
                raise CorpusError("too little text to hold its end out for validation; give more")
            for task, length in lengths.items():
                end[task] = min(max(left, 0), length)
                left -= length
        return Decisions(duplicates, near, pairs, groups, cluster_of, end)

    def read(self, task: ReadTask, decisions: Decisions, skipped: Counter[str]) -> Generator[tuple[Document, bool]]:
        """The pieces of a task, each with whether it is held out; `skipped` counts what is left out.

        Raises:
            CorpusError: A file cannot be read, or has changed since it was looked at.
        """
        left_out = dict.fromkeys(decisions.duplicates.get(task.number, _NONE).tolist(), "duplicates")
        left_out |= dict.fromkeys(decisions.near.get(task.number, _NONE).tolist(), "near-duplicates")
        pieces = self._read(task, skipped, left_out, first=task.first_document)
        unit, groups, held = self.plan.holdout_unit, decisions.groups, False
        with closing(pieces):
            if task.is_held:
                yield from ((piece, True) for piece in pieces)
            elif unit == "end":
                left = decisions.end[task.number]
                for piece in pieces:
                    cut = min(max(left, 0), len(piece.text))
                    left -= len(piece.text)
                    if cut:
                        yield piece.part(0, cut), False
                    if cut < len(piece.text):
                        yield piece.part(cut, len(piece.text)), True
            elif task.number in decisions.cluster_of:
                assert groups is not None, "they were chosen"
                clusters, key = iter(decisions.cluster_of[task.number].tolist()), 0
                for piece in pieces:
                    if unit == "part" or piece.offset == 0:
                        try:
                            key = next(clusters)
                        except StopIteration:
                            what = "the files have changed while they were read; run the same command again"
                            raise CorpusError(what) from None
                        held = groups.holds(key)
                    yield replace(piece, group=str(key)) if held else piece, held
            else:
                share = self.plan.threshold if unit in ("document", "part") else 0.0
                share = share if groups is None else groups.target
                for piece in pieces:  # a part, or a document by its first piece, goes by its group or its text
                    if unit == "part" or piece.offset == 0:
                        is_grouped = groups is not None and piece.group is not None
                        held = (
                            groups.holds(group_key(piece.group))  # type: ignore[union-attr, arg-type]
                            if is_grouped
                            else share > 0 and fraction(piece.text) < share
                        )
                    yield piece, held

    def why(self, document: int) -> Side:
        """Why a document is held out, or is not: the rule and the reason. Its task is read up to it.

        Args:
            document: Its number, as documents and shards have it.

        Raises:
            CorpusError: There is no such document (it may have been left out by cleaning), or a file cannot be read.
        """
        decisions = self.decided()
        task = self.tasks[number] if (number := document >> PLACE_BITS) < len(self.tasks) else None
        marked = self.read(task, decisions, Counter()) if task is not None else iter([])
        piece, held = next(((piece, held) for piece, held in marked if piece.document == document), (None, False))
        if piece is None or task is None:
            raise CorpusError(f"there is no document {document}; it may have been left out by corpus.cleaning")
        groups, share = decisions.groups, self.plan.threshold
        if task.is_held:
            files = ", ".join(str(source.path) for source in task.sources)
            rule, reason = "file", f"it stands in files that are held out ({files})"
        elif self.plan.holdout_unit == "end":
            rule, reason = "end", f"the last {share:.1%} of the text are held out"
        elif task.number in decisions.cluster_of:
            rule, reason = "cluster", "whole clusters of near-duplicates go by the hash of their texts"
        elif groups is not None and piece.group is not None:
            among = f"{'is' if held else 'is not'} among the {len(groups.keys):,} held out of {groups.num_groups:,}"
            rule, reason = "group", f"its group {piece.group!r} {among} by the hash of their names"
        elif self.plan.holdout_unit in ("document", "part", "group"):
            what = "part" if self.plan.holdout_unit == "part" else "document"
            below = "below" if held else "not below"
            rule, reason = "hash", f"the hash of the {what}, {fraction(piece.text):.4f}, is {below} {share:.4f}"
        else:
            rule, reason = "nothing", "files of their own, or nothing, are held out"
        return Side(held, rule, f"{'held out' if held else 'trained on'}: {reason}")

    def left_out_examples(self, decisions: Decisions) -> Iterator[LeftOutPair]:
        """Some near-duplicates that are left out, each with the document that stays; they are read once more."""
        places: dict[int, set[int]] = {}
        for one, place, other, stays in decisions.pairs:
            places.setdefault(one, set()).add(place)
            places.setdefault(other, set()).add(stays)
        beginnings: dict[tuple[int, int], str] = {}
        for number, chosen in places.items():
            with closing(self._read(self.tasks[number], Counter(), {}, first=0)) as pieces:
                for piece in pieces:
                    if piece.offset == 0 and piece.document in chosen:
                        beginnings[number, piece.document] = piece.text[:SHOWN_CHARS]
                    if piece.document >= max(chosen):
                        break
        for one, place, other, stays in decisions.pairs:
            if (one, place) in beginnings and (other, stays) in beginnings:  # unless a file has changed meanwhile
                yield LeftOutPair(beginnings[one, place], beginnings[other, stays])

    def describe(self, decisions: Decisions) -> str:
        """One line for the log: what a document is, and what is held out."""
        groups = decisions.groups
        return self.plan.describe() if groups is None else f"a document is {self.plan.reason}; {groups.describe()}"

    def _read(
        self,
        task: ReadTask,
        skipped: Counter[str],
        left_out: Mapping[int, str] | None,
        *,
        first: int,
        through: Callable[[Iterator[Document]], Iterator[Document]] | None = None,
    ) -> Generator[Document]:
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


def _split(paths: Sequence[str | Path], settings: CorpusSettings, *, hold_out: bool) -> SourceSplit:
    """What is trained on and what is held out; where nothing is, the part of a dataset that others hold out is read."""
    split = find_split(paths, by_name=settings.splits == "auto")
    if settings.validation:
        held = find_sources(settings.validation)
        taken = {source.path.resolve() for source in held}
        train = [source for source in split.train if source.path.resolve() not in taken]
        if not train:
            raise CorpusError("corpus.validation holds all files out; give others to train on")
        if len(train) < len(split.train):
            log.warning("held out, so not trained on: %d of the files", len(split.train) - len(train))
        return SourceSplit(train, held)
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
