"""Runs, results and vectors at an address; tests/test_bucket.py kills one, with a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from tests.commands.finetune_helpers import FAST, MakeModel, save_encoder, write_classes
from tests.elsewhere import Elsewhere
from unmask.core.errors import RunError
from unmask.core.remote import cache
from unmask.tokenizer.tokenizer import Tokenizer

SMALL = ("model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.batch_tokens=256")
ADDRESS = "elsewhere://bucket/runs/a"


def test_a_run_is_finished_there(server: Elsewhere, data_folder: Path, main: Main) -> None:
    run = unmask.pretrain([data_folder], out=ADDRESS, steps=2, settings=SMALL)
    assert server.sent[-1] == "/bucket/runs/a/summary.json"
    assert json.loads(server.cat_file("/bucket/runs/a/summary.json")) == run.summary
    assert run.folder.is_relative_to(cache())
    weights = server.cat_file("/bucket/runs/a/model/model.safetensors")
    with pytest.raises(RunError, match=ADDRESS):
        unmask.pretrain([data_folder], out=ADDRESS, steps=2, settings=SMALL)
    shutil.rmtree(cache())
    server.sent.clear()
    code, _, errors = main("pretrain", "--out", ADDRESS, "--resume", "--set", "card.license=mit")
    assert code == 0, errors
    assert {"/bucket/runs/a/model/README.md", "/bucket/runs/a/recipe.toml"} <= set(server.sent)
    assert server.cat_file("/bucket/runs/a/model/model.safetensors") == weights


def test_more_seeds_of_a_result_are_made_elsewhere(
    server: Elsewhere, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    train, dev = write_classes(tmp_path / "train.jsonl", 24, 0), write_classes(tmp_path / "dev.jsonl", 12, 1)
    given = {"task": "classify", "train": train, "validation": dev, "out": ADDRESS}
    settings = (*FAST, "finetune.epochs=1")
    unmask.finetune(encoder, **given, seeds=1, settings=settings)
    (first,) = server.cat_file("/bucket/runs/a/runs.jsonl").splitlines()
    shutil.rmtree(cache())
    unmask.finetune(encoder, **given, seeds=2, settings=settings, resume=True)
    lines = server.cat_file("/bucket/runs/a/runs.jsonl").splitlines()
    assert len(lines) == 2
    assert lines[0] == first
    assert len(json.loads(server.cat_file("/bucket/runs/a/summary.json"))["seeds"]) == 2
    unmask.finetune(encoder, **given, seeds=1, settings=settings, overwrite=True)
    assert len(server.cat_file("/bucket/runs/a/runs.jsonl").splitlines()) == 1


def test_vectors_are_sent(server: Elsewhere, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    (tmp_path / "texts.txt").write_text("The cat sees the ship.\nThe dog follows.\n")
    assert unmask.embed(encoder, tmp_path / "texts.txt", out="elsewhere://bucket/vectors.npy").texts == 2
    assert server.cat_file("/bucket/vectors.npy")[:6] == b"\x93NUMPY"
    with pytest.raises(RunError, match="is already there"):
        unmask.embed(encoder, tmp_path / "texts.txt", out="elsewhere://bucket/vectors.npy")
