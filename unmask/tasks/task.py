"""The interface of a task: everything it does to labelled rows, inputs, outputs and figures; and settings of training.

    file -> LabelledRow -> record -> encode -> Example -> network, head -> outputs -> decode -> prediction -> measure
                                       |                                     |
                                    targets  ----------- objective -----------

A task is a frozen value that holds properties of the training file (its labels, whether texts come in pairs). A model's
folder keeps them under our key. Training, prediction, evaluation and reports only call its methods, and never ask which
task it is. A new task is a class like those of `classify.py`, and its name in `TASKS` of `kinds.py`.

Shape suffixes: T = positions of a batch in a line, N = places, L = tokens of a text, D = hidden size, C = outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.core.errors import listed
from unmask.core.results import Notify, counted, ignore
from unmask.data.columns import Label, Role
from unmask.data.rows import Rows
from unmask.data.settings import Reading
from unmask.masking.masker import MaskedRows
from unmask.model.card_head import CardSettings
from unmask.model.folder import TaskHead
from unmask.model.fused import Losses, losses_of, predicted_positions
from unmask.model.layout_names import ClassifierPooling
from unmask.model.transformers import TaskNetwork
from unmask.tasks.files import Columns, Form, Labelled, LabelledRow, Pairing, Record
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, types_of
from unmask.train.objectives import Objective
from unmask.train.objectives import Targets as BatchTargets
from unmask.train.runner import run

Metrics = dict[str, float | None]
"""Figures by name; shares lie in [0, 1]. An undefined one (a correlation with equal predictions) is None."""
Measure = Callable[[NDArray[np.int64]], Metrics]  # of items by number, which may repeat
Outputs = Sequence[NDArray[np.float32]]  # a network's outputs, [N, C] for each example


class Judged(NamedTuple):
    texts: tuple[str, ...]
    right: str
    predicted: str
    probability: float  # of the prediction
    place: tuple[int, int] = (0, 0)  # the characters of the first text that are judged; (0, 0): the texts as a whole


TARGET = "target"  # name of the targets of an example, or at its places


class FinetuneSettings(Reading):
    """How its files are read (`encoding`, `delimiter`, `header`), and how a model is fine-tuned.

    Source: Devlin et al. 2018, appendix A.3 (the range of rates, warm-up and decay); Mosbach et al. 2021 (why short
    fine-tuning from one seed says little).
    """

    columns: Columns = Columns()
    """Columns of texts and labels."""
    label_separator: str | None = None
    """Separator of several labels in a cell of a text file; empty: a cell is one label. Unset: `;`, and an error if
    another character seems to separate them."""
    epochs: int = Field(default=5, ge=1)
    """Maximum passes over the training file."""
    batch_size: int = Field(default=32, ge=1)
    """Examples per step."""
    learning_rate: float | None = Field(default=None, gt=0.0)
    """Peak learning rate. Unset: 5e-5 x (768 / hidden size)^2, at most 1e-3: BERT's largest at its size, lower for
    larger models, higher for small ones."""
    warmup: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the steps in which the learning rate rises; then it falls linearly to 0."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Decoupled weight decay, on matrices and embeddings."""
    clip_norm: float = Field(default=1.0, gt=0.0)
    """Largest norm of the whole gradient."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of hidden states and before the classifier. Unset: the model's own. In models that transformers runs, it
    sets every rate in config.json, attention included."""
    patience: int | None = Field(default=3, ge=1)
    """Stop after this many epochs without a better metric; `none`: train to the end."""
    metric: str | None = None
    """Metric by which the best model is chosen. Unset: accuracy, micro_f1 (for multi_label), pearson,
    entity_f1 (for entities) or f1."""
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0.0)]] | None = None
    """Weights of the losses by class: `balanced` (labels / classes / labels of the class), or a table. For multi_label
    a weight is that of texts with the label against those without it; `balanced`: texts without it / with it. Unset:
    1."""
    max_length: int | None = Field(default=None, ge=8)
    """Longest input in tokens. Unset: the model's."""
    pooling: ClassifierPooling | None = None
    """What represents a whole text: the `first` token, or the `mean` of all, which works with less pretraining. Unset:
    `mean` in ModernBERT's layout, `first` in BERT's and RoBERTa's. Models that transformers runs keep their own
    pooling."""
    stride: int = Field(default=64, ge=0)
    """Tokens that neighbouring windows of a long text share, for answers."""
    longest_answer: int = Field(default=30, ge=1)
    """Maximum tokens of an answer."""
    initial_weights: Literal["model", "random"] = "model"
    """`model` starts from the folder's weights; `random` draws new ones, to show what pretraining is worth."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Type of the activations in training; reported figures are computed in float32."""
    seed: int = Field(default=0, ge=0, lt=2**31 - 1000)
    """Seed of the first run: its head, order and dropout."""
    seeds: int = Field(default=1, ge=1, le=1000)
    """Runs, each with the next seed; the best one's model is saved."""
    card: CardSettings = CardSettings()
    """What you state about the model on its card; `card.license` is short for `finetune.card.license`."""

    def learning_rate_for(self, hidden_size: int) -> float:
        return self.learning_rate or min(1e-3, 5e-5 * (768 / hidden_size) ** 2)


@dataclass(frozen=True)
class Task(ABC):
    """A task, with what it has learned about its labels."""

    kind: ClassVar[str]  # its name for users
    title: ClassVar[str]  # description for cards
    head: ClassVar[str]  # name of its head in `unmask.model.layers`
    architecture: ClassVar[str]  # name of transformers' classes for it, after `For`
    pipeline: ClassVar[str]  # its name on the hub and in transformers' pipelines
    problem_type: ClassVar[str | None] = None  # transformers' `problem_type`, for tasks of whole texts
    takes_form: ClassVar[str] = "a text"  # description of a single input in errors
    # Its metrics; the first one chooses the best model, unless the settings name another.
    metrics: ClassVar[tuple[str, ...]] = ()
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"rmse"})  # its metrics that are errors
    of_texts: ClassVar[bool] = False  # whether it is about whole texts, pooled to one vector, not about tokens
    # Roles of its columns in `unmask.data.columns.USUAL`, and whether there is a column of second texts.
    text_role: ClassVar[Role] = "text"
    label_role: ClassVar[Role] = "label"
    labels: ClassVar[Label] = "classes"  # content by which the label column is detected, if no name is usual
    pairing: ClassVar[Pairing] = "no"
    of_flags: ClassVar[bool] = False  # whether labels may be 0 or 1 per class, in a list or in separate columns
    fixed: ClassVar[Columns | None] = None  # its columns, unless the user names others
    forms: ClassVar[tuple[Form, ...]] = ("table", "lines")  # the forms of files that it reads
    # The fields that config.json holds under our key, besides `kind`, `paired` and `max_length`: values of JSON.
    stored: ClassVar[tuple[str, ...]] = ("columns", "delimiter")

    names: tuple[str, ...] = ()  # its classes or tags by number; for a regression the number's name; empty for answers
    paired: bool = False  # whether an input is two texts
    max_length: int | None = None  # longest input in tokens, special tokens included; None: the model's
    pooling: ClassifierPooling = "first"  # how a whole text is pooled
    columns: Mapping[str, str] = field(default_factory=dict)  # columns of the training file, by role
    delimiter: str | None = None  # that of its cells, if the user set it

    # Records

    @classmethod
    @abstractmethod
    def of_row(cls, row: LabelledRow) -> Record:
        """The record of a row, with its label if `row.columns.label` is not None; a CorpusError if it is invalid."""

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """Interprets all labels of a file, and drops those that mean no label. Arguments as for `read_labelled`."""
        return read

    @abstractmethod
    def of_input(self, number: int, value: Any) -> Record | None:
        """The record of an input in Python; None if it does not fit the task."""

    def ready(self, record: Any) -> Any:
        """A record for prediction, as `encode` takes it."""
        return record

    @property
    def takes(self) -> str:
        """Description of an input, for errors."""
        return "(text, text)" if self.paired else self.takes_form

    @classmethod
    @abstractmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """The task of a model that learns from this file; a CorpusError if there is nothing to learn."""

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """The number of each class. Searching `names` for each label would take minutes with thousands of classes."""
        return {name: number for number, name in enumerate(self.names)}

    def check(self, file: Labelled, train: Path) -> str | None:
        """Compares a file (also the training file) with this task. Returns a warning about labels that the model cannot
        predict (classes missing from training), or that differ only in case, or None; raises a CorpusError if the file
        cannot be used."""
        folded = Counter(map(str.casefold, self.names))
        alike = [name for name in self.names if folded[name.casefold()] > 1]
        if file.path == train and alike:
            return f"{train}: labels differ only in case ({listed(alike, 8)}); if they mean the same, write them alike"
        labels = (name for record in file.records for name in self.classes_of(record))
        unseen = Counter(name for name in labels if name not in self.number_of)
        names = listed(sorted(unseen), 8)
        what = f"{unseen.total():,} labels do not occur in {train} ({names}); they count as wrong"
        return f"{file.path}: {what}" if unseen else None

    @classmethod
    def classes_of(cls, record: Any) -> Sequence[str]:
        """The right classes of a record, whose losses `finetune.class_weights` may weight; empty if it has none."""
        return ()

    # Inputs and outputs

    @abstractmethod
    def encode(self, records: Sequence[Any], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """Inputs of the network, with their targets if `with_targets`, as far as they are known."""

    @property
    def task_head(self) -> TaskHead:
        """The head, as the model's folder describes it."""
        own = {"kind": self.kind, "paired": self.paired, "max_length": self.max_length}
        own |= {name: getattr(self, name) for name in self.stored}
        pooling = self.pooling if self.of_texts else None
        return TaskHead(self.head, self.architecture, self.names, self.problem_type, pooling, own)

    def logits(self, model: TaskNetwork, hidden_TD: Tensor, places: Tensor, dropout_seed: int | None = None) -> Tensor:
        """The head's outputs [N, C] at places [N]. At places [N, L], padded with -1, they are [N, C] of each text's
        mean if the task pools, else [N, L, C]."""
        hidden = hidden_TD.index_select(0, places.clamp(min=0).flatten()).unflatten(0, places.shape)
        if self.pooling == "mean":
            is_token_NL1 = (places >= 0)[..., None]
            hidden = ((hidden.float() * is_token_NL1).sum(1) / is_token_NL1.sum(1)).to(hidden_TD.dtype)
        return model.outputs(self.head, hidden, dropout_seed=dropout_seed)

    @abstractmethod
    def decode(self, records: Sequence[Any], examples: Sequence[Example], outputs: Outputs) -> Sequence[Any]:
        """A prediction for each record, a frozen dataclass."""

    # Learning

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """The objective of fine-tuning; `weights` are those of the losses by class, None: all 1."""
        weights_C = None if weights is None else torch.tensor(weights, dtype=torch.float32)

        def find(rows: Rows, masked: MaskedRows) -> BatchTargets:
            return self.targets_in(rows, weights_C)

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            logits = self.logits(model, hidden_TD, targets.positions_N, dropout_seed)
            return self.losses(logits, targets, weights_C)

        return Objective("task", 1.0, find, losses)

    def targets_in(self, rows: Rows, weights_C: Tensor | None) -> BatchTargets:
        """The targets of a batch: by default a class for each text or word, at its first token."""
        first_N = predicted_positions(rows.classes[TARGET])
        classes_N = rows.classes[TARGET].flatten()[first_N]
        weights_N = None if weights_C is None else weights_C.to(classes_N.device)[classes_N]
        return BatchTargets(self.places(rows, first_N), classes_N, weights_N=weights_N)

    def places(self, rows: Rows, first_N: Tensor) -> Tensor:
        """The places that are pooled: first tokens [N], or all tokens [N, L], padded with -1."""
        return first_N if self.pooling == "first" else tokens_of(rows, first_N)

    def losses(self, logits: Tensor, targets: BatchTargets, weights_C: Tensor | None) -> Losses:
        """By default the cross-entropy of logits [N, C]."""
        return losses_of(logits, targets.classes_N, targets.weights_N)

    def check_network(self, model: TaskNetwork) -> None:  # noqa: B027  (few tasks have anything to do)
        """Raises a ModelError before training if a network is unsuitable for the task."""

    def finish(self, model: TaskNetwork) -> Self:
        """Prepares a trained network for saving, and returns the task as it is then."""
        return self

    # Figures

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.metrics

    def rank(self, metrics: Metrics, name: str) -> float:
        """A metric as a number, higher is better; an undefined one is the worst."""
        value = metrics[name]
        return -math.inf if value is None else -value if name in self.lower_is_better else value

    def measure(self, records: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
        """The metrics, by name. Override `measured` in a subclass of a task that has it, since intervals draw from
        that; else this."""
        return self.measured(records, predictions)(np.arange(len(records)))

    def measured(self, records: Sequence[Any], predictions: Sequence[Any]) -> Measure:
        """The metrics of those that an interval draws; overridden where much can be prepared."""
        made = list(predictions)  # they may be made on access
        return lambda drawn: self.measure([records[n] for n in drawn], [made[n] for n in drawn])

    def items(self, records: Sequence[Any], metric: str) -> int | None:
        """The number of items that a metric is a share of; None if it is not a share."""
        return len(records)

    @classmethod
    def text_of(cls, record: Any) -> str:
        """The text that training and validation must not share, with single spaces. Intervals draw the records of one
        text together, since they are alike."""
        return " ".join(" ".join(record.texts).split())

    def judged(self, records: Sequence[Any], predictions: Sequence[Any]) -> list[Judged]:
        """Each prediction with the right answer, for reports; empty if predictions are not simply right or wrong."""
        return []

    def right_and_predicted(self, records: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[str], list[str]]:
        """The right and the predicted classes; empty if the task has none."""
        return [], []


def tokens_of(rows: Rows, first_N: Tensor) -> Tensor:
    """The places of all tokens of the examples that begin at `first_N`: [N, L], padded with -1."""
    row_B1 = torch.arange(len(rows.segment_ids), device=first_N.device)[:, None] * rows.segment_ids.shape[1]
    key_T = torch.where(rows.segment_ids >= 0, row_B1 + rows.segment_ids, -1).flatten()
    tokens = [torch.nonzero(key_T == key_T[first]).squeeze(1) for first in first_N]
    return pad_sequence(tokens, batch_first=True, padding_value=-1) if tokens else first_N[:, None]


@torch.no_grad()
def outputs_of(
    model: TaskNetwork, task: Task, examples: Sequence[Example], *, notify: Notify = ignore
) -> list[NDArray[np.float32]]:
    """The network's outputs at the places of each example: [N, C]; N is 1 if the task pools."""
    assert not model.training
    outputs: list[NDArray[np.float32]] = [np.zeros((0, 0), dtype=np.float32)] * len(examples)
    with_places = [number for number, example in enumerate(examples) if len(example.places)]
    inputs = [examples[number] for number in with_places]
    places_of = [example.places for example in inputs]
    count = counted(notify, "predicting", sum(map(len, inputs)))
    for rows, hidden_TD in run(model, [example.input_ids for example in inputs], types=types_of(inputs)):
        sizes = [len(places_of[number]) for number in rows.numbers]
        places = rows.places(places_of).to(hidden_TD.device)
        if task.pooling == "mean":
            places = pad_sequence(list(places.split(sizes)), batch_first=True, padding_value=-1)
            sizes = [1] * len(sizes)
        logits_NC = task.logits(model, hidden_TD, places).float().cpu().numpy()
        for number, output in zip(rows.numbers, np.split(logits_NC, np.cumsum(sizes)[:-1]), strict=True):
            outputs[with_places[number]] = output
        count(int(rows.lengths.sum()))
    return outputs
