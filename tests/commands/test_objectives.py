"""Runs with other objectives beside masked tokens: figures, files, resuming, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unmask
from tests.commands.stopping import Stopping
from tests.conftest import SMALL
from unmask.commands.recipe import load_recipe
from unmask.core.errors import SettingsError
from unmask.core.interruption import Interrupted
from unmask.train.checkpoints import list_checkpoints
from unmask.train.trackers import read_metrics

PAIRS = ("model.layout=bert", "objectives.pairs.kind=next_sentence")
RETROMAE = ("objectives.retromae.weight=0.5", "masking.rate=0.3")
SPANS = ("masking.strategy=span", "objectives.span_boundary.weight=0.5")


def small_run(corpus: Path, out: Path, *settings: str, steps: int = 2, **options: object) -> unmask.Run:
    return unmask.pretrain(
        [corpus], out=out, steps=steps, vocab_size=200, settings=(*SMALL, "evaluation.times=1", *settings), **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "names"),
    [(PAIRS, ["next_sentence"]), (RETROMAE, ["retromae"]), ((*PAIRS, *SPANS), ["next_sentence", "span_boundary"])],
)
def test_a_run_tells_of_its_objectives(
    corpus_file: Path, tmp_path: Path, settings: tuple[str, ...], names: list[str]
) -> None:
    run = small_run(corpus_file, tmp_path / "run", *settings)
    assert list(run.summary["objectives"]) == names
    lines = read_metrics(run.folder / "metrics.jsonl")
    (trained,) = [line for line in lines if line["kind"] == "train"]
    assert list(trained["objectives"]) == names
    assert lines[-1]["objectives"] == run.summary["objectives"]
    page = (run.folder / "report.html").read_text()
    for name, figures in run.summary["objectives"].items():
        assert 0.0 <= figures["accuracy"] <= 1.0
        assert figures["count"] > 20
        assert f"{name.replace('_', ' ')}: right of {figures['count']}" in page
        chance = 0.69 if "sentence" in name else 5.2
        assert trained["objectives"][name] == pytest.approx(chance, abs=0.35)
        assert figures["loss"] == pytest.approx(chance, abs=0.6)
    stored = load_file(run.folder / "model" / "model.safetensors")
    assert ("cls.seq_relationship.weight" in stored) == ("next_sentence" in names)
    assert not any("boundary" in name or "retromae" in name for name in stored), "heads that no other tool runs"
    types = '"token_type_ids"' in (run.folder / "model" / "tokenizer_config.json").read_text()
    assert types == ("next_sentence" in names)


def test_a_run_goes_on_with_all_of_its_heads(corpus_file: Path, tmp_path: Path) -> None:
    """Stopped in the middle, it ends at the same weights and figures."""
    lengths = "training.length_schedule={places=[0.0,0.5],lengths=[32,64]}"
    settings = (*PAIRS, *SPANS, *RETROMAE, "checkpoint.every_steps=2", lengths)
    whole = small_run(corpus_file, tmp_path / "whole", *settings, steps=6)
    with pytest.raises(Interrupted):
        small_run(corpus_file, tmp_path / "again", *settings, steps=6, callbacks=[Stopping(4)])
    again = unmask.pretrain(out=tmp_path / "again", resume=True)
    assert again.summary["objectives"] == whole.summary["objectives"]
    first, second = (
        load_file(list_checkpoints(run.folder / "checkpoints")[-1] / "model.safetensors") for run in (whole, again)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    steps = [line["step"] for line in read_metrics(again.folder / "metrics.jsonl")]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("objectives.pairs.kind=next_sentence",), "modernbert"),
        ((*PAIRS, "model.type_vocab_size=1"), "type_vocab_size"),
        (("objectives.span_boundary.weight=1",), "objectives.span_boundary"),
    ],
)
def test_settings_that_cannot_be(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load_recipe(overrides=overrides)


def test_objectives_of_a_recipe_can_be_taken_out() -> None:
    plain = load_recipe("bert-base", overrides=("objectives.pairs=none", "model.layout=roberta"))
    assert plain.objectives.pairs is None
    plain = load_recipe("spanbert-base", overrides=("objectives.span_boundary=none", "masking.strategy=whole_word"))
    assert plain.objectives.span_boundary is None
