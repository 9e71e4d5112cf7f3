"""Sixty steps of a small model: its rows, masks and losses; and the same weights for any number of processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import unmask
from tests.contract.conftest import SMALL, environment, process, sets

Golden = Callable[..., None]
STRATEGIES = ("random", "whole_word", "span", "entity", "phrase", "pmi", "frequency", "syntax", "contextual",
              "mixture")  # fmt: skip
OF_A_MODEL = ("adaptive", "semantic")
PARTS = {
    "bert": ("model.layout=bert",),
    "roberta": ("model.layout=roberta",),
    "pairs": ("model.layout=bert", "objectives.pairs.kind=sentence_order"),
    "boundaries": ("masking.strategy=span", "objectives.span_boundary.weight=1"),
    "vectors": ("objectives.retromae.weight=1",),
    "adamw": ("training.optimizer.kind=adamw", "training.learning_rate=0.001"),
    "static": ("masking.static=true", "masking.rate=0.15"),
    "hidden and not asked": ("masking.rate=0.4", "masking.prediction_rate=0.2"),
    "rates of a diffusion": (
        'masking.rate={kind="uniform", low=0.1, high=0.9, loss_weight="inverse"}',
        "masking.replacement.shares=[1.0, 0.0, 0.0]",
    ),
}


def curve(folder: Path) -> dict[str, list[Any]]:
    """The rows and masks, in numbers that no processor rounds, and the losses."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    return {
        "step": [line["step"] for line in steps],
        "epoch": [line["epoch"] for line in steps],
        "tokens": [line["tokens"] for line in steps],
        "predicted": [round(line["predicted_share"] * line["tokens"]) for line in steps],
        "loss": [line["loss"] for line in steps],
    }


def compare_curve(name: str, run: unmask.Run, golden: Golden) -> None:
    found = curve(run.folder)
    losses = found.pop("loss")
    golden(f"curve: {name}", {**found, "steps": run.summary["steps"], "tokens_seen": run.summary["tokens_seen"]})
    golden(f"losses: {name}", losses, within=1e-3)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model" / "model.safetensors")


def test_sixty_steps_stay_what_they_are(run: unmask.Run, golden: Golden) -> None:
    compare_curve("whole words", run, golden)
    golden("parameters: whole words", [run.summary["num_parameters"], run.summary["vocab_size"]])


def test_sixty_steps_on_the_packaged_text_stay(tmp_path: Path, golden: Golden) -> None:
    settings = [*SMALL, "model.num_layers=2"]
    run = unmask.pretrain(out=tmp_path / "run", steps=60, vocab_size=1024, settings=settings)
    compare_curve("packaged text", run, golden)
    golden("entropy: packaged text", run.summary["unigram_entropy"], within=1e-6)
    assert run.summary["validation_loss"] < 6.95, "the entropy of equal tokens"


def test_held_out_figures_stay(run: unmask.Run, golden: Golden) -> None:
    """Masks of evaluation are those of the evaluation, whatever the strategy."""
    golden("held out: predicted", run.summary["predicted_tokens"])
    golden("held out: loss", run.summary["validation_loss"], within=1e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_trains_on_its_masks(strategy: str, data: Path, tmp_path: Path, golden: Golden) -> None:
    run = unmask.pretrain(data, out=tmp_path / "run", steps=10, strategy=strategy, settings=SMALL)
    compare_curve(f"{strategy}, 10 steps", run, golden)


@pytest.mark.parametrize("strategy", OF_A_MODEL)
def test_a_strategy_that_follows_the_model_begins_with_words(strategy: str, data: Path, tmp_path: Path) -> None:
    """Until there are scores, all words have equal weight; from then on masks follow the model, at the same rate."""

    def predicted(name: str, *settings: str) -> list[int]:
        settings = (*SMALL, "masking.rate=0.3", *settings)
        run = unmask.pretrain(data, out=tmp_path / name, steps=40, strategy=name, settings=settings)
        return curve(run.folder)["predicted"]

    followed, words = predicted(strategy, "masking.refresh_steps=20"), predicted("whole_word")
    steps = curve(tmp_path / strategy)["step"]
    until = sum(step <= 20 for step in steps)
    assert 0 < until < len(steps)
    assert followed[:until] == words[:until]
    assert followed[until:] != words[until:]
    assert sum(followed) == pytest.approx(sum(words), rel=0.05)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_trains_as_it_did(name: str, data: Path, tmp_path: Path, golden: Golden) -> None:
    run = unmask.pretrain(data, out=tmp_path / "run", steps=10, settings=[*SMALL, *PARTS[name]])
    compare_curve(f"{name}, 10 steps", run, golden)
    golden(f"tensors: {name}", {key: list(tensor.shape) for key, tensor in sorted(weights(run.folder).items())})


def test_equal_runs_have_equal_weights_and_other_seeds_others(data: Path, tmp_path: Path) -> None:
    def file(name: str, seed: int) -> bytes:
        unmask.pretrain(data, out=tmp_path / name, steps=5, seed=seed, settings=SMALL)
        return (tmp_path / name / "model" / "model.safetensors").read_bytes()

    assert file("first", 3) == file("second", 3) != file("third", 4)


LONG = ("pretrain", "--steps", "150", *sets((*SMALL, "checkpoint.every_steps=20")))


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a separate process, with the same number of threads as the others."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    done = process("-m", "unmask", *LONG, data, "--out", out)
    assert done.code == 0, done.err
    return out


def test_a_run_that_was_stopped_ends_at_the_same_bytes(data: Path, uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*map(str, ("-m", "unmask", *LONG, data, "--out", out))]
    begun = subprocess.Popen([sys.executable, *words], env=environment(), stderr=subprocess.DEVNULL)
    metrics = out / "metrics.jsonl"
    while begun.poll() is None and not (metrics.exists() and '"train"' in metrics.read_text(encoding="utf-8")):
        time.sleep(0.005)
    begun.send_signal(signal.SIGTERM)
    assert begun.wait(timeout=60) == 128 + signal.SIGTERM
    assert not (out / "summary.json").exists()
    done = process(*words, "--resume", "--json")
    assert done.code == 0, done.err
    assert done.json["steps"] == 150
    assert weights_file(out) == weights_file(uninterrupted)
    first, second = curve(uninterrupted), curve(out)
    last = {step: loss for step, loss in zip(first["step"], first["loss"], strict=True) if step > 130}
    assert last.items() <= dict(zip(second["step"], second["loss"], strict=True)).items()


def test_two_processes_make_the_weights_of_one(run: unmask.Run, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "unmask", "pretrain")
    words = (data, "--out", out, "--steps", 60, "--strategy", "whole_word", *sets(SMALL), "--json")
    done = process(*torchrun, *words)
    assert done.code == 0, done.err
    assert done.json["steps"] == 60
    one, two = weights(run.folder), weights(out)
    assert one.keys() == two.keys()
    assert curve(out)["predicted"] == curve(run.folder)["predicted"]
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, rtol=0.0, atol=1e-5 * float(tensor.abs().max())), name


def weights_file(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()
