"""Two systems in turn on the same hidden characters."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.benchmarks.conftest import BENCHMARKS


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("characters")


def test_the_hidden_characters_are_the_same_in_both_ways(script: types.ModuleType) -> None:
    text = torch.randint(2, 67, (32 * 700 + 5,), generator=torch.Generator().manual_seed(0))
    mixed, masks = script.hidden_rows(text)
    assert torch.equal(mixed.ids.flatten(), text[: 32 * 700])
    assert torch.equal(mixed.chosen, masks.chosen)
    assert abs(float(mixed.chosen.float().mean()) - 0.15) < 4 * math.sqrt(0.15 * 0.85 / (700 * 32))
    assert (masks.seen[masks.chosen] == 1).all()
    for way in (mixed, masks):
        assert torch.equal(way.seen[~way.chosen], way.ids[~way.chosen])
    assert 0.75 < float((mixed.seen[mixed.chosen] == 1).float().mean()) < 0.87
    again = script.hidden_rows(text)
    assert all(
        torch.equal(a, b)
        for way, same in zip((mixed, masks), again, strict=True)
        for a, b in zip(way, same, strict=True)
    )


def test_loss_and_accuracy_are_those_of_all_hidden_characters(script: types.ModuleType) -> None:
    ids = torch.randint(3, 67, (600, 32), generator=torch.Generator().manual_seed(0))  # more than are read at once
    chosen = torch.rand(600, 32, generator=torch.Generator().manual_seed(1)) < 0.3
    read = iter(ids.split(256))

    def predict(seen: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The right answer where the place is even, and one wrong answer elsewhere."""
        here = next(read)
        even = torch.arange(32).expand_as(here) % 2 == 0
        return 3.0 * functional.one_hot(torch.where(even, here, 2), 67).float()[chosen]

    loss, accuracy = script.measure(predict, script.Hidden(ids, ids, chosen))
    right = int(chosen[:, ::2].sum()) / int(chosen.sum())
    assert accuracy == pytest.approx(right)
    assert loss == pytest.approx(math.log(math.exp(3.0) + 66) - 3.0 * right, rel=1e-5)


def test_the_table_and_what_it_says(script: types.ModuleType, tmp_path: Path) -> None:
    def points(begin: int, end: int, step: int, rise: float) -> list[tuple[float, ...]]:
        return [(s, s * 1000, 2.0, s / rise, 2.1, s / rise - 0.01) for s in range(begin, end, step)]

    curves = {"ours": points(3, 60, 3, 100), "annotated": points(60, 1260, 60, 3000)}
    lines = script.table(curves, {"ours": 4096, "annotated": 2048})
    assert len([line for line in lines if line.startswith("| ours")]) == 8
    assert "| ours | 4,096 | 57 s | 1,000 | 2.000 | 0.570 | 2.100 | 0.560 |" in lines
    assert lines[-1] == (
        "The annotated experiment ends at 0.400, within a standard error of it after 1,200 s; ours is beyond at its "
        "look after 42 s: at least 29 times as fast."
    )
    short = {**curves, "ours": curves["ours"][:9]}
    assert script.verdict(short).endswith("does not get there within 27 s.")
    script.draw(curves, tmp_path / "curve.svg")
    assert all(colour in (tmp_path / "curve.svg").read_text() for colour in script.COLOURS.values())


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
