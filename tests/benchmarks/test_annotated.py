"""The annotated experiment is what its description says."""

from __future__ import annotations

import importlib
import math
import types
from itertools import islice

import pytest
import torch
from torch import nn


@pytest.fixture
def annotated() -> types.ModuleType:
    return importlib.import_module("annotated")


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(2, 67, (500, 400), generator=torch.Generator().manual_seed(1))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_the_masking_by_forced_rates(annotated: types.ModuleType, ids: torch.Tensor) -> None:
    before = ids.clone()
    seen, chosen = annotated.hide(ids, generator(), rate=0.0)
    assert not chosen.any()
    assert torch.equal(seen, ids)
    seen, chosen = annotated.hide(ids, generator(), rate=1.0, random=0.0, kept=0.0)
    assert chosen.all()
    assert (seen == annotated.MASK).all()
    seen, chosen = annotated.hide(ids, generator(), rate=1.0, random=0.0, kept=1.0)
    assert chosen.all()
    assert torch.equal(seen, ids)
    seen, _ = annotated.hide(ids, generator(), rate=1.0, random=1.0, kept=1.0)
    counts = torch.bincount(seen.flatten(), minlength=67)
    expected = ids.numel() / 67
    assert len(counts) == 67, "random ids are any of the 67, special ones too"
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)
    assert torch.equal(ids, before), "the text stays"


def test_the_shares_are_drawn_apart(annotated: types.ModuleType, ids: torch.Tensor) -> None:
    seen, chosen = annotated.hide(ids, generator())
    assert torch.equal(seen[~chosen], ids[~chosen])
    count = int(chosen.sum())
    assert abs(count / ids.numel() - 0.15) < 4 * math.sqrt(0.15 * 0.85 / ids.numel())
    for found, share in (
        ((seen == annotated.MASK)[chosen].float().mean(), 0.9 * 0.9 + 0.1 / 67),
        ((seen == ids)[chosen].float().mean(), 0.9 * 0.1 + 0.1 / 67),
    ):
        assert abs(float(found) - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_the_text_is_cut_at_nine_tenths(annotated: types.ModuleType) -> None:
    train, held_out = annotated.read_ids("ba\nab" * 4)
    assert train.tolist() == [4, 3, 2, 3, 4] * 3 + [4, 3, 2]
    assert held_out.tolist() == [3, 4]


def test_the_encoder_is_pytorchs(annotated: types.ModuleType) -> None:
    """The same weights in torch's own layers give the same states."""
    torch.manual_seed(0)
    ours = annotated.Transformer().eval()
    for parameter in ours.layers.parameters():
        nn.init.normal_(parameter, std=0.1)
    layer = nn.TransformerEncoderLayer(128, 8, 256, batch_first=True, norm_first=True)
    theirs = nn.TransformerEncoder(layer, 6, nn.LayerNorm(128), enable_nested_tensor=False).eval()
    with torch.no_grad():
        for here, there in zip(ours.layers, theirs.layers, strict=False):
            (norm, attention, _), mlp = here.attention, here.mlp
            parts = (attention.query, attention.key, attention.value)
            there.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            there.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            for source, target in (
                (attention.out, there.self_attn.out_proj), (norm, there.norm1), (mlp[0], there.norm2),
                (mlp[1], there.linear1), (mlp[4], there.linear2),
            ):  # fmt: skip
                target.load_state_dict(source.state_dict())
        theirs.norm.load_state_dict(ours.layers[-1].state_dict())
        x = torch.randn(2, 32, 128)
        torch.testing.assert_close(ours.layers(x), theirs(x), rtol=1e-4, atol=1e-4)


def test_an_epoch_takes_every_row_once(annotated: types.ModuleType) -> None:
    train = torch.arange(32 * 130 + 1)
    learner = annotated.Annotated(train, seed=0)
    batches = [next(learner.batches) for _ in range(3)]
    assert [len(batch) for batch in batches] == [64, 64, 2]
    begins = torch.cat([batch[:, 0] for batch in batches])
    assert sorted((begins // 32).tolist()) == list(range(130))
    assert len(set((begins % 32).tolist())) > 20, "rows begin somewhere within their 32 characters"
    assert all(torch.equal(batch - batch[:, :1], torch.arange(32).expand_as(batch)) for batch in batches)
    again = torch.cat([batch[:, 0] for batch in islice(learner.batches, 3)])
    assert not torch.equal(again, begins)


def test_a_step_is_adams(annotated: types.ModuleType) -> None:
    """Adam's first step moves every weight with a gradient by the learning rate."""
    learner = annotated.Annotated(torch.arange(2, 67).repeat(64), seed=0)
    before = learner.model.output.weight.detach().clone()
    assert learner.step() == 64 * 32
    moved = (learner.model.output.weight.detach() - before).abs()
    assert float(moved.max()) == pytest.approx(annotated.learning_rate(1), rel=0.05)
    assert float(moved.median()) == pytest.approx(annotated.learning_rate(1), rel=0.05)
    assert all(parameter.grad is None for parameter in learner.model.parameters())
