"""Which columns of a labelled file hold texts and labels, and how their cells are read: the one place for both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import CorpusError, listed, parse_json, shown
from unmask.data.tables import Role, find_column
from unmask.data.values import class_name, text_in
from unmask.tasks.settings import Columns
from unmask.tokenizer.spans import word_spans

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
SEPARATOR = ";"  # between several labels in a cell


@dataclass(frozen=True)
class UsualColumns:
    """What the columns of a task are usually called.

    Attributes:
        labels: Role of the column of labels in `unmask.data.tables.USUAL`.
        texts: Role of the column of texts.
        pairs: Whether there are two texts: `no`; `named`, where the second is named; `found`, also where the columns of
            a pair are there and no text is named; `always`.
        guessed: Whether the longest column is the text, where none has a usual name.
    """

    labels: Role
    texts: Role = "text"
    pairs: Literal["no", "named", "found", "always"] = "no"
    guessed: bool = True


def find_columns(
    rows: Sequence[dict[str, Any]], usual: UsualColumns, named: Columns, path: Path, *, with_label: bool
) -> Columns:
    """The columns of a table: as named, else by usual names, else by what stands in them.

    Args:
        rows: Its first rows.
        usual: Of the task.
        named: By the user.
        path: The file, for errors.
        with_label: Whether a label is needed.

    Raises:
        CorpusError: A named column is not there, or none can be found; the text lists the columns.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    by_name = {name.lower(): name for name in names}
    for role, name in vars(named).items():
        if name is not None and (role != "label" or with_label):
            find_column(rows, "text", name, where=path)
    label = named.label or find_column(rows, usual.labels, where=path)
    text, second = named.text, None
    is_named = named.text is not None or named.second is not None
    if usual.pairs == "always" or (usual.pairs != "no" and named.second) or (usual.pairs == "found" and not named.text):
        if is_named:  # the other one of the pair that one of them belongs to
            pair = next((pair for pair in PAIRS if {named.text, named.second} & set(pair)), ())
            others = [name for name in pair if name in names and name not in {named.text, named.second}]
            text, second = named.text or next(iter(others), None), named.second or next(iter(others), None)
        else:
            pairs = (pair for pair in PAIRS if pair[0] in by_name and pair[1] in by_name)
            text, second = next(((by_name[first], by_name[other]) for first, other in pairs), (None, None))
    if text is None and usual.pairs != "always":
        taken = {label, named.second}
        text = find_column(rows, usual.texts, where=path, taken=taken)
        if text is None and usual.guessed:
            text = _longest(rows, [name for name in names if name not in taken])
        second = None if usual.pairs == "no" else named.second
    if label is None and with_label and len(rest := [name for name in names if name not in {text, second}]) == 1:
        label = rest[0]
    needed = {
        "text": text,
        **({"second": second} if usual.pairs == "always" else {}),
        **({"label": label} if with_label else {}),
    }
    if missing := [role for role, name in needed.items() if name is None]:
        raise CorpusError(
            f"{path}: the column for --{missing[0]} is not found among {listed(names)}; name it with "
            f"--{missing[0]} COLUMN"
        )
    return Columns(text=text, second=second, label=label if with_label else None)


def _longest(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str | None:
    """The column with the most letters, where it has twice as many as any other: of a table without names."""
    sizes = {name: sum(len(row[name]) for row in rows if isinstance(row.get(name), str)) for name in names}
    ranked = sorted(names, key=lambda name: -sizes[name])
    if not ranked or sizes[ranked[0]] == 0 or (len(ranked) > 1 and sizes[ranked[0]] < 2 * sizes[ranked[1]]):
        return None
    return ranked[0]


@dataclass(frozen=True)
class LabelledRow:
    """A row of a labelled file, read by role.

    All methods raise `CorpusError` with file, row and column where a cell is missing or of another kind. A label that
    is missing or not-a-number is an error, never a class of its own.

    Attributes:
        number: Counted from 1; of a text file, its line.
        where: File and row, for errors.
        cells: By column.
        columns: Which column has which role.
        names: Of the classes by number, where the file says them.
    """

    number: int
    where: str
    cells: Mapping[str, Any]
    columns: Columns
    names: Sequence[str] | None = None

    def text(self, role: Literal["text", "second"] = "text") -> str:
        """A text."""
        value, place = self._cell(role)
        try:
            text = text_in(value)
        except ValueError:
            text = None
        if text is None:
            raise CorpusError(f"{place} has {type(value).__name__}, not a text")
        return text

    def words(self) -> tuple[str, ...]:
        """A list of words; where no tags are needed, also a text, which is split."""
        value, place = self._cell("text")
        if isinstance(value, str) and self.columns.label is None:
            return words_of(value)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise CorpusError(f"{place} has {shown(value)}, not a list of words")
        if not value:
            raise CorpusError(f"{place} has no words")
        return tuple(value)

    def class_name(self) -> str:
        """One class."""
        value, place = self._cell("label")
        return self._class(value, place)

    def class_names(self) -> tuple[str, ...]:
        """Any number of classes: a list, or in a text a JSON list, or names with `;` between them."""
        value, place = self._cell("label")
        if value is None:
            return ()
        if isinstance(value, str):
            text = value.strip()
            if text.startswith("["):
                try:
                    value = list(parse_json(text))
                except ValueError as error:
                    raise CorpusError(
                        f"{place} has {text[:40]!r}, which begins like a JSON list and is none"
                    ) from error
            else:
                value = [part.strip() for part in text.split(SEPARATOR) if part.strip()]
        return tuple(self._class(each, place) for each in (value if isinstance(value, list | tuple) else [value]))

    def tags(self, num_words: int) -> tuple[str, ...]:
        """A list of classes, one a word."""
        value, place = self._cell("label")
        if not isinstance(value, list):
            raise CorpusError(f"{place} has {type(value).__name__}, not a list")
        if len(value) != num_words:
            raise CorpusError(f"{place} has {len(value)} tags for {num_words} words")
        return tuple(self._class(tag, place) for tag in value)

    def value(self) -> float:
        """A finite number."""
        value, place = self._cell("label")
        text = value.strip().lower() if isinstance(value, str) else value
        if text in (None, "", "null", "none", "n/a", "na"):
            raise CorpusError(f"{place} has no number; give it one, or take the row out")
        try:
            number = float(text)
        except (TypeError, ValueError, OverflowError):
            raise CorpusError(f"{place} has {shown(value)}, which is no number") from None
        if not math.isfinite(number):
            what = "NaN" if math.isnan(number) else str(number)
            raise CorpusError(f"{place} has {what}; give it a number, or take the row out")
        return number

    def _cell(self, role: Literal["text", "second", "label"]) -> tuple[Any, str]:
        """The value, and where it stands."""
        column = getattr(self.columns, role)
        if column not in self.cells:
            raise CorpusError(f"{self.where} has no column {column!r}, only {listed(self.cells)}")
        return self.cells[column], f"{self.where}, column {column!r}:"

    def _class(self, value: Any, place: str) -> str:
        try:
            name = class_name(value, self.names)
        except ValueError as error:
            raise CorpusError(f"{place} has {error}") from error
        if name is None or name.lower() == "nan":
            what = "no label" if name is None and not isinstance(value, float) else "NaN"
            raise CorpusError(f"{place} has {what}; give it a label, or take the row out")
        return name


def words_of(text: str) -> tuple[str, ...]:
    """The words of a raw text: runs of letters and digits with the marks on them, and signs one by one."""
    return tuple(text[begin:end] for begin, end in word_spans(text))
