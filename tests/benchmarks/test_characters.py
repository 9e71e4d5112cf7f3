"""Two systems in turn on the same hidden characters."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import characters as script
import pytest
import torch
from torch.nn import functional

from tests.benchmarks.conftest import BENCHMARKS


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
def test_the_whole_script(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "curve.svg"
    page.write_text("before\n<!-- characters -->\n<!-- end characters -->\nafter\n")
    command = [sys.executable, str(BENCHMARKS / "characters.py"), "--minutes", "0.01", "--reference-minutes", "0.01"]
    command += ["--slice-seconds", "0.4", "--rows", "64", "--set", "model.num_layers=1"]
    command += ["--table", str(page), "--picture", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert all(f"| {system} | " in text for system in ("ours", "annotated"))
    assert "The annotated experiment ends at" in text
    assert "](curve.svg)\n<!-- end characters -->\nafter\n" in text
