"""The step of a GPU. Without one, the device of tensors without numbers stands for it.

Operations that need a number, for which the host would wait, fail there.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import rich_model
from tests.model.on_gpu import tensor_operations
from tests.train.helpers import MakeModel, Small, settings_of
from unmask.data.rows import Cursor, RowStream
from unmask.masking.masker import Masker
from unmask.model import encoder as encoder_module
from unmask.model.encoder import MaskedLM
from unmask.model.fused import choose_attention
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train import step as step_module
from unmask.train.hardware import choose_dtype, sums_dtype, works_on_its_own
from unmask.train.objectives import PREDICT_MASKED, extra_objectives
from unmask.train.optimizer import build_optimizer
from unmask.train.runner import evaluating, hidden_states
from unmask.train.settings import ObjectivesSettings
from unmask.train.step import TrainState, training_step

CPU, CUDA, META = (torch.device(name) for name in ("cpu", "cuda", "meta"))


@pytest.fixture
def masker(tokenizer: Tokenizer) -> Masker:
    return Masker.from_tokenizer(tokenizer, strategy="span", rate=0.2)


class Sent:
    """In place of `Figures`, which would wait for a real device."""

    def __init__(self, step: int, counts: dict[str, int], values_F: Tensor, micro_batches: int) -> None:
        self.predicted_tokens, self.micro_batches = next(iter(counts.values())), micro_batches
        assert values_F.is_meta
        assert values_F.shape == (len(counts) + 1,)


class NoUpdate:
    """An optimizer that only records which parameters have a gradient."""

    param_groups: tuple[()] = ()
    _step_supports_amp_scaling = True

    def __init__(self, model: MaskedLM) -> None:
        self.model = model
        self.trained: set[str] = set()

    def step(self) -> None:
        assert self.found_inf.is_meta  # type: ignore[attr-defined]
        self.trained = {name for name, parameter in self.model.named_parameters() if parameter.grad is not None}


def test_a_device_without_numbers_refuses_what_waits() -> None:
    """Else the next test could not fail."""
    x = torch.ones(8, device=META)
    for waits in (lambda: x.sum().item(), lambda: torch.nonzero(x), lambda: x[x > 0], x.tolist):
        with pytest.raises((RuntimeError, NotImplementedError)):
            waits()


@pytest.mark.parametrize("layout", ["modernbert", "bert"])
@pytest.mark.parametrize("with_heads", [False, True])
def test_nothing_up_to_the_update_needs_a_number_of_the_device(
    make_model: MakeModel,
    tokenizer: Tokenizer,
    stream: RowStream,
    masker: Masker,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    with_heads: bool,
) -> None:
    """Rows on the host, the model where tensors only know their shape: torch's own kernel over sequences in bf16,
    windows, dropout, two parts, targets, losses, what is observed, backward and clipping."""
    monkeypatch.setattr(encoder_module, "choose_attention", lambda *positional, **named: "varlen")
    monkeypatch.setattr(step_module, "works_on_its_own", lambda device: True)
    monkeypatch.setattr(step_module, "Figures", Sent)
    rows = stream.batch(Cursor(), 8).rows
    masked = Masker(masker.settings, tokenizer, with_boundaries=with_heads)(rows)
    asked = {"span_boundary": {}, "retromae": {"prediction_rate": 0.5}} if with_heads else {}
    others = extra_objectives(ObjectivesSettings.model_validate(asked))
    config = make_model(layout=layout, dropout=0.1).encoder.config
    with META:
        model = rich_model(config, boundary_length=10 if with_heads else None, retromae=with_heads).train()
    model.encoder.compute_dtype = torch.bfloat16
    optimizer, board = NoUpdate(model), Mock(needs_steps=True)
    state = TrainState(model, optimizer, micro_tokens=4 * 32, board=board)  # type: ignore[arg-type]
    result = training_step(state, settings_of(seed=7), rows, masked, objectives=(PREDICT_MASKED, *others))
    assert optimizer.trained == {name for name, _ in model.named_parameters() if "pooler" not in name}
    assert result.micro_batches == 2
    assert result.predicted_tokens == int((masked.labels >= 0).sum())
    targets_N, losses_N, _ = board.observe.call_args.args
    assert losses_N.is_meta
    assert len(losses_N) == len(targets_N) == result.predicted_tokens


def test_texts_are_run_through_without_a_number_of_the_device(
    make_model: MakeModel, stream: RowStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "choose_attention", lambda *positional, **named: "varlen")
    with META:
        model = MaskedLM(make_model().config)
    model.encoder.compute_dtype = torch.bfloat16
    rows = stream.batch(Cursor(), 8).rows
    with evaluating(model):
        assert hidden_states(model, rows, rows.input_ids).is_meta


class NothingWaits(TorchDispatchMode):
    """Refuses operations whose result the host would have to wait for."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        masks = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        assert name not in self.waits, name
        assert not masks, "an index that is a mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_no_update_waits_for_the_device(small: Small, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both optimizers with the flag of a diverged step on the device, on real numbers."""
    monkeypatch.setattr("unmask.train.optimizer.serves", lambda tensor: False)
    state = small.state(settings_of(optimizer={"kind": optimizer}))
    before = state.model.encoder.tokens.detach().clone()
    with NothingWaits():
        for _ in range(2):
            for parameter in state.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            state.optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
            state.optimizer.step()
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            before.sum().item()
    assert not torch.equal(before, state.model.encoder.tokens)


class NoDoubles(TorchDispatchMode):
    """Refuses operations that Apple's GPUs lack."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        actual = func(*args, **(kwargs or {}))
        for each in actual if isinstance(actual, tuple | list) else [actual]:
            assert not isinstance(each, Tensor) or each.dtype != torch.float64, func.__name__
        return actual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_tensor_operations_needs_no_float64(
    small: Small, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """All that a step does on Apple's GPUs, on a CPU: attention with a bias, no loops, sums in float32."""
    apple = torch.device("mps")
    assert sums_dtype(apple) == torch.float32
    assert not works_on_its_own(apple)
    assert choose_dtype("auto", apple) == torch.float32
    chosen = choose_attention(apple, dtype, head_dim=16, window=8)
    assert chosen == "bias"
    tensor_operations(monkeypatch)
    monkeypatch.setattr(encoder_module, "choose_attention", lambda *given, **named: chosen)
    monkeypatch.setattr("unmask.train.optimizer.serves", lambda tensor: False)
    losses = []
    for sums in (torch.float64, torch.float32):
        monkeypatch.setattr(step_module, "sums_dtype", lambda device, sums=sums: sums)
        settings = settings_of()
        state = small.state(settings)
        state.model.encoder.compute_dtype = dtype
        rows = small.stream.batch(Cursor(), 8).rows
        masked = small.masker(rows)
        with NoDoubles() if sums == torch.float32 else nullcontext():
            result = training_step(state, settings, rows, masked)
        losses.append(result.read().loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def gpu_state(make_model: MakeModel, settings: Any, dtype: torch.dtype) -> Any:
    model = make_model(initializer_range=0.02).to("cuda")
    model.encoder.compute_dtype = dtype
    return TrainState(model, build_optimizer(model, settings))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_what_a_cpu_learns(small: Small, dtype: torch.dtype, compiled: bool) -> None:
    from unmask.model.encoder import compile_model

    settings = settings_of(steps=30, optimizer={"kind": "adamw"})
    here = small.state(settings)
    here.model.load_state_dict(small.make_model(initializer_range=0.02).state_dict())
    there = gpu_state(small.make_model, settings, dtype)
    if compiled:
        compile_model(there.model)
    expected = [report.loss for report in small.train(here, settings)]
    actual = [report.loss for report in small.train(there, settings)]
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    assert actual == pytest.approx(expected, rel=tolerance)
    assert (there.cursor, there.tokens_seen) == (here.cursor, here.tokens_seen)
    assert (there.model.encoder.compiled_block is not None) == compiled, "else it went on without"


@pytest.mark.gpu
@needs_gpu
def test_a_real_step_does_not_wait(make_model: MakeModel, stream: RowStream, masker: Masker) -> None:
    settings = settings_of(optimizer={"kind": "muon"})
    state = gpu_state(make_model, settings, torch.bfloat16)
    rows = stream.batch(Cursor(), 8).rows
    masked = masker(rows)
    state.model.train()
    for step in range(4):
        if step == 2:  # libraries that are set up by the first steps may wait
            torch.cuda.set_sync_debug_mode("error")
        try:
            result = training_step(state, settings, rows, masked)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert result.read().loss > 0.0


@pytest.mark.gpu
@needs_gpu
def test_sequences_in_a_line_equal_a_bias_on_a_gpu(
    make_model: MakeModel, stream: RowStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model().to("cuda")
    model.encoder.compute_dtype = torch.bfloat16
    rows = stream.batch(Cursor(), 8).rows.to(CUDA)
    given = {"segment_ids_BS": rows.segment_ids, "position_ids_BS": rows.position_ids}
    in_line = model.encoder(rows.input_ids, **given)
    monkeypatch.setattr(encoder_module, "choose_attention", lambda *positional, **named: "bias")
    biased = model.encoder(rows.input_ids, **given)
    real = rows.segment_ids >= 0
    torch.testing.assert_close(in_line[real], biased[real], rtol=0.05, atol=0.05)
