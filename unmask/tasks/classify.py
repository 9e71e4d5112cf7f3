"""Classification: one of several classes for a text.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = texts, C = classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import CorpusError
from unmask.folders.layout_names import Pooling
from unmask.folders.task_folder import TaskNetwork
from unmask.masking.masker import MaskedRows
from unmask.network.loss import Losses, losses_of, predicted_positions
from unmask.rows.rows import Rows
from unmask.tasks import class_metrics
from unmask.tasks.columns import LABELS, UsualColumns
from unmask.tasks.examples import Example
from unmask.tasks.labelled_files import class_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import NAME, Labelled, Metrics, few
from unmask.tasks.text_tasks import TARGET, Targets, TextRecord, TextTask, is_paired, with_columns
from unmask.text.tables import in_order
from unmask.training.objectives import Objective
from unmask.training.objectives import Targets as BatchTargets


@dataclass(frozen=True)
class ClassPrediction:
    """Of a text's class.

    Attributes:
        label: The likeliest class.
        probability: Its probability.
        probabilities: Of all classes.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Classify(TextTask):
    """One of several classes for a text, or for a pair where the second text's column is named.

    Source: Devlin et al. 2018, section 4.1.
    """

    kind: ClassVar[str] = "classify"
    title: ClassVar[str] = "classes of texts"
    problem_type: ClassVar[str | None] = "single_label_classification"
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
        return replace(record, label=class_of(value, where, column, names))

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: Pooling) -> Self:
        """See `Task`. There are two classes at least, each with enough examples."""
        names = _classes(train, settings.least_examples)
        return cls(names, is_paired(train), settings.max_length, pooling, with_columns(train))

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """See `Task`. A class that training did not have is an error."""
        for record in held_out.records:
            if record.label not in self.names:
                raise CorpusError(
                    f"{held_out.path}: row {record.row} has the class {record.label!r}, which {train} does not have "
                    f"(it has {few(self.names)}); add examples of it there, or take the row out"
                )
        return super().check(held_out, train)

    def classes_of(self, record: TextRecord) -> Sequence[str]:
        """See `Task`."""
        return () if record.label is None else (record.label,)

    @classmethod
    def reads(cls, content: Mapping[str, Any], names: Sequence[str]) -> bool:
        """See `Task`."""
        return content.get("problem_type") in (None, cls.problem_type) and len(names) > 1

    @classmethod
    def of_content(
        cls, own: Mapping[str, Any], names: tuple[str, ...], pooling: Pooling, max_length: int | None
    ) -> Self:
        """See `Task`."""
        return cls(names, bool(own.get("paired", False)), max_length, pooling, dict(own.get("columns") or {}))

    def targets_of(self, record: TextRecord) -> Targets:
        """See `TextTask`."""
        return {TARGET: np.array([self.names.index(record.label or "")])}

    def decode(
        self, records: Sequence[TextRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[ClassPrediction]:
        """See `Task`."""
        return [self._of(output[0]) for output in outputs]

    def _of(self, logits_C: NDArray[np.float32]) -> ClassPrediction:
        probabilities = torch.softmax(torch.from_numpy(logits_C).double(), 0).tolist()
        best = int(np.argmax(probabilities))
        return ClassPrediction(self.names[best], probabilities[best], dict(zip(self.names, probabilities, strict=True)))

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """See `Task`: the cross-entropy."""
        find = class_targets(weights, self.places)

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            logits_NC = self.logits_at(model, hidden_TD, targets.positions_N, dropout_seed)
            return losses_of(logits_NC, targets.classes_N, targets.weights_N)

        return Objective(NAME, 1.0, find, losses)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """See `Task`."""
        return class_metrics.NAMES

    def measure(self, records: Sequence[TextRecord], predictions: Sequence[ClassPrediction]) -> Metrics:
        """See `Task`."""
        return class_metrics.of_classes(*self.right_and_predicted(records, predictions))

    def right_and_predicted(
        self, records: Sequence[TextRecord], predictions: Sequence[ClassPrediction]
    ) -> tuple[list[str], list[str]]:
        """See `Task`."""
        return [record.label or "" for record in records], [each.label for each in predictions]


def class_targets(
    weights: Sequence[float] | None, places: Callable[[Rows, Tensor], Tensor]
) -> Callable[[Rows, MaskedRows], BatchTargets]:
    """Finds classes in a batch.

    Args:
        weights: Of the losses by class; None: all 1.
        places: What is told from, given the rows and the positions [N] at which classes stand.
    """
    weights_C = None if weights is None else torch.tensor(weights, dtype=torch.float32)

    def find(rows: Rows, masked: MaskedRows) -> BatchTargets:
        classes_BS = rows.classes[TARGET]
        positions_N = predicted_positions(classes_BS)
        classes_N = classes_BS.flatten()[positions_N]
        weights_N = None if weights_C is None else weights_C.to(classes_N.device)[classes_N]
        return BatchTargets(places(rows, positions_N), classes_N, weights_N=weights_N)

    return find


def _classes(train: Labelled, least: int) -> tuple[str, ...]:
    counts = Counter(record.label or "" for record in train.records)
    if len(counts) < 2:
        raise CorpusError(
            f"{train.path}: every example has the class {next(iter(counts))!r}; two are needed to distinguish"
        )
    if rare := sorted(name for name, count in counts.items() if count < least):
        row = next(record.row for record in train.records if record.label == rare[0])
        count = counts[rare[0]]
        more = f" (and {len(rare) - 1} other classes)" if len(rare) > 1 else ""
        raise CorpusError(
            f"{train.path}: the class {rare[0]!r} has {count} example{'s' * (count != 1)}, in row {row}{more}; give it "
            f"more, take it out, or allow it with --set finetune.least_examples={count}"
        )
    return in_order(counts)
