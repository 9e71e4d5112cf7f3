"""The annotated experiment is what its description says."""

from __future__ import annotations

import math

import annotated
import pytest
import torch
from torch import nn


def test_the_masking() -> None:
    """With rates forced to 0 and 1; and the shares of replacement, which are drawn separately."""
    ids = torch.randint(2, 67, (500, 400), generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(3)
    for rates, expected in (
        ({"rate": 0.0}, ids),
        ({"rate": 1.0, "random": 0.0, "same": 0.0}, torch.full_like(ids, annotated.MASK)),
        ({"rate": 1.0, "random": 0.0, "same": 1.0}, ids),
    ):
        seen, chosen = annotated.hide(ids, generator, **rates)
        assert bool(chosen.all()) == bool(rates["rate"])
        assert torch.equal(seen, expected)
    seen, chosen = annotated.hide(ids, generator)
    assert torch.equal(seen[~chosen], ids[~chosen])
    count = int(chosen.sum())
    assert abs(count / ids.numel() - 0.15) < 4 * math.sqrt(0.15 * 0.85 / ids.numel())
    for places, share in ((seen == annotated.MASK, 0.9 * 0.9 + 0.1 / 67), (seen == ids, 0.9 * 0.1 + 0.1 / 67)):
        assert abs(float(places[chosen].float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_the_encoder_is_pytorchs() -> None:
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


def test_epochs_and_steps() -> None:
    learner = annotated.Annotated(torch.arange(32 * 130 + 1), seed=0)
    batches = [next(learner.batches) for _ in range(3)]
    assert [len(batch) for batch in batches] == [64, 64, 2]
    begins = torch.cat([batch[:, 0] for batch in batches])
    assert sorted((begins // 32).tolist()) == list(range(130))
    assert len(set((begins % 32).tolist())) > 20, "rows begin somewhere within their 32 characters"
    learner = annotated.Annotated(torch.arange(2, 67).repeat(64), seed=0)
    before = learner.model.output.weight.detach().clone()
    assert learner.step() == 64 * 32
    moved = (learner.model.output.weight.detach() - before).abs()
    assert float(moved.median()) == pytest.approx(annotated.learning_rate(1), rel=0.05), "Adam's first step"
    train, held_out = annotated.read_ids("ba\nab" * 4)
    assert (train.tolist(), held_out.tolist()) == ([4, 3, 2, 3, 4] * 3 + [4, 3, 2], [3, 4])
