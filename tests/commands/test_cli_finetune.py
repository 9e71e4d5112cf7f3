"""`unmask finetune` and `unmask predict` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import unmask
from tests.command_line import Main
from tests.commands.finetune_helpers import MakeModel, save_encoder, write_classes, write_conll
from tests.commands.transformers_models import save_transformers
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("sklearn")
pytest.importorskip("seqeval")
SETS = ("--set", "finetune.learning_rate=0.003", "--set", "finetune.epochs=2", "--set", "finetune.batch_size=16")


def test_finetune_then_predict(main: Main, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    train, dev = write_classes(tmp_path / "train.jsonl", 120, 0), write_classes(tmp_path / "dev.jsonl", 20, 1)
    given = ("finetune", encoder, "--task", "classify", "--train", train, "--validation", dev)
    code, out, err = main(*given, "--out", tmp_path / "out", "--seeds", 2, *SETS, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["model"] == str(tmp_path / "out" / "model")
    assert set(summary["metrics"]) == {"accuracy", "macro_f1", "micro_f1", "matthews"}
    assert len(summary["seeds"]) == 2
    assert "columns: text in 'text', label in 'label'" in err
    assert "±" not in err
    shown = repr(unmask.FineTuned(tmp_path / "out", summary))
    assert "mean (± 95 %, over seeds)" in shown
    for name, mean in summary["mean"].items():
        margin = summary["margin"][name]
        assert f"{mean:.3f}" + ("" if margin is None else f" ± {margin:.3f}") in shown
    assert "unmask predict" in shown
    code, out, err = main(*given, "--out", tmp_path / "other", "--dry-run")
    assert (code, "columns: text in" in err, "nothing was written" in out) == (0, True, True)
    code, _, err = main(*given, "--out", tmp_path / "out")
    assert (code, "already holds a result: go on with --resume, replace it with --overwrite" in err) == (2, True)

    code, out, err = main("predict", tmp_path / "out", dev)
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 20
    right = [json.loads(line)["label"] for line in dev.read_text().splitlines()]
    accuracy = sum(line["label"] == label for line, label in zip(lines, right, strict=True)) / 20
    assert accuracy == summary["metrics"]["accuracy"]
    code, out, _ = main("predict", tmp_path / "out", dev, "--json")
    assert json.loads(out)["predictions"] == lines
    table = tmp_path / "new" / "found.csv"
    code, out, err = main("predict", tmp_path / "out", dev, "--out", table, "--json")
    assert json.loads(out) == {
        "model": summary["model"], "task": "classify", "examples": 20, "truncated": 0, "split": 0, "out": str(table),
    }  # fmt: skip
    with table.open() as file:
        found = list(csv.DictReader(file))
    assert [row["label"] for row in found] == [line["label"] for line in lines]
    assert float(found[0]["probabilities.sea"]) == lines[0]["probabilities"]["sea"]
    code, _, err = main("predict", tmp_path / "out", dev, "--out", table)
    assert (code, "is already there; replace it with --overwrite" in err) == (2, True)
    code, _, err = main("predict", tmp_path / "out", dev, "--out", tmp_path / "found.xml")
    assert (code, "predictions are written as .jsonl or .csv" in err) == (2, True)
    text = tmp_path / "lines.txt"
    text.write_text("The dog sees the ship at sea. " * 30 + "\nThe king.\n")
    code, out, err = main("predict", tmp_path / "out", text)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "1 of 2 texts are longer than 64 tokens; their ends are not seen" in err


def test_mistakes_of_users(main: Main, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    train = write_classes(tmp_path / "train.jsonl", 20, 0)
    tagged = write_conll(tmp_path / "train.conll", 5, 0)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    other = tmp_path / "distilbert"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "distilbert"}')
    (other / "tokenizer.json").write_bytes((encoder / "tokenizer.json").read_bytes())
    usual = {"model": encoder, "task": "classify", "train": train}
    for changes, more, message in (
        ({"model": tmp_path / "none"}, (), "no such folder; give the folder of a model"),
        ({"model": tmp_path}, (), "there is no tokenizer.json"),
        ({"model": other}, (), "distilbert: no encoder that transformers reads"),
        ({"task": "cluster"}, (), "unknown task 'cluster'; known are answer, classify, multi_label, pairs"),
        ({"train": empty}, (), "empty.csv: there is no example in this file"),
        ({"train": tagged}, (), "holds words with tags, for --task tag"),
        ({}, ("--text", "body"), "there is no column 'body'"),
        ({}, ("--label", "lable"), "(did you mean 'label'?)"),
        ({}, ("--set", "finetune.epoch=3"), "unknown key 'epoch'; did you mean 'epochs'?"),
        ({}, ("--set", "training.steps=3"), "training: fine-tuning has one section of settings, finetune"),
        ({}, ("--set", "finetune.metric=f9"), "finetune.metric = 'f9': metrics of this task are accuracy"),
        ({}, ("--set", "finetune.max_length=100"), "finetune.max_length 100 is more than the model's 64 positions"),
    ):
        chosen = usual | changes
        arguments = ("finetune", chosen["model"], "--task", chosen["task"], "--train", chosen["train"])
        code, out, err = main(*arguments, "--validation", chosen["train"], "--out", tmp_path / "out", *more)
        assert (code, out) == (2, ""), message
        assert message in err
        assert len(err.strip().splitlines()[-1]) < 400
        assert not (tmp_path / "out").exists()
    code, _, err = main("predict", encoder, train)
    assert (code, "this model is not fine-tuned for a task" in err) == (2, True)


def test_an_encoder_that_transformers_runs(main: Main, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    encoder = save_transformers("DistilBert", tokenizer, tmp_path / "encoder")
    train, dev = write_conll(tmp_path / "train.conll", 32, 0), write_conll(tmp_path / "dev.conll", 8, 1)
    given = ("finetune", encoder, "--task", "tag", "--train", train, "--validation", dev)
    code, out, err = main(*given, "--out", tmp_path / "out", *SETS, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["num_parameters"] == sum(
        tensor.numel() for name, tensor in load_file(encoder / "model.safetensors").items() if "vocab_" not in name
    )
    text = tmp_path / "lines.txt"
    text.write_text("The king sleeps in Constantinople.\n" + "The dog sees the ship at sea. " * 30 + "\n")
    code, out, err = main("predict", tmp_path / "out", text)
    assert code == 0, err
    assert "1 of 2 texts are longer than 66 tokens; they are seen in several parts" in err
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["words"] == ["The", "king", "sleeps", "in", "Constantinople", "."]
    assert len(second["tags"]) == len(second["probabilities"]) == len(second["words"]) == 8 * 30
    code, _, err = main("fill", tmp_path / "out", "The [MASK].")
    assert (code, "so it predicts no tokens any more" in err) == (2, True)
