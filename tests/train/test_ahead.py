"""A loop whose figures come late: training as on a GPU, on a CPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.helpers import Small, settings_of, weights_of
from unmask.core.errors import DivergedError
from unmask.data.rows import WHOLE, Cursor, RowBatch, RowStream, Share
from unmask.model.layers import run_block
from unmask.train import trainer as loop_module
from unmask.train.callbacks import MetricsFile
from unmask.train.optimizer import state_tensors
from unmask.train.trainer import with_empty_rows


def test_a_stream_of_examples_makes_as_many_rows_as_these_need(stream: RowStream) -> None:
    rows = stream.batch(Cursor(), 5).rows
    assert with_empty_rows(rows, 8, pad_id=0).shape == (8, 32)
    assert with_empty_rows(rows, 5, pad_id=0) is with_empty_rows(rows, 1, pad_id=0) is rows
    targets = {"class": torch.zeros(5, 32, dtype=torch.int64), "number": torch.zeros(5, 32)}
    filled = with_empty_rows(replace(rows, classes=targets), 6, pad_id=0).classes
    assert (filled["class"][5] == -1).all(), "no class is right there"
    assert filled["number"][5].isnan().all(), "and no number"


def on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop and the step behave as on a GPU."""
    for module in ("trainer", "step"):
        monkeypatch.setattr(f"unmask.train.{module}.works_on_its_own", lambda device: True)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 9},
        {"steps": None, "tokens": 1500},
        {"steps": 9, "length_schedule": {"places": [0.0, 0.5], "lengths": [16, 32]}},
    ],
)
def test_training_ahead_is_training(small: Small, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """Bit for bit."""
    settings = settings_of(**changes)
    plain, reports = small.trained(settings)
    on_its_own(monkeypatch)
    ahead, again = small.trained(settings)
    assert [report.loss for report in again] == [report.loss for report in reports]
    assert torch.equal(weights_of(plain), weights_of(ahead))
    assert (plain.cursor, plain.step, plain.tokens_seen) == (ahead.cursor, ahead.step, ahead.tokens_seen)
    assert len(reports) > 5


def test_compiled_blocks_see_few_numbers_of_rows(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that returns more rows than were asked for, as one of pairs does; the empty ones count nothing."""

    class Pairs:
        def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
            batch = small.stream.batch(cursor, num_rows + cursor.row % 7, length, share=share)
            given.append(batch.rows.shape[0])
            return batch

    def block(*inputs: Any) -> Any:
        seen.append(inputs[1].shape[0])
        return run_block(*inputs)

    on_its_own(monkeypatch)
    settings, given, seen, reports = settings_of(steps=12, batch_tokens=1024), list[int](), list[int](), []
    for run in (None, block):
        state = small.state(settings)
        state.model.encoder.compiled_block = run
        reports.append(list(replace(small, stream=Pairs()).train(state, settings)))
    assert set(given) == {32, 34, 36, 38}
    assert set(seen) == {32, 36, 40}
    plain, rounded = reports
    assert [each.predicted_tokens for each in plain] == [each.predicted_tokens for each in rounded]
    assert [each.tokens for each in plain] == [each.tokens for each in rounded]
    assert [each.loss for each in plain] == pytest.approx([each.loss for each in rounded], rel=1e-5)


def test_a_loss_that_is_not_finite_is_found_some_steps_later(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A callback that reads the figures before it saves notices it in time."""
    on_its_own(monkeypatch)
    settings = settings_of(steps=20)
    state = small.state(settings)
    training = small.train(state, settings)
    next(training)
    with torch.no_grad():
        state.model.head.bias[7] = float("nan")
    report = next(training)
    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    metrics.on_figures(None, report)
    with pytest.raises(DivergedError, match="the loss of step 2 is nan"):
        metrics.sync()
    for _ in range(loop_module.STEPS_AHEAD - 1):
        next(training)
    with pytest.raises(DivergedError, match="the loss of step 2 is nan"):
        next(training)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("kind", "loops"), [("muon", False), ("muon", True), ("adamw", True)])
def test_a_step_that_diverges_changes_nothing(
    small: Small, monkeypatch: pytest.MonkeyPatch, kind: str, loops: bool, ahead: bool
) -> None:
    """Weights, moments and counts are unchanged, bit for bit, though on a GPU the host knows of it a step later."""
    if ahead:
        on_its_own(monkeypatch)
    monkeypatch.setattr("unmask.train.optimizer.serves", lambda tensor: loops)
    settings = settings_of(steps=4, optimizer={"kind": kind})
    state = small.state(settings)
    training = small.train(state, settings)
    for _ in range(3):
        next(training)

    def content() -> dict[str, torch.Tensor]:
        tensors = {**dict(state.model.named_parameters()), **state_tensors(state.optimizer, state.model)}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    before = content()
    broken = state.model.get_parameter("encoder.blocks.0.mlp_norm.weight")
    broken.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(DivergedError, match="the gradient of step 4 has the norm nan"):
        list(islice(training, 1 + ahead))  # on a CPU it is known before the update
    after = content()
    assert any(name.startswith("momentum") for name in before) == (kind == "muon")
    assert all(torch.equal(before[name], after[name]) for name in before)
