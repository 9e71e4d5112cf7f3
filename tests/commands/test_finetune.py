"""From files to a saved model, for every task: it learns, stops early, and what is saved is what was measured; labels,
metrics and the stream by hand."""

from __future__ import annotations

import ast
import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import unmask
from tests.commands.finetune_helpers import (
    FAST,
    MakeModel,
    finetune,
    run_snippets,
    save_encoder,
    texts,
    write_classes,
    write_conll,
    write_jsonl,
    write_squad,
)
from unmask.commands import finetune_run
from unmask.commands.finetune import forecast_finetune
from unmask.commands.finetune_run import (
    ExampleStream,
    class_weights,
    hold_out,
    intervals,
    learned_nothing,
    read_files,
    spread,
)
from unmask.core.errors import CorpusError, RunError, SettingsError
from unmask.core.hashing import permutation
from unmask.data.rows import Cursor
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_task_model
from unmask.tasks.answer import AnswerPrediction, AnswerSpan, AnswerTask, QuestionRecord, normalised
from unmask.tasks.classify import (
    Classify,
    ClassPrediction,
    LabelsPrediction,
    MultiLabel,
    NumberPrediction,
    Regress,
    TextRecord,
    class_measure,
    class_metrics,
)
from unmask.tasks.files import ExampleFiles, Labelled, Record, example_files
from unmask.tasks.inputs import Example
from unmask.tasks.kinds import task_named
from unmask.tasks.tag import Tag, TagsPrediction, WordsRecord, entities_of
from unmask.tasks.task import FinetuneSettings, Task
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import Targets


@pytest.fixture
def encoder(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return save_encoder(make_model, tokenizer, tmp_path / "encoder")


def test_a_tenth_is_held_out() -> None:
    """By text, whatever the order; the two rows of a rare class stay in training; questions are split by context."""

    def held(records: list[Any], kind: type[Task] = Classify) -> tuple[list[Any], list[Any]]:
        parts = hold_out(Labelled(Path("a.csv"), records, {}), kind)
        assert sorted((record for part in parts for record in part.records), key=records.index) == records
        return list(parts[0].records), list(parts[1].records)

    records = [TextRecord(n, f"text {n // 2}", None, "abc"[n % 2 if n < 398 else 2]) for n in range(400)]
    learned, rest = held(records)
    assert len(rest) == 40
    assert not {record.first for record in learned} & {record.first for record in rest}
    assert {record.row for record in rest} == {record.row for record in held(records[::-1])[1]}
    assert [record.label for record in learned].count("c") == 2
    questions = [QuestionRecord(n, str(n), f"q{n}?", f"context {n // 10}") for n in range(300)]
    assert len({record.context for record in held(questions, AnswerTask)[1]}) == 3
    equal = [TextRecord(n, "one text", None, "ab"[n % 2]) for n in range(400)]
    for few, why in ((records[:199], "a tenth .*validation"), (equal, "0 of 400 .*validation.* equal texts")):
        with pytest.raises(CorpusError, match=why) as caught:
            held(few)
        assert caught.value.options == ("validation",)


def test_a_validation_file_may_have_a_header_that_the_training_file_lacks(tmp_path: Path) -> None:
    """And a text with two labels is noted."""
    rows, paths = "".join(f"{text},{label}\n" for text, label in texts(40, 0)), dict[str, ExampleFiles]()
    other = f"{texts(1, 0)[0][0]},{'sea' if texts(1, 0)[0][1] == 'garden' else 'garden'}\n"
    for name, content in (("train", rows + other), ("validation", f"Kommentar,Klasse\n{rows}")):
        (tmp_path / f"{name}.csv").write_text(content)
        paths[name] = example_files(tmp_path / f"{name}.csv")
    notes: list[str] = []
    files, _ = read_files(Classify, paths, FinetuneSettings(), notes.append)
    assert [len(file.records) for file in files.values()] == [41, 40]
    assert sum("train.csv: texts with different labels: 1" in note for note in notes) == 1


def test_one_file_is_enough(encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The held-out rows are written to a file; test texts that are also in training are counted."""
    rows = [{"text": f"The king sees the ship {n}.", "label": "ab"[n % 2]} for n in range(200)]
    train, out = write_jsonl(tmp_path / "train.jsonl", rows), tmp_path / "out"
    options: dict[str, Any] = {"task": "classify", "train": train, "out": out, "settings": (*FAST, "finetune.epochs=1")}
    with caplog.at_level("INFO"):
        result = unmask.finetune(encoder, test=write_jsonl(tmp_path / "test.jsonl", rows[:50]), **options)
    sizes = {name: each["records"] for name, each in result.summary["examples"].items()}
    assert sizes == {"train": 180, "validation": 20, "test": 50}
    assert "a tenth of train.jsonl, 20 rows" in caplog.text
    assert re.search(r"(4\d|50) of 50 texts .* word for word", caplog.text)
    settings = json.loads((out / "settings.json").read_text())
    assert "validation" not in settings
    assert settings["sha256"].keys() == {"train", "validation", "test", "model"}
    assert "a tenth of train.jsonl" in (out / "report.html").read_text()
    test = tmp_path / "test.jsonl"
    unmask.finetune(encoder, test=test, resume=True, **options)
    with pytest.raises(RunError):
        unmask.finetune(encoder, test=test, validation=test, resume=True, **options)


def test_classes(encoder: Path, tmp_path: Path) -> None:
    train, dev = write_classes(tmp_path / "train.jsonl", 160, 0), write_classes(tmp_path / "dev.jsonl", 40, 1)
    out = tmp_path / "out"
    result = unmask.finetune(
        encoder, task="classify", train=train, validation=dev, test=dev, out=out,
        settings=(*FAST, "finetune.seeds=2", "finetune.epochs=4"),
    )  # fmt: skip
    summary = result.summary
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["metrics"]["accuracy"] == 1.0
    assert summary["test_metrics"] == summary["metrics"] == result.metrics
    assert {*summary, "interval", "test_interval"} == {*unmask.FineTuned.__annotations__, "model"}, "as declared"
    assert summary["labels"] == ["garden", "sea"]
    assert [run["seed"] for run in summary["seeds"]] == [0, 1]
    assert "interval" not in summary, "that of several seeds is over these"
    assert summary["mean"]["accuracy"] == sum(run["metrics"]["accuracy"] for run in summary["seeds"]) / 2
    assert summary["examples"]["train"] == {"records": 160, "inputs": 160, "truncated": 0, "split": 0}
    page = (out / "report.html").read_text()
    assert page.count("data-plot=") == 2
    assert f"<td class=number>{summary['test_mean']['accuracy']:.3f}" in page
    printed = ast.literal_eval(run_snippets(result))
    assert {each["label"] for each in printed} <= {"garden", "sea"}

    lines = ["The dog loves the ship at sea.", "The king sees the ship in the garden."]
    assert [each.label for each in result.model.predict(lines)] == ["sea", "garden"]


def test_numbers_come_back_in_their_own_scale(encoder: Path, tmp_path: Path) -> None:
    """Numbers far from zero and far apart: a head that began near zero would never reach them."""
    numbers = {"sea": 7000.0, "garden": 9000.0}
    for name, count, seed in (("train", 160, 0), ("dev", 40, 1)):
        rows = [{"text": text, "score": numbers[label]} for text, label in texts(count, seed)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    result = finetune(encoder, "regress", train, dev, tmp_path / "out", "finetune.epochs=6")
    assert result.summary["metrics"]["pearson"] > 0.99
    assert result.summary["metrics"]["rmse"] < 200.0
    [predicted] = result.model.predict([str(rows[0]["text"])])
    assert isinstance(predicted, NumberPrediction)
    assert predicted.value == pytest.approx(rows[0]["score"], abs=400.0)
    files: dict[str, Any] = {"train": train, "validation": dev}
    assert "regress; " in str(forecast_finetune(encoder, task="regress", **files)), "there are no labels to be counted"
    for setting in ("finetune.pooling=mean", "finetune.stride=8"):
        with pytest.raises(SettingsError, match=f"{setting.partition('=')[0]}.*for tag;"):
            forecast_finetune(encoder, task=Tag, **files, settings=[setting])


def test_pairs(encoder: Path, tmp_path: Path) -> None:
    """Whether both texts are about the sea: neither text alone tells, so the model must read both."""
    rows = []
    for a, b in itertools.product(["at sea", "in the garden"], repeat=2):
        label = "both" if a == b == "at sea" else "not both"
        rows.append({"premise": f"The cat sleeps {a}.", "hypothesis": f"The dog is {b}.", "label": label})
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows * 40), write_jsonl(tmp_path / "dev.jsonl", rows)
    settings = ("finetune.epochs=10", "finetune.class_weights=balanced")
    result = finetune(encoder, "pairs", train, dev, tmp_path / "out", *settings)
    assert result.summary["metrics"]["accuracy"] == 1.0
    predicted = unmask.load(tmp_path / "out").predict([("The cat sleeps at sea.", "The dog is at sea.")])
    assert [each.label for each in predicted if isinstance(each, ClassPrediction)] == ["both"]


def test_tags(encoder: Path, tmp_path: Path) -> None:
    train, dev = write_conll(tmp_path / "train.conll", 120, 0), write_conll(tmp_path / "dev.conll", 30, 1)
    result = finetune(encoder, "tag", train, dev, tmp_path / "out", "finetune.epochs=4")
    assert result.summary["metric"] == "entity_f1"
    assert result.summary["interval"]["entity_f1"][1] == 1.0, "over documents"
    assert result.summary["metrics"]["entity_f1"] == 1.0
    assert result.summary["labels"] == ["B-place", "I-place", "O"]
    [predicted] = result.model.predict(["The king sleeps in Constantinople."])
    assert isinstance(predicted, TagsPrediction)
    assert predicted.words == ("The", "king", "sleeps", "in", "Constantinople", ".")
    assert predicted.tags == ("O", "O", "O", "O", "B-place", "O")
    assert all(share is not None and 0.5 < share <= 1.0 for share in predicted.probabilities)
    assert "'entity_group': 'place'" in run_snippets(result), "its example has an entity"


def test_answers(encoder: Path, tmp_path: Path) -> None:
    train = write_squad(tmp_path / "train.json", 160, 0, missing=True)
    dev = write_squad(tmp_path / "dev.json", 30, 1, missing=True)
    settings = ("finetune.epochs=8", "finetune.stride=8", "finetune.longest_answer=5", "finetune.delimiter=^")
    result = finetune(encoder, "answer", train, dev, tmp_path / "out", *settings)
    assert result.summary["metrics"]["exact_match"] > 0.9
    context = "The winter is here. The queen sleeps in the garden."
    there, gone = result.model.predict([("Who sleeps?", context), ("Who loves?", context)])
    assert isinstance(there, AnswerPrediction)
    assert isinstance(gone, AnswerPrediction)
    assert (there.answer, there.begin) == ("queen", context.index("queen"))
    assert gone.begin is None
    for question, answer in (("Who sleeps?", "queen"), ("Who loves?", gone.answer)):
        swaps = (("Who wrote it?", question), ("A text that may hold the answer.", context))
        assert run_snippets(result, *swaps).strip() == answer
    assert isinstance(result.model.task, AnswerTask)
    task = result.model.task
    assert (task.stride, task.longest_answer, task.delimiter) == (8, 5, "^"), "as it was measured"


def test_training_ends_early_and_the_best_weights_are_kept(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metric is replaced by one that rises once, then falls."""
    from safetensors.torch import load_file

    from unmask.commands.finetune_run import Runs

    values = itertools.chain([0.2, 0.9, 0.5, 0.9, 0.4, 0.3], itertools.repeat(0.1))
    real, evaluate = Classify.measure, Runs.evaluate
    evaluated: list[Path] = []

    def saved_too(runs: Runs, model: MaskedLM, task: Task, name: str) -> Any:
        evaluated.append(tmp_path / f"evaluation-{len(evaluated)}")
        save_task_model(model, task.task_head, evaluated[-1])
        return evaluate(runs, model, task, name)

    monkeypatch.setattr(Classify, "measure", lambda *options: real(*options) | {"accuracy": next(values)})
    monkeypatch.setattr(Runs, "evaluate", saved_too)
    train, dev = write_classes(tmp_path / "train.jsonl", 32, 0), write_classes(tmp_path / "dev.jsonl", 8, 1)
    settings = ("finetune.epochs=20", "finetune.patience=2")
    result = finetune(encoder, "classify", train, dev, tmp_path / "out", *settings)
    [run] = result.summary["seeds"]
    assert (run["best_epoch"], run["epochs"], run["steps"], run["stopped_early"]) == (2, 4, 8, True)
    saved, *weights = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out" / "model", *evaluated))
    same = [all(torch.equal(saved[name], tensor) for name, tensor in each.items()) for each in weights]
    assert same[:4] == [False, True, False, False], "those of the second epoch, not the last ones"


def test_a_training_that_a_callback_ends_within_an_epoch_is_saved(encoder: Path, tmp_path: Path) -> None:
    class Ending(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: Any) -> None:
            trainer.request_stop()

    train, dev = write_classes(tmp_path / "train.jsonl", 40, 0), write_classes(tmp_path / "dev.jsonl", 8, 1)
    result = unmask.finetune(
        encoder, task="classify", train=train, validation=dev, out=tmp_path / "out", callbacks=[Ending()],
        settings=(*FAST, "finetune.seeds=2"),
    )  # fmt: skip
    runs = [(run["steps"], run["epochs"], run["stopped_early"]) for run in result.summary["seeds"]]
    assert runs == [(1, 1, True)] * 2
    assert result.model.predict(["The king."])


# ----------------------------------------
# Labels and their errors, metrics and the stream.


def labelled(*records: Record, name: str = "train.csv") -> Labelled:
    return Labelled(Path(name), records, {"text": "text", "label": "label"})


def of_classes(*labels: str | tuple[str, ...], name: str = "train.csv") -> Labelled:
    return labelled(*(TextRecord(row, "t", None, label) for row, label in enumerate(labels, 2)), name=name)


def learned(train: Labelled, kind: str, **settings: Any) -> Task:
    return task_named(kind).learned_from(train, FinetuneSettings(**settings), "first")


def test_classes_in_order_and_their_errors() -> None:
    assert learned(of_classes("10", "9", "9", "10"), "classify").names == ("9", "10")
    several = MultiLabel.learned_from(of_classes(("b", "a"), ("a", "b"), ()), FinetuneSettings(), "mean")
    assert (several.names, several.pooling, several.columns) == (("a", "b"), "mean", {"text": "text", "label": "label"})
    rare = of_classes("a", "b", "a", "c")
    task = learned(rare, "classify")
    assert task.names == ("a", "b", "c")
    assert "'b' (row 3), 'c' (row 5)" in str(task.check(rare, rare.path))
    numbers = labelled(*(TextRecord(n, "t", label=2.0) for n in (1, 2)))
    tags = labelled(WordsRecord(1, ("a",), ("O",)))
    for train, kind, message in (
        (of_classes("a", "a"), "classify", "train.csv.*'a'"),
        (numbers, "regress", "2.0"),
        (tags, "tag", "'O'"),
    ):
        with pytest.raises(CorpusError, match=message):
            learned(train, kind)


def test_labels_that_training_has_not_seen() -> None:
    info, train = Classify(("a", "b")), Path("train.csv")
    assert info.check(of_classes("a", "b", "a", "b"), train) is None
    assert info.targets_of(TextRecord(1, "t", label="b"))["target"].tolist() == [1]
    assert MultiLabel(("a", "b")).targets_of(TextRecord(1, "t", label=("b",)))["labels0"].tolist() == [2]
    rare = of_classes("a", "z", name="dev.csv")
    assert "1 labels do not occur in train.csv (z)" in (info.check(rare, train) or "")
    assert info.measure(rare.records, [ClassPrediction("a", 1.0, {})] * 2)["accuracy"] == 0.5
    several = MultiLabel(("a", "b"))
    assert several.check(of_classes(("a",), (), ("a",)), train) is None
    assert "2 labels do not occur" in (several.check(of_classes(("a", "z"), ("z",), name="dev.csv"), train) or "")
    flags = replace(of_classes(("a",), ("b",)), places=("a", "b", "c"))
    assert "no text has the labels c" in (several.check(flags, train) or "")
    assert "only in case (a, A)" in (Classify(("b", "a", "A")).check(of_classes("a", "A", "b"), train) or "")
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
    # A word without a right tag is not measured, whatever is predicted for it.
    unknown = [WordsRecord(1, words[:3], ("B-x", None, "O"))]
    for tags, accuracy, f1 in ((("B-x", "B-x", "O"), 1.0, 1.0), (("B-x", "O", "I-x"), 0.5, 0.0)):
        metrics = info.measure(unknown, [TagsPrediction(words[:3], tags, (1.0,) * 3)])
        assert (metrics["accuracy"], metrics["entity_f1"]) == (accuracy, f1)
    assert (info.items(unknown, "accuracy"), info.items(unknown, "entity_f1")) == (2, 1)


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


def test_intervals_are_of_drawn_records() -> None:
    """Figures of drawn records are those of these records alone; records of one text are one document."""
    questions = [QuestionRecord(n, str(n), "q", f"context {n}", (AnswerSpan("red fox", 0),)) for n in range(5)]
    answers = [AnswerPrediction(("fox", "red fox")[n % 2], 0, 0.5) for n in range(5)]
    sentences = [WordsRecord(n, ("a", str(n)), ("B-x", "I-x" if n % 2 else None)) for n in range(5)]
    tags = [TagsPrediction(("a", "b"), ("B-x", ("O", "I-x")[n < 2]), (1.0, 1.0)) for n in range(5)]
    of_texts = [TextRecord(n, f"text {n}", None, ("a", "z")[: n % 3]) for n in range(5)]
    labels = [LabelsPrediction((), {"a": 0.9 - 0.2 * n, "b": 0.3}) for n in range(5)]
    cases: list[tuple[Task, Any, Any]] = [
        (AnswerTask(), questions, answers),
        (Tag(("B-x", "I-x", "O")), sentences, tags),
        (MultiLabel(("a", "b")), of_texts, labels),
    ]
    for task, records, predictions in cases:
        assert None not in intervals(task, records, predictions).values()
        assert set(intervals(task, records[:1] * 5, predictions).values()) == {None}
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


def test_metrics_equal_those_of_the_libraries() -> None:
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
        labels = [tuple(name for name in "abcz" if draw.random() < 0.3) for _ in range(30)]
        shares = [{name: draw.randrange(1, 9) / 10 for name in "abc"} for _ in labels]
        several = MultiLabel(tuple("abc")).measure(
            [TextRecord(1, "t", None, each) for each in labels], [LabelsPrediction((), each) for each in shares]
        )
        of_labels = np.array([[name in each for name in "abcz"] for each in labels])
        ranks = np.array([[*each.values(), 0.0] for each in shares])
        theirs = metrics.label_ranking_average_precision_score(of_labels, ranks)
        assert several["ranking_precision"] == pytest.approx(theirs)
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
