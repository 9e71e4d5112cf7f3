"""Sources and results in a bucket, with a server of S3's kind on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from tests.processes import ended, start
from unmask.core import remote as addresses
from unmask.core.files import CACHE, cache, file_sha256
from unmask.train.callbacks import StepReport

pytestmark = pytest.mark.slow
STEPS = 40
SMALL = (
    "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.batch_tokens=256",
    "evaluation.times=1", "checkpoint.every_steps=10",
)  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment by which clients find the server, in this process and others."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in {**variables, CACHE: str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.1)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield variables
    s3fs.S3FileSystem().rm("bucket", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def in_bucket(place: str) -> set[str]:
    import s3fs

    client = s3fs.S3FileSystem()
    client.invalidate_cache()
    return {name.removeprefix(f"bucket/{place}/") for name in client.find(f"bucket/{place}")}


def begun(folder: Path, *, variables: dict[str, str]) -> None:
    """A run that is killed after step 25: the save at step 20 has waited until that of step 10 was sent."""

    class Dies(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
            if report.step == 25:
                os.kill(os.getpid(), signal.SIGKILL)

    os.environ.update(variables)
    unmask.pretrain("s3://bucket/data", out="s3://bucket/runs/a", steps=STEPS, settings=SMALL, callbacks=[Dies()])


def test_a_run_in_a_bucket_goes_on_elsewhere(
    environment: dict[str, str], data_folder: Path, tmp_path: Path, main: Main
) -> None:
    import s3fs

    s3fs.S3FileSystem().put(f"{data_folder}/", "bucket/data/", recursive=True)
    variables = environment | {CACHE: str(cache())}
    ((code, errors),) = ended(start(1, "tests.core.test_bucket:begun", tmp_path / "begun", {"variables": variables}))
    assert code == -signal.SIGKILL, errors
    sent = in_bucket("runs/a")
    assert "checkpoints/step-00000010/state.json" in sent
    assert "summary.json" not in sent
    shutil.rmtree(cache())  # as on another machine
    code, _, errors = main("pretrain", "--out", "s3://bucket/runs/a", "--resume")
    assert code == 0, errors
    assert "resuming from step" in errors
    there = tmp_path / "there"
    s3fs.S3FileSystem().get("bucket/runs/a/", f"{there}/", recursive=True)
    assert not (there / ".lock.json").exists()
    local = unmask.pretrain(data_folder, out=tmp_path / "local", steps=STEPS, settings=SMALL)
    weights = "model/model.safetensors"
    assert file_sha256(there / weights) == file_sha256(local.folder / weights), "as if nothing had happened"
    code, _, errors = main("pretrain", "--out", "s3://bucket/runs/a", "--resume")
    assert code == 0, errors
    assert "is already finished" in " ".join(errors.split())
