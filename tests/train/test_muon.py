from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.model.helpers import MakeModel
from tests.train.helpers import settings_of
from unmask.train import checkpoints
from unmask.train.checkpoints import place_model
from unmask.train.optimizer import POLYNOMIALS, Muon, build_optimizer


@dataclass(frozen=True)
class Matrix:
    name: str
    weight: nn.Parameter
    num_fused: int = 1


def muon(matrices: list[Matrix], lr: float = 0.1, dtype: torch.dtype = torch.float32, **changes: float) -> Muon:
    options = {"momentum": 0.9, "weight_decay": 0.1} | changes
    return Muon({m.weight: m.num_fused for m in matrices}, lr=lr, dtype=dtype, **options)  # type: ignore[arg-type]


def matrix(rows: int, columns: int, num_fused: int = 1, seed: int = 0, name: str = "w") -> Matrix:
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.randn(rows, columns, generator=generator))
    weight.grad = torch.randn(rows, columns, generator=generator)
    return Matrix(name, weight, num_fused)


def test_polynomials_bring_values_as_near_to_one_as_is_said() -> None:
    values = torch.logspace(math.log10(1e-2), 0.0, 20_000, dtype=torch.float64)
    for a, b, c in POLYNOMIALS:
        values = a * values + b * values**3 + c * values**5
    assert (values - 1.0).abs().max() == pytest.approx(0.2819, abs=2e-4)


@pytest.mark.parametrize("loops", [True, False])
def test_matrices_of_rank_1_in_bf16(loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier of two classes has such gradients, [g, -g]; that of one example has, too."""
    monkeypatch.setattr("unmask.train.optimizer.serves", lambda tensor: loops)
    generator = torch.Generator().manual_seed(0)
    for rows, columns in [(2, 128), (2, 256), (2, 768), (3, 256), (10, 256), (50, 128)]:
        error = torch.rand(rows, 1, generator=generator)
        error = torch.cat([error[1:], -error[1:].sum(dim=0, keepdim=True)])
        weight = nn.Parameter(torch.zeros(rows, columns))
        weight.grad = error * torch.randn(1, columns, generator=generator)
        muon([Matrix("w", weight)], 1.0, torch.bfloat16, weight_decay=0.0).step()
        largest = torch.linalg.matrix_norm(weight.detach(), 2) / (0.2 * columns**0.5)
        assert 0.7 < largest < 1.3


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (16, 40), (40, 16)])
def test_a_single_matrix_agrees_with_torchs_own_muon(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one_for_all_steps = ((3.4445, -4.7750, 2.0315),) * 5
    monkeypatch.setattr("unmask.train.optimizer.POLYNOMIALS", one_for_all_steps)
    ours, theirs = matrix(rows, columns), matrix(rows, columns)
    other = torch.optim.Muon(
        [theirs.weight], lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=True, ns_steps=5,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    mine = muon([ours], 0.02)
    for step in range(3):
        for m in (ours, theirs):
            m.weight.grad = torch.randn(rows, columns, generator=torch.Generator().manual_seed(step))
        mine.step()
        other.step()
    # torch multiplies in bfloat16, so single entries differ; the direction is the same.
    moved = [(m.weight - matrix(rows, columns).weight).detach().flatten() for m in (ours, theirs)]
    assert torch.cosine_similarity(*moved, dim=0) > 0.999
    assert moved[0].norm() == pytest.approx(float(moved[1].norm()), rel=0.02)


def test_matrices_are_trained_as_if_alone() -> None:
    """Matrices of one shape together, and fused ones separately."""
    together = [matrix(12, 30, name="a"), matrix(30, 12, seed=1, name="b"), matrix(24, 30, 2, seed=2, name="c")]
    alone = [matrix(12, 30, name="a"), matrix(30, 12, seed=1, name="b")]
    fused = together[2].weight
    for part, gradient in zip(fused.split(12), fused.grad.split(12), strict=True):
        alone.append(Matrix("c", nn.Parameter(part.detach().clone())))
        alone[-1].weight.grad = gradient.clone()
    muon(together).step()
    for one in alone:
        muon([one]).step()
    apart = [alone[0].weight, alone[1].weight, torch.cat([each.weight for each in alone[2:]])]
    for a, b in zip(together, apart, strict=True):
        assert torch.allclose(a.weight, b, atol=1e-5)


def test_loops_and_operations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several steps, with wide, tall and fused matrices."""
    shapes = [(12, 30, 1), (30, 12, 1), (60, 12, 2), (37, 37, 1), (5, 700, 1)]
    looped, plain = ([matrix(r, c, n, name=f"{r}x{c}") for r, c, n in shapes] for _ in range(2))
    optimizers = [muon(looped), muon(plain)]
    for step in range(3):
        for m in (*looped, *plain):
            generator = torch.Generator().manual_seed(step)
            m.weight.grad = torch.randn(m.weight.shape, generator=generator)
        optimizers[0].step()
        with monkeypatch.context() as patched:
            patched.setattr("unmask.train.optimizer.serves", lambda tensor: False)
            optimizers[1].step()
    for a, b in zip(looped, plain, strict=True):
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-4, atol=1e-5)
    for a, b in zip(looped, plain, strict=True):
        running = [each.state[m.weight]["momentum"] for each, m in zip(optimizers, (a, b), strict=True)]
        torch.testing.assert_close(*running, rtol=1e-5, atol=1e-6)


class Network(nn.Module):
    """Another network, whose decoder shares the embedding."""

    def __init__(self) -> None:
        super().__init__()
        tokens = nn.Embedding(10, 4)
        self.encoder = nn.Module()
        self.encoder.tokens = tokens
        self.layer, self.decoder = nn.Linear(4, 4), nn.Linear(4, 10, bias=False)
        self.decoder.weight = tokens.weight


def test_the_embedding_of_another_network_has_its_own_rate() -> None:
    network = Network()
    groups = build_optimizer(network, settings_of(optimizer={"kind": "muon"})).param_groups
    factors = {id(weight): group.get("lr_factor") for group in groups for weight in group["params"]}
    assert factors[id(network.decoder.weight)] == 0.15
    assert factors[id(network.layer.weight)] is None, "by Muon"


def test_another_network_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "why_not_compiled", lambda *_, **__: None)
    assert place_model(Network(), settings_of()) is not None


def test_all_embeddings_have_the_rate_of_tokens(make_model: MakeModel) -> None:
    encoder = (model := make_model(layout="bert")).encoder
    groups = build_optimizer(model, settings_of(optimizer={"kind": "muon"})).param_groups
    factors = {id(weight): group.get("lr_factor") for group in groups for weight in group["params"]}
    assert [factors[id(each)] for each in (encoder.tokens, encoder.positions, encoder.token_types)] == [0.15] * 3
