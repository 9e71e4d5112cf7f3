"""What is asked of a model when it is measured: hidden tokens in a text, and how well it knew each of them.

    Question   input_ids  [CLS] the [MASK] sees [MASK] [SEP]      places 2 4      targets cat dogs
    Answer     losses     0.7 2.3                                 ranks  0 3

`ask` puts any number of questions to a network; `judge` says how well it knew hidden tokens, here and of held-out rows.

Shape suffixes: T = positions of all rows in a line, D = what the encoder makes of a position, N = hidden tokens, V =
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.errors import ModelError
from unmask.runner import Predictor, evaluating, logits_at, run

TOP = 5
WINDOW = 1 << 16  # positions of the questions that are packed together


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


Ask = Callable[[Iterable[Question]], Iterator[Answer]]  # `ask` with a network


def ask(network: Predictor, questions: Iterable[Question]) -> Iterator[Answer]:
    """Answers questions in their order, some batches at a time; the network is in evaluation mode while it answers.

    Questions are packed into rows. Which ones share a batch changes an answer by no more than the order in which
    floating-point numbers are added up.

    Raises:
        ModelError: A loss is no finite number.
    """
    gathered: list[Question] = []
    positions = 0
    for question in questions:
        gathered.append(question)
        positions += len(question.input_ids)
        if positions >= WINDOW:
            yield from _answers(network, gathered)
            gathered, positions = [], 0
    yield from _answers(network, gathered)


def _answers(network: Predictor, questions: Sequence[Question]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    places = [question.places for question in questions]
    with evaluating(network):
        for rows, hidden_TD in run(network, [question.input_ids for question in questions]):
            numbers = rows.numbers.tolist()
            targets = np.concatenate([questions[number].targets for number in numbers])
            found = judge(network, hidden_TD, rows.places(places), torch.from_numpy(targets))
            ends = np.cumsum([len(places[number]) for number in numbers])[:-1]
            for number, *each in zip(numbers, *(np.split(part, ends) for part in found), strict=True):
                answers[number] = Answer(*each)
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


def judge(
    network: Predictor, hidden_TD: Tensor, places_N: Tensor, targets_N: Tensor, *, top: int = TOP
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """How well a network knew hidden tokens of a batch.

    Args:
        network: In evaluation mode.
        hidden_TD: What its encoder made of the batch.
        places_N: int64: where the hidden tokens are, on any device.
        targets_N: int64: what stands there.
        top: Ranks are told below it; it stands for itself and more. 1 costs least.

    Returns:
        Losses [N] in nats, and ranks [N] of the right tokens: how many the network found likelier.
    """
    losses, ranks = [], []
    begin = 0
    for logits_NV in logits_at(network, hidden_TD, places_N):
        right_N = targets_N[begin : begin + len(logits_NV)].to(logits_NV.device)
        begin += len(logits_NV)
        losses.append(functional.cross_entropy(logits_NV, right_N, reduction="none").cpu().double().numpy())
        ranks.append(_ranks(logits_NV, right_N, top).cpu().numpy())
    return np.concatenate(losses), np.concatenate(ranks)


def _ranks(logits_NV: Tensor, right_N: Tensor, top: int) -> Tensor:
    if top == 1:
        return (logits_NV.argmax(1) != right_N).long()
    hit_NK = logits_NV.topk(min(top, logits_NV.shape[1]), dim=1).indices == right_N[:, None]
    return torch.where(hit_NK.any(1), hit_NK.long().argmax(1), top)
