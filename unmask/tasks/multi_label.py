"""Multi-label classification: any number of classes for a text.

In a batch the labels of a text are a mask of bits, 62 to a column, so that a thousand labels do not make a thousand
columns of rows.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = texts, C = classes, W = columns of bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.errors import CorpusError
from unmask.folders.layout_names import Pooling
from unmask.folders.task_folder import TaskNetwork
from unmask.masking.masker import MaskedRows
from unmask.network.loss import Losses, predicted_positions
from unmask.rows.rows import Rows
from unmask.tasks.columns import LABELS, UsualColumns
from unmask.tasks.examples import Example
from unmask.tasks.labelled_files import class_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import NAME, Labelled, Metrics, few
from unmask.tasks.text_tasks import Targets, TextRecord, TextTask, is_paired, with_columns
from unmask.text.tables import in_order
from unmask.training.objectives import Objective
from unmask.training.objectives import Targets as BatchTargets
from unmask.values import parse_json

SEPARATOR = ";"
_BITS = 62  # of a column: all values are positive, and -1 stands where there is no target
_LIKELY = 0.5


@dataclass(frozen=True)
class LabelsPrediction:
    """Of a text's labels.

    Attributes:
        labels: Those with a probability of one half at least, the likeliest first; possibly none.
        probabilities: Of all labels, each by itself.
    """

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class MultiLabel(TextTask):
    """Any number of labels for a text, or for a pair where the second text's column is named.

    Labels are a list in a cell of JSONL or Parquet; in CSV and TSV a JSON list, or names with `;` between them. An
    empty cell is a text without labels. Each label is a decision of its own: binary cross-entropy, with the mean over
    labels, as transformers computes it for `multi_label_classification`.
    """

    kind: ClassVar[str] = "multi_label"
    title: ClassVar[str] = "labels of texts, any number each"
    problem_type: ClassVar[str | None] = "multi_label_classification"
    nested: ClassVar[bool] = True
    usual: ClassVar[UsualColumns | None] = UsualColumns(LABELS, pairs="named")

    names: tuple[str, ...] = ()
    paired: bool = False
    max_length: int | None = None
    pooling: Pooling = "first"
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def labelled(
        cls, record: TextRecord, value: Any, where: str, column: str, names: Sequence[str] | None
    ) -> TextRecord:
        """See `TextTask`."""
        return replace(record, labels=tuple(class_of(each, where, column, names) for each in _cell(value, where)))

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: Pooling) -> Self:
        """See `Task`. There are two labels at least, each with enough examples."""
        counts = Counter(label for record in train.records for label in set(record.labels))
        if len(counts) < 2:
            found = f"only the label {next(iter(counts))!r}" if counts else "no label"
            raise CorpusError(f"{train.path}: the examples have {found}; two are needed at least")
        if rare := sorted(name for name, count in counts.items() if count < settings.least_examples):
            row = next(record.row for record in train.records if rare[0] in record.labels)
            raise CorpusError(
                f"{train.path}: the label {rare[0]!r} has {counts[rare[0]]} example, in row {row} (labels with as few: "
                f"{len(rare)}); give it more, take it out, or allow it with --set "
                f"finetune.least_examples={counts[rare[0]]}"
            )
        return cls(in_order(counts), is_paired(train), settings.max_length, pooling, with_columns(train))

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """See `Task`. Labels that training did not have count as wrong."""
        super().check(held_out, train)
        unseen = Counter(label for record in held_out.records for label in record.labels if label not in self.names)
        if not unseen:
            return None
        return (
            f"{held_out.path}: {unseen.total():,} labels are none that {train} has ({few(sorted(unseen))}); they count "
            "as wrong"
        )

    def classes_of(self, record: TextRecord) -> Sequence[str]:
        """See `Task`."""
        return record.labels or ()

    @classmethod
    def reads(cls, content: Mapping[str, Any], names: Sequence[str]) -> bool:
        """See `Task`."""
        return content.get("problem_type") == cls.problem_type

    @classmethod
    def of_content(
        cls, own: Mapping[str, Any], names: tuple[str, ...], pooling: Pooling, max_length: int | None
    ) -> Self:
        """See `Task`."""
        return cls(names, bool(own.get("paired", False)), max_length, pooling, dict(own.get("columns") or {}))

    def targets_of(self, record: TextRecord) -> Targets:
        """See `TextTask`: a column for each 62 labels, a bit a label."""
        words = [0] * len(self._columns)
        for label in record.labels or ():
            number = self.names.index(label)
            words[number // _BITS] |= 1 << number % _BITS
        return {name: np.array([word]) for name, word in zip(self._columns, words, strict=True)}

    @property
    def _columns(self) -> list[str]:
        return [f"labels{number}" for number in range(-(-len(self.names) // _BITS))]

    def decode(
        self, records: Sequence[TextRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[LabelsPrediction]:
        """See `Task`."""
        return [self._of(output[0]) for output in outputs]

    def _of(self, logits_C: NDArray[np.float32]) -> LabelsPrediction:
        shares = torch.sigmoid(torch.from_numpy(logits_C).double()).tolist()
        ranked = sorted(zip(self.names, shares, strict=True), key=lambda pair: -pair[1])
        likely = tuple(name for name, share in ranked if share >= _LIKELY)
        return LabelsPrediction(likely, dict(zip(self.names, shares, strict=True)))

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """See `Task`: the mean over labels of their binary cross-entropies.

        Args:
            weights: Of each label's losses; None: all 1.
        """
        num_labels, columns = len(self.names), self._columns
        weights_C = None if weights is None else torch.tensor(weights, dtype=torch.float32)

        def find(rows: Rows, masked: MaskedRows) -> BatchTargets:
            positions_N = predicted_positions(rows.classes[columns[0]])
            words_NW = torch.stack([rows.classes[name].flatten()[positions_N] for name in columns], 1)
            bits = torch.arange(_BITS, device=words_NW.device)
            held_NC = (words_NW[..., None] >> bits & 1).flatten(1)[:, :num_labels]
            return BatchTargets(self.places(rows, positions_N), held_NC)

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            logits_NC = self.logits_at(model, hidden_TD, targets.positions_N, dropout_seed).float()
            right_NC = targets.classes_N.to(logits_NC.dtype)
            of_label_C = None if weights_C is None else weights_C.to(logits_NC.device)
            each_N = functional.binary_cross_entropy_with_logits(
                logits_NC, right_NC, weight=of_label_C, reduction="none"
            ).mean(1)
            wrong_N = ((logits_NC.detach() >= 0) != (right_NC > 0)).any(1)
            return Losses(each_N.sum(), each_N.detach(), wrong_N)

        return Objective(NAME, 1.0, find, losses)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("micro_f1", "macro_f1", "subset_accuracy", "ranking_precision")

    def items(self, records: Sequence[TextRecord], metric: str) -> int | None:
        """See `Task`: of F1 each right label is an item."""
        if not metric.endswith("_f1"):
            return len(records)
        return max(1, sum(len(record.labels or ()) for record in records))

    def measure(self, records: Sequence[TextRecord], predictions: Sequence[LabelsPrediction]) -> Metrics:
        """See `Task`, by scikit-learn; `ranking_precision` is the label ranking average precision.

        Source: Tsoumakas et al. 2010, Mining Multi-label Data, section 34.4 (of the Data Mining Handbook), for both F1
        and average precision.
        """
        from sklearn.metrics import accuracy_score, f1_score, label_ranking_average_precision_score

        names = [*self.names, *sorted({label for record in records for label in record.labels or ()} - {*self.names})]
        right = np.array([[name in (record.labels or ()) for name in names] for record in records])
        found = np.array([[name in each.labels for name in names] for each in predictions])
        shares = np.array([[each.probabilities.get(name, 0.0) for name in names] for each in predictions])
        known = np.flatnonzero(right.any(0))  # as for classes: one that only predictions have takes from the others
        return {
            "micro_f1": float(f1_score(right, found, average="micro", zero_division=0)),
            "macro_f1": float(f1_score(right, found, labels=known, average="macro", zero_division=0))
            if len(known)
            else None,
            "subset_accuracy": float(accuracy_score(right, found)),
            "ranking_precision": float(label_ranking_average_precision_score(right, shares)),
        }


def _cell(value: Any, where: str) -> list[Any]:
    """The labels of a cell, as they stand there."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                found = parse_json(text)
            except ValueError as error:
                raise CorpusError(f"{where} has {text[:40]!r}, which begins like a JSON list and is none") from error
            return list(found)
        return [part.strip() for part in text.split(SEPARATOR) if part.strip()]
    return [value]  # a single label
