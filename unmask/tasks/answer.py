"""Answers as stretches of a text: where they begin and where they end.

A text that is too long is seen in windows that overlap. In a window that does not hold the answer, the right answer is
its first token, `[CLS]`; the same stands for questions without an answer. Files are SQuAD's JSON, and tables with the
columns question, context and answers.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = windows, L = tokens of a window.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import CorpusError, listed, shown
from unmask.core.files import absence
from unmask.data.json_rows import json_form, rows_of_field
from unmask.data.reading import BadInput, bare_suffix
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.model.folder import TaskNetwork
from unmask.model.fused import Losses, losses_of, predicted_positions
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks.classify import tokens_of
from unmask.tasks.files import Gathered
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, ids_of
from unmask.tasks.settings import Columns, FinetuneSettings
from unmask.tasks.task import NAME, Labelled, Metrics, Record, Task
from unmask.train.objectives import Objective
from unmask.train.objectives import Targets as BatchTargets

BEGIN, END = "begin", "end"
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class GivenAnswer:
    """An answer, and the character of the text at which it begins."""

    text: str
    begin: int


@dataclass(frozen=True)
class QuestionRecord:
    """A question to a text.

    Attributes:
        row: Row of the file, or the question's number in it, counted from 1.
        id: As the file calls it.
        question: What is asked.
        context: Where the answer is looked for.
        answers: Any of them is right; empty where the text has none; None where they are not known.
    """

    row: int
    id: str
    question: str
    context: str
    answers: tuple[GivenAnswer, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it gives to be read."""
        return self.question, self.context


@dataclass(frozen=True)
class AnswerPrediction:
    """Of the answer to a question.

    Attributes:
        id: The question's.
        answer: A stretch of the text; empty: the text holds no answer.
        begin: Its first character in the text; None where there is no answer.
        probability: Among all stretches of the text that were looked at, each once, and no answer, where the model may
            find that.
    """

    id: str
    answer: str
    begin: int | None
    probability: float


@dataclass(frozen=True)
class AnswerTask(Task):
    """Begin and end of an answer. Source: Devlin et al. 2018, sections 4.2 and 4.3.

    Attributes:
        may_be_missing: Whether no answer is one of the answers.
        stride: Tokens that neighbouring windows share.
        longest_answer: Tokens of an answer at most.
    """

    kind: ClassVar[str] = "answer"
    head: ClassVar[str] = "answer_head"
    architecture: ClassVar[str] = "QuestionAnswering"
    pipeline: ClassVar[str] = "question-answering"
    title: ClassVar[str] = "answers in texts"
    nested: ClassVar[bool] = True
    lines_lack: ClassVar[str | None] = "questions"
    names: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]  # of every answer
    paired: ClassVar[bool] = False  # type: ignore[misc]

    max_length: int | None = None
    may_be_missing: bool = False
    stride: int = 64
    longest_answer: int = 30

    @classmethod
    def own_file(cls, path: Path, *, with_labels: bool) -> Sequence[Record] | None:
        """See `Task`: SQuAD's JSON, which is one object; an array of objects, or an object a line, are rows."""
        if bare_suffix(path) != ".json" or (os.path.isfile(path) and json_form(path) != "object"):
            return None
        return read_squad(path, with_answers=with_labels)

    @classmethod
    def own_columns(cls, *, with_labels: bool) -> Sequence[str]:
        """See `Task`."""
        return ("id", "question", "context", *(["answers"] if with_labels else []))

    @classmethod
    def of_rows(
        cls,
        path: Path,
        rows: Iterable[tuple[int, dict[str, Any]]],
        columns: Columns,
        names: Sequence[str] | None,
        *,
        with_labels: bool,
    ) -> Sequence[Record]:
        """See `Task`: with answers as `datasets` holds them: `{"text": [...], "answer_start": [...]}`."""
        records = []
        for number, row in rows:
            where = f"{path}: row {number}"
            for name in ("question", "context", *(["answers"] if with_labels else [])):
                wanted = dict if name == "answers" else str
                if not isinstance(row.get(name), wanted):
                    raise CorpusError(
                        f"{where} has no {name!r} that is a {'table' if wanted is dict else 'text'}; columns are "
                        f"{listed(row)}"
                    )
            answers = _checked(_given(row["answers"], where), row["context"], where) if with_labels else None
            id_ = _id(row.get("id"), number, where)
            records.append(QuestionRecord(number, id_, row["question"], row["context"], answers))
        return records

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """See `Task`. Where a question has no answer, the model may find so."""
        missing = any(not record.answers for record in train.records)
        return cls(settings.max_length, missing, settings.stride, settings.longest_answer)

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """See `Task`. Questions without an answer count as wrong where all of the training file have one."""
        count = sum(not record.answers for record in held_out.records)
        if self.may_be_missing or not count:
            return None
        return (
            f"{held_out.path}: {count:,} of {len(held_out.records):,} questions have no answer, but in {train} all "
            "have one, so the model always gives one; they count as wrong"
        )

    @classmethod
    def of_content(
        cls, own: Mapping[str, Any], names: tuple[str, ...], pooling: ClassifierPooling, max_length: int | None
    ) -> Self:
        """See `Task`."""
        settings = {name: own[name] for name in ("may_be_missing", "stride", "longest_answer") if name in own}
        return cls(max_length, **settings)

    def content(self) -> dict[str, Any]:
        """See `Task`."""
        return {
            "may_be_missing": self.may_be_missing,
            "stride": self.stride,
            "longest_answer": self.longest_answer,
        }

    def record(self, number: int, given: Any) -> Record | None:
        """See `Task`."""
        is_pair = isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)
        return QuestionRecord(number, str(number), *given) if is_pair else None

    @property
    def takes(self) -> str:
        """See `Task`."""
        return "(question, text)"

    def encode(self, records: Sequence[QuestionRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """See `Task`."""
        questions, contexts = [record.question for record in records], [record.context for record in records]
        windows = encoder.windows(questions, contexts, [record.id for record in records], stride=self.stride)
        examples = [
            _example(number, record, encoding, encoder.type_ids(encoding), with_targets=with_targets)
            for number, (record, found) in enumerate(zip(records, windows, strict=True))
            for encoding in found
        ]
        lost = 0
        if with_targets:
            held = {example.record for example in examples if example.targets[BEGIN][0] > 0}
            lost = sum(bool(record.answers) and number not in held for number, record in enumerate(records))
        return EncodedInput(examples, split=sum(len(found) > 1 for found in windows), lost=lost)

    def decode(
        self, records: Sequence[QuestionRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[AnswerPrediction]:
        """See `Task`.

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
        begins, ends = output[1:, 0], output[1:, 1]  # after that of [CLS]
        place = np.arange(len(begins))
        reach = place[None, :] - place[:, None]
        first, last = np.nonzero((reach >= 0) & (reach < self.longest_answer))
        items = example.items[1:]
        return items[first, 0], items[last, 1], begins[first] + ends[last]

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """See `Task`: the mean of the cross-entropies of begin and end, each among all tokens of the window."""
        return Objective(NAME, 1.0, _targets, self._losses)

    def _losses(self, model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
        positions_NL = targets.positions_N
        held_NL = positions_NL >= 0
        hidden_NLD = hidden_TD[positions_NL.clamp(min=0)]
        logits_NL2 = model.outputs(self.head, hidden_NLD, dropout_seed=dropout_seed).float()
        logits_NL2 = logits_NL2.masked_fill(~held_NL[..., None], float("-inf"))
        logits_2NL = logits_NL2.permute(2, 0, 1).flatten(0, 1)
        of_both = losses_of(logits_2NL, targets.classes_N.T.flatten())
        begin_N, end_N = of_both.each_N.chunk(2)
        wrong_begin_N, wrong_end_N = of_both.wrong_N.chunk(2)
        return Losses(of_both.total / 2, (begin_N + end_N) / 2, wrong_begin_N | wrong_end_N)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("f1", "exact_match")

    def measure(self, records: Sequence[QuestionRecord], predictions: Sequence[AnswerPrediction]) -> Metrics:
        """See `Task`; of several right answers the one that is nearest."""
        exact, overlap = [], []
        for record, prediction in zip(records, predictions, strict=True):
            answers = [answer.text for answer in record.answers or ()] or [""]
            exact.append(max(normalised(answer) == normalised(prediction.answer) for answer in answers))
            overlap.append(max(answer_f1(answer, prediction.answer) for answer in answers))
        return {"f1": float(np.mean(overlap)), "exact_match": float(np.mean(exact))}


def _targets(rows: Rows, masked: MaskedRows) -> BatchTargets:
    """A target an example: here positions are [N, L], the places of all its tokens, and classes [N, 2], the tokens at
    which the answer begins and ends."""
    begins_BS, ends_BS = rows.classes[BEGIN], rows.classes[END]
    first_N = predicted_positions(begins_BS)
    classes_N2 = torch.stack([begins_BS.flatten()[first_N], ends_BS.flatten()[first_N]], 1)
    return BatchTargets(tokens_of(rows, first_N), classes_N2)


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


def normalised(answer: str) -> list[str]:
    """The words of an answer, as SQuAD's evaluation script counts them.

    In lower case; then ASCII's punctuation is taken out, and nothing put in its place; then articles, wherever they
    stand between edges of words (signs beyond ASCII make such edges); then it is cut at white space. The order matters:
    `A-team` becomes `ateam`, which holds no article, but `a–team`, with a dash, becomes `–team`.

    Source: Rajpurkar et al. 2016 (SQuAD), section 6.1; `normalize_answer` of the official script, versions 1.1 and 2.0.
    """
    return _ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def answer_f1(right: str, predicted: str) -> float:
    """F1 of the words that two answers share, each as often as both have it; of empty ones 1, if both are.

    Example: `the red fox` and `a fox`: one word of two and one of one, so 2/3.

    Source: Rajpurkar et al. 2016, section 6.1; of no answer: Rajpurkar et al. 2018, section 3.
    """
    first, second = normalised(right), normalised(predicted)
    if not first or not second:
        return float(first == second)
    shared = (Counter(first) & Counter(second)).total()
    return 2.0 * shared / (len(first) + len(second))


_SHAPE = "expected data > paragraphs > context and qas > question, id, answers > text, answer_start"


def read_squad(path: Path, *, with_answers: bool) -> list[QuestionRecord]:
    """The questions of a file in SQuAD's form, of version 1 or 2, read article by article.

    Raises:
        CorpusError: The file is missing, no JSON, or of another form; or an answer does not stand where it is said to;
            or an article is longer than 64 million characters, or there are too many questions.

    Source: Rajpurkar et al. 2016 and 2018 (SQuAD and SQuAD 2.0), the form of their files.
    """
    if not os.path.isfile(path):
        raise CorpusError(f"{path}: {absence(path)}")
    found: list[QuestionRecord] = []
    gathered, number = Gathered(path), 0
    for number, article in rows_of_field(path, "data", BadInput(skip=False, way_out=None), way_out="cut the article"):
        where = f"{path}: not in SQuAD's form: article {number}"
        for paragraph in _part(article, "paragraphs", list, where):
            where = f"{path}: not in SQuAD's form: question {len(found) + 1}"
            context = _part(paragraph, "context", str, where)
            gathered.add(len(context), examples=0)
            for entry in _part(paragraph, "qas", list, where):
                found.append(_question(path, len(found) + 1, context, entry, with_answers=with_answers))
                gathered.add(len(found[-1].question))
    if not number:
        raise CorpusError(f"{path}: there is no example in this file; not in SQuAD's form: {_SHAPE}")
    return found


def _question(path: Path, number: int, context: str, entry: Any, *, with_answers: bool) -> QuestionRecord:
    where = f"{path}: not in SQuAD's form: question {number}"
    question = _part(entry, "question", str, where)
    id_ = _id(entry.get("id"), number, where)
    if not with_answers:
        return QuestionRecord(number, id_, question, context)
    given: list[tuple[Any, Any]] = []
    if not ("is_impossible" in entry and _part(entry, "is_impossible", bool, where)):
        answers = _part(entry, "answers", list, where)
        given = [(_part(each, "text", str, where), _part(each, "answer_start", int, where)) for each in answers]
    return QuestionRecord(number, id_, question, context, _checked(given, context, f"{path}: question {shown(id_)}"))


_KINDS: Mapping[type, str] = {str: "a text", int: "a whole number", bool: "true or false", list: "a list"}


def _part(holder: Any, name: str, kind: type, where: str) -> Any:
    """A field of an object, of the kind that it must be."""
    if not isinstance(holder, dict):
        raise CorpusError(f"{where}: {shown(holder)} where an object with {name!r} is; {_SHAPE}")
    if name not in holder:
        raise CorpusError(f"{where} lacks {name!r}; {_SHAPE}")
    value = holder[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorpusError(f"{where} has {shown(value)} as {name!r}, which is not {_KINDS[kind]}; {_SHAPE}")
    return value


def _id(value: Any, number: int, where: str) -> str:
    """What a question is called; its number where it has no name."""
    if value is None:
        return str(number)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise CorpusError(f"{where} has {shown(value)} as 'id', which is neither a text nor a number")
    return str(value)


def _given(answers: Mapping[str, Any], where: str) -> list[tuple[Any, Any]]:
    texts, begins = answers.get("text"), answers.get("answer_start")
    if not (isinstance(texts, list) and isinstance(begins, list) and len(texts) == len(begins)):
        raise CorpusError(
            f"{where} has answers with {listed(answers)}; expected are text and answer_start, two "
            "lists of the same length (both empty where there is no answer)"
        )
    return list(zip(texts, begins, strict=True))


def _checked(given: Sequence[tuple[Any, Any]], context: str, where: str) -> tuple[GivenAnswer, ...]:
    for text, begin in given:
        if not isinstance(text, str) or isinstance(begin, bool) or not isinstance(begin, int):
            raise CorpusError(
                f"{where}: the answer {shown(text)} at {shown(begin)} is no text with the number of a character"
            )
        if begin < 0 or not text.strip() or context[begin : begin + len(text)] != text:
            raise CorpusError(
                f"{where}: the answer {shown(text)} does not stand at character {shown(begin)}, but "
                f"{context[begin : begin + 20]!r}"
            )
    return tuple(GivenAnswer(text.strip(), begin + len(text) - len(text.lstrip())) for text, begin in given)
