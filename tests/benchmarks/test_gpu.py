"""`make gpu`, as far as a CPU goes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unmask.commands.run_data import packaged_corpus

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_a_line(tmp_path: Path) -> None:
    ended = run("--out", str(tmp_path / "out"))
    assert ended.returncode == 1
    assert ended.stderr == "make gpu: torch finds no GPU; make gpu DRY=1 runs the stages with tiny models on a CPU\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_stage_fills_its_tables(tmp_path: Path) -> None:
    page, text = tmp_path / "page.md", tmp_path / "text.txt"
    shutil.copy(ROOT / "docs" / "explanation" / "benchmarks.md", page)
    text.write_text(packaged_corpus().read_text(encoding="utf-8")[:200_000], encoding="utf-8")
    options = ("--dry", "--out", str(tmp_path / "out"), "--table", str(page), "--text", str(text))
    ended = run(*options)
    assert ended.returncode == 0, ended.stderr
    filled = page.read_text(encoding="utf-8")
    tables = {}
    for name in ("gpu-check", "gpu-profile", "training-gpu-short", "gpu-train"):
        tables[name] = filled.split(f"<!-- {name} -->")[1].split(f"<!-- end {name} -->")[0]
        assert "unmeasured" not in tables[name]
    assert "against a CPU in float32 | loss 0.0e+00" in tables["gpu-check"]
    assert "TOO FAR" not in tables["gpu-check"]
    assert "| products |" in tables["gpu-profile"]
    assert "modernbert-bf16" in tables["training-gpu-short"]
    assert "| cpu | step-" in tables["gpu-train"]
    again = run(*options)
    assert again.stdout.count("already done") == 4, again.stderr
