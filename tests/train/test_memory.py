"""Steps in parts: asked for, or forced by memory that runs out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.helpers import MakeModel, new_state, save_checkpoint, settings_of, train, weights_of
from unmask.data.rows import RowStream
from unmask.masking.masker import Masker
from unmask.train.checkpoints import load_checkpoint
from unmask.train.step import TrainState


def small_memory(state: TrainState, most_rows: int, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Any]) -> None:
    """Lets the model fail where more rows come at once."""
    forward = state.model.encoder.forward

    def limited(ids: torch.Tensor, **rest: Any) -> torch.Tensor:
        if len(ids) > most_rows:
            raise error()
        return forward(ids, **rest)

    monkeypatch.setattr(state.model.encoder, "forward", limited)


def no_memory() -> RuntimeError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def no_memory_on_cpu() -> RuntimeError:
    return RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


@pytest.mark.parametrize("error", [no_memory, no_memory_on_cpu, MemoryError])
def test_where_memory_runs_out_the_step_is_made_in_halves(
    make_model: MakeModel,
    stream: RowStream,
    masker: Masker,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], Exception],
) -> None:
    """Eight rows do not fit, nor four; two do, and the weights are those of a run with parts of two rows."""
    small, results = settings_of(steps=4), settings_of(steps=4, micro_batch_tokens=64)
    first = new_state(make_model, small)
    small_memory(first, 2, monkeypatch, error)
    reports = list(train(first, stream, masker, small))
    assert [report.micro_batches for report in reports] == [4] * 4
    assert first.micro_tokens == 64
    second = new_state(make_model, results)
    assert [report.micro_batches for report in train(second, stream, masker, results)] == [4] * 4
    assert torch.equal(weights_of(first), weights_of(second))


def test_softmaxes_over_a_part_of_the_vocabulary_do_not_depend_on_the_parts_of_a_step(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step draws one sample for all its parts; without that, losses would differ by per cents."""
    monkeypatch.setattr("unmask.model.fused.NUM_SAMPLED", 20)
    losses = []
    for parts in (None, 64):
        settings = settings_of(steps=3, micro_batch_tokens=parts)
        state = new_state(make_model, settings)
        state.model.head.frequent_K = torch.arange(20)
        losses.append([report.loss for report in train(state, stream, masker, settings)])
        assert len(state.model.head.sample.ids_C) < state.model.config.vocab_size
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_a_resumed_run_may_have_larger_parts(
    make_model: MakeModel, stream: RowStream, masker: Masker, tmp_path: Path
) -> None:
    small, large = settings_of(steps=4, micro_batch_tokens=32), settings_of(steps=4, micro_batch_tokens=128)
    first, second = new_state(make_model, small), new_state(make_model, large)
    assert [report.micro_batches for report in islice(train(first, stream, masker, small), 2)] == [8, 8]
    load_checkpoint(save_checkpoint(tmp_path, first, fingerprint="x", keep=1), second, fingerprint="x")
    assert [report.micro_batches for report in train(second, stream, masker, large)] == [2, 2]


def test_what_was_found_out_about_memory_is_in_the_checkpoint(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_of(steps=6)
    whole, first, second = (new_state(make_model, settings) for _ in range(3))
    for state in (whole, first):
        small_memory(state, 3, monkeypatch, no_memory)
    for _ in train(whole, stream, masker, settings):
        pass
    for _ in islice(train(first, stream, masker, settings), 3):
        pass
    load_checkpoint(save_checkpoint(tmp_path, first, fingerprint="x", keep=1), second, fingerprint="x")
    assert second.micro_tokens == first.micro_tokens == 64
    for _ in train(second, stream, masker, settings):
        pass
    assert torch.equal(weights_of(whole), weights_of(second))
