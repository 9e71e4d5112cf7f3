"""Runs whose blocks cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError

from tests.model.on_gpu import tensor_operations
from tests.train.helpers import Small, settings_of, weights_of
from unmask.core.errors import SettingsError
from unmask.model.fused import losses_of_part
from unmask.model.layers import run_block
from unmask.train.settings import TrainingSettings
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


PLACES: dict[str, Callable[[], tuple[Any, Any]]] = {  # what is compiled: the block, and the losses
    "block": lambda: (fails_later(), losses_of_part),
    "backward pass": lambda: (fails_backward, losses_of_part),
    "loss": lambda: (run_block, fails),
}


def compiled(small: Small, settings: TrainingSettings, place: str) -> TrainState:
    state = small.state(settings)
    state.model.encoder.compiled_block, state.model.head.compiled_losses = PLACES[place]()
    return state


@pytest.mark.parametrize("place", PLACES)
def test_auto_goes_on_without(small: Small, caplog: pytest.LogCaptureFixture, place: str) -> None:
    """The same weights as if compiling had never been tried."""
    settings = settings_of(steps=3)
    plain, reports = small.trained(settings)
    tried = compiled(small, settings, place)
    assert [report.loss for report in small.train(tried, settings)] == [report.loss for report in reports]
    assert torch.equal(weights_of(plain), weights_of(tried))
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "InternalTorchDynamoError: AttributeError: no such kernel" in line
    assert tried.model.encoder.compiled_block is tried.model.head.compiled_losses is None
    assert not tried.ran_out, "nothing to do with memory"


def test_yes_is_an_error_that_says_how_to_go_on(small: Small) -> None:
    settings = settings_of(compile_blocks="yes")
    with pytest.raises(SettingsError, match="compile_blocks"):
        next(small.train(compiled(small, settings, "block"), settings))


def test_memory_that_runs_out_while_compiling_is_not_a_failure_to_compile(small: Small) -> None:
    """Parts become smaller, and blocks stay compiled."""
    full = torch.OutOfMemoryError("CUDA out of memory")
    assert not failed_to_compile(full)
    assert failed_to_compile(BackendCompilerFailed(backend, NotImplementedError(), None))
    settings = settings_of(steps=2)
    state = small.state(settings)

    def block(layer: Any, x_BSD: Tensor, *rest: Any) -> Any:
        if len(x_BSD) > 4:
            raise BackendCompilerFailed(backend, full, None)
        return run_block(layer, x_BSD, *rest)

    state.model.encoder.compiled_block = block
    assert [report.micro_batches for report in small.train(state, settings)] == [2, 2]
    assert state.model.encoder.compiled_block is block
