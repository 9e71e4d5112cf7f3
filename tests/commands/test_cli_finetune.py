"""`unmask finetune` and `unmask predict` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from tests.commands.finetune_helpers import MakeModel, save_encoder, write_classes
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("sklearn")
pytest.importorskip("seqeval")
SETS = ("--set", "finetune.learning_rate=0.003", "--set", "finetune.epochs=2", "--set", "finetune.batch_size=16")


def test_finetune_then_predict(main: Main, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    train, dev = write_classes(tmp_path / "train.jsonl", 120, 0), write_classes(tmp_path / "dev.jsonl", 20, 1)
    command = ("finetune", encoder, "--task", "classify", "--train", train, "--validation", dev)
    code, out, err = main(*command, "--out", tmp_path / "out", "--seeds", 2, *SETS, "--json")
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

    code, out, err = main("predict", tmp_path / "out", dev)
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 20
    right = [json.loads(line)["label"] for line in dev.read_text().splitlines()]
    accuracy = sum(line["label"] == label for line, label in zip(lines, right, strict=True)) / 20
    assert accuracy == summary["metrics"]["accuracy"]
    table = tmp_path / "new" / "found.csv"
    code, out, err = main("predict", tmp_path / "out", dev, "--out", table, "--json")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [line["label"] for line in lines]
    assert float(rows[0]["probabilities.sea"]) == lines[0]["probabilities"]["sea"]
    text = tmp_path / "lines.txt"
    text.write_text("The dog sees the ship at sea. " * 30 + "\nThe king.\n")
    code, out, err = main("predict", tmp_path / "out", text)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "1 of 2 texts are longer than 64 tokens; their ends are not seen" in err
