"""Classes and numbers of texts and of pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import CorpusError
from unmask.model.folder_layout import Pooling
from unmask.model.task_folder import label_numbers
from unmask.model.task_network import TaskNetwork
from unmask.tasks.encoding import InputEncoder, ids_of
from unmask.tasks.examples import Encoded, Example
from unmask.tasks.predictions import ClassPrediction, NumberPrediction, Prediction
from unmask.tasks.records import TextRecord

TARGET = "target"
_FIRST = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class ClassTask:
    """One of several classes for a text or a pair. Source: Devlin et al. 2018, section 4.1.

    Attributes:
        names: The classes.
        paired: Whether it is given two texts.
        pooling: What it is told from.
    """

    names: tuple[str, ...]
    paired: bool
    pooling: Pooling = "first"

    def encode(self, records: Sequence[TextRecord], encoder: InputEncoder, *, with_targets: bool) -> Encoded:
        """See `unmask.tasks.task.Task`."""
        numbers = label_numbers(self.names)
        targets = [np.array([numbers[record.label or ""]]) for record in records] if with_targets else None
        return _encode(records, encoder, self.paired, self.pooling, targets)

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `unmask.tasks.task.Task`."""
        return model.classify(_means(hidden_ND, sizes) if self.pooling == "mean" else hidden_ND)

    def decode(
        self, records: Sequence[TextRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """See `unmask.tasks.task.Task`."""
        return [self._of(output[0]) for output in outputs]

    def _of(self, logits_C: NDArray[np.float32]) -> ClassPrediction:
        probabilities = torch.softmax(torch.from_numpy(logits_C).double(), 0).tolist()
        best = int(np.argmax(probabilities))
        return ClassPrediction(self.names[best], probabilities[best], dict(zip(self.names, probabilities, strict=True)))


@dataclass(frozen=True)
class NumberTask:
    """A number for a text or a pair.

    Attributes:
        paired: Whether it is given two texts.
        mean, deviation: What outputs are multiplied with and added to. While a model learns it tells standardised
            numbers; a finished one holds both in its head.
        pooling: What it is told from.
    """

    paired: bool
    mean: float = 0.0
    deviation: float = 1.0
    pooling: Pooling = "first"

    def encode(self, records: Sequence[TextRecord], encoder: InputEncoder, *, with_targets: bool) -> Encoded:
        """See `unmask.tasks.task.Task`."""
        targets = None
        if with_targets:
            values = np.array([[record.value] for record in records], dtype=np.float64)
            targets = list(((values - self.mean) / self.deviation).astype(np.float32))
        return _encode(records, encoder, self.paired, self.pooling, targets)

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `unmask.tasks.task.Task`."""
        return model.classify(_means(hidden_ND, sizes) if self.pooling == "mean" else hidden_ND)

    def decode(
        self, records: Sequence[TextRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """See `unmask.tasks.task.Task`."""
        return [NumberPrediction(float(output[0, 0]) * self.deviation + self.mean) for output in outputs]


def _means(hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean of each example's hidden states: [examples, D]."""
    lengths = torch.tensor(sizes, device=hidden_ND.device)
    return torch.segment_reduce(hidden_ND.float(), "mean", lengths=lengths).to(hidden_ND.dtype)


def _encode(
    records: Sequence[TextRecord],
    encoder: InputEncoder,
    paired: bool,
    pooling: Pooling,
    targets: Sequence[NDArray[np.int64] | NDArray[np.float32]] | None,
) -> Encoded:
    seconds = [record.second or "" for record in records] if paired else None
    encodings = encoder.texts([record.first for record in records], seconds)
    if nothing := next((record for record, encoding in zip(records, encodings, strict=True) if not encoding.ids), None):
        raise CorpusError(f"row {nothing.row}: the text is empty, and the tokenizer puts no [CLS] before it")
    examples = [
        Example(
            record=number,
            input_ids=ids_of(encoding),
            type_ids=encoder.type_ids(encoding),
            places=_FIRST if pooling == "first" else np.arange(len(encoding.ids)),
            items=_FIRST,
            targets={} if targets is None else {TARGET: targets[number]},
        )
        for number, encoding in enumerate(encodings)
    ]
    return Encoded(examples, truncated=sum(bool(encoding.overflowing) for encoding in encodings))
