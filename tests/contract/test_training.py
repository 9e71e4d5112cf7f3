"""Sixty steps of a small model: its rows, masks and losses; and the same weights after a stop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import unmask
from tests.contract.conftest import SMALL

Golden = Callable[..., None]
STRATEGIES = ("pmi", "contextual", "syntax", "mixture")  # each needs something else; masks of all are in test_masks.py
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


def test_strategies_that_follow_the_model_begin_with_words(data: Path, tmp_path: Path) -> None:
    """Until there are scores, all words have equal weight; from then on masks follow the model, at the same rate."""

    def curve_of(name: str, *settings: str) -> dict[str, list[Any]]:
        settings = (*SMALL, "masking.rate=0.3", *settings)
        return curve(unmask.pretrain(data, out=tmp_path / name, steps=40, strategy=name, settings=settings).folder)

    words = curve_of("whole_word")
    until = sum(step <= 20 for step in words["step"])
    assert 0 < until < len(words["step"])
    for strategy in OF_A_MODEL:
        followed = curve_of(strategy, "masking.refresh_steps=20")["predicted"]
        assert followed[:until] == words["predicted"][:until]
        assert followed[until:] != words["predicted"][until:]
        assert sum(followed) == pytest.approx(sum(words["predicted"]), rel=0.05)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_trains_as_it_did(name: str, data: Path, tmp_path: Path, golden: Golden) -> None:
    run = unmask.pretrain(data, out=tmp_path / "run", steps=10, settings=[*SMALL, *PARTS[name]])
    compare_curve(f"{name}, 10 steps", run, golden)
    golden(f"tensors: {name}", {key: list(tensor.shape) for key, tensor in sorted(weights(run.folder).items())})


def test_a_stopped_run_goes_on_to_the_same_bytes(data: Path, tmp_path: Path) -> None:
    steps: list[int] = []

    class Stops(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: Any) -> None:
            steps.append(report.step)
            if len(steps) == 12:
                signal.raise_signal(signal.SIGTERM)

    def file(name: str, **more: Any) -> bytes:
        settings = [*SMALL, "checkpoint.every_steps=5"]
        unmask.pretrain(data, out=tmp_path / name, steps=20, settings=settings, **more)
        return (tmp_path / name / "model" / "model.safetensors").read_bytes()

    with pytest.raises(KeyboardInterrupt, match="step 12"):
        file("stopped", callbacks=[Stops()])
    assert not (tmp_path / "stopped" / "summary.json").exists()
    assert file("stopped", callbacks=[Stops()], resume=True) == file("whole") != file("another seed", seed=1)
    assert steps == [*range(1, 21)]
