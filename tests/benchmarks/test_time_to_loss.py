"""How time_to_loss.py summarises its runs, and a peer that learns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import plain_loop
import pytest
import time_to_loss as script
import torch

from tests.benchmarks.conftest import FewSteps
from unmask.commands.run_data import open_prepared
from unmask.measure.held_out import HeldOutSet

SMALL = ("model.num_layers=1", "model.hidden_size=64", "model.num_heads=1", "training.sequence_length=32")


@pytest.mark.parametrize(
    ("points", "loss", "seconds"),
    [
        (((60.0, 6.0), (120.0, 5.0), (180.0, 4.0)), 4.5, 150.0),  # in the middle between two looks
        (((60.0, 6.0), (120.0, 5.0), (180.0, 4.0)), 3.9, None),
        (((60.0, 6.0), (180.0, 4.0)), 6.5, 60.0),  # at most
        (((60.0, 4.4), (120.0, 5.0), (180.0, 4.0)), 4.5, 150.0),  # there before, but not for good
    ],
)
def test_when_a_curve_is_at_a_loss_for_good(
    points: Sequence[tuple[float, float]], loss: float, seconds: float | None
) -> None:
    reached = script.seconds_to([[*point, 0.2] for point in points], loss)
    assert reached == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert-adamw", "modernbert-muon", "trainer", "ours"])
def test_a_system_learns(data_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (plain_loop, script):
        monkeypatch.setattr(module, "Turn", FewSteps)
    rate = 0.02 if name == "ours" else 5e-3
    work = script.Work(str(data_folder), name, 0.1, 512, rate, compiled=False, length=32, overrides=SMALL, size=(1, 64))
    train = {"ours": script.train_ours, "trainer": plain_loop.train_by_trainer}.get(name, plain_loop.train_peer)
    figures = script.own_figures if name == "ours" else plain_loop.held_out_figures
    train(
        work,
        io.StringIO(),
        [],
        lambda data: partial(figures, HeldOutSet(data.validation, data.tokenizer, length=32, max_tokens=2000)),
    )
    turn = FewSteps.latest
    assert len(turn.counts) >= 40
    assert all(0 < tokens <= 512 for tokens in turn.counts)
    frequencies = open_prepared(data_folder).frequencies + 1.0
    shares = torch.from_numpy(frequencies / frequencies.sum())
    entropy = float(-(shares * shares.log()).sum())
    assert turn.figures[0] < entropy + 0.2, "it began at the logarithm of 200, two nats above"


def test_muon_gets_the_matrices_between_embedding_and_decoder(data_folder: Path) -> None:
    model = plain_loop.new_model(plain_loop.fast_tokenizer(data_folder), 32, compiled=False)
    names = {id(weight): name for name, weight in model.named_parameters()}
    muon, adamw = plain_loop.new_optimizers("modernbert-muon", model, 1e-3)
    of_muon = {names[id(weight)] for group in muon.param_groups for weight in group["params"]}
    of_adamw = {names[id(weight)] for group in adamw.param_groups for weight in group["params"]}
    assert len(of_muon) == 4 * 4 + 1  # queries, keys and values; their output; two of the MLP; the head
    assert "model.embeddings.tok_embeddings.weight" in of_adamw
    assert of_muon | of_adamw == set(names.values())
    assert not of_muon & of_adamw
