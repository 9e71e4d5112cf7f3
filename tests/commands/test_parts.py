"""Parts of fine-tuning: labels and their errors, metrics, the stream, the report's plots."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from unmask.commands import finetune_run
from unmask.commands.finetune_run import ExampleStream, class_weights, intervals, learned_nothing, spread
from unmask.core.errors import CorpusError, SettingsError
from unmask.core.hashing import permutation
from unmask.data.rows import Cursor
from unmask.tasks.answer import AnswerPrediction, AnswerSpan, AnswerTask, QuestionRecord, normalised
from unmask.tasks.classify import (
    Classify,
    ClassPrediction,
    MultiLabel,
    NumberPrediction,
    Regress,
    TextRecord,
    class_measure,
    class_metrics,
)
from unmask.tasks.files import Labelled, Record
from unmask.tasks.inputs import Example
from unmask.tasks.kinds import task_named
from unmask.tasks.tag import Tag, TagsPrediction, WordsRecord, entities_of
from unmask.tasks.task import FinetuneSettings, Task
from unmask.train.objectives import Targets


def labelled(*records: Record, name: str = "train.csv") -> Labelled:
    return Labelled(Path(name), records, {"text": "text", "label": "label"})


def of_classes(*names: str, name: str = "train.csv") -> Labelled:
    return labelled(*(TextRecord(row, "t", None, label) for row, label in enumerate(names, 2)), name=name)


def learned(train: Labelled, kind: str, **settings: Any) -> Task:
    return task_named(kind).learned_from(train, FinetuneSettings(**settings), "first")


def test_classes_in_order_and_their_errors() -> None:
    assert learned(of_classes("10", "9", "9", "10"), "classify").names == ("9", "10")
    rare = of_classes("a", "b", "a", "c")
    assert learned(rare, "classify", least_examples=1).names == ("a", "b", "c")
    numbers = labelled(*(TextRecord(n, "t", label=2.0) for n in (1, 2)))
    tags = labelled(WordsRecord(1, ("a",), ("O",)))
    for train, kind, message in (
        (of_classes("a", "a"), "classify", "train.csv.*'a'"),
        (rare, "classify", "'b' has 1 .* row 3"),
        (numbers, "regress", "2.0"),
        (tags, "tag", "'O'"),
    ):
        with pytest.raises(CorpusError, match=message):
            learned(train, kind)


class Named(tuple[str, ...]):
    """Names that cannot be searched: with thousands of classes, that takes minutes."""

    __contains__ = index = Mock(side_effect=AssertionError)


def test_labels_that_training_has_not_seen() -> None:
    info, train = Classify(Named("ab")), Path("train.csv")
    assert info.check(of_classes("a", "b"), train) is None
    assert info.targets_of(TextRecord(1, "t", label="b"))["target"].tolist() == [1]
    assert MultiLabel(Named("ab")).targets_of(TextRecord(1, "t", label=("b",)))["labels0"].tolist() == [2]
    rare = of_classes("a", "z", name="dev.csv")
    assert "1 labels do not occur in train.csv (z)" in (info.check(rare, train) or "")
    assert info.measure(rare.records, [ClassPrediction("a", 1.0, {})] * 2)["accuracy"] == 0.5
    others = of_classes("y", "z", name="dev.csv")  # spelled in another way
    for held_out in (others, labelled(TextRecord(1, "x", "y", "a"), name="dev.csv")):
        with pytest.raises(CorpusError, match="dev.csv"):
            info.check(held_out, train)
    tagged = labelled(WordsRecord(1, ("x", "y", "z"), ("O", "B-q", "B-q")), name="dev.conll")
    assert "2 labels do not occur" in (Tag(("O", "B-x")).check(tagged, train) or "")
    questions = labelled(QuestionRecord(1, "a", "q", "c", ()), QuestionRecord(2, "b", "q", "c", (AnswerSpan("c", 0),)))
    assert AnswerTask(may_be_missing=True).check(questions, train) is None
    assert "1 of 2 questions" in (AnswerTask().check(questions, train) or "")


def test_weights_of_classes() -> None:
    train = of_classes(*["a"] * 30, *["b"] * 10)
    info = Classify(("a", "b"))
    assert class_weights(train, info, None) is None
    assert class_weights(train, info, "balanced") == pytest.approx([2 / 3, 2.0])
    assert class_weights(train, info, {"b": 3.0}) == [1.0, 3.0]
    for task, weights, name in ((info, {"z": 3.0}, "'z'"), (Regress(("x",)), "balanced", "regress")):
        with pytest.raises(SettingsError, match=name):
            class_weights(train, task, weights)
    words = labelled(WordsRecord(1, ("x", "y", "z", "w"), ("O", "O", "O", "B-x")))
    assert class_weights(words, Tag(("B-x", "O")), "balanced") == pytest.approx([2.0, 2 / 3])
    flags = labelled(*(TextRecord(n, "t", None, ("a", "b")[: n < 1] + ("b",) * (n < 3)) for n in range(4)))
    assert class_weights(flags, MultiLabel(("a", "b")), "balanced") == pytest.approx([3.0, 1 / 3])
    logits, right = torch.zeros(1, 2), Targets(torch.zeros(1), torch.tensor([[1, 0]]))
    losses = MultiLabel(("a", "b")).losses(logits, right, torch.tensor([3.0, 1 / 3]))
    assert losses.total.item() == pytest.approx((3 + 1) * np.log(2) / 2), "of texts with the label"


def test_predictions_of_texts_are_made_when_they_are_read() -> None:
    """Dictionaries of thousands of classes for every text of a file would fill the memory."""
    outputs = [np.array([share], dtype=np.float32) for share in ((0.0, 1.0), (2.0, 1.0), (0.0, 0.0))]
    predictions = Classify(("a", "b")).decode((), (), outputs)
    assert [each.label for each in predictions] == [*"baa"]
    assert [each.label for each in predictions[1:]] == [*"aa"]
    assert predictions[-1] == predictions[2] == ClassPrediction("a", 0.5, {"a": 0.5, "b": 0.5})
    assert predictions[2] is not predictions[2]


def test_metrics_of_numbers_and_undefined_ones() -> None:
    info = Regress(("x",))
    right = [TextRecord(n, "t", label=value) for n, value in enumerate((1.0, 2.0, 3.0))]
    predicted = [NumberPrediction(value) for value in (1.0, 2.0, 4.0)]
    metrics = info.measure(right, predicted)
    assert metrics == pytest.approx({"pearson": 3 / (2 * 14 / 3) ** 0.5, "spearman": 1.0, "rmse": (1 / 3) ** 0.5})
    once: Any = dict(enumerate(predicted)).values()  # can be read, but not drawn from
    alone = info.measure([right[n] for n in (2, 0, 2)], [predicted[n] for n in (2, 0, 2)])
    assert info.measured(right, once)(np.array([2, 0, 2])) == alone
    flat = info.measure(right, [NumberPrediction(2.0)] * 3)
    assert (flat["pearson"], flat["spearman"]) == (None, None)
    assert info.rank(flat, "pearson") == -np.inf
    assert info.rank({"rmse": 2.0}, "rmse") > info.rank({"rmse": 3.0}, "rmse")

    class Ordinal(Regress):
        lower_is_better = frozenset({"mae"})

    assert Ordinal(("x",)).rank({"mae": 2.0}, "mae") > Ordinal(("x",)).rank({"mae": 3.0}, "mae")


def test_metrics_of_tags() -> None:
    """One of two entities is predicted completely, and one that does not exist; a word without prediction is `O`."""
    info = Tag(("B-x", "I-x", "O"))
    words = ("a", "b", "c", "d", "e")
    right = [WordsRecord(1, words, ("B-x", "I-x", "O", "B-x", "O"))]
    predicted = [TagsPrediction(words, ("B-x", "I-x", "O", "O", "B-x"), (1.0,) * 5)]
    metrics = info.measure(right, predicted)
    assert [metrics[f"entity_{name}"] for name in ("f1", "precision", "recall")] == pytest.approx([0.5, 0.5, 0.5])
    assert metrics["accuracy"] == pytest.approx(0.6)
    for number, accuracy, f1 in ((2, 1.0, 1.0), (3, 0.8, 2 / 3)):
        tags = tuple(None if n == number else tag for n, tag in enumerate(right[0].tags or ()))
        missing = info.measure(right, [TagsPrediction(words, tags, (1.0,) * 5)])
        assert (missing["accuracy"], missing["entity_f1"]) == pytest.approx((accuracy, f1))
    noun = [WordsRecord(1, ("a", "b"), ("NOUN", "NOUN"))]
    one = [TagsPrediction(("a", "b"), ("NOUN", None), (1.0, None))]
    assert Tag(("NOUN", "VERB")).right_and_predicted(noun, one)[1] == ["NOUN", "_"], "no tag of the model"
    bilou = [WordsRecord(1, words, ("B-x", "L-x", "B-x", "L-x", "U-x"))]
    one_missing = [TagsPrediction(words, ("B-x", "L-x", "O", "O", "U-x"), (1.0,) * 5)]
    known = Tag(("B-x", "L-x", "O", "U-x"))
    assert known.measure(bilou, one_missing)["entity_recall"] == pytest.approx(2 / 3)
    assert Tag(("NOUN", "VERB")).metric_names == ("accuracy", "macro_f1")


def test_metrics_of_answers() -> None:
    records = [
        QuestionRecord(1, "a", "q", "c", (AnswerSpan("The fox!", 0), AnswerSpan("it", 3))),
        QuestionRecord(2, "b", "q", "c", (AnswerSpan("red fox", 0),)),
        QuestionRecord(3, "c", "q", "c", ()),
    ]
    for answers, f1, exact in (
        (("fox", "a fox", "x"), (1 + 2 / 3 + 0) / 3, 1 / 3),
        (("", "the red fox", ""), 2 / 3, 2 / 3),
    ):
        predicted = [AnswerPrediction(text, 0, 0.5) for text in answers]
        assert AnswerTask().measure(records, predicted) == pytest.approx({"f1": f1, "exact_match": exact})


def test_intervals_read_answers_and_tags_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of drawn records are those of these records alone."""
    monkeypatch.setattr("unmask.tasks.answer.normalised", words := Mock(wraps=normalised))
    monkeypatch.setattr("unmask.tasks.tag.entities_of", entities := Mock(wraps=entities_of))
    questions = [QuestionRecord(n, str(n), "q", f"context {n}", (AnswerSpan("red fox", 0),)) for n in range(5)]
    answers = [AnswerPrediction(("fox", "red fox")[n % 2], 0, 0.5) for n in range(5)]
    sentences = [WordsRecord(n, ("a", str(n)), ("B-x", "I-x" if n % 2 else None)) for n in range(5)]
    tags = [TagsPrediction(("a", "b"), ("B-x", ("O", "I-x")[n < 2]), (1.0, 1.0)) for n in range(5)]
    cases: list[tuple[Task, Any, Any, Mock]] = [
        (AnswerTask(), questions, answers, words), (Tag(("B-x", "I-x", "O")), sentences, tags, entities),
    ]  # fmt: skip
    for task, records, predictions, reads in cases:
        assert None not in intervals(task, records, predictions).values()
        assert reads.call_count == 2 * len(records)
        drawn = np.array([3, 0, 3, 1])
        alone = task.measure([records[n] for n in drawn], [predictions[n] for n in drawn])
        assert task.measured(records, predictions)(drawn) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The Fox!", ["fox"]),
        ("theatre, Anna and a-ha", ["theatre", "anna", "and", "aha"]),  # articles are whole words, once signs are gone
        ("A-team", ["ateam"]),
        ("a. b.", ["b"]),
        ("a\tthe\n an", []),
        ("U.S.A.", ["usa"]),
        ("1,000.5 $", ["10005"]),
        # What follows is no punctuation of ASCII's: it stays, and makes an edge of a word.
        ("“The” fox", ["“", "”", "fox"]),
        ("the fox’s a’s", ["fox’s", "’s"]),
        ("the\u00a0fox\u3000an", ["fox"]),
        ("tá the_end", ["tá", "theend"]),
        ("Straße", ["straße"]),  # lower-case, not case-folded
        ("东京 the 东京", ["东京", "东京"]),
    ],
)
def test_answers_are_normalised_as_by_squads_script(answer: str, words: list[str]) -> None:
    """By hand from its four steps: lower case, no punctuation, no articles between edges of words, white space."""
    assert normalised(answer) == words


def test_the_stream_gives_every_example_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples are sorted once an epoch, not in each step."""
    monkeypatch.setattr(finetune_run, "permutation", shuffled := Mock(wraps=permutation))
    zero = np.zeros(1, dtype=np.int64)
    examples = [Example(n, np.arange(3) + 10 * n, None, zero, zero, {"target": zero + n}) for n in range(11)]
    stream = ExampleStream(examples, batch_size=4, pad_id=0, max_length=64, seed=0)
    assert stream.batches == 3
    cursor, epochs = Cursor(), []
    for epoch in range(2):
        batches = []
        for _ in range(3):
            batch = stream.batch(cursor, 99)
            targets = batch.rows.classes["target"]
            batches.append(targets[targets >= 0].tolist())
            assert (batch.epoch, batch.num_tokens) == (epoch, 3 * len(batches[-1]))
            cursor = batch.cursor
        assert sorted(map(len, batches)) == [3, 4, 4]
        assert sorted(number for batch in batches for number in batch) == list(range(11))
        epochs.append(batches)
    assert cursor == Cursor(2)
    assert shuffled.call_count == 2
    assert epochs[0] != epochs[1]


def test_metrics_of_classes_and_entities_equal_those_of_the_libraries() -> None:
    metrics, entities = pytest.importorskip("sklearn.metrics"), pytest.importorskip("seqeval.metrics.sequence_labeling")
    for seed in range(20):
        draw = random.Random(seed)
        right, predicted = (draw.choices(names, k=30) for names in ("abc", "abcd" if seed % 2 else "a"))
        assert class_metrics(right, predicted) == pytest.approx(
            {
                "accuracy": metrics.accuracy_score(right, predicted),
                "macro_f1": metrics.f1_score(right, predicted, labels=[*"abc"], average="macro", zero_division=0),
                "micro_f1": metrics.f1_score(right, predicted, average="micro"),
                "matthews": metrics.matthews_corrcoef(right, predicted),
            }
        )
        drawn = np.array(draw.choices(range(30), k=30))
        alone = class_metrics([right[n] for n in drawn], [predicted[n] for n in drawn])
        assert class_measure(right, predicted)(drawn) == pytest.approx(alone), "as for intervals"
        tags = tuple(draw.choices(["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in ("x", "y-z"))], k=60))
        assert entities_of(tags) == tuple((name, a, b + 1) for name, a, b in entities.get_entities([*tags]))


def test_a_correlation_is_no_share() -> None:
    """With 104 of 200 right, Matthews' is 0.04: its interval holds 0, which no share's can."""
    task = Classify(("a", "b"))
    right = [TextRecord(number, str(number), label="ab"[number % 2]) for number in range(200)]
    predicted = [ClassPrediction("ab"[(number + (number >= 104)) % 2], 1.0, {}) for number in range(200)]
    low, high = intervals(task, right, predicted)["matthews"] or (0.0, 0.0)
    assert task.measure(right, predicted)["matthews"] == pytest.approx(0.04)
    assert low < 0.0 < high


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("B-x L-x U-x I-x O M-x", [("x", 0, 2), ("x", 2, 3), ("x", 3, 4), ("x", 5, 6)]),
        ("B M E S B E", [("entity", 0, 3), ("entity", 3, 4), ("entity", 4, 6)]),
        ("x x O y x", [("x", 0, 2), ("y", 3, 4), ("x", 4, 5)]),
    ],
)
def test_entities_of_every_scheme(tags: str, entities: list[tuple[str, int, int]]) -> None:
    assert entities_of(tuple(tags.split())) == tuple(entities)
    assert entities_of(("B", None, "I")) == (("entity", 0, 3),), "a word without a tag is in it"
    assert entities_of(("H", "E", "E"), in_scheme=False) == (("H", 0, 1), ("E", 1, 3))


@pytest.mark.parametrize(
    ("task", "records", "predictions", "words"),
    [
        (Classify(("a", "b")), "aabb", "aaaa", "predicts 'a' for all 4 texts"),
        (Classify(("a", "b")), "aaab", "aaab", ""),
        (Classify(("a", "b")), "aaab", "bbab", "no better than predicting 'a' for all: accuracy 0.500 against 0.750"),
        (Classify(("a", "b")), "aaaa", "aaaa", ""),
        (Regress(), (1.0, 2.0, 3.0), (2.1, 2.1, 2.0), "mean"),
        (Regress(), (1.0, 2.0, 3.0), (1.1, 2.1, 2.9), ""),
    ],
)
def test_a_model_that_learned_nothing(task: Task, records: Any, predictions: Any, words: str) -> None:
    """Compared with the best constant class or number; no remark if a constant is the best possible."""
    kind = ClassPrediction if isinstance(task, Classify) else None
    right = [TextRecord(number, "t", label=label) for number, label in enumerate(records)]
    said = [kind(each, 1.0, {}) if kind else NumberPrediction(each) for each in predictions]
    remark = learned_nothing(task, task.measure(right, said), task.metric_names[0], right, said)
    assert words in remark
    assert bool(words) == bool(remark)
    assert ("class_weights" in remark) == (bool(words) and isinstance(task, Classify))


def test_mean_and_deviation_of_seeds() -> None:
    runs = [{"m": {"a": 1.0, "b": None}}, {"m": {"a": 3.0, "b": 1.0}}]
    assert spread("m", runs) == {
        "mean": {"a": 2.0, "b": None},
        "deviation": {"a": pytest.approx(2**0.5), "b": None},
        "margin": {"a": pytest.approx(12.7062, rel=1e-4), "b": None},  # Student's t with one degree, times 1
    }
    assert spread("m", [runs[1]] * 2)["margin"] == {"a": None, "b": None}, "equal seeds tell nothing of chance"
    nothing = {"a": None, "b": None}
    alone = {"x_mean": {"a": 1.0, "b": None}, "x_deviation": nothing, "x_margin": nothing}
    assert spread("m", runs[:1], prefix="x_") == alone
