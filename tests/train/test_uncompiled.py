"""Runs whose blocks cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError

from tests.model.on_gpu import tensor_operations
from tests.train.helpers import MakeModel, new_state, settings_of, train, weights_of
from unmask.core.errors import SettingsError
from unmask.data.rows import RowStream
from unmask.masking.masker import Masker
from unmask.model.fused import losses_of_part
from unmask.model.layers import run_block
from unmask.train.step import TrainState, failed_to_compile


@pytest.fixture(autouse=True)
def operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a GPU."""
    tensor_operations(monkeypatch)
    monkeypatch.setattr("unmask.model.encoder.choose_attention", lambda *given, **named: "bias")


def backend(graph: Any, inputs: Any) -> Any:
    raise NotImplementedError("no such kernel\nand much more")


def fails(*_: Any) -> Any:
    raise InternalTorchDynamoError("AttributeError: no such kernel")


def fails_later(calls: int = 2) -> Callable[..., Any]:
    """A compiled block that exists for some layers, and not for the next one."""
    made = []

    def block(*given: Any) -> Any:
        made.append(given[0])
        return fails() if len(made) > calls else run_block(*given)

    return block


def fails_backward(*given: Any) -> Any:
    x_BSD, added_BSD = run_block(*given)
    x_BSD.register_hook(fails)
    return x_BSD, added_BSD


def in_the_block(state: TrainState) -> None:
    state.model.encoder.compiled_block, state.model.head.compiled_losses = fails_later(), losses_of_part


def in_the_backward_pass(state: TrainState) -> None:
    state.model.encoder.compiled_block, state.model.head.compiled_losses = fails_backward, losses_of_part


def in_the_loss(state: TrainState) -> None:
    state.model.encoder.compiled_block, state.model.head.compiled_losses = run_block, fails


@pytest.mark.parametrize("place", [in_the_block, in_the_backward_pass, in_the_loss])
def test_auto_goes_on_without(
    make_model: MakeModel,
    stream: RowStream,
    masker: Masker,
    caplog: pytest.LogCaptureFixture,
    place: Callable[[TrainState], None],
) -> None:
    """The same weights as if compiling had never been tried."""
    settings = settings_of(steps=3)
    plain, tried = new_state(make_model, settings), new_state(make_model, settings)
    place(tried)
    expected = [report.loss for report in train(plain, stream, masker, settings)]
    assert [report.loss for report in train(tried, stream, masker, settings)] == expected
    assert torch.equal(weights_of(plain), weights_of(tried))
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == (
        "blocks cannot be compiled (InternalTorchDynamoError: AttributeError: no such kernel): "
        "training continues uncompiled and slower"
    )
    assert tried.model.encoder.compiled_block is tried.model.head.compiled_losses is None
    assert not tried.ran_out, "nothing to do with memory"


def test_yes_is_an_error_that_says_how_to_go_on(make_model: MakeModel, stream: RowStream, masker: Masker) -> None:
    settings = settings_of(compile_blocks="yes")
    state = new_state(make_model, settings)
    in_the_block(state)
    with pytest.raises(SettingsError, match="compile_blocks"):
        next(train(state, stream, masker, settings))


def test_memory_that_runs_out_while_compiling_is_not_a_failure_to_compile(
    make_model: MakeModel, stream: RowStream, masker: Masker
) -> None:
    """Parts become smaller, and blocks stay compiled."""
    full = torch.OutOfMemoryError("CUDA out of memory")
    assert not failed_to_compile(full)
    assert failed_to_compile(BackendCompilerFailed(backend, NotImplementedError(), None))
    settings = settings_of(steps=2)
    state = new_state(make_model, settings)

    def block(layer: Any, x_BSD: Tensor, *rest: Any) -> Any:
        if len(x_BSD) > 4:
            raise BackendCompilerFailed(backend, full, None)
        return run_block(layer, x_BSD, *rest)

    state.model.encoder.compiled_block = block
    assert [report.micro_batches for report in train(state, stream, masker, settings)] == [2, 2]
    assert state.model.encoder.compiled_block is block
