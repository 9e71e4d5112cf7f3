"""Two systems on the same hidden characters."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import characters as script
import pytest
import torch
from torch.nn import functional


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
@pytest.mark.usefixtures("drawn")
def test_the_whole_script(without_processes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a part of the text, with all of its letters."""
    page, picture, text = tmp_path / "page.md", tmp_path / "curve.svg", tmp_path / "text.txt"
    page.write_text("before\n<!-- characters -->\n<!-- end characters -->\nafter\n")
    whole = script.packaged_corpus().read_text()
    text.write_text("".join(sorted(set(whole))) + whole[:200_000])
    monkeypatch.setattr(script, "packaged_corpus", lambda: text)
    systems = without_processes(script)
    command = ["characters.py", "--minutes", "0.1", "--reference-minutes", "0.02", "--rows", "64"]
    command += ["--set", "model.num_layers=1", "--table", str(page), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
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
