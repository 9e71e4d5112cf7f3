"""Fine-tuning by two processes: the metrics, the weights and the folder of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import unmask
from tests.commands.finetune_helpers import FAST, MakeModel, save_encoder, write_classes
from tests.processes import in_processes
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("sklearn")


def finetuned(folder: Path, *, options: dict[str, str], seeds: int, resume: bool) -> dict[str, Any]:
    """What a process of a group has at the end."""
    settings = (*FAST, "finetune.epochs=3", "finetune.precision=float32")
    return unmask.finetune(
        **options, task="classify", out=folder / "out", seeds=seeds, settings=settings, resume=resume
    ).to_dict()  # type: ignore[arg-type]


def test_two_processes_fine_tune_as_one(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    options = {
        "model": str(save_encoder(make_model, tokenizer, tmp_path / "encoder")),
        "train": str(write_classes(tmp_path / "train.jsonl", 90, 0)),
        "validation": str(write_classes(tmp_path / "dev.jsonl", 40, 1)),
    }
    function = "tests.commands.test_several_processes:finetuned"
    (one,) = in_processes(1, function, tmp_path / "1", {"options": options, "seeds": 2, "resume": False})
    in_processes(2, function, tmp_path / "2", {"options": options, "seeds": 1, "resume": False})
    first, second = in_processes(2, function, tmp_path / "2", {"options": options, "seeds": 2, "resume": True})
    assert first == second
    assert [run["metrics"] for run in first["seeds"]] == [run["metrics"] for run in one["seeds"]]
    assert first["metrics"]["accuracy"] > 0.9
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / count / "out" / "metrics.jsonl").read_text().splitlines()]
        for count in ("1", "2")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    models = [load_file(tmp_path / count / "out" / "model" / "model.safetensors") for count in ("1", "2")]
    for name, weight in models[0].items():
        assert (weight - models[1][name]).norm() <= 1e-3 * weight.norm()
