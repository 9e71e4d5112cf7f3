"""Runs that were stopped, killed, made by two processes or resumed from an address equal an unbroken run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import unmask
from tests.command_line import PATIENCE, Main
from tests.commands.checkpoints import Stopping
from tests.commands.finetune_helpers import FAST, MakeModel, save_encoder, write_classes
from tests.data.corpora import contents
from tests.elsewhere import Elsewhere
from tests.processes import Forked, in_processes, start_command
from unmask.commands import finetune_run
from unmask.core.errors import RunError
from unmask.core.files import cache
from unmask.core.interruption import Interrupted
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import StepReport
from unmask.train.checkpoints import list_checkpoints

pytest.importorskip("sklearn")
pytest.importorskip("seqeval")


@pytest.fixture
def options(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> dict[str, Any]:
    train, dev = write_classes(tmp_path / "train.jsonl", 40, 0), write_classes(tmp_path / "dev.jsonl", 20, 1)
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    return {"model": encoder, "task": "classify", "train": train, "validation": dev, "test": dev}


def settings(seeds: int, *more: str) -> tuple[str, ...]:
    return (*FAST, "finetune.epochs=1", "finetune.dropout=0.1", f"finetune.seeds={seeds}", *more)


def content(folder: Path) -> tuple[dict[str, Any], list[Any], bytes]:
    """The content that must be equal; times may differ."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["model"]
    for run in summary["seeds"]:
        del run["seconds"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return summary, lines, (folder / "model" / "model.safetensors").read_bytes()


def test_stopped_within_a_seed(options: dict[str, Any], tmp_path: Path) -> None:
    """After the first evaluation: losses, best weights and patience are those of an unbroken run."""
    longer = settings(1, "finetune.epochs=3", "finetune.patience=3")
    unmask.finetune(**options, out=tmp_path / "whole", settings=longer)
    out = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        unmask.finetune(**options, out=out, settings=longer, callbacks=[Stopping(4)])
    assert (out / "checkpoints" / "step-00000004").is_dir()
    unmask.finetune(**options, out=out, settings=longer, resume=True)
    assert content(out) == content(tmp_path / "whole")
    assert not (out / "checkpoints").exists()


def test_killed_behind_the_end_of_a_seed(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before runs.jsonl is written, and before checkpoints are removed: a seed that stopped early does not go on
    training, and the next seed begins."""
    early = settings(2, "finetune.epochs=9", "finetune.patience=1")
    whole = unmask.finetune(**options, out=tmp_path / "whole", settings=early)
    assert whole.seeds[0]["stopped_early"]
    out, write = tmp_path / "killed", finetune_run.write_atomically

    def written(path: Path, content: str, *, last: str) -> None:
        write(path, content)
        if path.name == last:
            raise ZeroDivisionError

    for last in ("metrics.jsonl", "runs.jsonl"):
        monkeypatch.setattr(finetune_run, "write_atomically", partial(written, last=last))
        with pytest.raises(ZeroDivisionError):
            unmask.finetune(**options, out=out, settings=early, resume=True)
        assert list_checkpoints(out / "checkpoints")
    monkeypatch.setattr(finetune_run, "write_atomically", write)
    unmask.finetune(**options, out=out, settings=early, resume=True)
    assert content(out) == content(tmp_path / "whole")


def test_more_seeds_are_asked_for_later(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "grown"
    unmask.finetune(**options, out=out, settings=settings(1), resume=True)
    with monkeypatch.context() as patch:  # killed when the second seed is trained: the summary is of one
        patch.setattr(finetune_run.Runs, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            unmask.finetune(**options, out=out, settings=settings(2), resume=True)
    assert not (out / "summary.json").exists(), "the model may be that of the second seed"
    elsewhere = {**options, "model": shutil.copytree(options["model"], tmp_path / "the same model")}
    card = out / "model" / "README.md"
    for files in (options, elsewhere):  # the second time nothing is left to do
        result = unmask.finetune(**files, out=out, settings=settings(2), resume=True)
        assert result.summary == json.loads((out / "summary.json").read_text())
        card.write_text(card.read_text() + "Mine.")
    assert card.read_text().endswith("Mine.Mine."), "what a user wrote there stays"
    unmask.finetune(**options, out=tmp_path / "whole", settings=settings(2))
    assert content(out) == content(tmp_path / "whole")
    assert json.loads((out / "settings.json").read_text())["finetune"]["seeds"] == 2
    with pytest.raises(RunError, match="holds 2 trained seeds"):
        unmask.finetune(**options, out=out, settings=settings(1), resume=True)


def test_what_is_another_fine_tuning_does_not_go_on(options: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    unmask.finetune(**options, out=out, settings=settings(1))
    before = content(out)
    with pytest.raises(RunError, match=r"finetune\.epochs"):
        unmask.finetune(**options, out=out, settings=settings(1, "finetune.epochs=2"), resume=True)
    options["train"].write_text(options["train"].read_text() * 2)
    with pytest.raises(RunError, match=r"sha256\.train"):
        unmask.finetune(**options, out=out, settings=settings(1), resume=True)
    assert content(out) == before


class Failing(unmask.Callback):
    """Requests a checkpoint after step 2, and fails after another step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
        if report.step == 2:
            trainer.request_save()
        if report.step == self._step:
            raise RunError("as a test says")


def test_an_error_frees_the_folder_unless_there_is_a_checkpoint(options: dict[str, Any], tmp_path: Path) -> None:
    options |= {"out": tmp_path / "out"}
    longer = settings(1, "finetune.epochs=3")
    for step in (1, 4):
        with pytest.raises(RunError, match="as a test says"):
            unmask.finetune(**options, settings=longer, callbacks=[Failing(step)])
    assert list_checkpoints(tmp_path / "out" / "checkpoints")
    with pytest.raises(RunError, match="unfinished") as caught:
        unmask.finetune(**options, settings=(*longer, "finetune.learning_rate=1e-5"))
    assert "overwrite" in caught.value.options


def finetuned(folder: Path, *, options: dict[str, Any]) -> dict[str, Any]:
    """The result of a process of a group, which is asked for a second seed later."""
    settings = (*FAST, "finetune.epochs=3", "finetune.precision=float32")
    for seeds in (1, 2):
        result = unmask.finetune(
            **options, task="classify", out=folder / "out", seeds=seeds, settings=settings, resume=True
        )
    return result.to_dict()


def test_two_processes_fine_tune_as_one(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    options = {
        "model": str(save_encoder(make_model, tokenizer, tmp_path / "encoder")),
        "train": str(write_classes(tmp_path / "train.jsonl", 90, 0)),
        "validation": str(write_classes(tmp_path / "dev.jsonl", 40, 1)),
    }
    function = "tests.commands.test_resume:finetuned"
    (one,) = in_processes(1, function, tmp_path / "1", {"options": options})
    first, second = in_processes(2, function, tmp_path / "2", {"options": options})
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


# ----------------------------------------
# At an address

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
    code, _, errors = main("pretrain", "--out", ADDRESS, "--resume")
    assert code == 0, errors
    assert server.cat_file("/bucket/runs/a/model/model.safetensors") == weights


def test_a_stopped_run_goes_on_elsewhere_without_its_text(server: Elsewhere, corpus_file: Path) -> None:
    """From the address, named again or not, also if the text has changed after it was prepared."""
    server.pipe("/corpus/a.txt", corpus_file.read_bytes())
    options: dict[str, Any] = {"steps": 4, "vocab_size": 200, "settings": SMALL}
    with pytest.raises(Interrupted, match="saved at step 2.*--resume") as stopped:
        unmask.pretrain("elsewhere://corpus/a.txt", out=ADDRESS, callbacks=[Stopping(2)], **options)
    assert str(cache()) not in str(stopped.value)
    shutil.rmtree(cache())
    server.fetched.clear()
    server.pipe("/corpus/a.txt", b"Another text.\n")
    with pytest.raises(Interrupted):
        unmask.pretrain("elsewhere://corpus/a.txt", out=ADDRESS, resume=True, callbacks=[Stopping(3)], **options)
    assert unmask.pretrain(out=ADDRESS, resume=True).steps == 4
    assert "/corpus/a.txt" not in server.fetched


def test_fetched_text_is_the_same_in_another_cache(
    server: Elsewhere, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pipe("/corpus/a.txt", corpus_file.read_bytes())
    first = unmask.prepare("elsewhere://corpus/a.txt", out=tmp_path / "data", vocab_size=200)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "of another machine"))
    again = unmask.prepare("elsewhere://corpus/a.txt", out=tmp_path / "data", vocab_size=200, resume=True)
    assert again.to_dict() == first.to_dict()


def test_vectors_are_sent(server: Elsewhere, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    (tmp_path / "texts.txt").write_text("The cat sees the ship.\nThe dog follows.\n")
    assert unmask.embed(encoder, tmp_path / "texts.txt", out="elsewhere://bucket/vectors.npy").texts == 2
    assert server.cat_file("/bucket/vectors.npy")[:6] == b"\x93NUMPY"
    with pytest.raises(RunError, match="already exists"):
        unmask.embed(encoder, tmp_path / "texts.txt", out="elsewhere://bucket/vectors.npy")


OPTIONS = [
    "--steps", "80", "--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "model.num_heads=2",
    "--set", "training.sequence_length=32", "--set", "training.batch_tokens=256", "--set", "checkpoint.every_steps=10",
    "--set", "evaluation.times=3",
]  # fmt: skip


def start(data: Path, out: Path, *more: str) -> Forked:
    return start_command("pretrain", data, "--out", out, *OPTIONS, *more)


def wait_for_step(out: Path, step: int, process: subprocess.Popen[str] | Forked) -> None:
    """Until a checkpoint of the step is there; for 0, until the text is being prepared."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        done = [int(path.name.removeprefix("step-")) for path in list_checkpoints(out / "checkpoints")]
        if max(done, default=-1) >= step or (step == 0 and (out / "data").is_dir()):
            return
        time.sleep(0.005)
    raise AssertionError(f"step {step} was not reached: {process.communicate()[1]}")


def lines_of(out: Path) -> list[tuple[str, int]]:
    return [(m["kind"], m["step"]) for m in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.slow
def test_killed_again_and_again_the_weights_are_the_same(corpus_file: Path, tmp_path: Path) -> None:
    """From raw text: a kill while preparing, SIGTERM and a kill in training; then the run is finished."""
    more = ("--vocab-size", "200")
    whole = start(corpus_file, tmp_path / "whole", *more)
    assert whole.communicate(timeout=PATIENCE) is not None
    assert whole.returncode == 0

    rng = random.Random(2026)
    killed = tmp_path / "killed"
    for least, signum, code in (
        (0, signal.SIGKILL, -signal.SIGKILL),
        (20, signal.SIGTERM, 128 + signal.SIGTERM),
        (40, signal.SIGKILL, -signal.SIGKILL),
    ):
        process = start(corpus_file, killed, *more, "--resume")
        wait_for_step(killed, least, process)
        time.sleep(rng.uniform(0.0, 0.15))  # 40 steps more take several times as long
        process.send_signal(signum)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, errors
        assert signum == signal.SIGKILL or "with --resume" in " ".join(errors.split())
        assert not (killed / "summary.json").exists()
    last = start(corpus_file, killed, *more, "--resume", "--json")
    output, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors
    assert json.loads(output)["steps"] == 80

    assert contents(killed / "data") == contents(tmp_path / "whole" / "data")
    for name in ("model/model.safetensors", "model/config.json", "recipe.toml"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert list_checkpoints(killed / "checkpoints")[-1].name == "step-00000080"
    lines, expected = lines_of(killed), lines_of(tmp_path / "whole")
    of_stop = set(lines) - set(expected)  # SIGTERM adds a line at its step
    assert [line for line in lines if line not in of_stop] == expected, "no step is missing or told twice"
    assert len(of_stop) <= 1


# Restarts the processes once.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")


def undisturbed(folder: Path, *, data: str) -> None:
    """The undisturbed run of each of two processes."""
    unmask.pretrain([data], out=folder / "out", steps=80, settings=OPTIONS[3::2])


@pytest.mark.slow
def test_one_of_two_is_killed_and_they_go_on(data_folder: Path, tmp_path: Path) -> None:
    """The command of the pages; the second process is killed. The first ends by itself, or by the launcher's signal."""
    in_processes(2, "tests.commands.test_resume:undisturbed", tmp_path / "whole", {"data": str(data_folder)})
    whole = tmp_path / "whole" / "out"
    words = ["-m", "unmask", "pretrain", str(data_folder), "--out", str(tmp_path / "killed"), *OPTIONS]
    killed = subprocess.Popen(
        [sys.executable, *TORCHRUN, *words, "--resume", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wait_for_step(tmp_path / "killed", 20, killed)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    (second,) = (int(pid) for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(second, signal.SIGKILL)
    output, errors = killed.communicate(timeout=PATIENCE)
    assert killed.returncode == 0, errors
    assert json.loads(output)["steps"] == 80, "only one of the two prints its result"
    assert "resuming from step" in errors
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, tmp_path / "killed")]
    assert weights[0] == weights[1]
    assert lines_of(tmp_path / "killed") == lines_of(whole)
