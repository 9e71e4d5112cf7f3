"""Adding, replacing and removing documents of an index without rebuilding it.

    passages in blocks  0 1 2 3   4 5 6 7   8 9          two documents are added
    their documents     0 0 1 2   2 3 4 -   5 6          one was removed; numbers ascend without a gap

Existing blocks do not change: new documents get new blocks behind them, and a removed passage has no document. So a
change embeds only new documents, and answers equal those of an index rebuilt from the remaining documents. Once more
than half of a block is removed, it is written anew without these passages, unless the graph covers it; once several
blocks in a row are less than half full, they are joined.

An id is the value of a table's id column or the name of a sequence or molecule, or else the number of a document in its
file. The first kind is unique in the whole index, the second only in its file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, SettingsError, shown
from unmask.search import blocks
from unmask.search.blocks import IndexBlock, IndexState, StoredIndex
from unmask.search.exact import stacked
from unmask.search.passages import DocumentFiles
from unmask.search.words import some_of_lines

LIGHT_IN_A_ROW = 8  # from this number on, consecutive blocks less than half full are joined
MOST_UNLINKED = 0.125  # rebuild the graph if later passages are more than this share of those in it
Mask = NDArray[np.bool_]


class Names:
    def __init__(self, stored: StoredIndex) -> None:
        columns = ["file", "id", "is_counted"]
        empty = blocks.SCHEMA.empty_table().select(columns)
        self._table = pa.concat_tables([empty, *(stored.table(n, columns) for n in range(len(stored.state.blocks)))])
        self._base = stored.state.settings.base
        self._real: Callable[[str], str] = cache(os.path.realpath)  # of folders
        files = self._table["file"].unique().to_pylist()
        self._paths = {name: self._placed(os.path.join(self._base, name)) for name in files}  # by names in the index
        self._known = set(self._paths.values())
        self._is_there: Mask = stored.documents >= 0
        self._is_counted: Mask = np.asarray(self._table["is_counted"])

    def _where(self, column: str, values: Sequence[str]) -> Mask:
        return np.asarray(pc.is_in(self._table[column], pa.array(values, pa.string()))) & self._is_there

    def _placed(self, path: str) -> str:
        """The absolute path, with links of its folder resolved. A file that is itself a link keeps its own name."""
        folder, name = os.path.split(path)
        return os.path.join(self._real(folder), name)

    def _path(self, name: str) -> str:
        """The path of a file, as typed: from the current folder if that file is in the index, else from the index's."""
        here = self._placed(name)
        return here if here in self._known else self._placed(os.path.join(self._base, name))

    def _in_files(self, files: Sequence[str]) -> Mask:
        paths = set(map(self._path, files))
        return self._where("file", [name for name, path in self._paths.items() if path in paths])

    def of_ids(self, ids: Sequence[Any]) -> Mask:
        """Mask of the passages of documents with these ids, or in files with these names. A `SettingsError` if one
        matches no document, or is the number of documents in several files."""
        for id_ in ids:
            if not isinstance(id_, str | int | np.integer) or isinstance(id_, bool):
                raise SettingsError(f"an id must be a text or a number, not {shown(id_)}")
        names = list(dict.fromkeys(map(str, ids)))
        with_id, in_file = self._where("id", names), self._in_files(names)
        # For each id, the files in which it is a document's number; None if it is an id column's value, which wins.
        places: dict[str, set[str | None]] = {}
        for row in self._table.filter(pa.array(with_id)).to_pylist():
            places.setdefault(row["id"], set()).add(row["file"] if row["is_counted"] else None)
        own = [name for name, files in places.items() if None in files]
        paths = {self._paths[name] for name in self._table["file"].filter(pa.array(in_file)).unique().to_pylist()}
        if unknown := [name for name in names if name not in places and self._path(name) not in paths]:
            what = f"{len(unknown):,} of {len(names):,} ids belong to no document, such as {unknown[0]!r}"
            ways = "the number of a document in its file, or a file's name for all its documents"
            ways = ways if all(self._is_counted) else f"a value of the column of ids or the name of a sequence, {ways}"
            raise SettingsError(f"{what}; nothing was removed. In this index an id is {ways}")
        if several := [name for name in places if len(places[name]) > 1 and name not in own]:
            first, second, *_ = sorted(map(str, places[several[0]]))
            what = f"document number {several[0]} exists both in {first} and in {second}"
            way_out = "name a file to remove all its documents, or index a table that has a column of ids"
            raise SettingsError(f"{what}; {way_out}")
        return (with_id & ~(self._where("id", own) & self._is_counted)) | in_file

    def replaced(self, ids: Sequence[str], files: Sequence[str]) -> Mask:
        """Mask of the passages that an addition replaces: of documents with one of these ids as a column's value, and
        of documents without such an id in these files."""
        return (self._where("id", ids) & ~self._is_counted) | (self._in_files(files) & self._is_counted)

    def last_number(self, files: Sequence[str]) -> int:
        """The highest document number in these files, removed documents included; 0 if there is none."""
        in_files = np.asarray(pc.is_in(self._table["file"], pa.array(files, pa.string())))
        ids = self._table["id"].filter(pa.array(in_files & self._is_counted))
        return pc.max(ids.cast(pa.int64())).as_py() or 0


def own_ids(files: DocumentFiles) -> list[str]:
    """The ids that come from a column or are names in FASTA and SMILES, not from counting. Raises
    `CorpusError` if two documents have the same."""
    if all(source.id is None and source.kind not in ("fasta", "smiles") for source in files.sources):
        return []
    ids = Counter(str(part.id) for part in files.read() if part.begin == 0 and not part.is_counted)
    if twice := [id_ for id_, count in ids.items() if count > 1]:
        several = f" ({len(twice):,} ids belong to several documents)" if len(twice) > 1 else ""
        reason = f"{ids[twice[0]]:,} documents have the id {twice[0]!r}{several}"
        raise CorpusError(f"{reason}; make ids unique, or name another column, or none ('')", options=("id_column",))
    return list(ids)


def changed_state(old: StoredIndex, gone_P: Mask, new: Sequence[IndexBlock], added_P: NDArray[np.int64]) -> IndexState:
    """Writes the files of an index after passages are removed and blocks added. Returns its state, not yet written.

    Args:
        gone_P: Whether each passage of the old index is removed: all of a document, or none.
        new: Blocks of new documents, already written.
        added_P: The document of each of their passages, ascending from 0.
    """
    documents_P = np.concatenate([np.where(gone_P, -1, old.documents), old.state.documents + added_P])
    there_P = documents_P >= 0
    numbers, documents_P[there_P] = np.unique(documents_P[there_P], return_inverse=True)
    state = old.state.model_copy(update={"blocks": [*old.state.blocks, *new], "documents": len(numbers)})
    whole = StoredIndex(old.folder.root, state=state, before=old)

    # Group the blocks that become one: consecutive light ones, as many as one block may hold. All others stay alone.
    most, ends = blocks.BLOCK_PASSAGES, np.cumsum([block.passages for block in state.blocks])
    masks, documents = (np.split(values_P, ends[:-1]) if len(ends) else [] for values_P in (there_P, documents_P))
    counts = [int(mask_P.sum()) for mask_P in masks]
    groups: list[list[int]] = []
    for is_light, run in groupby(range(len(counts)), key=lambda number: 2 * counts[number] < most):
        in_a_row, size = list(run), most + 1
        for number in in_a_row:
            if is_light and len(in_a_row) >= LIGHT_IN_A_ROW and size + counts[number] <= most:
                groups[-1].append(number)
                size += counts[number]
            else:
                groups.append([number])
                size = counts[number]

    lasting, columns = [], [np.zeros(0, dtype=np.int64)]
    for group in groups:
        if not any(counts[number] for number in group):
            continue
        first = group[0]
        # A block that is mostly removed is written anew, unless that would cost the graph.
        if len(group) == 1 and (first < state.linked or 2 * counts[first] >= state.blocks[first].passages):
            lasting.append(state.blocks[first])
            columns.append(documents[first])
            continue
        parts = ((masks[number], whole.vectors(number)) for number in group)
        vectors = stacked([(each if isinstance(each, np.ndarray) else each.tocsr())[mask] for mask, each in parts])
        table = pa.concat_tables([whole.table(number).filter(pa.array(masks[number])) for number in group])
        words = some_of_lines(map(whole.words, group), (masks[number] for number in group))
        lasting.append(old.folder.write_files(vectors, words, table))
        columns += [documents[number][masks[number]] for number in group]

    # Keep the graph if its blocks are unchanged and few passages came after them.
    update = {
        "blocks": lasting,
        "numbers": old.folder.write_array(np.concatenate(columns)),
        "removed": sum(block.passages for block in lasting) - int(there_P.sum()),
        "changes": state.changes + 1,
    }
    linked = lasting[: state.linked]
    unlinked = sum(block.passages for block in lasting[state.linked :])
    if linked != state.blocks[: state.linked] or unlinked > MOST_UNLINKED * sum(block.passages for block in linked):
        update |= {"graph": None, "linked": 0}
    return state.model_copy(update=update)
