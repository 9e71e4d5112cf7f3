"""Documents that stay in one split, those with the same value in a column; and clusters of near-duplicates.

Whole groups are held out by a hash of what their documents share. It depends neither on the order of documents nor on
the number of workers. If there are many groups, one is held out if its hash, in [0, 1), is below the target share, and
stays held out when the corpus grows. If they are few or of unequal size, groups are taken in the order of their hashes,
as many as come closest to the share of the text. A group with more than twice the share of the text is not held out,
unless all are that large.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.compiled import compiled
from unmask.data.near_duplicates import NUM_BANDS, NUM_MINIMA, Bytes, Codes, Ints, hash_texts
from unmask.data.survey import text_hash

FAR = 0.5  # a realised share is close to the target if it differs by at most half of it
LARGE = 2.0
BATCH_CHARS = 1 << 18
# Of 256 minima: at a Jaccard similarity of 0.6, 4.5 standard deviations above the mean; at 0.8, 2.4 below it.
ALIKE = 190
MOST_NEIGHBOURS = 100  # that share a band with a text and are compared with it
# In quotes as a whole, since a shell removes the inner ones
WAY_OUT = "hold out separate files with 'corpus.validation=[\"FILE\"]'"


class HeldGroups(NamedTuple):
    keys: Ints  # [held], int64, sorted: keys of the groups that are held out
    num_groups: int  # number of groups
    share: float  # share of the text held out, in [0, 1]
    description: str  # for the log

    def arrays(self) -> dict[str, Any]:
        return {"held_keys": self.keys, "held_facts": np.frombuffer(json.dumps(self[1:]).encode(), dtype=np.uint8)}


def choose_groups(
    keys: Ints, sizes: Ints, share: float, *, what: str = "groups", alone: int = 0, alone_chars: int = 0
) -> HeldGroups:
    """Chooses the groups to hold out, a `share` of the text.

    `keys` [G] are hashes of the groups, all different, at least two, and `sizes` [G] the characters of text in each.
    Documents `alone`, with `alone_chars` characters, have no group; each is assigned by its text.
    """
    total = int(sizes.sum()) + alone_chars
    order = np.argsort(keys.view(np.uint64), kind="stable")
    keys, sizes = keys[order], sizes[order]
    large = sizes > LARGE * share * total
    if large.all():
        large[int(np.argmin(sizes))] = False
    fitting = np.flatnonzero(~large)
    shares = (np.cumsum(sizes[fitting]) + share * alone_chars) / total
    most = len(fitting) if large.any() else len(fitting) - 1  # at least one group is trained on
    below = int(np.searchsorted(keys[fitting].view(np.uint64), np.uint64(share * 2**64)))
    if not 0 < below <= most or abs(shares[below - 1] - share) > FAR * share:
        below = int(np.argmin(np.abs(shares[:most] - share))) + 1
    realised, num_large = float(shares[below - 1]), int(large.sum())
    description = f"held out: {below:,} of {len(keys):,} {what}, {realised:.1%} of the text"
    if alone:
        description += f"; {alone:,} documents without a value are assigned by a hash of their text"
    if num_large:
        description += (
            f"; too large to hold out: {num_large:,} of these, the largest with {sizes.max() / total:.1%} of the text, "
            "so held-out figures say nothing about such texts"
        )
    return HeldGroups(np.sort(keys[fitting[:below]]), len(keys), realised, description)


def group_key(name: str) -> int:
    """The hash that decides whether a group of a column is held out."""
    key = text_hash(name)
    return key - 2**64 if key >= 2**63 else key


_ROW = np.dtype([("form", np.int64), ("bands", np.uint32, NUM_BANDS), ("minima", np.uint8, NUM_MINIMA)])
_TEXT = np.dtype([("form", np.int64), ("document", np.int64)])


class Clusters:
    """Collects texts and clusters near-duplicates. Near-duplicates have the same normal form, or share a band of their
    signatures and agree in 190 of 256 minima. A cluster is what such pairs connect.

    About 1 pair in 16 is missed at a Jaccard similarity of 0.8, nearly always because it shares no band, and 1 in
    10,000 at 0.9. At 0.6 one pair in a million is joined wrongly, so texts from one template stay apart. If more than
    100 texts share a band, each is compared with 100 of them, first with those that share other bands too.

    It takes 328 bytes of memory for each normal form in the corpus (briefly three times that), and 16 for each text.
    """

    def __init__(self) -> None:
        self._rows: list[NDArray[np.void]] = []
        self._num_rows = self._compacted = 0
        self._texts: list[NDArray[np.void]] = []
        self._batch: list[tuple[str, int]] = []  # from `add_one`, until there are enough for the loops
        self._num_chars = 0

    def add(self, texts: Sequence[str], document: Sequence[int]) -> None:
        """Adds texts, and the places of their documents."""
        hashed = hash_texts(texts)
        entries = np.empty(len(texts), dtype=_TEXT)
        entries["form"], entries["document"] = hashed.normal, document
        normal, firsts = np.unique(hashed.normal, return_index=True)
        rows = np.empty(len(normal), dtype=_ROW)
        bands, rows["minima"] = hashed.signatures(firsts)
        rows["bands"] = bands & 0xFFFFFFFF
        rows["form"] = normal
        self.join({"cluster_rows": rows, "cluster_texts": entries})

    def add_one(self, text: str, document: int) -> None:
        """As `add`, for texts that come one by one."""
        self._batch.append((text, document))
        self._num_chars += len(text)
        if self._num_chars >= BATCH_CHARS:
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            batch, self._batch, self._num_chars = self._batch, [], 0
            self.add(*zip(*batch, strict=True))

    def _compact(self) -> NDArray[np.void]:
        """One row for each normal form, sorted."""
        rows = np.concatenate([np.empty(0, dtype=_ROW), *self._rows])
        self._rows = [rows[np.unique(rows["form"], return_index=True)[1]]]
        self._num_rows = self._compacted = len(self._rows[0])
        return self._rows[0]

    def arrays(self) -> dict[str, NDArray[np.void]]:
        texts = self.texts()
        return {"cluster_rows": self._compact(), "cluster_texts": texts}

    def texts(self) -> NDArray[np.void]:
        """[num_texts]: normal form of each text, and place of its document."""
        self._flush()
        return np.concatenate([np.empty(0, dtype=_TEXT), *self._texts])

    def join(self, arrays: Mapping[str, NDArray[np.void]]) -> None:
        """Adds the later texts of another, given as its `arrays`."""
        self._texts.append(arrays["cluster_texts"])
        self._rows.append(arrays["cluster_rows"])
        self._num_rows += len(arrays["cluster_rows"])
        if self._num_rows > 2 * self._compacted + (1 << 16):
            self._compact()

    def of_texts(self) -> Ints:
        """[num_texts]: for each text, in order, the row number of its cluster."""
        texts, rows = self.texts(), self._compact()
        parents = np.arange(len(rows), dtype=np.int64)
        minima, bands = (np.ascontiguousarray(rows[name]) for name in ("minima", "bands"))
        for band in range(NUM_BANDS):
            first, *others = (np.ascontiguousarray(bands[:, (band + more) % NUM_BANDS]) for more in (0, 5, 10))
            _join_alike(parents, first, np.lexsort([*others, first]), minima)
        while (parents[parents] != parents).any():
            parents = parents[parents]
        return parents[np.searchsorted(np.ascontiguousarray(rows["form"]), texts["form"])]


@compiled
def _join_alike(parent_N: Ints, values_N: Codes, order_N: Ints, bytes_NK: Bytes) -> None:
    """Joins the clusters of members that agree in at least `ALIKE` bytes [N, K]. `parent_N` is a member of the same
    cluster, a smaller one unless it is the smallest. Only members with equal values, which are adjacent in the order,
    are compared, each with up to `MOST_NEIGHBOURS` before it."""
    begin = 0
    for place in range(1, len(order_N)):
        if values_N[order_N[place]] != values_N[order_N[place - 1]]:
            begin = place
        for before in range(place - 1, max(begin, place - MOST_NEIGHBOURS) - 1, -1):
            one, other = _root_of(parent_N, order_N[place]), _root_of(parent_N, order_N[before])
            if one == other:
                continue
            same = 0
            for k in range(bytes_NK.shape[1]):
                same += bytes_NK[order_N[place], k] == bytes_NK[order_N[before], k]
            if same >= ALIKE:
                parent_N[max(one, other)] = min(one, other)


@compiled
def _root_of(parent_N: Ints, member: int) -> int:
    while parent_N[member] != member:
        parent_N[member] = parent_N[parent_N[member]]
        member = parent_N[member]
    return member
