"""Answers as stretches of a text: where they begin and where they end.

A text that is too long is seen in windows that overlap. In a window that does not hold the answer, the right answer is
its first token, `[CLS]`; the same stands for questions without an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray
from torch import Tensor

from unmask.model.task_network import TaskNetwork
from unmask.tasks.encoding import InputEncoder, ids_of
from unmask.tasks.examples import Encoded, Example
from unmask.tasks.predictions import AnswerPrediction, Prediction
from unmask.tasks.records import QuestionRecord

BEGIN, END = "begin", "end"


@dataclass(frozen=True)
class AnswerTask:
    """Begin and end of an answer. Source: Devlin et al. 2018, sections 4.2 and 4.3.

    Attributes:
        may_be_missing: Whether no answer is one of the answers.
        stride: Tokens that neighbouring windows share.
        longest: Tokens of an answer at most.
    """

    may_be_missing: bool
    stride: int
    longest: int

    def encode(self, records: Sequence[QuestionRecord], encoder: InputEncoder, *, with_targets: bool) -> Encoded:
        """See `unmask.tasks.task.Task`."""
        windows = encoder.questions(records, stride=self.stride)
        examples = [
            _example(number, record, encoding, encoder.type_ids(encoding), with_targets=with_targets)
            for number, (record, found) in enumerate(zip(records, windows, strict=True))
            for encoding in found
        ]
        lost = 0
        if with_targets:
            held = {example.record for example in examples if example.targets[BEGIN][0] > 0}
            lost = sum(bool(record.answers) and number not in held for number, record in enumerate(records))
        return Encoded(examples, split=sum(len(found) > 1 for found in windows), lost=lost)

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `unmask.tasks.task.Task`."""
        return model.find_answers(hidden_ND)

    def decode(
        self, records: Sequence[QuestionRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """See `unmask.tasks.task.Task`.

        The likeliest stretch of all windows is the answer. Windows overlap: a stretch of the text that several hold is
        one answer, with the highest of its scores. That of no answer is the least that any window says, since a window
        without the answer must say it. A text without a token has no answer.
        """
        windows: list[list[tuple[Example, NDArray[np.float32]]]] = [[] for _ in records]
        for example, output in zip(examples, outputs, strict=True):
            windows[example.record].append((example, output))
        return [self._answer(record, found) for record, found in zip(records, windows, strict=True)]

    def _answer(
        self, record: QuestionRecord, windows: Sequence[tuple[Example, NDArray[np.float32]]]
    ) -> AnswerPrediction:
        held = [(example, output) for example, output in windows if len(example.places) > 1]
        if not held:
            return AnswerPrediction(record.id, "", None, 1.0)
        stretches = [self._stretches(example, output.astype(np.float64)) for example, output in held]
        begins, ends, found = (np.concatenate(parts) for parts in zip(*stretches, strict=True))
        width = len(record.context) + 1
        places, which = np.unique(begins * width + ends, return_inverse=True)
        scores = np.full(len(places), -np.inf)
        np.maximum.at(scores, which, found)
        best = int(scores.argmax())
        nothing = min(float(output[0].sum()) for _, output in held)
        everything = float(np.logaddexp.reduce(np.append(scores, nothing) if self.may_be_missing else scores))
        if self.may_be_missing and nothing > scores[best]:
            return AnswerPrediction(record.id, "", None, float(np.exp(nothing - everything)))
        first, end = divmod(int(places[best]), width)
        text = record.context[first:end]  # tokens may begin with the space before a word
        begin = first + len(text) - len(text.lstrip()) if text.strip() else None
        return AnswerPrediction(record.id, text.strip(), begin, float(np.exp(scores[best] - everything)))

    def _stretches(
        self, example: Example, output: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """All stretches of a window: where they begin and end in the text, and their scores."""
        begins, ends = output[1:, 0], output[1:, 1]  # behind that of [CLS]
        place = np.arange(len(begins))
        reach = place[None, :] - place[:, None]
        first, last = np.nonzero((reach >= 0) & (reach < self.longest))
        items = example.items[1:]
        return items[first, 0], items[last, 1], begins[first] + ends[last]


def _example(
    number: int,
    record: QuestionRecord,
    encoding: tokenizers.Encoding,
    type_ids: NDArray[np.int64] | None,
    *,
    with_targets: bool,
) -> Example:
    of_context = np.array([sequence == 1 for sequence in encoding.sequence_ids])
    offsets = np.array(encoding.offsets, dtype=np.int64)
    places = np.flatnonzero(of_context & (offsets[:, 1] > offsets[:, 0]))
    items = np.concatenate([[[-1, -1]], offsets[places]])
    targets = {}
    if with_targets:
        begin, end = _target(record, items[1:])
        places_with_cls = np.concatenate([[0], places])
        targets = {BEGIN: places_with_cls[[begin + 1]], END: places_with_cls[[end + 1]]}
    return Example(
        record=number,
        input_ids=ids_of(encoding),
        type_ids=type_ids,
        places=np.concatenate([[0], places]),
        items=items,
        targets=targets,
    )


def _target(record: QuestionRecord, offsets: NDArray[np.int64]) -> tuple[int, int]:
    """First and last token of the first answer, as indices into the offsets; -1 where the window does not hold it."""
    if not record.answers:
        return -1, -1
    answer = record.answers[0]
    end = answer.begin + len(answer.text)
    inside = np.flatnonzero((offsets[:, 1] > answer.begin) & (offsets[:, 0] < end))
    whole = len(inside) and offsets[inside[0], 0] <= answer.begin and offsets[inside[-1], 1] >= end
    return (int(inside[0]), int(inside[-1])) if whole else (-1, -1)
