"""What a task is: all that it does to labelled rows, inputs, outputs and figures, in one class.

    file -> LabelledRow -> record -> encode -> Example -> network, head -> outputs -> decode -> prediction -> measure
                                       |                                     |
                                    targets  ----------- objective -----------

A task is a frozen value: what is learned from the training file (its labels, whether texts come in pairs) is in it, and
so it is what a model's folder says of itself under its own key. Training, prediction, evaluation and reports call the
task's methods, and never ask which task it is. A new one is a class like those of `classify.py` and its name in `TASKS`
of `predict.py`.

Shape suffixes: T = positions of a batch in a line, N = places, L = tokens of a text, D = hidden size, C = outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.model.folder import TaskHead
from unmask.model.fused import Losses, losses_of, predicted_positions
from unmask.model.layout_names import ClassifierPooling
from unmask.model.transformers import TaskNetwork
from unmask.tasks.files import Form, Labelled, LabelledRow, Record, UsualColumns
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder
from unmask.tasks.settings import Columns, FinetuneSettings
from unmask.train.objectives import Objective
from unmask.train.objectives import Targets as BatchTargets

Metrics = dict[str, float | None]
"""Figures by name; shares lie in [0, 1]. One that is not defined (a correlation with equal predictions) is None."""
LOWER_IS_BETTER = {"rmse"}
NAME = "task"  # of every task's objective
TARGET = "target"  # what is right for an example, or at its places


@dataclass(frozen=True)
class Task(ABC):
    """A task with what it knows of its labels."""

    kind: ClassVar[str]  # its name for users
    title: ClassVar[str]  # what it does, in words
    head: ClassVar[str]  # that of `unmask.model.layers` which does it
    architecture: ClassVar[str]  # what transformers' classes for it are called after `For`
    pipeline: ClassVar[str]  # what the hub, and transformers' pipelines, call it
    problem_type: ClassVar[str | None] = None  # what transformers calls it, of tasks of whole texts
    takes_form: ClassVar[str] = "a text"  # what a single input is called in errors
    # Its metrics; by the first one the best model is chosen, unless the settings say otherwise.
    metrics: ClassVar[tuple[str, ...]] = ()
    of_texts: ClassVar[bool] = False  # whether it is about whole texts, pooled to one vector, and not about tokens
    usual: ClassVar[UsualColumns]  # what the columns of its tables are called
    fixed: ClassVar[Columns | None] = None  # its columns, where they are always the same
    forms: ClassVar[tuple[Form, ...]] = ("table", "lines")  # the forms of files that it reads
    # The fields that config.json holds under our key, beside kind, `paired` and `max_length`.
    stored: ClassVar[tuple[str, ...]] = ("columns",)

    names: tuple[str, ...] = ()  # its classes or tags by number; for a regression the number's name; empty for answers
    paired: bool = False  # whether an input is two texts
    max_length: int | None = None  # longest input in tokens, special tokens included; None: the model's
    pooling: ClassifierPooling = "first"  # how a whole text is pooled
    columns: Mapping[str, str] = field(default_factory=dict)  # of the training file, by role

    # Records

    @classmethod
    @abstractmethod
    def of_row(cls, row: LabelledRow) -> Record:
        """The record of a row, with its label where `row.columns.label` is not None.

        Raises:
            CorpusError: The row lacks something or has something else; with its number.
        """

    @abstractmethod
    def of_input(self, number: int, value: Any) -> Record | None:
        """The record of an input in Python; None: it is no input of this task."""

    @property
    def takes(self) -> str:
        """What it takes for an input, for errors."""
        return "(text, text)" if self.paired else self.takes_form

    @classmethod
    @abstractmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """The task of a model that learns from this file.

        Raises:
            CorpusError: There is nothing to learn, such as one class only.
        """

    def check(self, file: Labelled, train: Path) -> str | None:
        """Compares a file, the training file itself too, with what was learned.

        Returns:
            A warning about what the model cannot get right; None: there is none.

        Raises:
            CorpusError: The file cannot be used.
        """
        return None

    @classmethod
    def classes_of(cls, record: Any) -> Sequence[str]:
        """The right classes of a record, whose losses `finetune.class_weights` may weigh; empty: there are none."""
        return ()

    # The model's folder

    @property
    def task_head(self) -> TaskHead:
        """The head, as the model's folder has it."""
        own = {"kind": self.kind, "paired": self.paired, "max_length": self.max_length}
        own |= {name: getattr(self, name) for name in self.stored}
        pooling = self.pooling if self.of_texts else None
        return TaskHead(self.head, self.architecture, self.names, self.problem_type, pooling, own)

    # Inputs and outputs

    @abstractmethod
    def encode(self, records: Sequence[Any], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """Inputs of the network; with their right answers, where these are needed and known."""

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """Outputs [N, C] of the hidden states [N, D] at the places of examples; a task that pools gives one an example.

        `sizes` says how many of the places each example has.
        """
        if self.pooling == "mean":
            lengths = torch.tensor(sizes, device=hidden_ND.device)
            hidden_ND = torch.segment_reduce(hidden_ND.float(), "mean", lengths=lengths).to(hidden_ND.dtype)
        return model.outputs(self.head, hidden_ND)

    @abstractmethod
    def decode(
        self, records: Sequence[Any], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Any]:
        """A prediction a record, a frozen dataclass; `outputs` holds for each example its [N, C]."""

    # Learning

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """What a step of fine-tuning learns; `weights` are those of the losses by class, None: all 1."""
        weights_C = None if weights is None else torch.tensor(weights, dtype=torch.float32)

        def find(rows: Rows, masked: MaskedRows) -> BatchTargets:
            return self.targets_in(rows, weights_C)

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            logits = self.logits_at(model, hidden_TD, targets.positions_N, dropout_seed)
            return self.losses(logits, targets, weights_C)

        return Objective(NAME, 1.0, find, losses)

    def targets_in(self, rows: Rows, weights_C: Tensor | None) -> BatchTargets:
        """What is right in a batch: by default a class for each text or word, which stands at its first token."""
        first_N = predicted_positions(rows.classes[TARGET])
        classes_N = rows.classes[TARGET].flatten()[first_N]
        weights_N = None if weights_C is None else weights_C.to(classes_N.device)[classes_N]
        return BatchTargets(self.places(rows, first_N), classes_N, weights_N=weights_N)

    def losses(self, logits: Tensor, targets: BatchTargets, weights_C: Tensor | None) -> Losses:
        """By default the cross-entropy of logits [N, C]."""
        return losses_of(logits, targets.classes_N, targets.weights_N)

    def places(self, rows: Rows, first_N: Tensor) -> Tensor:
        """The places that are pooled: first tokens, or all of them, [N, L], -1 where a text is shorter than others."""
        return first_N if self.pooling == "first" else tokens_of(rows, first_N)

    def logits_at(self, model: TaskNetwork, hidden_TD: Tensor, places: Tensor, dropout_seed: int | None) -> Tensor:
        """Logits while a model learns: [N, C], pooled over what `places` gives."""
        if places.ndim == 1:
            pooled_ND = hidden_TD.index_select(0, places)
        else:
            held_NL1 = (places >= 0)[..., None]
            sum_ND = (hidden_TD[places.clamp(min=0)].float() * held_NL1).sum(1)
            pooled_ND = (sum_ND / held_NL1.sum(1)).to(hidden_TD.dtype)
        return model.outputs(self.head, pooled_ND, dropout_seed=dropout_seed)

    def while_learning(self, train: Labelled) -> Self:
        """What a model learns, where that is not what a finished one predicts."""
        return self

    def check_network(self, model: TaskNetwork) -> None:  # noqa: B027  (few tasks have anything to do)
        """Finds out before the training whether a network can do it.

        Raises:
            ModelError: It cannot.
        """

    def finish(self, model: TaskNetwork) -> None:  # noqa: B027  (likewise)
        """Makes of a network that has learned `while_learning` one that does the task itself."""

    # Figures

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Its metrics, where they depend on what was learned."""
        return self.metrics

    @abstractmethod
    def measure(self, records: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
        """The metrics, by name."""

    def items(self, records: Sequence[Any], metric: str) -> int | None:
        """Of how many items a metric is the share; None where it is no share."""
        return len(records)

    def right_and_predicted(self, records: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[str], list[str]]:
        """The right and the predicted classes side by side; empty where it has none."""
        return [], []


def tokens_of(rows: Rows, first_N: Tensor) -> Tensor:
    """The places of all tokens of the examples that begin there: [N, L], -1 where one is shorter than others."""
    row_B1 = torch.arange(len(rows.segment_ids), device=first_N.device)[:, None] * rows.segment_ids.shape[1]
    key_T = torch.where(rows.segment_ids >= 0, row_B1 + rows.segment_ids, -1).flatten()
    tokens = [torch.nonzero(key_T == key_T[first]).squeeze(1) for first in first_N]
    return pad_sequence(tokens, batch_first=True, padding_value=-1) if tokens else first_N[:, None]
