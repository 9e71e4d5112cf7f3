"""`make gpu`, as far as a CPU goes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import gpu_stages
import pytest
import torch
import train

from tests.command_line import Main
from tests.conftest import make_text

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gpu_stages.Bench:
    monkeypatch.setattr(train, "LARGE", (64, 64, 64))
    shutil.copytree(data_folder, tmp_path / "data")
    shutil.copy(ROOT / "docs" / "explanation" / "benchmarks.md", tmp_path / "page.md")
    (tmp_path / "text.txt").write_text(make_text(400), encoding="utf-8")
    return gpu_stages.Bench(True, torch.device("cpu"), None, tmp_path / "text.txt", tmp_path, tmp_path / "page.md")


def filled(page: Path, name: str) -> str:
    """What is between the marks of a table."""
    return page.read_text(encoding="utf-8").split(f"<!-- {name} -->")[1].split(f"<!-- end {name} -->")[0]


@pytest.mark.slow
def test_checks_and_profile(bench: gpu_stages.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def finished(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """Tests marked `gpu`; all of them would be skipped here."""
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "FAILED tests/a.py::b - why\n== 1 failed, 3 passed ==\n", "")

    with monkeypatch.context() as patch:
        patch.setattr(gpu_stages.subprocess, "run", finished)
        checked = "\n".join(gpu_stages.check(bench))
    ((*_, which),) = commands
    assert (ROOT / which).is_file()
    assert "| tests marked `gpu` | 1 failed, 3 passed |\n| failed | `tests/a.py::b` |" in checked
    assert "against a CPU in float32 | loss 0.0e+00" in checked
    assert "TOO FAR" not in checked
    assert "| products |" in "\n".join(gpu_stages.profile(bench))


@pytest.mark.slow
def test_peers(bench: gpu_stages.Bench, run_script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the stage, with our process alone; those of peers are in test_train.py."""
    commands: list[list[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(gpu_stages.subprocess, "run", lambda command, **_: commands.append(command))
        gpu_stages.bench_peers(bench)
    ((_, script, *words),) = commands
    assert Path(script) == Path(train.__file__)
    place = words.index("--systems") + 1
    assert words[place] == "ours,modernbert-bf16"
    words[place] = "ours"
    monkeypatch.setattr(train, "prepare", lambda _, out, size: shutil.copytree(bench.data.root, out))
    run_script(train, *words)
    assert "| 2x64 | 64 | 512 | ours | " in filled(bench.page, "training-gpu-short")


@pytest.mark.slow
def test_the_stage_sends_a_kill_and_resumes(
    bench: gpu_stages.Bench, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands run in this process, and the signal changes nothing; tests/commands/test_resume.py kills."""
    signals: list[int] = []

    def begin(command: list[str], **_: object) -> Any:
        assert command[1:3] == ["-m", "unmask"]
        code, _, errors = main(*command[3:])
        assert code == 0, errors
        return SimpleNamespace(poll=lambda: None, send_signal=signals.append, wait=lambda: None)

    monkeypatch.setattr(gpu_stages.subprocess, "Popen", begin)
    monkeypatch.setattr(gpu_stages.subprocess, "run", begin)
    row = gpu_stages.train_killed(bench)[-1]
    assert signals == [gpu_stages.signal.SIGKILL]
    assert "| cpu | step-" in row


@pytest.fixture
def start(run_script: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts the script in this process, whose paths of packages it changes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return partial(run_script, gpu)


def test_a_stage_is_run_once_and_fills_its_table(
    bench: gpu_stages.Bench, tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    figures = iter(["a line"])
    stages = {"check": lambda each: [f"| {next(figures)}, {each.dry} |"], "bench": lambda each: []}
    monkeypatch.setattr(gpu_stages, "STAGES", stages)
    page = bench.page.read_text(encoding="utf-8")
    options = ("--dry", "--out", tmp_path / "out", "--table", bench.page, "--stages", "check,bench")
    start(*options)
    assert "already done" not in capsys.readouterr().out
    bench.page.write_text(page, encoding="utf-8")
    start(*options)
    assert capsys.readouterr().out.count("already done") == 2
    assert "| a line, True |" in filled(bench.page, "gpu-check"), "also of a stage that was run before"
    with pytest.raises(SystemExit, match="no stage 'other'"):
        start("--dry", "--out", tmp_path / "out", "--stages", "other")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_a_line(tmp_path: Path, start: Any) -> None:
    with pytest.raises(SystemExit, match="torch finds no GPU; make gpu DRY=1 runs"):
        start("--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
