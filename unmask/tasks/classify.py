"""Tasks for whole texts or pairs of texts: one of several classes, any number of labels, or a number.

Shape suffixes: N = texts, C = classes, W = columns of bits.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.core.errors import CorpusError, ModelError, SettingsError, listed, shown, whole_number
from unmask.data.columns import NO_LABEL, NUMBERS, Label, Role, class_name, in_order
from unmask.data.rows import Rows
from unmask.model.encoder import MaskedLM
from unmask.model.fused import Losses, predicted_positions
from unmask.model.layers import LabelHead
from unmask.model.layout_names import ClassifierPooling
from unmask.model.transformers import TaskNetwork
from unmask.tasks.files import Form, Labelled, LabelledRow, Pairing, flag_of, list_in, parsed_list
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder
from unmask.tasks.task import TARGET, FinetuneSettings, Judged, Measure, Metrics, Outputs, Task
from unmask.train.objectives import Targets as BatchTargets

CLASS_METRICS = ("accuracy", "macro_f1", "micro_f1", "matthews")
_FIRST = np.zeros(1, dtype=np.int32)
_BITS = 62  # bits per column of labels: values are then never negative, and -1 means no target
_LIKELY = 0.5
_LARGEST = 1e15  # largest number that can be learned: float32 holds its square
_SEPARATORS = ";,|#"  # possible separators of several labels in a cell; the first is the default
_LIKE_GAPS = {"na", "n/a", "#n/a"}  # as R and Excel write missing values; pandas reads them as such
_WHOLE = "if they are names, set finetune.label_separator to an empty text"
Targets = Mapping[str, NDArray[np.int64] | NDArray[np.float32]]


def class_metrics(right: Sequence[str], predicted: Sequence[str]) -> Metrics:
    """All `CLASS_METRICS`, equal to scikit-learn's but a hundred times faster.

    A predicted class that is never the right one has no F1 of its own; it lowers the F1 of other classes.

    Source: Gorodkin 2004 (Comparing two K-category assignments by a K-category correlation coefficient) for Matthews.
    """
    return class_measure(right, predicted)(np.arange(len(right)))


def class_measure(right: Sequence[str], predicted: Sequence[str]) -> Measure:
    """`class_metrics` of those that an interval draws."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*right, *predicted]))}
    right_N, predicted_N = (np.fromiter(map(numbers.__getitem__, each), np.int64) for each in (right, predicted))

    def measure(drawn: NDArray[np.int64]) -> Metrics:
        right_D, predicted_D = right_N[drawn], predicted_N[drawn]
        of_right, of_predicted, hits = (
            np.bincount(each_D, minlength=len(numbers)).astype(np.float64)
            for each_D in (right_D, predicted_D, right_D[right_D == predicted_D])
        )
        known, count, share = of_right > 0, len(drawn), float(np.mean(right_D == predicted_D))
        spread = math.sqrt((count**2 - np.square(of_right).sum()) * (count**2 - np.square(of_predicted).sum()))
        return {
            "accuracy": share,
            "macro_f1": float(np.mean(2.0 * hits[known] / (of_right + of_predicted)[known])),
            "micro_f1": share,
            "matthews": float(hits.sum() * count - of_right @ of_predicted) / spread if spread else 0.0,
        }

    return measure


def _sign_between(names: Iterable[str]) -> str | None:
    """The separator that seems to join several names: all parts of one name also occur in other names.

    Example: `,` in `sea, land`, `sea` and `land`; none in `Lyon, France`, `Nice, France`.
    """
    distinct = set(names)
    for sign in _SEPARATORS:
        parts_of = [{part.strip() for part in name.split(sign)} - {""} for name in distinct]
        counts = Counter(part for parts in parts_of for part in parts)
        if any(len(parts) > 1 and all(counts[part] > 1 for part in parts) for parts in parts_of):
            return sign
    return None


@dataclass(frozen=True)
class TextRecord:
    """A text, or a pair of texts. The label is a class, any number of classes, or a number; None if it is unknown."""

    row: int
    first: str
    second: str | None = None
    label: Any = None

    @property
    def texts(self) -> tuple[str, ...]:
        return self.first, self.second or ""


class TextPredictions(Sequence[Any]):
    """Predictions of texts, made on access: with thousands of classes, a dictionary for each text would take ten times
    the memory of the outputs."""

    def __init__(self, make: Callable[[NDArray[np.float32]], Any], outputs: Outputs) -> None:
        self._make, self._outputs = make, outputs

    def __len__(self) -> int:
        return len(self._outputs)

    def __getitem__(self, place: Any) -> Any:
        outputs = self._outputs[place]
        return TextPredictions(self._make, outputs) if isinstance(place, slice) else self._make(outputs[0])

    def __iter__(self) -> Iterator[Any]:
        return (self._make(output_NC[0]) for output_NC in self._outputs)


@dataclass(frozen=True)
class TextTask(Task):
    """A task for whole texts. The head sees the first token, or the mean of all tokens."""

    head: ClassVar[str] = "label_head"
    architecture: ClassVar[str] = "SequenceClassification"
    pipeline: ClassVar[str] = "text-classification"
    of_texts: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def label_of(cls, row: LabelledRow) -> Any:
        """The label of a row."""

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """Leaves out rows without a label, and counts them."""
        labelled = [record for record in read.records if record.label is not None]
        if not labelled:
            raise CorpusError(f"{read.path}: none of the {len(read.records):,} rows has a label")
        left_out = len(read.records) - len(labelled)
        note = f"{read.path}: {left_out:,} of {len(read.records):,} rows have no label: left out"
        return replace(read, records=labelled, notes=[*read.notes, *[note] * (left_out > 0)])

    @abstractmethod
    def targets_of(self, record: TextRecord) -> Targets:
        """The targets of a text, by name, each an array of one entry."""

    @abstractmethod
    def prediction(self, output_C: NDArray[np.float32]) -> Any:
        """The prediction of a text."""

    def decode(self, records: Sequence[Any], examples: Sequence[Example], outputs: Outputs) -> Sequence[Any]:
        return TextPredictions(self.prediction, outputs)

    @classmethod
    def of_row(cls, row: LabelledRow) -> TextRecord:
        second = None if row.columns.second is None else row.text("second")
        label = None if row.columns.label is None else cls.label_of(row)
        return TextRecord(row.number, row.text(), second, label)

    def of_input(self, number: int, value: Any) -> TextRecord | None:
        is_list = isinstance(value, list | tuple)
        # Models of other tools record neither columns nor whether they take pairs.
        texts = value if self.paired or (is_list and not self.columns) else (value,)
        is_input = isinstance(texts, list | tuple) and len(texts) == 1 + is_list
        return TextRecord(number, *texts) if is_input and all(isinstance(text, str) for text in texts) else None

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """Requires at least two classes."""
        counts = Counter(name for record in train.records for name in cls.classes_of(record))
        if len(counts) < 2:
            only = f"only the class {next(iter(counts))!r}" if counts else "no class"
            raise CorpusError(f"{train.path}: the examples have {only}; at least two are needed")
        names = tuple(name for name in train.places if name in counts) or in_order(counts)
        return cls(names, train.is_paired, settings.max_length, pooling, train.columns)

    def check(self, file: Labelled, train: Path) -> str | None:
        """Raises a CorpusError if one file holds pairs, the other single texts. Of the training file, names classes
        with one example."""
        if (paired := file.is_paired) != self.paired:
            pairs, texts = (file.path, train) if paired else (train, file.path)
            what = f"{pairs} holds pairs of texts, {texts} single ones"
            raise CorpusError(f"{what}; name the text columns", options=("text", "second"))
        if (remark := super().check(file, train)) is not None or file.path != train:
            return remark
        rows_of: dict[str, list[int]] = {}
        for record in file.records:
            for name in self.classes_of(record):
                rows_of.setdefault(name, []).append(record.row)
        once = [f"{name!r} (row {rows[0]})" for name, rows in sorted(rows_of.items()) if len(rows) == 1]
        return f"{train}: classes with a single example, perhaps misspelt: {', '.join(once[:8])}" if once else None

    def encode(self, records: Sequence[TextRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        paired = self.paired or any(record.second is not None for record in records)
        alone = [record.row for record in records if record.second is None]
        if paired and alone and not self.paired:
            raise SettingsError(f"input {alone[0]} is a single text, but others are pairs; predict each kind alone")
        seconds = [record.second or "" for record in records] if paired else None
        encodings = encoder.texts([record.first for record in records], seconds)
        examples, truncated = list[Example](), 0
        for number, (record, encoding) in enumerate(zip(records, encodings, strict=True)):
            if not encoding.ids:
                raise CorpusError(f"row {record.row}: the text is empty, and the tokenizer puts no [CLS] before it")
            places = _FIRST if self.pooling == "first" else np.arange(len(encoding.ids))
            targets = self.targets_of(record) if with_targets else {}
            examples.append(encoder.example(number, encoding, places, _FIRST, targets))
            truncated += bool(encoding.overflowing)
        return EncodedInput(examples, truncated=truncated)


# ----------------------------------------
# One of several classes.


@dataclass(frozen=True)
class ClassPrediction:
    """The likeliest class of a text, its probability, and those of all classes."""

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Classify(TextTask):
    """One of several classes for a text, or for a pair if the second text's column is named."""

    kind: ClassVar[str] = "classify"
    title: ClassVar[str] = "classes of texts"
    problem_type: ClassVar[str | None] = "single_label_classification"
    metrics: ClassVar[tuple[str, ...]] = CLASS_METRICS
    pairing: ClassVar[Pairing] = "named"

    @classmethod
    def label_of(cls, row: LabelledRow) -> str | None:
        """A class, also as the only one of a list; `settled` judges longer lists that are written as text."""
        value, place = row.cell("label")
        items = parsed_list(value)
        if isinstance(items, list) and len(items) < 2:
            value = items[0] if items else None
        if isinstance(value, list):
            raise CorpusError(f"{place} has {len(value)} labels; use the task multi_label", options=("task",))
        return row.class_name(value, place)

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """`-` and `-1` mean no label unless they are classes of the training file. There, `-` is a class beside `+`; -1
        is one unless the others are unsigned numbers, and are more than two or each at least twice as frequent (beside
        0 and 1, a frequent -1 may be the opposite of 1)."""
        counts, notes = Counter(record.label for record in read.records if record.label is not None), list(read.notes)
        known = counts if like is None else {record.label for record in like.records}
        is_class = {name: name in known for name in ("-", "-1")}
        if like is None and len(others := counts.keys() - is_class) > 1:
            are_numbers = all(whole_number(name) is not None for name in others)
            is_rare = len(others) > 2 or 2 * counts["-1"] <= min(counts[name] for name in others)
            is_class = {"-": "+" in others, "-1": not (are_numbers and is_rare)}
            if counts["-1"] and are_numbers:
                what = "counts as a class; if it means no label, remove these rows"
                what = "counts as no label; to keep it as a class, rename it in the file" if is_rare else what
                notes.append(f"{read.path}: -1, in {counts['-1']:,} rows, {what}")
            for name in (name for name in counts if name.lower() in _LIKE_GAPS):
                what = "counts as a class; if it means no label, remove these rows"
                notes.append(f"{read.path}: {name}, in {counts[name]:,} rows, {what}")
        lists = [name for name in counts if len(list_in(name) or ()) > 1]
        if like is None and separator is None and (lists or (sign := _sign_between(counts))):
            what, way_out = f"lists, such as {shown(lists[0])}" if lists else f"names joined by {sign!r}", ""
            if not lists:
                way_out = f" with finetune.label_separator={sign!r}"
            way_out = f"use the task multi_label{way_out}"
            raise CorpusError(f"{read.path}: the labels are {what}; {way_out}; {_WHOLE}", options=("task", "set"))
        records = [replace(each, label=None) if not is_class.get(each.label, True) else each for each in read.records]
        return super().settled(replace(read, records=records, notes=notes), like, separator)

    @classmethod
    def classes_of(cls, record: TextRecord) -> Sequence[str]:
        return () if record.label is None else (record.label,)

    def check(self, file: Labelled, train: Path) -> str | None:
        """Also raises a CorpusError if none of the classes occurs in training, which suggests another spelling."""
        classes = {record.label for record in file.records}
        if classes.isdisjoint(self.names):
            what = f"none of the classes ({listed(sorted(classes), 8)}) occurs in {train}"
            raise CorpusError(f"{file.path}: {what}, which has {listed(self.names, 8)}; use the same names")
        return super().check(file, train)

    def targets_of(self, record: TextRecord) -> Targets:
        return {TARGET: np.array([self.number_of[record.label]])}

    def prediction(self, output_C: NDArray[np.float32]) -> ClassPrediction:
        shares = torch.softmax(torch.from_numpy(output_C).double(), 0).tolist()
        best = int(np.argmax(shares))
        return ClassPrediction(self.names[best], shares[best], dict(zip(self.names, shares, strict=True)))

    def items(self, records: Sequence[TextRecord], metric: str) -> int | None:
        return None if metric == "matthews" else len(records)  # a correlation, from -1 to 1

    def measured(self, records: Sequence[TextRecord], predictions: Sequence[ClassPrediction]) -> Measure:
        return class_measure(*self.right_and_predicted(records, predictions))

    def right_and_predicted(
        self, records: Sequence[TextRecord], predictions: Sequence[ClassPrediction]
    ) -> tuple[list[str], list[str]]:
        return [record.label or "" for record in records], [each.label for each in predictions]

    def judged(self, records: Sequence[TextRecord], predictions: Sequence[ClassPrediction]) -> list[Judged]:
        return [
            Judged(record.texts if self.paired else (record.first,), record.label, each.label, each.probability)
            for record, each in zip(records, predictions, strict=True)
            if record.label is not None
        ]


@dataclass(frozen=True)
class Pairs(Classify):
    """One of several classes for a pair of texts; its files always have two texts."""

    kind: ClassVar[str] = "pairs"
    title: ClassVar[str] = "classes of pairs of texts"
    pairing: ClassVar[Pairing] = "always"
    forms: ClassVar[tuple[Form, ...]] = ("table",)


# ----------------------------------------
# Any number of labels.


@dataclass(frozen=True)
class LabelsPrediction:
    """The labels with a probability of at least one half, the likeliest first; and the probability of each."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class MultiLabel(TextTask):
    """Any number of labels for a text, or for a pair if the second text's column is named.

    Labels are a list in a cell of JSONL or Parquet; in CSV and TSV, such a list as JSON, Python or numpy write it, or
    names separated by `;`; or columns of 0 and 1. An empty cell is a text without labels; `-` and -1 mean unknown. The
    loss is the mean binary cross-entropy over labels, as in transformers' `multi_label_classification`.

    In a batch, the labels of a text are a bit mask, with 62 labels per column of the rows.
    """

    kind: ClassVar[str] = "multi_label"
    title: ClassVar[str] = "labels of texts, any number per text"
    problem_type: ClassVar[str | None] = "multi_label_classification"
    metrics: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "subset_accuracy", "ranking_precision")
    pairing: ClassVar[Pairing] = "named"
    of_flags: ClassVar[bool] = True
    labels: ClassVar[Label] = "lists"

    @classmethod
    def label_of(cls, row: LabelledRow) -> list[Any] | str | None:
        """A list, also one written as text; or another text; None if the cell is empty."""
        value, place = row.cell("label")
        if isinstance(value, str) and value.strip().startswith("["):
            if (values := list_in(value)) is None:
                raise CorpusError(f"{place} has {value.strip()[:40]!r}, which begins like a list but is not one")
            return values
        is_empty = value is None or str(value).strip().lower() in NO_LABEL
        return None if is_empty else value if isinstance(value, str | list) else [value]

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """Several columns, and lists of 0 and 1 of one length, above 1, have a value per class. Other lists hold names
        or numbers of classes."""
        sign = _SEPARATORS[0] if separator is None else separator
        cells: list[Sequence[Any] | None] = []
        for record in read.records:
            parts = str(record.label).split(sign) if sign else [record.label]
            cells.append([part.strip() for part in parts] if isinstance(record.label, str) else record.label)
        flags: list[list[int | None]] = [[-1] if cell is None else list(map(flag_of, cell)) for cell in cells]
        known = [each for each in flags if set(each) - {-1}]  # neither unknown nor empty
        sizes = {len(each) for each in known}
        by_place = len(sizes) == 1 and min(sizes) > 1 and not any(None in each for each in known)
        names, notes, labels = tuple(read.names or ()), list(read.notes), []
        columns = names if ",".join(names) == read.columns.get("label") else ()  # several columns, each a label
        places = columns or (like.places if like is not None else ())
        if places or (like is None and by_place):
            size = len(places) or sizes.pop()
            places = places or (names if len(names) == size else tuple(map(str, range(size))))
            for record, cell, each in zip(read.records, cells, flags, strict=True):
                if None in each or (-1 not in each and len(each) != size):
                    raise CorpusError(f"{read.path}: row {record.row} has {shown(cell)}, not {size} values of 0 or 1")
                pairs = zip(places, each, strict=False)
                labels.append(None if -1 in each else tuple(name for name, flag in pairs if flag))
            if like is None:
                notes.append(f"{read.path}: labels are lists of 0 and 1 for {listed(places, 8)}")
        else:
            for record, cell in zip(read.records, cells, strict=True):
                try:
                    every = [class_name(value, read.names) for value in cell or () if value != ""]
                except ValueError as error:
                    raise CorpusError(f"{read.path}: row {record.row} has {error}") from error
                is_none = any(name is None or name.lower() in {*NO_LABEL, "-", "-1"} for name in every)
                labels.append(None if is_none else tuple(map(str, every)))
            if like is None and separator is None and (joins := _sign_between(chain(*filter(None, labels)))):
                way_out = f"split them with finetune.label_separator={joins!r}; {_WHOLE}"
                what = f"the labels are names joined by {joins!r}"
                raise CorpusError(f"{read.path}: {what}; {way_out}", options=("set",))
        records = [replace(record, label=each) for record, each in zip(read.records, labels, strict=True)]
        return super().settled(replace(read, records=records, notes=notes, places=places), like, separator)

    def check(self, file: Labelled, train: Path) -> str | None:
        """Of the training file, warns about labels that no text has, which are dropped."""
        if file.path == train and (never := [name for name in file.places if name not in self.number_of]):
            return f"{train}: no text has the labels {listed(never, 8)}, so they are not learned"
        return super().check(file, train)

    @classmethod
    def classes_of(cls, record: TextRecord) -> Sequence[str]:
        return record.label or ()

    def targets_of(self, record: TextRecord) -> Targets:
        columns = [0] * -(-len(self.names) // _BITS)
        for label in record.label or ():
            number = self.number_of[label]
            columns[number // _BITS] |= 1 << number % _BITS
        return {f"labels{number}": np.array([bits]) for number, bits in enumerate(columns)}

    def prediction(self, output_C: NDArray[np.float32]) -> LabelsPrediction:
        shares = torch.sigmoid(torch.from_numpy(output_C).double()).tolist()
        ranked = sorted(zip(self.names, shares, strict=True), key=lambda pair: -pair[1])
        likely = tuple(name for name, share in ranked if share >= _LIKELY)
        return LabelsPrediction(likely, dict(zip(self.names, shares, strict=True)))

    def targets_in(self, rows: Rows, weights_C: Tensor | None) -> BatchTargets:
        columns = [rows.classes[f"labels{number}"] for number in range(len(rows.classes))]
        positions_N = predicted_positions(columns[0])
        words_NW = torch.stack([column.flatten()[positions_N] for column in columns], 1)
        bits = torch.arange(_BITS, device=words_NW.device)
        held_NC = (words_NW[..., None] >> bits & 1).flatten(1)[:, : len(self.names)]
        return BatchTargets(self.places(rows, positions_N), held_NC)

    def losses(self, logits: Tensor, targets: BatchTargets, weights_C: Tensor | None) -> Losses:
        """The mean of the labels' binary cross-entropies, each with its label's weight where it is right."""
        logits_NC = logits.float()
        right_NC = targets.classes_N.to(logits_NC.dtype)
        weights_C = None if weights_C is None else weights_C.to(logits_NC.device)
        each_N = functional.binary_cross_entropy_with_logits(
            logits_NC, right_NC, pos_weight=weights_C, reduction="none"
        ).mean(1)
        wrong_N = ((logits_NC.detach() >= 0) != (right_NC > 0)).any(1)
        return Losses(each_N.sum(), each_N.detach(), wrong_N)

    def items(self, records: Sequence[TextRecord], metric: str) -> int | None:
        return max(1, sum(len(record.label or ()) for record in records)) if metric.endswith("_f1") else len(records)

    def measured(self, records: Sequence[TextRecord], predictions: Sequence[LabelsPrediction]) -> Measure:
        """As in scikit-learn; `ranking_precision` is its label ranking average precision.

        Source: Tsoumakas et al. 2010, Mining Multi-label Data, section 34.4 (of the Data Mining Handbook).
        """
        others = {label for record in records for label in record.label or ()} - {*self.names}
        numbers = {name: number for number, name in enumerate([*self.names, *sorted(others)])}
        right_NC, predicted_NC = np.zeros((2, len(records), len(numbers)), dtype=bool)
        precision_N, shares_C = np.ones(len(records)), np.zeros(len(numbers))  # shares of one text at a time
        for number, (record, each) in enumerate(zip(records, predictions, strict=True)):
            right_NC[number, [numbers[label] for label in record.label or ()]] = True
            shares_C[: len(self.names)] = list(each.probabilities.values())
            predicted_NC[number] = shares_C >= _LIKELY
            if record.label:  # at each right label, the right ones among all that are as likely
                own_R1 = shares_C[right_NC[number]][:, None]
                precision_N[number] = np.mean((own_R1 <= own_R1.T).sum(1) / (shares_C >= own_R1).sum(1))

        def measure(drawn: NDArray[np.int64]) -> Metrics:
            right, predicted = right_NC[drawn], predicted_NC[drawn]
            known = right.any(0)  # as in `class_metrics`: a label that is never right has no F1 of its own
            hits, times = 2.0 * (right & predicted).sum(0), right.sum(0) + predicted.sum(0)
            return {
                "micro_f1": float(hits.sum() / max(1, times.sum())),
                "macro_f1": float(np.mean(hits[known] / times[known])) if known.any() else None,
                "subset_accuracy": float(np.mean((right == predicted).all(1))),
                "ranking_precision": float(np.mean(precision_N[drawn])),
            }

        return measure


# ----------------------------------------
# A number.


@dataclass(frozen=True)
class NumberPrediction:
    value: float


@dataclass(frozen=True)
class Regress(TextTask):
    """A number for a text or a pair.

    Targets are standardised, since a head with weights near zero would take long to reach thousands. `finish` puts
    their deviation and mean into the head, so the folder need not store them.
    """

    kind: ClassVar[str] = "regress"
    title: ClassVar[str] = "numbers for texts"
    problem_type: ClassVar[str | None] = "regression"
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "rmse")
    label_role: ClassVar[Role] = "score"
    labels: ClassVar[Label] = "numbers"
    pairing: ClassVar[Pairing] = "usual"

    names: tuple[str, ...] = ("value",)
    mean: float = 0.0  # added to outputs times the deviation; a finished model holds both in its head
    deviation: float = 1.0

    @classmethod
    def label_of(cls, row: LabelledRow) -> float | str | None:
        """A number, or the text of one, which `settled` parses by the decimal sign of its column."""
        value, place = row.cell("label")
        text = value.strip().lower().replace("\u2212", "-") if isinstance(value, str) else value
        if text is None or text in (*NO_LABEL, "-", "none", "n/a", "na"):
            return None
        if isinstance(text, str) and any(numbers.fullmatch(text) for numbers in NUMBERS.values()):
            return text
        return cls._number(text, place)

    @staticmethod
    def _number(value: Any, place: str) -> float | None:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            way_out = "write it as 2.5 or 2,5, without a unit, or leave the cell empty"
            raise CorpusError(f"{place} has {shown(value)}, which is not a number; {way_out}") from None
        if math.isnan(number):
            return None
        if math.isinf(number):
            raise CorpusError(f"{place} has {number}; remove the row")
        if abs(number) > _LARGEST:
            raise CorpusError(f"{place} has {number:g}; numbers can be at most {_LARGEST:g}: scale them")
        return number

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """Parses numbers written as text. Their decimal sign is the comma or point by which all can be read. If both
        are possible, it is the training file's; there, it is the sign that they contain (`1,234` is 1.234)."""
        texts = [record.label for record in read.records if isinstance(record.label, str)]
        samples = {sign: next((text for text in texts if sign in text), "") for sign in ",."}
        signs = [sign for sign, numbers in NUMBERS.items() if all(map(numbers.fullmatch, texts))]
        if not signs or (len(signs) == 2 and all(samples.values())):
            what = f"some numbers have a decimal comma ({samples[',']}), others a point ({samples['.']})"
            raise CorpusError(f"{read.path}: {what}; write all in the same way, without separators of thousands")
        decimal = signs[0] if len(signs) == 1 else (like and like.decimal) or next(filter(samples.get, signs), ".")
        records, number_of = [], dict[str, float | None]()
        for record in read.records:
            if isinstance(text := record.label, str):
                place = f"{read.path}: row {record.row}, column {read.columns.get('label')!r}:"
                plain = re.sub(rf"[{'.,'.replace(decimal, '')}\s']", "", text).replace(decimal, ".")
                number_of[text] = cls._number(plain, place)
            records.append(replace(record, label=number_of.get(text, text)))
        notes = list(read.notes)
        if samples[","]:
            means = " and ".join(f"{text} is {number_of[text]:g}" for text in dict.fromkeys(samples.values()) if text)
            what = "a decimal comma" if decimal == "," else "commas between thousands"
            notes.append(f"{read.path}: numbers have {what}: {means} (if not, write them with a decimal point)")
        read = replace(read, records=records, notes=notes, decimal=decimal if any(samples.values()) else None)
        return super().settled(read, like, separator)

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        values = [record.label for record in train.records]
        if len(set(values)) == 1:
            raise CorpusError(f"{train.path}: every example has the number {values[0]}; there is nothing to learn")
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        names = (train.columns.get("label", "value"),)
        return cls(names, train.is_paired, settings.max_length, pooling, train.columns, mean=mean, deviation=deviation)

    def check_network(self, model: TaskNetwork) -> None:
        last_layer(model)

    def finish(self, model: TaskNetwork) -> Self:
        weight, bias = last_layer(model)
        with torch.no_grad():
            weight.mul_(self.deviation)
            bias.mul_(self.deviation).add_(self.mean)
        return replace(self, mean=0.0, deviation=1.0)

    def targets_of(self, record: TextRecord) -> Targets:
        value = np.array([record.label], dtype=np.float64)
        return {TARGET: ((value - self.mean) / self.deviation).astype(np.float32)}

    def prediction(self, output_C: NDArray[np.float32]) -> NumberPrediction:
        return NumberPrediction(float(output_C[0]) * self.deviation + self.mean)

    def targets_in(self, rows: Rows, weights_C: Tensor | None) -> BatchTargets:
        """The targets are numbers, float32."""
        values_T = rows.classes[TARGET].flatten()
        positions_N = torch.nonzero(~values_T.isnan()).squeeze(1)
        return BatchTargets(self.places(rows, positions_N), values_T[positions_N])

    def losses(self, logits: Tensor, targets: BatchTargets, weights_C: Tensor | None) -> Losses:
        each_N = functional.mse_loss(logits[:, 0].float(), targets.classes_N, reduction="none")
        return Losses(each_N.sum(), each_N.detach(), torch.zeros_like(each_N, dtype=torch.bool))

    def items(self, records: Sequence[TextRecord], metric: str) -> int | None:
        return None

    def measured(self, records: Sequence[TextRecord], predictions: Sequence[NumberPrediction]) -> Measure:
        from scipy.stats import pearsonr, spearmanr

        right_N = np.array([record.label for record in records], dtype=np.float64)
        predicted_N = np.array([each.value for each in predictions], dtype=np.float64)

        def measure(drawn: NDArray[np.int64]) -> Metrics:
            right, predicted = right_N[drawn], predicted_N[drawn]
            defined = len(set(right.tolist())) > 1 and len(set(predicted.tolist())) > 1
            return {
                "pearson": float(pearsonr(right, predicted).statistic) if defined else None,
                "spearman": float(spearmanr(right, predicted).statistic) if defined else None,
                "rmse": float(np.sqrt(np.mean((right - predicted) ** 2))),
            }

        return measure


def last_layer(model: TaskNetwork) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer that predicts a number; a ModelError without a single such layer with a bias."""
    if isinstance(model, MaskedLM):
        head = model.find_head(LabelHead)
        assert head is not None
        assert head.classifier.bias is not None
        return head.classifier.weight, head.classifier.bias
    theirs = model.encoder.model
    layers = [
        module
        for name, module in theirs.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module.out_features == 1
        and not name.startswith(f"{theirs.base_model_prefix}.")
    ]
    if len(layers) != 1 or layers[0].bias is None:
        what = f"the head of {type(theirs).__name__} has no single layer with a bias to hold the scale of the numbers"
        raise ModelError(f"{what}; use another model for the task regress")
    return layers[0].weight, layers[0].bias
