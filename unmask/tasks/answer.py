"""Answers as spans of a text: the model predicts where they begin and end.

A text that is too long is read in overlapping windows. In a window without the answer, the right answer is its first
token, `[CLS]`, as for questions without an answer. Files are SQuAD's JSON, or tables with the columns question, context
and answers.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = windows, L = tokens of a window.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import CorpusError, shown, whole_number
from unmask.data.columns import value_at, without_gaps
from unmask.data.rows import Rows
from unmask.model.fused import Losses, losses_of, predicted_positions
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks.files import ANSWER_COLUMNS, Columns, Form, Labelled, LabelledRow, nearest, spelled
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder
from unmask.tasks.task import FinetuneSettings, Measure, Outputs, Task, tokens_of
from unmask.tokenizer.spans import is_mark
from unmask.train.objectives import Targets as BatchTargets

BEGIN, END = "begin", "end"
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class AnswerSpan:
    text: str
    begin: int


@dataclass(frozen=True)
class QuestionRecord:
    row: int  # row of the file, or the question's number in it, counted from 1
    id: str  # the file's id
    question: str
    context: str  # the text that may hold the answer
    # Each of them is right; empty if the text holds none; None if they are unknown.
    answers: tuple[AnswerSpan, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return self.question, self.context


@dataclass(frozen=True)
class AnswerPrediction:
    """The answer to a question."""

    answer: str  # a span of the text; empty: the text holds no answer
    begin: int | None  # its first character in the text; None without an answer
    probability: float  # among all spans of the text, and "no answer" if the model can predict that


def _as_lists(value: Any) -> Any:
    """A cell's answers as `{"text": [...], "answer_start": [...]}`; a missing start is None."""
    value = spelled(value) if isinstance(value, str) else value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(answer, dict) for answer in value):
        return value
    begins = list[int | str | None]()
    for answer in value:
        place = without_gaps(answer.get("answer_start"))
        begin = "" if place is None else str(place).strip().removesuffix(".0")
        number = whole_number(begin)
        begins.append((begin or None) if number is None else number)
    return {"text": [answer.get("text") for answer in value], "answer_start": begins}


@dataclass(frozen=True)
class AnswerTask(Task):
    """Begin and end of an answer. Source: Devlin et al. 2018, sections 4.2 and 4.3."""

    kind: ClassVar[str] = "answer"
    title: ClassVar[str] = "answers in texts"
    head: ClassVar[str] = "answer_head"
    architecture: ClassVar[str] = "QuestionAnswering"
    pipeline: ClassVar[str] = "question-answering"
    takes_form: ClassVar[str] = "(question, text)"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")
    fixed: ClassVar[Columns | None] = Columns(text="question", second="context", label="answers")
    forms: ClassVar[tuple[Form, ...]] = ("table", "squad")
    stored: ClassVar[tuple[str, ...]] = ("delimiter", "may_be_missing", "stride", "longest_answer")

    may_be_missing: bool = False  # whether the model may predict that there is no answer
    stride: int = 64  # tokens that neighbouring windows share
    longest_answer: int = 30  # maximum tokens of an answer

    @classmethod
    def of_row(cls, row: LabelledRow) -> QuestionRecord:
        """Answers are in the form of `datasets`, `{"text": [...], "answer_start": [...]}`, or a list of objects, also
        as text that JSON, Python or pandas wrote into a cell; or one in `answer_text` (or `answer`) and `answer_start`,
        which are empty if there is none. An answer, stripped, is taken at its occurrence nearest to `answer_start`, or
        at the first one if there is no `answer_start`; one that does not occur is left out."""
        question, context, id_ = row.text("text"), row.text("second"), row.cells.get("id")
        if isinstance(id_, bool) or not isinstance(id_, str | int | float | None):
            raise CorpusError(f"{row.where} has {shown(id_)} as 'id', which is neither a text nor a number")
        id_ = str(row.number if id_ is None else id_)
        if row.columns.label is None:
            return QuestionRecord(row.number, id_, question, context)
        cells = {name: without_gaps(cell) for name, cell in row.cells.items()}
        table = value_at(cells, row.columns.label)
        if table is None and (text := next((cells[name] for name in ANSWER_COLUMNS[:2] if name in cells), "")):
            table = {"text": text, "answer_start": cells.get("answer_start")}
        elif table is None and any(name in cells for name in ANSWER_COLUMNS):
            table = []
        table = _as_lists(table)
        texts, begins = (table.get(name) if isinstance(table, dict) else None for name in ("text", "answer_start"))
        if not (isinstance(texts, list) and isinstance(begins, list) and len(texts) == len(begins)):
            expected = "text and answer_start, two lists of one length"
            raise CorpusError(f"{row.where} has {shown(table)} as {row.columns.label!r}; expected are {expected}")
        answers = []
        for text, begin in zip(texts, begins, strict=True):
            if not isinstance(text, str) or isinstance(begin, bool) or not isinstance(begin, int | None):
                what = f"the answer {shown(text)} at {shown(begin)} must be a text and a character's number"
                raise CorpusError(f"{row.where}: {what}")
            answer = text.strip()
            stated = None if begin is None else begin + len(text) - len(text.lstrip())
            place = nearest(context, answer, stated or 0) if answer else None
            if place is None:
                row.counts["answers are not in their texts: left out"] += 1
                continue
            if stated is None and context.count(answer) > 1:
                row.counts["answers without answer_start occur several times: taken at the first place"] += 1
            elif stated not in (None, place):
                row.counts["answers are not at their answer_start: moved to the nearest occurrence"] += 1
            answers.append(AnswerSpan(answer, place))
        return QuestionRecord(row.number, id_, question, context, tuple(answers) if answers or not texts else None)

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """Leaves out questions with no answer in their text; raises a CorpusError if they are more than half."""
        broken, total = [record.row for record in read.records if record.answers is None], len(read.records)
        if 2 * len(broken) > total:
            raise CorpusError(
                f"{read.path}: {len(broken):,} of {total:,} questions have no answer that is in their text, the first "
                f"is question {broken[0]}; give texts and answers of one version, with the same letters and spaces"
            )
        return replace(read, records=[record for record in read.records if record.answers is not None])

    def of_input(self, number: int, value: Any) -> QuestionRecord | None:
        is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)
        return QuestionRecord(number, str(number), *value) if is_pair else None

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        return cls(
            max_length=settings.max_length,
            may_be_missing=any(not record.answers for record in train.records),
            stride=settings.stride,
            longest_answer=settings.longest_answer,
        )

    def check(self, file: Labelled, train: Path) -> str | None:
        count = sum(not record.answers for record in file.records)
        if self.may_be_missing or not count:
            return None
        return (
            f"{file.path}: {count:,} of {len(file.records):,} questions have no answer, but the model always gives "
            f"one, since all in {train} have one; these questions count as wrong"
        )

    def encode(self, records: Sequence[QuestionRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """Makes an example of each window. Its places are `[CLS]`, for no answer, and the tokens of the text."""
        questions, contexts = [record.question for record in records], [record.context for record in records]
        windows = encoder.windows(questions, contexts, [record.id for record in records], stride=self.stride)
        examples: list[Example] = []
        split = lost = 0
        for number, (record, encodings) in enumerate(zip(records, windows, strict=True)):
            answer, has_answer = next(iter(record.answers or ()), None), False
            tokens = _text_tokens(record.context, encodings)
            for encoding, (text_places, spans) in zip(encodings, tokens, strict=True):
                places = np.concatenate([[0], text_places])
                targets = {}
                if with_targets:
                    begin = end = 0  # [CLS], unless the window holds the whole answer
                    if answer is not None:
                        stop = answer.begin + len(answer.text)
                        inside = np.flatnonzero((spans[:, 1] > answer.begin) & (spans[:, 0] < stop))
                        if len(inside) and spans[inside[0], 0] <= answer.begin and spans[inside[-1], 1] >= stop:
                            begin, end, has_answer = inside[0] + 1, inside[-1] + 1, True
                    targets = {BEGIN: places[[begin]], END: places[[end]]}
                items = np.concatenate([[[-1, -1]], spans])
                examples.append(encoder.example(number, encoding, places, items, targets))
            split += len(encodings) > 1
            lost += with_targets and bool(record.answers) and not has_answer
        return EncodedInput(examples, split=split, lost=lost)

    def decode(
        self, records: Sequence[QuestionRecord], examples: Sequence[Example], outputs: Outputs
    ) -> list[AnswerPrediction]:
        """The answer is the likeliest span of all windows; a span in several windows has its highest score. The score
        of "no answer" is the lowest of all windows, since every window without the answer scores it high."""
        windows: list[list[tuple[Example, NDArray[np.float64]]]] = [[] for _ in records]
        for example, output in zip(examples, outputs, strict=True):
            if len(example.places) > 1:
                windows[example.record].append((example, output.astype(np.float64)))
        predictions = []
        for record, of_record in zip(records, windows, strict=True):
            if not of_record:
                predictions.append(AnswerPrediction("", None, 1.0))
                continue
            # All spans of all windows, as begin x width + end, and their scores.
            width = len(record.context) + 1
            keys, window_scores = [], []
            for example, scored in of_record:
                # Without [CLS]; begin x width may need more than 32 bits.
                items = example.items[1:].astype(np.int64)
                begins, ends = scored[1:, 0], scored[1:, 1]
                place, reach = np.arange(len(begins)), np.arange(min(self.longest_answer, len(begins)))
                first, beyond = np.nonzero(place[:, None] + reach < len(begins))
                last = first + beyond
                keys.append(items[first, 0] * width + items[last, 1])
                window_scores.append(begins[first] + ends[last])
            spans, which = np.unique(np.concatenate(keys), return_inverse=True)
            scores = np.full(len(spans), -np.inf)
            np.maximum.at(scores, which, np.concatenate(window_scores))
            best = int(scores.argmax())
            # The likeliest one, or none.
            no_answer = min(float(scored[0].sum()) for _, scored in of_record)
            total = float(np.logaddexp.reduce(np.append(scores, no_answer) if self.may_be_missing else scores))
            text, begin, score = "", None, no_answer
            if not self.may_be_missing or no_answer <= scores[best]:
                first_char, end = divmod(int(spans[best]), width)
                text, score = record.context[first_char:end], float(scores[best])
                if text.strip():  # a token may include the space before its word
                    begin = first_char + len(text) - len(text.lstrip())
            predictions.append(AnswerPrediction(text.strip(), begin, float(np.exp(score - total))))
        return predictions

    # In training, places are all tokens of each window [N, L], and classes the tokens at which the answer begins and
    # ends [N, 2]. The loss is the mean of the cross-entropies of both, each over all tokens of the window.

    def targets_in(self, rows: Rows, weights_C: Tensor | None) -> BatchTargets:
        begins_BS, ends_BS = rows.classes[BEGIN], rows.classes[END]
        first_N = predicted_positions(begins_BS)
        classes_N2 = torch.stack([begins_BS.flatten()[first_N], ends_BS.flatten()[first_N]], 1)
        return BatchTargets(tokens_of(rows, first_N), classes_N2)

    def losses(self, logits: Tensor, targets: BatchTargets, weights_C: Tensor | None) -> Losses:
        is_padding_NL1 = (targets.positions_N < 0)[..., None]
        logits_2NL = logits.float().masked_fill(is_padding_NL1, float("-inf")).permute(2, 0, 1)
        both = losses_of(logits_2NL.flatten(0, 1), targets.classes_N.T.flatten())
        begin_N, end_N = both.each_N.chunk(2)
        wrong_begin_N, wrong_end_N = both.wrong_N.chunk(2)
        return Losses(both.total / 2, (begin_N + end_N) / 2, wrong_begin_N | wrong_end_N)

    @classmethod
    def text_of(cls, record: QuestionRecord) -> str:
        return record.context

    def measured(self, records: Sequence[QuestionRecord], predictions: Sequence[AnswerPrediction]) -> Measure:
        """Compares each prediction with the right answer that matches best. F1 is over words, each counted as often as
        both answers have it; it is 1 for two empty answers.

        Example: `the red fox` and `a fox` share one word of two and of one: 2/3.

        Source: Rajpurkar et al. 2016, section 6.1; for questions without an answer, Rajpurkar et al. 2018, section 3.
        """
        exact, overlap = [], []
        for record, prediction in zip(records, predictions, strict=True):
            words, figures = normalised(prediction.answer), []
            answers = [normalised(answer.text) for answer in record.answers or ()] or [[]]
            for right in answers:
                shared = (Counter(right) & Counter(words)).total()
                figures.append(2.0 * shared / (len(right) + len(words)) if right and words else float(right == words))
            exact.append(words in answers)
            overlap.append(max(figures))
        overlap_N, exact_N = np.array(overlap), np.array(exact)
        return lambda drawn: {"f1": float(overlap_N[drawn].mean()), "exact_match": float(exact_N[drawn].mean())}


def _text_tokens(
    context: str, windows: Sequence[tokenizers.Encoding]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The positions of the text's tokens in each of its windows [N], and their characters [begin, end) [N, 2].

    Letters and marks that no token covers belong to the token before them: normalisers strip accents and vowel signs,
    or compose them with the letter. Example: uncased BERT reads Hindi `है` as `ह`, a token of both characters.
    """
    tokens = []
    for window in windows:
        of_text = np.array([sequence == 1 for sequence in window.sequence_ids])
        offsets = np.array(window.offsets, dtype=np.int64)
        places = np.flatnonzero(of_text & (offsets[:, 1] > offsets[:, 0]))
        tokens.append((places, offsets[places]))
    if context.isascii():
        return tokens
    # Of all windows, since a word may go on in the next one.
    begins = {begin for _, spans in tokens for begin in spans[:, 0].tolist()} | {len(context)}
    for _, spans in tokens:
        for span in spans:
            end = int(span[1])
            while end not in begins and (is_mark(context[end]) or context[end].isalnum()):
                end += 1
            span[1] = end
    return tokens


def normalised(answer: str) -> list[str]:
    """The words of an answer as SQuAD's evaluation script counts them: in lower case, without ASCII punctuation, then
    without articles. The order matters: `A-team` becomes `ateam`, but `a–team`, with an en dash, becomes `–team`.

    Source: Rajpurkar et al. 2016 (SQuAD), section 6.1; `normalize_answer` of the official script, versions 1.1 and 2.0.
    """
    return _ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()
