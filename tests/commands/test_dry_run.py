"""A dry run tells what the real one then does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unmask
from tests.conftest import SMALL
from unmask.commands import dry_run
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.core.errors import RunError


def test_it_tells_what_the_run_then_does(corpus_file: Path, run: unmask.Run) -> None:
    """The run of the fixture: 300 steps, a vocabulary of 200."""
    recipe = load_recipe(options={"training.steps": 300, "tokenizer.vocab_size": 200}, overrides=tuple(SMALL))
    forecast = forecast_run([corpus_file], recipe)
    manifest = json.loads((run.folder / "data" / "manifest.json").read_text())
    assert (forecast["documents"], forecast["bytes"]) == (manifest["documents"], manifest["bytes"])
    assert forecast["tokens"] == pytest.approx(manifest["tokens"], rel=0.05)
    assert forecast["num_parameters"] == run.summary["num_parameters"]
    assert forecast["steps"] == 300
    assert forecast["tokens_seen"] == pytest.approx(run.summary["tokens_seen"], rel=0.05)
    assert forecast["epochs"] == pytest.approx(run.summary["epochs"], rel=0.15)
    disk = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    assert 0.3 * disk < forecast["disk_bytes"] < 5 * disk + 2**20
    assert forecast["memory_bytes"] > 2**26


def test_a_large_corpus_is_read_for_some_seconds_only(
    corpus_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dry_run, "READ_SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "SAMPLE_BYTES", 20_000)
    (tmp_path / "large.txt").write_text(corpus_file.read_text() * 3)
    recipe = load_recipe(options={"training.steps": 1})
    forecast = dry_run.forecast_text([tmp_path / "large.txt", corpus_file], recipe.corpus, recipe.tokenizer, tmp_path)
    assert not forecast.complete
    assert forecast.bytes < 3 * corpus_file.stat().st_size


def test_standard_input_would_be_used_up() -> None:
    with pytest.raises(RunError, match="standard input"):
        forecast_run(["-"], load_recipe())
