"""Runs that were stopped, killed or resumed from an address equal an unbroken run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import PATIENCE
from tests.commands.checkpoints import Stopping
from tests.commands.finetune_helpers import FAST, MakeModel, save_encoder, write_classes
from tests.contract.conftest import sets
from tests.data.corpora import contents
from tests.elsewhere import Elsewhere
from tests.processes import Forked, command, in_processes
from unmask.commands import finetune_run
from unmask.commands.cli import ConsoleReporter
from unmask.core.errors import RunError
from unmask.core.files import cache
from unmask.core.interruption import Interrupted
from unmask.core.results import Progress
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import StepReport
from unmask.train.checkpoints import list_checkpoints


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
    with pytest.raises(RunError, match=r"finetune\.seeds"):
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


# ----------------------------------------
# At an address

SMALL = ("model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.batch_tokens=256")
ADDRESS = "elsewhere://bucket/runs/a"


def test_a_stopped_run_goes_on_elsewhere_without_its_text(server: Elsewhere, corpus_file: Path) -> None:
    """Also if the text has changed after it was prepared."""
    server.pipe("/corpus/a.txt", corpus_file.read_bytes())
    options: dict[str, Any] = {"steps": 4, "vocab_size": 200, "settings": SMALL}
    with pytest.raises(Interrupted, match="step 2.*--resume") as stopped:
        unmask.pretrain("elsewhere://corpus/a.txt", out=ADDRESS, callbacks=[Stopping(2)], **options)
    assert str(cache()) not in str(stopped.value)
    shutil.rmtree(cache())
    server.fetched.clear()
    server.pipe("/corpus/a.txt", b"Another text.\n")
    run = unmask.pretrain(out=ADDRESS, resume=True)
    assert "/corpus/a.txt" not in server.fetched
    assert server.sent[-1] == "/bucket/runs/a/summary.json"
    assert json.loads(server.cat_file("/bucket/runs/a/summary.json")) == run.summary
    assert run.steps == 4
    with pytest.raises(RunError, match=ADDRESS):
        unmask.pretrain(out=ADDRESS, steps=4, settings=SMALL)
    weights = server.cat_file("/bucket/runs/a/model/model.safetensors")
    shutil.rmtree(cache())
    unmask.pretrain(out=ADDRESS, resume=True)
    assert server.cat_file("/bucket/runs/a/model/model.safetensors") == weights


def test_vectors_are_sent(server: Elsewhere, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    (tmp_path / "texts.txt").write_text("The cat sees the ship.\nThe dog follows.\n")
    assert unmask.embed(encoder, tmp_path / "texts.txt", out="elsewhere://bucket/vectors.npy").texts == 2
    assert server.cat_file("/bucket/vectors.npy")[:6] == b"\x93NUMPY"
    with pytest.raises(RunError, match=r"vectors\.npy"):
        unmask.embed(encoder, tmp_path / "texts.txt", out="elsewhere://bucket/vectors.npy")


# ----------------------------------------
# Killed; tests/data/test_data_folder.py kills a preparation.

STEPS = 60
SETTINGS = (*SMALL, "training.sequence_length=32", "checkpoint.every_steps=10", "evaluation.times=3")
OPTIONS = ["--steps", str(STEPS), *sets(SETTINGS), "--resume"]
FINISHED = "tests.commands.test_resume:finished"


def finished(folder: Path, *, data: str, **options: Any) -> None:
    """A run that nothing stops, or the rest of one."""
    unmask.pretrain([data], out=folder / "out", steps=STEPS, settings=SETTINGS, **options)


def ending(signum: int, moment: str, *words: object) -> None:
    """The command line, which sends itself a signal where its progress says so."""

    def notify(reporter: ConsoleReporter, progress: Progress) -> None:
        if moment in f"{progress.what} {progress.facts}":
            os.kill(os.getpid(), signum)

    ConsoleReporter.notify = notify  # type: ignore[method-assign]  # in a process of its own
    command(*map(str, words))


def lines_of(out: Path) -> list[tuple[str, int]]:
    return [(m["kind"], m["step"]) for m in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.slow
def test_a_run_that_was_stopped_and_killed_has_the_same_weights(corpus_file: Path, tmp_path: Path) -> None:
    """From raw text: SIGTERM while preparing, a kill in training; then the run is finished."""
    whole, killed = tmp_path / "whole" / "out", tmp_path / "killed" / "out"
    options = {"data": str(corpus_file), "vocab_size": 200}
    in_processes(1, FINISHED, whole.parent, options)
    words = ("pretrain", corpus_file, "--out", killed, "--vocab-size", 200, *OPTIONS)
    for moment, signum, code in (
        ("tokenizing", signal.SIGTERM, 128 + signal.SIGTERM),
        ("step 25,", signal.SIGKILL, -signal.SIGKILL),
    ):
        process = Forked(ending, signum, moment, *words)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, errors
        assert signum == signal.SIGKILL or "with --resume" in " ".join(errors.split())
        assert not (killed / "summary.json").exists()
    in_processes(1, FINISHED, killed.parent, options | {"resume": True})

    assert contents(killed / "data") == contents(whole / "data")
    for name in ("model/model.safetensors", "model/config.json", "recipe.toml"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert lines_of(killed) == lines_of(whole), "no step is missing or told twice"
