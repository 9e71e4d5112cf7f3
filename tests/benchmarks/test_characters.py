"""The annotated experiment is what its description says; two systems on the same hidden characters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import characters as script
import pytest
import torch
from torch import nn
from torch.nn import functional


def test_the_masking() -> None:
    """With rates forced to 0 and 1; and the shares of replacement, which are drawn separately."""
    ids = torch.randint(2, 67, (500, 400), generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(3)
    for rates, expected in (
        ({"rate": 0.0}, ids),
        ({"rate": 1.0, "random": 0.0, "same": 0.0}, torch.full_like(ids, script.MASK)),
        ({"rate": 1.0, "random": 0.0, "same": 1.0}, ids),
    ):
        seen, chosen = script.hide(ids, generator, **rates)
        assert bool(chosen.all()) == bool(rates["rate"])
        assert torch.equal(seen, expected)
    seen, chosen = script.hide(ids, generator)
    assert torch.equal(seen[~chosen], ids[~chosen])
    count = int(chosen.sum())
    assert abs(count / ids.numel() - 0.15) < 4 * math.sqrt(0.15 * 0.85 / ids.numel())
    for places, share in ((seen == script.MASK, 0.9 * 0.9 + 0.1 / 67), (seen == ids, 0.9 * 0.1 + 0.1 / 67)):
        assert abs(float(places[chosen].float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_the_encoder_is_pytorchs() -> None:
    """The same weights in torch's own layers give the same states."""
    torch.manual_seed(0)
    ours = script.Transformer().eval()
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
    learner = script.Annotated(torch.arange(32 * 130 + 1), seed=0)
    batches = [next(learner.batches) for _ in range(3)]
    assert [len(batch) for batch in batches] == [64, 64, 2]
    begins = torch.cat([batch[:, 0] for batch in batches])
    assert sorted((begins // 32).tolist()) == list(range(130))
    assert len(set((begins % 32).tolist())) > 20, "rows begin somewhere within their 32 characters"
    learner = script.Annotated(torch.arange(2, 67).repeat(64), seed=0)
    before = learner.model.output.weight.detach().clone()
    assert learner.step() == 64 * 32
    moved = (learner.model.output.weight.detach() - before).abs()
    assert float(moved.median()) == pytest.approx(script.learning_rate(1), rel=0.05), "Adam's first step"
    train, held_out = script.read_ids("ba\nab" * 4)
    assert (train.tolist(), held_out.tolist()) == ([4, 3, 2, 3, 4] * 3 + [4, 3, 2], [3, 4])


def test_hidden_characters_and_their_figures() -> None:
    text = torch.randint(3, 67, (32 * 700 + 5,), generator=torch.Generator().manual_seed(0))
    mixed, masks = script.hidden_rows(text)
    assert torch.equal(mixed.ids.flatten(), text[: 32 * 700])
    assert torch.equal(mixed.chosen, masks.chosen)
    assert torch.equal(mixed.seen, script.hidden_rows(text)[0].seen), "the same in every process"
    assert (masks.seen[masks.chosen] == 1).all()
    assert 0.75 < float((mixed.seen[mixed.chosen] == 1).float().mean()) < 0.87
    read = iter(mixed.ids.split(256))

    def predict(seen: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The right answer where the place is even, and one wrong answer elsewhere."""
        here = next(read)
        even = torch.arange(32).expand_as(here) % 2 == 0
        return 3.0 * functional.one_hot(torch.where(even, here, 2), 67).float()[chosen]

    loss, accuracy = script.measure(predict, mixed)
    right = int(mixed.chosen[:, ::2].sum()) / int(mixed.chosen.sum())
    assert accuracy == pytest.approx(right)
    assert loss == pytest.approx(math.log(math.exp(3.0) + 66) - 3.0 * right, rel=1e-5)


@pytest.mark.slow
def test_the_whole_script(
    without_processes: Any, run_script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a part of the text, with all of its letters."""
    page, picture, text = tmp_path / "page.md", tmp_path / "curve.svg", tmp_path / "text.txt"
    page.write_text("before\n<!-- characters -->\n<!-- end characters -->\nafter\n")
    whole = script.packaged_corpus().read_text()
    text.write_text("".join(sorted(set(whole))) + whole[:200_000])
    monkeypatch.setattr(script, "packaged_corpus", lambda: text)
    systems = without_processes(script)
    short = ("--minutes", 0.1, "--reference-minutes", 0.02, "--rows", 64, "--set", "model.num_layers=1")
    run_script(script, *short, "--table", page, "--picture", picture)
    expected = ((40, 128 * 32, 3.0), (8, 64 * 32, math.log(67) + 0.5))  # ours comes first, and has learned
    for system, (steps, in_a_step, limit) in zip(systems, expected, strict=True):
        assert (len(system.counts), max(system.counts)) == (steps, in_a_step)
        assert not system.is_open
        ((_, characters, loss, _, loss_of_masks, _),) = system.points
        assert characters == sum(system.counts)
        assert 0.0 < max(loss, loss_of_masks) < limit
    written = page.read_text()
    assert all(f"| {system} | " in written for system in ("ours", "annotated"))
    assert "The annotated experiment ends at" in written
    assert "](curve.svg)\n<!-- end characters -->\nafter\n" in written
    assert "<svg" in picture.read_text()
