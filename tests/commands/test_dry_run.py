"""A dry run tells what the real one then does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from tests.conftest import SMALL
from unmask.commands import dry_run
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.core.errors import RunError


def test_it_tells_what_the_run_then_does(corpus_file: Path, run: unmask.Run, tmp_path: Path) -> None:
    """The run of the fixture: 300 steps, a vocabulary of 200."""
    recipe = load_recipe(options={"training.steps": 300, "tokenizer.vocab_size": 200}, overrides=tuple(SMALL))
    before = sorted(corpus_file.parent.iterdir())
    found = forecast_run([corpus_file], recipe)
    manifest = json.loads((run.folder / "data" / "manifest.json").read_text())
    assert found["complete"]
    assert found["documents"] == manifest["documents"]
    assert found["bytes"] == manifest["bytes"]
    assert found["tokens"] == pytest.approx(manifest["tokens"], rel=0.05)
    assert found["num_parameters"] == run.summary["num_parameters"]
    assert found["steps"] == 300
    assert found["tokens_seen"] == pytest.approx(run.summary["tokens_seen"], rel=0.05)
    assert found["epochs"] == pytest.approx(run.summary["epochs"], rel=0.15)
    disk = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    assert 0.3 * disk < found["disk_bytes"] < 5 * disk + 2**20
    assert found["memory_bytes"] > 2**26
    assert sorted(corpus_file.parent.iterdir()) == before


def test_a_large_corpus_is_read_for_some_seconds_only(
    corpus_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dry_run, "READ_SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "SAMPLE_BYTES", 20_000)
    (tmp_path / "large.txt").write_text(corpus_file.read_text() * 3)
    recipe = load_recipe(options={"training.steps": 1})
    found = dry_run.forecast_text([tmp_path / "large.txt", corpus_file], recipe.corpus, recipe.tokenizer, tmp_path)
    assert not found.complete
    assert found.bytes < 3 * corpus_file.stat().st_size


def test_on_the_command_line(corpus_file: Path, tmp_path: Path, main: Main) -> None:
    overrides = [part for setting in SMALL for part in ("--set", setting)]
    _, out, err = main(
        "pretrain", str(corpus_file), "--out", str(tmp_path / "run"), "--dry-run", "--minutes", "1", *overrides
    )
    assert "nothing was written (--dry-run)" in out
    assert "1:00" in out
    assert err == ""
    assert not (tmp_path / "run").exists()


def test_of_a_preparation(corpus_file: Path, tmp_path: Path, main: Main) -> None:
    asked = ("prepare", str(corpus_file), "--out", str(tmp_path / "data"), "--dry-run")
    found = json.loads(main(*asked, "--json")[1])
    assert found["complete"]
    assert found["bytes"] > 10_000
    assert "nothing was written (--dry-run)" in main(*asked)[1]
    assert not (tmp_path / "data").exists()


def test_standard_input_would_be_used_up() -> None:
    with pytest.raises(RunError, match="standard input"):
        forecast_run(["-"], load_recipe())
