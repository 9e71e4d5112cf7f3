"""Embedders and fine-tunings of two processes equal those of one; trainings go on if one of the two is killed.

Of pretraining, tests/train/test_group.py compares one with two.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import PATIENCE
from tests.commands.checkpoints import released
from tests.commands.finetune_helpers import FAST as FAST_TUNING
from tests.commands.finetune_helpers import write_classes
from tests.commands.test_embedder import FAST, WORDS, metrics_of, passages
from tests.commands.test_resume import OPTIONS, SETTINGS, STEPS, lines_of
from tests.conftest import small_config
from tests.processes import in_processes
from tests.train.test_group import distance
from unmask.model.encoder import MaskedLM, initialise
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.checkpoints import list_checkpoints

pytestmark = pytest.mark.slow

PARTS = FAST | {
    "embedder.micro_batch_tokens": 64,
    "embedder.dimensions": [16],
    "embedder.patience": 9,
    "embedder.learning_rate": 1e-3,
}
SPARSE = FAST | {f"embedder.sparse.{name}_weight": 1e-3 for name in ("first", "second")}
SPARSE |= {"embedder.temperature": 1.0, "embedder.micro_batch_tokens": 128, "embedder.batch_size": 3}
EMBEDDERS = {
    "parts": PARTS,  # one row at a time; the processes have unequal numbers of rows
    "sparse": SPARSE,  # few rows
}
WORKED = "tests.commands.test_two_processes:worked"
Results = dict[str, dict[str, Any]]


def worked(folder: Path, *, files: str, data: str) -> Results:
    """Trains in one of the processes: the embedders, a classifier that is asked for a second seed later, and a run."""
    results: Results = {}
    given = Path(files)
    for name, settings in EMBEDDERS.items():
        pairs, few = given / "pairs.jsonl" if name == "parts" else None, settings | {"embedder.evaluations": 2}
        made = unmask.embedder(
            given / "base", [given / "passages.txt"], pairs=pairs, out=folder / name, steps=4, settings=few
        )
        results[name] = {"metrics": metrics_of(made), "summary": made.summary}
    train, dev, longer = given / "train.jsonl", given / "dev.jsonl", (*FAST_TUNING, "finetune.epochs=6")
    for seeds in (1, 2):
        tuned = unmask.finetune(
            given / "base", task="classify", train=train, validation=dev, out=folder / "classifier", seeds=seeds,
            settings=longer, resume=True,
        )  # fmt: skip
    lines = map(json.loads, (folder / "classifier" / "metrics.jsonl").read_text().splitlines())
    results["classifier"] = {"metrics": list(lines), "summary": tuned.to_dict()}
    unmask.pretrain([data], out=folder / "run", steps=STEPS, settings=SETTINGS)
    return results


@pytest.fixture(scope="module")
def results(
    tokenizer: Tokenizer, data_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Results, list[Results]]:
    """The folder of the trainings, and the results of a single process and of each of two."""
    folder = tmp_path_factory.mktemp("trained")
    model = MaskedLM(small_config(tokenizer, num_layers=2, initializer_range=0.05))
    initialise(model, seed=0)
    released(model, tokenizer, folder / "base")
    (folder / "passages.txt").write_text("\n\n".join(passages(80)) + "\n")
    rows = [{"query": one, "text": f"the {one}", "negative": f"the {other}"} for one, other in pairwise(WORDS)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_classes(folder / "train.jsonl", 40, 0)
    write_classes(folder / "dev.jsonl", 20, 1)
    arguments = {"files": str(folder), "data": str(data_folder)}
    (alone,) = in_processes(1, WORKED, folder / "1", arguments)
    return folder, alone, in_processes(2, WORKED, folder / "2", arguments)


@pytest.mark.parametrize("name", [*EMBEDDERS, "classifier"])
def test_two_processes_train_as_one(results: tuple[Path, Results, list[Results]], name: str) -> None:
    folder, (alone, first, second) = results[0], (each[name] for each in (results[1], *results[2]))
    assert first["summary"] == second["summary"]
    assert distance(*(folder / number / name / "model" / "model.safetensors" for number in ("1", "2"))) < 1e-3
    for line, expected in zip(first["metrics"], alone["metrics"], strict=True):
        assert all(line[key] == expected[key] for key in expected.keys() & {"kind", "step", "epoch"})
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)


def test_two_processes_measure_as_one(results: tuple[Path, Results, list[Results]]) -> None:
    alone, first = (each["classifier"]["summary"] for each in (results[1], results[2][0]))
    assert [seed["metrics"] for seed in first["seeds"]] == [seed["metrics"] for seed in alone["seeds"]]
    assert len(first["seeds"]) == 2
    assert first["metrics"]["accuracy"] > 0.9


# Restarts the processes once.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")


def test_one_of_two_is_killed_and_they_go_on(
    results: tuple[Path, Results, list[Results]], data_folder: Path, tmp_path: Path
) -> None:
    """The command of the pages; the second process is killed. The first ends by itself, or by the launcher's signal."""
    whole, out = results[0] / "2" / "run", tmp_path / "killed"
    killed = subprocess.Popen(
        [sys.executable, *TORCHRUN, "-m", "unmask", "pretrain", data_folder, "--out", out, *OPTIONS, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while not list_checkpoints(out / "checkpoints") and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    (second,) = (int(pid) for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(second, signal.SIGKILL)
    output, errors = killed.communicate(timeout=PATIENCE)
    assert killed.returncode == 0, errors
    assert json.loads(output)["steps"] == STEPS, "only one of the two prints its result"
    assert "resuming from step" in errors
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, out)]
    assert weights[0] == weights[1]
    assert lines_of(out) == lines_of(whole)
