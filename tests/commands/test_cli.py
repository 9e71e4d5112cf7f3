from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main


def test_one_held_out_document(main: Main, tmp_path: Path) -> None:
    """It has no standard error: `null`, which is JSON, where NaN is not."""
    train, held_out = tmp_path / "train.txt", tmp_path / "held_out.txt"
    train.write_text("the cat sat on the mat\n" * 40)
    held_out.write_text("a dog sat on the log and saw the cat\n")
    small = ("--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "model.num_heads=2")
    validation = f'corpus.validation=["{held_out}"]'
    command = ("pretrain", train, "--set", validation, "--out", tmp_path / "run", "--steps", 2, *small, "--json")
    code, out, _ = main(*command)
    assert code == 0
    summary = json.loads(out)
    assert summary["validation_documents"] == 1
    assert summary["validation_loss_stderr"] is summary["validation_loss_interval"] is None
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for text in (repr(unmask.Run(tmp_path / "run", summary)), card, (tmp_path / "run" / "report.html").read_text()):
        assert summary["validation_warning"][1:] in text


def test_quiet_and_verbose(main: Main, corpus_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(corpus_file.read_bytes())
    (tmp_path / "texts" / "b.pdf").write_text("x")
    command = ("prepare", tmp_path / "texts", "--vocab-size", 200, "--workers", 1, "--overwrite", "--out")
    code, plain, err = main(*command, tmp_path / "data")
    assert (code, "a document is a block" in err) == (0, True)
    caplog.clear()
    code, quiet, err = main(*command, tmp_path / "data", "-q")
    assert (code, quiet, err) == (0, plain, ""), "the result is the same"
    assert "passed over: 1 (.pdf)" in caplog.text, "warnings stay"
    code, _, err = main(*command, tmp_path / "data", "--verbose")
    assert (code, " INFO corpus: a document is a block" in err) == (0, True)
    code, _, err = main(*command, tmp_path / "data", "-q", "-v")
    assert (code, "--quiet and --verbose exclude each other" in err) == (2, True)


def test_conventions_of_terminals(main: Main, run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("masks", "The king sees.", "--tokenizer", run.folder / "model", "--strategy", "random", "--rate", 0.9)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a dumb one has no colours
    colours = re.compile(r"\x1b\[[\d;]*3[0-7]")
    assert colours.search(main(*arguments)[1])
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(main(*arguments)[1])
    for name, value in (("_UNMASK_COMPLETE", "complete_bash"), ("COMP_WORDS", "unmask fi"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert main()[1].split() == ["fill", "finetune"]
