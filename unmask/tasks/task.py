"""What a task is, as far as a trained model is concerned: records to inputs, and outputs to predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unmask.model.task_folder import TaskInfo
from unmask.model.task_network import TaskNetwork
from unmask.tasks.answer import AnswerTask
from unmask.tasks.encoding import InputEncoder
from unmask.tasks.examples import Encoded, Example
from unmask.tasks.predictions import Prediction
from unmask.tasks.tag import TagTask
from unmask.tasks.text import ClassTask, NumberTask


class Task(Protocol):
    """Of records to predictions. One object a fine-tuned model."""

    def encode(self, records: Sequence[Any], encoder: InputEncoder, *, with_targets: bool) -> Encoded:
        """Inputs of the network, with what is right in them where that is asked for and known."""

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """Outputs [N, C] of the hidden states [N, D] at the places of examples; a task that pools gives one an example.

        Args:
            model: With the task's head.
            hidden_ND: Of one example after the other.
            sizes: How many of them each example has.
        """

    def decode(
        self, records: Sequence[Any], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """A prediction a record; `outputs` holds for each example its [N, C]."""


def task_of(info: TaskInfo) -> Task:
    """The task of a model that does this."""
    match info.kind:
        case "classify" | "pairs":
            return ClassTask(info.names, info.paired, info.pooling)
        case "regress":
            return NumberTask(info.paired, pooling=info.pooling)
        case "tag":
            return TagTask(info.names)
        case "answer":
            return AnswerTask(info.may_be_missing, info.stride, info.longest_answer)
