"""Which column holds the text and which the label: as named, else found by usual names and by what stands in them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.errors import CorpusError
from unmask.tasks.settings import Columns
from unmask.text.table_rows import TEXT_NAMES
from unmask.text.text_columns import names_in, paths_in
from unmask.values import listed

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("first", "second"),
    ("question", "sentence"),
    ("query", "passage"),
)
WORDS = ("tokens", "words")
LABELS = ("label", "labels", "gold_label", "class", "category", "target", "y")
NUMBERS = ("score", "label", "similarity_score", "value", "rating", "target", "y")
TAGS = ("tags", "ner_tags", "pos_tags", "upos", "upos_tags", "labels")
_ALSO_VALUES = {"y", "first", "second", "value", "target", "class", "question", "query", "passage"}  # of a cell
KNOWN = {
    *TEXT_NAMES,
    *WORDS,
    *(name for pair in PAIRS for name in pair),
    *(name for names in (LABELS, NUMBERS, TAGS) for name in names),
} - _ALSO_VALUES  # names that only a header has


@dataclass(frozen=True)
class UsualColumns:
    """What the columns of a task are usually called.

    Attributes:
        labels: Those of labels, the likeliest first.
        texts: Those of texts.
        pairs: Whether there are two texts: `no`; `named`, where the second is named; `found`, also where the columns of
            a pair are there and no text is named; `always`.
        guessed: Whether the longest column is the text, where none has a usual name.
    """

    labels: tuple[str, ...]
    texts: tuple[str, ...] = TEXT_NAMES
    pairs: Literal["no", "named", "found", "always"] = "no"
    guessed: bool = True


def find_columns(
    rows: Sequence[dict[str, Any]], usual: UsualColumns, wanted: Columns, path: Path, *, with_label: bool
) -> Columns:
    """The columns of a table.

    Args:
        rows: Its first rows.
        usual: Of the task.
        wanted: Those that were named.
        path: The file, for errors.
        with_label: Whether a label is needed.

    Returns:
        All that the task needs.

    Raises:
        CorpusError: A named column is not there, or none can be found; the text lists the columns.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for option, name in vars(wanted).items():
        if name is not None and name not in names and (option != "label" or with_label):
            near = difflib.get_close_matches(name, paths_in(rows), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise CorpusError(f"{path}: there is no column {name!r}; {hint}columns are {names_in(rows)}")
    label = wanted.label or _first_of(names, usual.labels)
    taken = {label, wanted.text, wanted.second}
    found_pair = usual.pairs == "found" and wanted.text is None
    if usual.pairs == "always" or (usual.pairs != "no" and wanted.second is not None) or found_pair:
        text, second = _pair(names, wanted)
    else:
        text, second = wanted.text, None
    if text is None and usual.pairs != "always":
        text, second = _first_of([n for n in names if n not in taken], usual.texts), None
        text = text or (_longest(rows, names, taken) if usual.guessed else None)
    if label is None and with_label and len(rest := [name for name in names if name not in {text, second}]) == 1:
        label = rest[0]
    needed = [("text", text), *([("second", second)] * (usual.pairs == "always")), *([("label", label)] * with_label)]
    if missing := [option for option, name in needed if name is None]:
        raise CorpusError(
            f"{path}: the column for --{missing[0]} is not found among {listed(names)}; name it with "
            f"--{missing[0]} COLUMN"
        )
    return Columns(text=text, second=second, label=label if with_label else None)


def _pair(names: Sequence[str], wanted: Columns) -> tuple[str | None, str | None]:
    if wanted.text is not None or wanted.second is not None:
        found = next((pair for pair in PAIRS if {wanted.text, wanted.second} & set(pair)), (None, None))
        known = {name if name in names else None for name in found}
        return wanted.text or next(iter(known - {wanted.second, None}), None), wanted.second or next(
            iter(known - {wanted.text, None}), None
        )
    by_name = {name.lower(): name for name in names}
    return next(
        ((by_name[first], by_name[second]) for first, second in PAIRS if first in by_name and second in by_name),
        (None, None),
    )


def _first_of(names: Sequence[str], usual: Sequence[str]) -> str | None:
    by_name = {name.lower(): name for name in names}
    return next((by_name[name] for name in usual if name in by_name), None)


def _longest(rows: Sequence[dict[str, Any]], names: Sequence[str], taken: set[str | None]) -> str | None:
    """The column with the most letters, where it has twice as many as any other: of a table without names."""
    sizes = {
        name: sum(len(row[name]) for row in rows if isinstance(row.get(name), str)) / max(len(rows), 1)
        for name in names
        if name not in taken
    }
    ranked = sorted(sizes, key=lambda name: -sizes[name])
    if not ranked or sizes[ranked[0]] == 0 or (len(ranked) > 1 and sizes[ranked[0]] < 2 * sizes[ranked[1]]):
        return None
    return ranked[0]
