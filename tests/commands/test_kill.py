"""Killed at random moments, and interrupted: nothing is lost, and the result is the same bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command_line import PATIENCE
from tests.processes import Forked, start_command
from unmask.core.interruption import Interrupted, Interruption
from unmask.train.checkpoints import list_checkpoints

OPTIONS = [
    "--steps", "200", "--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "model.num_heads=2",
    "--set", "training.sequence_length=32", "--set", "training.batch_tokens=256", "--set", "checkpoint.every_steps=10",
]  # fmt: skip


def start(data: Path, out: Path, *more: str) -> Forked:
    return start_command("pretrain", data, "--out", out, *OPTIONS, *more)


def start_anew(data: Path, out: Path, *more: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """With all that is loaded first."""
    command = [sys.executable, *launcher, "-m", "unmask", "pretrain", str(data), "--out", str(out), *OPTIONS, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_step(out: Path, step: int, process: subprocess.Popen[str] | Forked) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        done = [int(path.name.removeprefix("step-")) for path in list_checkpoints(out / "checkpoints")]
        if done and max(done) >= step:
            return
        time.sleep(0.005)
    raise AssertionError(f"step {step} was not reached: {process.communicate()[1]}")


def lines_of(out: Path) -> list[tuple[str, int]]:
    return [(m["kind"], m["step"]) for m in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.slow
def test_killed_again_and_again_the_weights_are_the_same(corpus_file: Path, tmp_path: Path) -> None:
    """From raw text: two kills while starting and preparing, two in training; then the run is finished."""
    more = ("--steps", "240", "--vocab-size", "200", "--set", "evaluation.times=9")
    whole = start(corpus_file, tmp_path / "whole", *more)
    assert whole.communicate(timeout=PATIENCE) is not None
    assert whole.returncode == 0

    rng = random.Random(2026)
    killed = tmp_path / "killed"
    for least in (0, 0, 40, 130):
        process = (start if least else start_anew)(corpus_file, killed, *more, "--resume")
        if least:
            wait_for_step(killed, least, process)
        time.sleep(rng.uniform(0.0, 0.15) if least else rng.uniform(0.5, 3.0))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    last = start(corpus_file, killed, *more, "--resume", "--json")
    output, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors
    assert json.loads(output)["steps"] == 240

    assert files_of(killed / "data") == files_of(tmp_path / "whole" / "data")
    for name in ("model/model.safetensors", "model/config.json", "recipe.toml"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert list_checkpoints(killed / "checkpoints")[-1].name == "step-00000240"
    assert lines_of(killed) == lines_of(tmp_path / "whole"), "no step is missing or told twice"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_signal_that_comes_within_a_library_in_c() -> None:
    """Which makes another error of what the handler raises."""
    stopped = Interrupted(signal.SIGINT, "stopped")
    with pytest.raises(Interrupted) as caught, Interruption():
        raise SystemError("returned a result with an exception set") from stopped
    assert caught.value is stopped
    with pytest.raises(SystemError), Interruption():
        raise SystemError("something else") from ValueError("no signal")


# It starts the processes anew once.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")


@pytest.mark.slow
def test_one_of_two_is_killed_and_they_go_on(data_folder: Path, tmp_path: Path) -> None:
    """The command of the pages; the second process is killed. The first ends by itself, or by the launcher's signal."""
    whole = start_anew(data_folder, tmp_path / "whole", "--json", launcher=TORCHRUN)
    output, errors = whole.communicate(timeout=PATIENCE)
    assert whole.returncode == 0, errors
    assert json.loads(output)["steps"] == 200, "one process prints the result"
    killed = start_anew(data_folder, tmp_path / "killed", "--resume", launcher=TORCHRUN)
    wait_for_step(tmp_path / "killed", 30, killed)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    (second,) = (int(pid) for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(second, signal.SIGKILL)
    _, errors = killed.communicate(timeout=PATIENCE)
    assert killed.returncode == 0, errors
    assert "going on from step" in errors
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")
