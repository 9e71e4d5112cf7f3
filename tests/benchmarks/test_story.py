"""The story of docs/results.md: which commands it runs, that it goes on where it was stopped, what the page shows."""

from __future__ import annotations

import importlib
import json
import types
from pathlib import Path

import pytest


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("story")


def test_its_commands_are_those_of_the_page(script: types.ModuleType) -> None:
    commands = script.commands()
    assert [command.split()[:2] for command in commands] == [
        ["unmask", name]
        for name in ("pretrain", "evaluate", "score", "pretrain", "finetune", "predict", "finetune", "export", "verify")
    ]
    assert not [command for command in commands if "\\" in command]
    assert "--test sst2/test.tsv --out runs/sentiment" in commands[4]


def test_a_command_is_run_once(script: types.ModuleType, tmp_path: Path) -> None:
    kept, command = tmp_path / "00.json", "echo one >> count; cat count; echo aside >&2"
    told = script.tell(command, kept, tmp_path)
    assert told.printed == "one\naside\n"
    assert script.tell(command, kept, tmp_path) == told
    assert script.tell(f"{command}; true", kept, tmp_path).printed == "one\none\naside\n"
    assert json.loads(kept.read_text())[0] == f"{command}; true"


def test_a_command_that_fails_ends_the_story(script: types.ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"exit code 3 of echo why; exit 3\nwhy"):
        script.tell("echo why; exit 3", tmp_path / "00.json", tmp_path)
    assert not (tmp_path / "00.json").exists()


def test_the_page_shows_the_ends_of_long_outputs(
    script: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = "echo 'training 22%: step 241, loss 0.464, at most 50 s left'; echo 'tokens 3%: 1,000 tokens, 9:59 left'"
    monkeypatch.setattr(script, "commands", lambda: [f"{progress}; echo $PWD/there; ls there", "seq 100"])
    (tmp_path / "data" / "there").mkdir(parents=True)
    (tmp_path / "data" / "there" / "file.txt").touch()
    page = tmp_path / "page.md"
    page.write_text("<!-- story -->\n<!-- end story -->\n")
    monkeypatch.setattr(
        script.sys, "argv", ["story.py", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--page", str(page)]
    )
    script.main()
    text = page.read_text()
    assert "ls there\nthere\nfile.txt\n```" in text
    assert "\n15\n... 70 lines ...\n86\n" in text
    assert f"python story.py data --work work --page {page.name}\n" in text, "no folders of this machine"
