"""Runs whose masking follows the loss on parts of speech: what checkpoints hold, resuming, and what is missing."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

import unmask
from tests.conftest import SMALL
from tests.data.tagged import tagged_jsonl

SETTINGS = (
    *SMALL,
    "training.batch_tokens=256",
    "masking.weights.kind=pos_loss",
    "masking.refresh_steps=2",
    "checkpoint.every_steps=1",
    "checkpoint.keep=10",
)
COLUMNS = 'annotation.columns=["pos", "dependencies"]'


def test_the_syntax_strategy_with_losses_of_parts_of_speech(tmp_path: Path) -> None:
    text = tagged_jsonl(tmp_path / "a.jsonl")
    run = unmask.pretrain(
        [text], out=tmp_path / "run", steps=5, vocab_size=150, strategy="syntax", settings=(*SETTINGS, COLUMNS)
    )
    held = [load_file(path / "scores.safetensors") for path in sorted((run.folder / "checkpoints").glob("step-*"))]
    assert [int(state["version"]) for state in held] == [0, 2, 2, 4, 4]
    assert "scores.pos_loss" not in held[0]
    found = held[-1]["scores.pos_loss"]
    assert found.shape == (5,), "no tag, DET, NOUN, PROPN, VERB"
    assert found.min() > 1.0
    assert not torch.equal(found, held[1]["scores.pos_loss"])
    assert held[0]["pos.gathered.count"].sum() > 10
