"""Documents that stay together when text is held out: those with the same value in a column, or near-duplicates.

Whole groups are held out by a hash of what they have in common, so which ones depends neither on the order of the
documents nor on who reads them. Where groups are many, one is held out if its hash, in [0, 1), is below the share that
is asked for, and stays held out when the corpus grows. Where they are few or of unequal size, as many are taken in the
order of their hashes as come closest to the share of the text. A group with more than twice the share of the text is
not held out, unless all are as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError
from unmask.core.hashing import mix
from unmask.data.documents import TextPiece
from unmask.data.near_duplicates import NUM_BANDS, NUM_MINIMA, all_roots, join_alike, to_words
from unmask.data.near_duplicates import Ints_of_near_duplicates as Ints
from unmask.data.reading import BadInput
from unmask.data.settings import ColumnGroups, CorpusSettings
from unmask.data.sources import Source
from unmask.data.survey import text_hash
from unmask.data.tables import LOOK_ROWS, AskedColumn, has_column, names_in, rows_of

FAR = 0.5  # a realised share is near the one asked for if it is that share, give or take half of it
LARGE = 2.0
BATCH_CHARS = 1 << 18
ALIKE = (
    190  # of 256 minima: at a Jaccard similarity of 0.6 that is 4.5 standard deviations off, at 0.8 it is below by 2.4
)
MOST_NEIGHBOURS = 100  # that share a band, and are compared with one text
_WAY_OUT = "name another column, or hold files of their own out with --set 'corpus.validation=[\"FILE\"]'"


@dataclass(frozen=True)
class GroupChoice:
    """Which groups are held out.

    Attributes:
        keys: [held], int64, sorted: keys of the groups that are held out.
        num_groups: How many there are.
        share: Of the text that is held out, in [0, 1].
        num_large: Groups that are too large to be held out.
        largest: Share of the text that the largest group has.
    """

    keys: Ints
    num_groups: int
    share: float
    num_large: int
    largest: float


def choose_groups(keys: Ints, sizes: Ints, share: float) -> GroupChoice:
    """Chooses the groups that are held out.

    Args:
        keys: [G], int64: hashes of the groups, all different; two at the least.
        sizes: [G]: how much text each has.
        share: Of the text that should be held out.
    """
    total = int(sizes.sum())
    order = np.argsort(keys.view(np.uint64), kind="stable")
    keys, sizes = keys[order], sizes[order]
    large = sizes > LARGE * share * total
    if large.all():
        smallest = int(np.argmin(sizes))
        large[smallest] = False
    fitting = np.flatnonzero(~large)
    shares = np.cumsum(sizes[fitting]) / total
    most = len(fitting) if large.any() else len(fitting) - 1  # some group is trained on
    below = int(np.searchsorted(keys[fitting].view(np.uint64), np.uint64(share * 2**64)))
    if not 0 < below <= most or abs(shares[below - 1] - share) > FAR * share:
        below = int(np.argmin(np.abs(shares[:most] - share))) + 1
    held = np.sort(keys[fitting[:below]])
    return GroupChoice(held, len(keys), float(shares[below - 1]), int(large.sum()), float(sizes.max() / total))


class HeldGroups:
    """Which side a document is on.

    Args:
        choice: The groups.
        what: What they are, for the log.
        asked: Share that was asked for.
        alone: Documents without a value in the column: each goes by its text.
    """

    def __init__(self, choice: GroupChoice, what: str, *, asked: float, alone: int = 0) -> None:
        self.choice, self.what, self.asked, self.alone = choice, what, asked, alone
        self._held = frozenset(choice.keys.tolist())

    def holds(self, key: int) -> bool:
        """Whether a group is held out."""
        return key in self._held

    def describe(self) -> str:
        """For the log, what was chosen."""
        c = self.choice
        line = f"held out: {len(c.keys):,} of {c.num_groups:,} {self.what}, {c.share:.1%} of the text"
        if self.alone:
            line += f"; {self.alone:,} documents without a value there go by their text"
        if c.num_large:
            line += (
                f"; {c.num_large:,} of them too large to be held out: the largest has {c.largest:.1%} of the text, "
                "all of it trained on, so held-out figures say nothing about such texts"
            )
        if abs(c.share - self.asked) > FAR * self.asked:
            line += (
                f"; that is not the {self.asked:.1%} asked for, since groups are large: more, smaller groups would "
                'come closer, or files of their own (corpus.validation=["FILE"])'
            )
        return line


def with_groups(
    sources: Sequence[Source], column: str | int, bad: BadInput, *, text: AskedColumn = None
) -> list[Source]:
    """The sources with the column of groups, which all of them must have.

    Args:
        sources: All files of the corpus.
        column: What the user named.
        bad: As for reading.
        text: The column of the text, where it was named: a header is told by it.

    Raises:
        CorpusError: A file has no such column; the text names those that it has.
    """
    name = str(column)
    grouped = [replace(source, group=name) for source in sources]
    for source in grouped:
        if not source.is_table:
            raise CorpusError(
                f"corpus.holdout_groups = {name!r} names a column of tables (JSON, CSV, TSV, Parquet), but "
                f"{source.path} is {source.kind}; give tables, or keep near-duplicates together: "
                "--set corpus.holdout_groups=near_duplicates"
            )
        rows = [row for _, row in islice(rows_of(source, bad, text), LOOK_ROWS)]
        if not has_column(rows, name):
            raise CorpusError(
                f"{source.path}: there is no column {name!r} for corpus.holdout_groups; columns are {names_in(rows)}"
            )
    return grouped


def group_key(name: str) -> int:
    """The hash by which a group of a column is held out."""
    key = text_hash(name)
    return key - 2**64 if key >= 2**63 else key


@dataclass
class GroupSizes:
    """The groups of a column. Memory is what their keys take, some 100 bytes a group.

    Attributes:
        sizes: Characters by key of the group.
        alone: Documents without a value there.
        shown: A value.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    alone: int = 0
    shown: str = ""

    def add(self, piece: TextPiece) -> None:
        """Takes the next piece."""
        if piece.group is None:
            self.alone += piece.offset == 0
            return
        key = group_key(piece.group)
        self.sizes[key] = self.sizes.get(key, 0) + len(piece.text)
        self.shown = self.shown or piece.group

    def join(self, other: GroupSizes) -> None:
        """Takes what another has counted."""
        for key, size in other.sizes.items():
            self.sizes[key] = self.sizes.get(key, 0) + size
        self.alone += other.alone
        self.shown = self.shown or other.shown


def groups_of_column(found: GroupSizes, settings: CorpusSettings) -> HeldGroups:
    """Chooses among the groups of a column.

    Args:
        found: Those of all of the corpus.
        settings: With the column and the share.

    Raises:
        CorpusError: No row has a value there, or all have the same.
    """
    assert isinstance(settings.holdout_groups, ColumnGroups)
    column, sizes, alone, shown = str(settings.holdout_groups.column), found.sizes, found.alone, found.shown
    if not sizes:
        raise CorpusError(f"corpus.holdout_groups = {column!r}: no row has a value in this column; {_WAY_OUT}")
    if len(sizes) == 1:
        raise CorpusError(
            f"corpus.holdout_groups = {column!r}: all rows have the same value there ({shown!r}), so none of them can "
            f"be held out; {_WAY_OUT}"
        )
    keys, counts = (np.array(list(values), dtype=np.int64) for values in (sizes.keys(), sizes.values()))
    choice = choose_groups(keys, counts, settings.holdout)
    return HeldGroups(choice, f"groups by column {column!r}", asked=settings.holdout, alone=alone)


_ROW = np.dtype([("form", np.int64), ("bands", np.uint32, NUM_BANDS), ("minima", np.uint8, NUM_MINIMA)])
_TEXT = np.dtype([("form", np.int64), ("document", np.int64), ("size", np.int64)])


class Clusters:
    """Near-duplicates, gathered: texts of the same normal form, and pairs that share a band of their signatures and
    agree in 190 of 256 minima.

    A cluster is what such pairs connect. At a Jaccard similarity of 0.8 about 1 pair in 16 is missed, nearly always
    because it shares no band, and 1 in 10,000 at 0.9; at 0.6 one in a million is taken for a pair, so that texts which
    share a template stay apart. Where more than 100 share a band, each is compared with 100 of them, those first with
    which it shares others.

    It takes 328 bytes of memory for each normal form that the corpus has, and three times that for a moment, and 24
    bytes for each text.
    """

    def __init__(self) -> None:
        self._rows: list[NDArray[np.void]] = []
        self._num_rows = self._compacted = 0
        self._texts: list[NDArray[np.void]] = []

    def add(self, texts: Sequence[str], document: Sequence[int], num_chars: Sequence[int]) -> None:
        """Takes some texts, the places of their documents, and how much text each stands for."""
        words = to_words(texts)
        found = np.empty(len(texts), dtype=_TEXT)
        found["form"], found["document"], found["size"] = words.normal, document, num_chars
        self._texts.append(found)
        normal, firsts = np.unique(words.normal, return_index=True)
        rows = np.empty(len(normal), dtype=_ROW)
        bands, rows["minima"] = words.signatures(firsts)
        rows["bands"] = bands & 0xFFFFFFFF
        rows["form"] = normal
        self._take(rows)

    def _take(self, rows: NDArray[np.void]) -> None:
        self._rows.append(rows)
        self._num_rows += len(rows)
        if self._num_rows > 2 * self._compacted + (1 << 16):
            self._compact()

    def _compact(self) -> NDArray[np.void]:
        rows = np.concatenate([np.empty(0, dtype=_ROW), *self._rows])
        self._rows = [rows[np.unique(rows["form"], return_index=True)[1]]]
        self._num_rows = self._compacted = len(self._rows[0])
        return self._rows[0]

    def arrays(self) -> dict[str, NDArray[np.void]]:
        """What was gathered, for `join`."""
        return {"cluster_rows": self._compact(), "cluster_texts": self.texts()}

    def texts(self) -> NDArray[np.void]:
        """[num_texts]: normal form, place of the document, and size of each."""
        return np.concatenate([np.empty(0, dtype=_TEXT), *self._texts])

    def join(self, arrays: Mapping[str, NDArray[np.void]]) -> None:
        """Takes what another has gathered, of text that comes later."""
        self._texts.append(arrays["cluster_texts"])
        self._take(arrays["cluster_rows"])

    def of_texts(self) -> Ints:
        """[num_texts]: for each text, in the order in which they came, the number of the row of its cluster."""
        rows = self._compact()
        row = np.searchsorted(np.ascontiguousarray(rows["form"]), self.texts()["form"])
        return _roots(rows)[row]

    def choose(self, share: float, *, stays: NDArray[np.bool_] | None = None) -> tuple[GroupChoice, Ints]:
        """The clusters that are held out, and for each text, in the order in which they came, the key of its cluster.

        Args:
            share: Of the text that is held out.
            stays: [num_texts]: which texts count; None: all.

        Raises:
            CorpusError: There is one cluster only.
        """
        rows, texts = self._compact(), self.texts()
        root = self.of_texts()
        weights = texts["size"] if stays is None else texts["size"] * stays
        found, cluster = np.unique(root, return_inverse=True)
        if len(found) == 1:
            raise CorpusError(
                "corpus.holdout_groups = 'near_duplicates': all documents are near-duplicates of each other, so none "
                "of them can be held out; leave the setting out, or hold files of their own out with --set "
                "'corpus.validation=[\"FILE\"]'"
            )
        keys = mix(rows["form"][found])  # rows are in the order of normal forms, so a root has the smallest
        choice = choose_groups(keys, np.bincount(cluster, weights=weights).astype(np.int64), share)
        return choice, keys[cluster]


def _roots(rows: NDArray[np.void]) -> Ints:
    """Of each row the first of its cluster."""
    parents = np.arange(len(rows), dtype=np.int64)
    minima, bands = (np.ascontiguousarray(rows[name]) for name in ("minima", "bands"))
    for band in range(NUM_BANDS):
        first, *others = (np.ascontiguousarray(bands[:, (band + more) % NUM_BANDS]) for more in (0, 5, 10))
        join_alike(parents, first, np.lexsort([*others, first]), minima, ALIKE, MOST_NEIGHBOURS)
    return all_roots(parents)


class ClusterGathering:
    """Gathers clusters of pieces that go by: what is compared is the first piece of a document, or each piece.

    Args:
        parts: Whether each piece is.
    """

    def __init__(self, *, parts: bool) -> None:
        self.clusters = Clusters()
        self._parts = parts
        self._texts: list[str] = []
        self._documents: list[int] = []
        self._sizes: list[int] = []
        self._num_chars = 0

    def add(self, piece: TextPiece) -> None:
        """Takes the next piece."""
        if self._parts or piece.offset == 0:
            if self._num_chars >= BATCH_CHARS:
                self.finish()
            self._texts.append(piece.text)
            self._documents.append(piece.document)
            self._sizes.append(0)
            self._num_chars += len(piece.text)
        self._sizes[-1] += len(piece.text)

    def finish(self) -> Clusters:
        """What was gathered up to here."""
        if self._texts:
            self.clusters.add(self._texts, self._documents, self._sizes)
        self._texts, self._documents, self._sizes, self._num_chars = [], [], [], 0
        return self.clusters
