"""Regression: a number for a text, or for a pair.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.errors import CorpusError, ModelError
from unmask.folders.layout_names import Pooling
from unmask.folders.task_folder import TaskNetwork
from unmask.masking.masker import MaskedRows
from unmask.network.encoder import MaskedLM
from unmask.network.heads import LabelHead
from unmask.network.loss import Losses
from unmask.rows.rows import Rows
from unmask.tasks.columns import NUMBERS, UsualColumns
from unmask.tasks.examples import Example
from unmask.tasks.labelled_files import number_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import NAME, Labelled, Metrics
from unmask.tasks.text_tasks import TARGET, Targets, TextRecord, TextTask, is_paired, with_columns
from unmask.training.objectives import Objective
from unmask.training.objectives import Targets as BatchTargets


@dataclass(frozen=True)
class NumberPrediction:
    """Of a text's number."""

    value: float


@dataclass(frozen=True)
class Regress(TextTask):
    """A number for a text or a pair.

    Numbers are learned standardised, and the head is multiplied by their deviation and moved by their mean before it is
    saved: a head near zero would take long to reach numbers in the thousands, and the folder needs no table beside it.

    Attributes:
        mean, deviation: What outputs are moved by and multiplied with. A finished model holds both in its head.
    """

    kind: ClassVar[str] = "regress"
    title: ClassVar[str] = "numbers for texts"
    problem_type: ClassVar[str | None] = "regression"
    usual: ClassVar[UsualColumns | None] = UsualColumns(NUMBERS, pairs="found")

    names: tuple[str, ...] = ("value",)
    paired: bool = False
    max_length: int | None = None
    pooling: Pooling = "first"
    columns: Mapping[str, str] = field(default_factory=dict)
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def labelled(
        cls, record: TextRecord, value: Any, where: str, column: str, names: Sequence[str] | None
    ) -> TextRecord:
        """See `TextTask`."""
        return replace(record, value=number_of(value, where, column))

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: Pooling) -> Self:
        """See `Task`. Numbers are not all equal."""
        values = {record.value for record in train.records}
        if len(values) == 1:
            raise CorpusError(f"{train.path}: every example has the number {values.pop()}; there is nothing to learn")
        columns = with_columns(train)
        return cls((columns.get("label", "value"),), is_paired(train), settings.max_length, pooling, columns)

    def items(self, records: Sequence[TextRecord], metric: str) -> int | None:
        """See `Task`: no metric is a share."""
        return None

    @classmethod
    def reads(cls, content: Mapping[str, Any], names: Sequence[str]) -> bool:
        """See `Task`."""
        return content.get("problem_type") == cls.problem_type or len(names) == 1

    @classmethod
    def of_content(
        cls, own: Mapping[str, Any], names: tuple[str, ...], pooling: Pooling, max_length: int | None
    ) -> Self:
        """See `Task`."""
        return cls(names, bool(own.get("paired", False)), max_length, pooling, dict(own.get("columns") or {}))

    def targets_of(self, record: TextRecord) -> Targets:
        """See `TextTask`."""
        value = np.array([record.value], dtype=np.float64)
        return {TARGET: ((value - self.mean) / self.deviation).astype(np.float32)}

    def decode(
        self, records: Sequence[TextRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[NumberPrediction]:
        """See `Task`."""
        return [NumberPrediction(float(output[0, 0]) * self.deviation + self.mean) for output in outputs]

    def while_learning(self, train: Labelled) -> Self:
        """See `Task`: standardised numbers; the deviation is that of the sample."""
        values = [record.value for record in train.records]
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        return replace(self, mean=mean, deviation=deviation)

    def check_network(self, model: TaskNetwork) -> None:
        """See `Task`: its last layer can hold the scale of the numbers."""
        last_layer(model)

    def finish(self, model: TaskNetwork) -> None:
        """See `Task`: a head that tells standardised numbers tells the numbers themselves."""
        weight, bias = last_layer(model)
        with torch.no_grad():
            weight.mul_(self.deviation)
            bias.mul_(self.deviation).add_(self.mean)

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """See `Task`: squared errors. Here the right answers are numbers, float32."""

        def find(rows: Rows, masked: MaskedRows) -> BatchTargets:
            values_T = rows.classes[TARGET].flatten()
            positions_N = torch.nonzero(~values_T.isnan()).squeeze(1)
            return BatchTargets(self.places(rows, positions_N), values_T[positions_N])

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            found_N = self.logits_at(model, hidden_TD, targets.positions_N, dropout_seed)[:, 0].float()
            each_N = functional.mse_loss(found_N, targets.classes_N, reduction="none")
            return Losses(each_N.sum(), each_N.detach(), torch.zeros_like(each_N, dtype=torch.bool))

        return Objective(NAME, 1.0, find, losses)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("pearson", "spearman", "rmse")

    def measure(self, records: Sequence[TextRecord], predictions: Sequence[NumberPrediction]) -> Metrics:
        """See `Task`; correlations by scipy."""
        from scipy.stats import pearsonr, spearmanr

        right = np.array([record.value for record in records], dtype=np.float64)
        found = np.array([each.value for each in predictions], dtype=np.float64)
        defined = len(set(right.tolist())) > 1 and len(set(found.tolist())) > 1
        return {
            "pearson": float(pearsonr(right, found).statistic) if defined else None,
            "spearman": float(spearmanr(right, found).statistic) if defined else None,
            "rmse": float(np.sqrt(np.mean((right - found) ** 2))),
        }


def last_layer(model: TaskNetwork) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer that tells a number.

    Raises:
        ModelError: A head of transformers has none that is known by its shape, or one without a bias.
    """
    if isinstance(model, MaskedLM):
        head = model.find_head(LabelHead)
        assert head is not None
        assert head.classifier.bias is not None
        return head.classifier.weight, head.classifier.bias
    theirs = model.encoder.model
    of_encoder = f"{theirs.base_model_prefix}."
    found = [
        module
        for name, module in theirs.named_modules()
        if isinstance(module, torch.nn.Linear) and module.out_features == 1 and not name.startswith(of_encoder)
    ]
    if len(found) != 1 or found[0].bias is None:
        raise ModelError(
            f"the head of {type(theirs).__name__} has no single layer with a bias that tells the number, so it cannot "
            "hold the scale of the numbers; take another model for --task regress"
        )
    return found[0].weight, found[0].bias
