"""What is asked of a model when it is measured: hidden tokens in a text, and how well it knew each of them.

    Question   input_ids  [CLS] the [MASK] sees [MASK] [SEP]      places 2 4      targets cat dogs
    Answer     losses     0.7 2.3                                 ranks  0 3

A network answers a batch of questions; `ask` makes the batches, so that memory is bounded and little is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.errors import ModelError

TOP = 5
_WINDOW = 16  # batches that are sorted by length together
_LOGITS = 1 << 24  # that are held at once, in float32


@dataclass(frozen=True)
class Question:
    """A text with hidden tokens.

    Attributes:
        input_ids: [S], int64: what the model sees, with special tokens.
        places: [N], int64: positions of the hidden tokens.
        targets: [N], int64: what stands there.
    """

    input_ids: NDArray[np.int64]
    places: NDArray[np.int64]
    targets: NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """How well the hidden tokens of a question were known.

    Attributes:
        losses: [N], float64: nats.
        ranks: [N], int64: tokens that the model found likelier; 5 stands for so many or more.
    """

    losses: NDArray[np.float64]
    ranks: NDArray[np.int64]


class Network(Protocol):
    """A masked language model, ours or another's."""

    @property
    def longest(self) -> int:
        """Positions that it takes, special tokens included."""

    @property
    def batch_positions(self) -> int:
        """Positions of a batch, about."""

    def to(self, device: torch.device) -> None:
        """Moves it."""

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions in one pass, in their order."""


def ask(network: Network, questions: Iterable[Question]) -> Iterator[Answer]:
    """Answers questions in their order, some batches at a time.

    Questions of about the same length are answered together, so that rows need little padding. Which ones share a batch
    changes an answer by no more than the order in which floating-point numbers are added up.

    Raises:
        ModelError: A loss is no finite number.
    """
    size = network.batch_positions
    gathered: list[Question] = []
    positions = 0
    for question in questions:
        gathered.append(question)
        positions += len(question.input_ids)
        if positions >= _WINDOW * size:
            yield from _in_batches(network, gathered, size)
            gathered, positions = [], 0
    yield from _in_batches(network, gathered, size)


def _in_batches(network: Network, questions: list[Question], size: int) -> list[Answer]:
    lengths = np.array([len(question.input_ids) for question in questions], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    number_of_batch = np.cumsum(lengths[order]) // size
    answers: dict[int, Answer] = {}
    for _, entries in groupby(zip(number_of_batch.tolist(), order.tolist(), strict=True), key=lambda entry: entry[0]):
        numbers = [number for _, number in entries]
        found = network.answer([questions[number] for number in numbers])
        answers.update(zip(numbers, found, strict=True))
    for number, question in enumerate(questions):
        _check_finite(question, answers[number])
    return [answers[number] for number in range(len(questions))]


def _check_finite(question: Question, answer: Answer) -> None:
    """A loss that is NaN would count as a wrong prediction, and as such look like a figure."""
    wrong = np.flatnonzero(~np.isfinite(answer.losses))
    if len(wrong):
        raise ModelError(
            f"the model's loss is {answer.losses[wrong[0]]} at position {question.places[wrong[0]]} of a text of "
            f"{len(question.input_ids)} tokens: its weights hold NaN or infinity, or numbers too large to compute "
            "with; give an earlier checkpoint, or train it again with a lower learning rate"
        )


def chunk_of(vocab_size: int) -> int:
    """How many predictions over a vocabulary are made at once, so that their logits do not fill the memory."""
    return max(64, _LOGITS // vocab_size // 64 * 64)


def judge(logits_NV: Tensor, targets_N: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Losses in nats and ranks of the right answers, from logits of any floating type."""
    logits_NV = logits_NV.float()
    losses_N = functional.cross_entropy(logits_NV, targets_N, reduction="none")
    first = logits_NV.topk(min(TOP, logits_NV.shape[1]), dim=1).indices
    hit = first == targets_N[:, None]
    ranks_N = torch.where(hit.any(1), hit.to(torch.int64).argmax(1), TOP)
    return losses_N.double().cpu().numpy(), ranks_N.cpu().numpy()


def split_answers(questions: Sequence[Question], losses: NDArray[np.float64], ranks: NDArray[np.int64]) -> list[Answer]:
    """The answers to some questions, from those to all their places in a line."""
    ends = np.cumsum([len(question.places) for question in questions])[:-1]
    return [Answer(*parts) for parts in zip(np.split(losses, ends), np.split(ranks, ends), strict=True)]
