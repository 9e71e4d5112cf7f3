"""What a task is: all that it does to labelled files, inputs, outputs and figures, in one class.

    file -> Labelled -> encode -> Example -> network, head -> outputs -> decode -> prediction -> measure
                          |                                     |
                       targets  ----------- objective -----------

A task is a frozen value: what is learned from the training file (its labels, whether texts come in pairs) is in it, and
so it is what a model's folder says of itself under its own key. Whoever trains, predicts, evaluates, saves or reports
asks the task, and never which task it is. A new one is a file beside `classify.py` and a line in `known.py`.

Shape suffixes: N = places, D = hidden size, C = outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import CorpusError, listed
from unmask.data.reading import BadInput
from unmask.data.sources import Source
from unmask.data.tables import Role, find_column
from unmask.model.folder import TaskHead, TaskNetwork
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder
from unmask.tasks.settings import Columns, FinetuneSettings
from unmask.train.objectives import Objective

# ----------------------------------------
# Which column holds the text and which the label: as named, else found by usual names and by what stands in them.

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
        if name is not None and (option != "label" or with_label):
            find_column(rows, "text", name, where=path)
    label = wanted.label or find_column(rows, usual.labels, where=path)
    taken = {label, wanted.text, wanted.second}
    found_pair = usual.pairs == "found" and wanted.text is None
    if usual.pairs == "always" or (usual.pairs != "no" and wanted.second is not None) or found_pair:
        text, second = _pair(names, wanted)
    else:
        text, second = wanted.text, None
    if text is None and usual.pairs != "always":
        text, second = find_column(rows, usual.texts, where=path, taken=taken), None
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


Metrics = dict[str, float | None]
"""Figures by name; shares lie in [0, 1]. One that is not defined (a correlation with equal predictions) is None."""
LOWER_IS_BETTER = {"rmse"}
NAME = "task"  # of every task's objective


class Record(Protocol):
    """An example of a file, as a task reads it."""

    @property
    def row(self) -> int:
        """Row of the file, counted from 1; of several rows the first."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it gives to be read."""


@dataclass(frozen=True)
class Labelled:
    """The records of a file.

    Attributes:
        path: The file.
        records: At least one.
        columns: Where they stood; None where the file has no choice of columns.
    """

    path: Path
    records: Sequence[Any]
    columns: Columns | None


class Task(Protocol):
    """A task with what it knows of its labels.

    Attributes:
        kind: Its name for users.
        head: That of `unmask.model.heads` which does it.
        architecture: What transformers' classes for it are called after `For`.
        pipeline: What the hub, and transformers' pipelines, call it.
        title: What it does, in words.
        problem_type: What transformers calls it, of tasks of whole texts.
        of_texts: Whether an input is told from as a whole, by its first token or the mean of all.
        nested: Whether cells of its tables may hold lists and tables.
        usual: The columns that its tables have; None: they are always the same.
        lines_lack: What files of lines have not that it needs; None: a line is an input.
        takes: What it takes for an input, for errors.
        names: Its classes or tags by number; for a regression the number's name; empty for answers.
        max_length: Longest input in tokens, special tokens included; None: the model's.
        paired: Whether it is given two texts.
    """

    kind: ClassVar[str]
    head: ClassVar[str]
    architecture: ClassVar[str]
    pipeline: ClassVar[str]
    title: ClassVar[str]
    problem_type: ClassVar[str | None] = None
    of_texts: ClassVar[bool] = False
    nested: ClassVar[bool] = False
    usual: ClassVar[UsualColumns | None] = None
    lines_lack: ClassVar[str | None] = None
    names: tuple[str, ...]
    max_length: int | None
    paired: bool

    # Files

    @classmethod
    def own_file(cls, path: Path, *, with_labels: bool) -> Sequence[Record] | None:
        """The records of a file of a form that this task alone knows; None: it is no such file."""
        return None

    @classmethod
    def of_treebank(cls, source: Source, bad: BadInput, label: str | None, *, with_labels: bool) -> Sequence[Record]:
        """The records of a CoNLL or CoNLL-U file.

        Raises:
            CorpusError: The task has no use for words with tags, or a line cannot be read.
        """
        raise CorpusError(
            f"{source.path}: this kind of file holds words with tags, for --task tag; the task is {cls.kind}"
        )

    @classmethod
    def of_line(cls, number: int, text: str) -> Record:
        """The record of a line, where `lines_lack` is None."""
        raise AssertionError(f"{cls.kind} has no lines")

    @classmethod
    def own_columns(cls, *, with_labels: bool) -> Sequence[str]:
        """The columns that rows are read for, where these are always the same ones (`usual` is None)."""
        return ()

    @classmethod
    def of_rows(
        cls,
        path: Path,
        rows: Iterable[tuple[int, dict[str, Any]]],
        columns: Columns,
        names: Sequence[str] | None,
        *,
        with_labels: bool,
    ) -> Sequence[Record]:
        """The records of a table.

        Args:
            path: The file, for errors.
            rows: With their numbers.
            columns: Where everything stands.
            names: Of the labels by number, where the file says them.
            with_labels: Whether labels are read.

        Raises:
            CorpusError: A row lacks something or has something else; with its number.
        """

    # Labels

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """The task of a model that learns from this file.

        Raises:
            CorpusError: There is nothing to learn, such as one class only.
        """

    def remark(self, train: Labelled) -> str | None:
        """What is to be said of the training file; None: nothing."""
        return None

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """Compares a file with what was learned.

        Returns:
            What is to be said of what the model cannot get right; None: nothing.

        Raises:
            CorpusError: The file cannot be used.
        """
        return None

    def classes_of(self, record: Any) -> Sequence[str]:
        """The right classes of a record, whose losses `finetune.class_weights` may weigh; empty: there are none."""
        return ()

    def items(self, records: Sequence[Any], metric: str) -> int | None:
        """Of how many items a metric is the share; None where it is no share."""
        return len(records)

    # The model's folder

    @classmethod
    def reads(cls, content: Mapping[str, Any], names: Sequence[str]) -> bool:
        """Whether a config.json that others wrote, of this task's architecture, is of this task."""
        return True

    @classmethod
    def of_content(
        cls, own: Mapping[str, Any], names: tuple[str, ...], pooling: ClassifierPooling, max_length: int | None
    ) -> Self:
        """The task that a config.json tells.

        Args:
            own: What stands under our key; empty in a folder of others.
            names: Of the outputs.
            pooling: As the layout says it.
            max_length: Longest input.
        """

    def content(self) -> dict[str, Any]:
        """What config.json says under our key beside kind, `paired` and `max_length`."""
        return {}

    @property
    def task_head(self) -> TaskHead:
        """The head, as the model's folder has it."""
        own = {"kind": self.kind, "paired": self.paired, "max_length": self.max_length, **self.content()}
        return TaskHead(self.head, self.architecture, self.names, self.problem_type, None, own)

    # Inputs and outputs

    def record(self, number: int, given: Any) -> Record | None:
        """An input as users give it in Python; None: it is no input of this task."""

    @property
    def takes(self) -> str:
        """What it takes for an input, for errors."""

    def encode(self, records: Sequence[Any], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """Inputs of the network, with what is right in them where that is asked for and known."""

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """Outputs [N, C] of the hidden states [N, D] at the places of examples; a task that pools gives one an example.

        Args:
            model: With the task's head.
            hidden_ND: Of one example after the other.
            sizes: How many of them each example has.
        """
        return model.outputs(self.head, hidden_ND)

    def decode(
        self, records: Sequence[Any], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Any]:
        """A prediction a record, a frozen dataclass; `outputs` holds for each example its [N, C]."""

    # Learning

    def while_learning(self, train: Labelled) -> Self:
        """What a model learns, where that is not what a finished one tells."""
        return self

    def check_network(self, model: TaskNetwork) -> None:
        """Finds out before the training whether a network can do it.

        Raises:
            ModelError: It cannot.
        """

    def finish(self, model: TaskNetwork) -> None:
        """Makes of a network that has learned `while_learning` one that does the task itself."""

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """What a step of fine-tuning learns.

        Args:
            weights: Of the losses by class; None: all 1.
        """

    # Figures

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Its metrics; the first one tells the best model unless the settings say otherwise."""

    def measure(self, records: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
        """The metrics, by name."""

    def right_and_predicted(self, records: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[str], list[str]]:
        """The right and the predicted classes, to be laid side by side; empty where it has none."""
        return [], []


def few(names: Sequence[str]) -> str:
    """The first names of a list, in words."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
