"""From files to a saved model, for every task: it learns, stops early, and what is saved is what was measured."""

from __future__ import annotations

import ast
import csv
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import unmask
from tests.command_line import Main
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
from unmask.commands.finetune import forecast_finetune
from unmask.commands.finetune_run import hold_out, read_files
from unmask.core.errors import CorpusError, ModelError, RunError, SettingsError
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_task_model
from unmask.tasks.answer import AnswerPrediction, AnswerTask, QuestionRecord
from unmask.tasks.classify import Classify, ClassPrediction, NumberPrediction, TextRecord
from unmask.tasks.files import ExampleFiles, Labelled, example_files
from unmask.tasks.tag import Tag, TagsPrediction
from unmask.tasks.task import FinetuneSettings, Task
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("sklearn")
pytest.importorskip("seqeval")


@pytest.fixture
def encoder(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return save_encoder(make_model, tokenizer, tmp_path / "encoder")


def test_a_tenth_is_held_out() -> None:
    """By text, whatever the order; the two rows of a rare class stay in training; questions are split by context."""

    def held(records: list[Any], kind: type[Task] = Classify) -> tuple[list[Any], list[Any]]:
        parts = hold_out(Labelled(Path("a.csv"), records, {}), kind, 2)
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
    rows, paths = "".join(f"{text},{label}\n" for text, label in texts(40, 0)), dict[str, ExampleFiles]()
    for name, header in (("train", ""), ("validation", "Kommentar,Klasse\n")):
        (tmp_path / f"{name}.csv").write_text(header + rows)
        paths[name] = example_files(tmp_path / f"{name}.csv")
    files, _ = read_files(Classify, paths, FinetuneSettings(), print)
    assert [len(file.records) for file in files.values()] == [40, 40]


def test_added_tokens_without_rows_in_the_model(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Before any training: `add_tokens` without `resize_token_embeddings` in transformers."""
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    grown = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    grown.add_tokens(["[E1]"])
    Tokenizer(grown).save(encoder, max_length=64)
    train = write_classes(tmp_path / "train.jsonl", 16, 0)
    with pytest.raises(ModelError, match="resize_token_embeddings"):
        forecast_finetune(encoder, task="classify", train=train, validation=train)


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


@pytest.mark.usefixtures("drawn")
def test_classes(encoder: Path, tmp_path: Path, main: Main) -> None:
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
    mean, margin = (summary[f"test_{name}"]["accuracy"] for name in ("mean", "margin"))
    assert "test, mean of 2 seeds" in page
    assert f"<td class=number>{mean:.3f}{'' if margin is None else f' ± {margin:.3f}'}</td>" in page
    of_seeds = page.partition("<th>accuracy (test)</th>")[2]
    assert all(f"<td class=number>{run['test_metrics']['accuracy']:.3f}</td>" in of_seeds for run in summary["seeds"])
    printed = ast.literal_eval(run_snippets(result))
    assert {each["label"] for each in printed} == {"garden", "sea"}, "its examples are right ones of the classes"

    lines = ["The dog loves the ship at sea.", "The king sees the ship in the garden."]
    sea, garden = result.model.predict(lines)
    assert isinstance(sea, ClassPrediction)
    assert isinstance(garden, ClassPrediction)
    assert (sea.label, garden.label) == ("sea", "garden")
    assert sea.probability == max(sea.probabilities.values())
    (tmp_path / "lines.txt").write_text("\n".join([lines[0], lines[1] * 30]))
    code, _, err = main("predict", out, tmp_path / "lines.txt", "--out", tmp_path / "new" / "predicted.csv")
    assert (code, "1 of 2 texts are longer than 64 tokens; their ends are not seen; the model" in err) == (0, True)
    with (tmp_path / "new" / "predicted.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["sea", "garden"]
    assert float(rows[0]["probabilities.sea"]) == pytest.approx(sea.probabilities["sea"], abs=1e-6)


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
    with pytest.raises(SettingsError, match="for tag;"):
        forecast_finetune(encoder, task=Tag, **files, settings=["finetune.pooling=mean"])


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
    with pytest.raises(SettingsError, match="input 1"):
        result.model.predict(["alone"])


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


def test_csv_of_predictions_does_nothing_in_terminals_and_changes_no_key() -> None:
    from unmask.tasks.predict import as_csv

    cells = {
        "=A1": "=A1", "+ve": "+ve", "-OabC7xQ": "-OabC7xQ", "@home": "@home", "\t=1": "\t=1", "\r=1": "\\x0d=1",
        "\x1b[2J\x9b": "\\x1b[2J\\x9b", "-1.5e3": "-1.5e3", "+": "+", "-": "-", "a=b": "a=b",
        "https://me:pw@shop.de/item?id=42": "https://me:pw@shop.de/item?id=42",
    }  # fmt: skip
    rows = [{"row": 1, "answer": text, "score": -0.5, "words": [f"{text}\x9b"]} for text in cells]
    predicted = list(csv.DictReader(io.StringIO("".join(as_csv(rows)), newline="")))
    assert [row["answer"] for row in predicted] == list(cells.values())
    assert {row["score"] for row in predicted} == {"-0.5"}
    assert [json.loads(row["words"]) for row in predicted] == [[f"{text}\x9b"] for text in cells], "JSON in a cell"
    assert "\x9b" not in "".join(as_csv(rows))
