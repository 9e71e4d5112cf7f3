"""Loops of CPUs against tensor operations: the same values and the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.model.on_gpu import tensor_operations
from unmask.model import fused
from unmask.model.fused import AttentionPlan, rotary_table
from unmask.model.layers import Attention, Norm

SEGMENTS = {
    "one segment": [[0] * 300] * 3,
    "several": [[0] * 300, [0] * 100 + [1] * 150 + [-1] * 50, [0] * 7 + [1] * 293],
}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 2e-5}, torch.bfloat16: {"rtol": 0.03, "atol": 0.03}}


class Activated(nn.Module):
    def __init__(self, *, gated: bool) -> None:
        super().__init__()
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        return fused.activate(x, "gelu", gated=self.gated)


def check(module: nn.Module, *inputs: object, dtype: torch.dtype = torch.float32) -> None:
    """Values and gradients of a module with loops, and with tensor operations."""

    def run() -> list[Tensor]:
        arguments = [x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
        out = module(*arguments)
        outs = [out] if isinstance(out, Tensor) else list(out)
        factors = [(1.0 + draw(*o.shape, seed=50)).to(o.dtype) for o in outs]
        leaves = [x for x in arguments if isinstance(x, Tensor)] + list(module.parameters())
        total = sum((o * f).sum() for o, f in zip(outs, factors, strict=True))
        return [*outs, *torch.autograd.grad(total, leaves)]  # type: ignore[arg-type]

    fast = run()
    with pytest.MonkeyPatch.context() as patch:
        tensor_operations(patch)
        plain = run()
    for ours, theirs in zip(fast, plain, strict=True):
        assert ours.dtype == theirs.dtype
        scale = float(functional.pad(theirs.detach().abs().flatten(), (0, 1)).max()) or 1.0
        torch.testing.assert_close(ours / scale, theirs / scale, **TOLERANCE[dtype])


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


FAR = torch.tensor([[-1e4, -100.0, -12.0, -1e-8, 0.0, 1e-8, 12.0, 100.0, 1e4, 3.0]])


# In bf16 all loops read and write numbers by the same functions.
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_gelu(dtype: torch.dtype) -> None:
    for gated in (False, True):
        check(Activated(gated=gated), 3.0 * draw(5, 7, 34, dtype=dtype), dtype=dtype)
    if dtype == torch.float32:
        check(Activated(gated=False), FAR)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 32), (1, 32), (200, 33), (0, 8)], ids=str)
def test_norms(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    norm = Norm(shape[-1], eps=1e-5, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(norm.parameters()):
            parameter.copy_(1.0 + 0.3 * draw(shape[-1], seed=number))
    x = 2.0 + draw(*shape, dtype=dtype)
    check(norm, x, dtype=dtype)

    norm.forward = norm.of_sum  # type: ignore[assignment]
    check(norm, x, draw(*shape, dtype=dtype, seed=7), dtype=dtype)


def plan_of(segments: list[list[int]], *, window: int | None, rotary: bool, head_dim: int = 8) -> AttentionPlan:
    segment_ids = torch.tensor(segments, dtype=torch.int32)
    positions = torch.arange(segment_ids.shape[1]).expand_as(segment_ids)
    angles = rotary_table(positions, head_dim=head_dim, theta=100.0) if rotary else None
    return AttentionPlan(segment_ids, 2, window, angles)


class Attending(nn.Module):
    """Attention under a plan, without outputs at padding, which mean nothing."""

    def __init__(self, plan: AttentionPlan) -> None:
        super().__init__()
        self.attention = Attention(16, 2)
        for number, parameter in enumerate(self.parameters()):
            nn.init.normal_(parameter, std=0.4, generator=torch.Generator().manual_seed(number))
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.attention(x, self.plan)
        return mixed * (self.plan.segment_ids_BS >= 0)[..., None]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("window", [None, 20, 299])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_attention(segments: str, window: int | None, rotary: bool, dtype: torch.dtype) -> None:
    plan = plan_of(SEGMENTS[segments], window=window, rotary=rotary)
    check(Attending(plan), draw(3, 300, 16, dtype=dtype), dtype=dtype)


@pytest.mark.parametrize("stored_length", [0, 256])
@pytest.mark.parametrize("scores", [1, 40_000, 1 << 22])
@pytest.mark.parametrize("length", [1, 5, 100])
def test_attention_in_any_tiles(length: int, scores: int, stored_length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "SCORES", scores)
    monkeypatch.setattr(fused, "STORED_LENGTH", stored_length)
    plan = plan_of([[0] * length, [0] * (length // 2) + [1] * (length - length // 2)] * 2, window=None, rotary=True)
    assert len(plan.tiles) == (4 if scores == 1 else 1 if scores > 40_000 or length < 100 else 2)
    check(Attending(plan), draw(4, length, 16))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_queries_of_global_layers_are_cut_where_rows_are_very_long(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "LARGEST", 2 * 300 * 150)
    plan = plan_of([[0] * 300, [0] * 140 + [1] * 160], window=None, rotary=True)
    assert [(tile.queries.start, tile.queries.stop) for tile in plan.tiles] == [(0, 128), (128, 256), (256, 300)]
    check(Attending(plan), draw(2, 300, 16, dtype=dtype), dtype=dtype)


def test_what_is_not_seen_has_no_influence_at_all() -> None:
    """Not even a tiny one: the probabilities are 0, not small."""
    plan = plan_of([[0] * 10 + [1] * 6], window=None, rotary=True)
    module = Attending(plan)
    x = draw(1, 16, 16)
    changed = x.clone()
    changed[:, 10:] = 1e6
    assert torch.equal(module(x)[:, :10], module(changed)[:, :10])


def test_what_is_not_a_number_stays_so() -> None:
    """A diverging training must be visible."""
    x, tokens, bias = draw(4, 8), draw(50, 8, seed=1), draw(50, seed=2)
    x[1, 3] = float("nan")
    actual = fused.losses_of_decoder(x, tokens, bias, torch.arange(4))
    assert actual.each_N.isfinite().tolist() == [True, False, True, True]
    assert not fused.losses_of_decoder(draw(4, 8), tokens, bias * x[1, 3], torch.arange(4)).each_N.isfinite().any()
    norm = Norm(8, eps=1e-5)
    assert norm(x).isfinite().all(1).tolist() == [True, False, True, True]


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    plan = plan_of(SEGMENTS["several"], window=20, rotary=True)
    module, norm = Attending(plan), Norm(16, eps=1e-5)
    x = draw(3, 300, 16)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows = x.clone().requires_grad_()
        out = norm(module(rows))
        results.append([out, *torch.autograd.grad(out.square().sum(), [rows, norm.weight])])
    torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
