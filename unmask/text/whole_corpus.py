"""What can only be decided by looking at all of a corpus: which documents are left out, and which are held out.

    task ──look──▶ Looked (hashes of documents, signatures, sizes of groups, length)  ─┐
    task ──look──▶ Looked                                                              ├─decide─▶ Decisions
    ...                                                                               ─┘

What a task was found to hold is all that is known of it afterwards, and small beside its text, so tasks are looked at
by whoever comes. Documents are known by their task and their place in it; of equal ones the first stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import CorpusError
from unmask.text.cleaning import LeftOut, content_digest
from unmask.text.documents import TextPiece
from unmask.text.groups import (
    ClusterGathering,
    Clusters,
    GroupChoice,
    GroupSizes,
    HeldGroups,
    group_key,
    groups_of_column,
)
from unmask.text.near_duplicates import Ints
from unmask.text.settings import CorpusSettings, NearDuplicateGroups
from unmask.text.survey import CorpusPlan

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
