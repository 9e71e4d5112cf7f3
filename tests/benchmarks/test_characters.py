"""Two systems in turn on the same hidden characters: what is counted, measured and written."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.benchmarks.conftest import BENCHMARKS
from unmask.commands.recipe import load_recipe

ROOT = BENCHMARKS.parent


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("characters")


class Fake:
    """Makes steps that take what they are told on a clock of its own, and guesses by what it is given."""

    def __init__(self, script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, taken: list[float]) -> None:
        self.taken, self.time = taken, 100.0
        monkeypatch.setattr(script.time, "perf_counter", lambda: self.time)

    def step(self) -> int:
        if not self.taken:
            return 0
        self.time += self.taken.pop(0)
        return 10


def test_a_turn_counts_steps_times_their_median(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(script, monkeypatch, [1.0, 1.0, 9.0, 1.0, 2.0, 2.0, 2.0])
    clock = script.Clock()
    assert clock.turn(fake, 12.0) == {"seconds": 4.0, "steps": 4, "characters": 40, "done": False}
    assert clock.now() == 4.0 + 12.0, "until the next turn begins"
    fake.time += 50.0  # another system's turn
    assert clock.turn(fake, 3.0) == {"seconds": 4.0 + 4.0, "steps": 2, "characters": 20, "done": False}
    assert clock.turn(fake, 3.0) == {"seconds": 10.0, "steps": 1, "characters": 10, "done": True}
    assert clock.turn(fake, 3.0) == {"seconds": 10.0, "steps": 0, "characters": 0, "done": True}


def test_the_hidden_characters_are_the_same_in_both_ways(script: types.ModuleType) -> None:
    text = torch.randint(2, 67, (32 * 700 + 5,), generator=torch.Generator().manual_seed(0))
    ways = script.hidden_rows(text)
    mixed, masks = ways["80/10/10"], ways["masks"]
    assert mixed.ids.shape == (700, 32)
    assert torch.equal(mixed.ids.flatten(), text[: 32 * 700])
    assert torch.equal(mixed.chosen, masks.chosen)
    assert abs(float(mixed.chosen.float().mean()) - 0.15) < 4 * math.sqrt(0.15 * 0.85 / (700 * 32))
    assert (masks.seen[masks.chosen] == 1).all()
    for way in (mixed, masks):
        assert torch.equal(way.seen[~way.chosen], way.ids[~way.chosen])
    assert 0.75 < float((mixed.seen[mixed.chosen] == 1).float().mean()) < 0.87
    again = script.hidden_rows(text)
    assert all(torch.equal(a, b) for way in ways for a, b in zip(ways[way], again[way], strict=True))


class Guesser:
    """Gives the right answer where the place is even, and one wrong answer elsewhere."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def predict(self, seen: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        here = self.ids[: len(seen)]
        self.ids = self.ids[len(seen) :]
        even = torch.arange(32).expand_as(here) % 2 == 0
        return 3.0 * functional.one_hot(torch.where(even, here, 2), 67).float()[chosen]


def test_loss_and_accuracy_are_those_of_all_hidden_characters(script: types.ModuleType) -> None:
    ids = torch.randint(3, 67, (600, 32), generator=torch.Generator().manual_seed(0))  # more than are read at once
    chosen = torch.rand(600, 32, generator=torch.Generator().manual_seed(1)) < 0.3
    loss, accuracy = script.measure(Guesser(ids), script.Hidden(ids, ids, chosen))
    right = int(chosen[:, ::2].sum()) / int(chosen.sum())
    total = math.log(math.exp(3.0) + 66)
    assert accuracy == pytest.approx(right)
    assert loss == pytest.approx(total - 3.0 * right, rel=1e-5)


def test_ours_guesses_what_its_encoder_and_head_say(script: types.ModuleType, tmp_path: Path) -> None:
    script.prepare("shakespeare-chars", tmp_path / "data")
    small = ("model.num_layers=1", "training.batch_tokens=256", "training.precision=float32")
    work = script.Work("ours", 1e4, str(tmp_path / "data"), overrides=small)  # minutes: loops may be compiled within
    learner = script.Ours(work, script.Clock())
    assert learner.step() == 256
    assert learner.model.training
    ids = torch.randint(2, 67, (3, 32))
    chosen = torch.rand(3, 32) < 0.3
    found = learner.predict(ids, chosen)
    with torch.no_grad():
        every = learner.model(ids, positions_N=torch.arange(3 * 32)).view(3, 32, 67)
    torch.testing.assert_close(found, every[chosen])
    assert learner.step() == 256
    assert learner.model.training, "dropout, where there is any, is back after a look"


def point(script: types.ModuleType, seconds: float, accuracy: float) -> tuple[float, ...]:
    return script.Point(seconds, int(seconds * 20), int(seconds * 1000), 2.0, accuracy, 2.1, accuracy - 0.01)


def test_the_time_to_an_accuracy(script: types.ModuleType) -> None:
    points = [point(script, 0, 0.0), point(script, 10, 0.2), point(script, 20, 0.4), point(script, 30, 0.3)]
    assert script.seconds_to(points, 0.3) == 20, "at the first look that shows it"
    assert script.seconds_to(points, 0.4) == 20
    assert script.seconds_to(points, 0.41) is None


def test_the_table_and_what_it_says(script: types.ModuleType, tmp_path: Path) -> None:
    ours = [point(script, seconds, seconds / 100) for seconds in range(0, 60, 3)]
    annotated = [point(script, seconds, seconds / 3000) for seconds in range(0, 1260, 60)]
    curves = {"ours": ours, "annotated": annotated}
    lines = script.table(curves, {"ours": 4096, "annotated": 2048})
    assert len([line for line in lines if line.startswith("| ours")]) == 8
    assert "| ours | 4,096 | 57 s | 1,000 | 2.000 | 0.570 | 2.100 | 0.560 |" in lines
    assert "| annotated | 2,048 | 1,200 s | 1,000 | 2.000 | 0.400 | 2.100 | 0.390 |" in lines
    assert lines[-1] == (
        "The annotated experiment ends at 0.400, within a standard error of it after 1,200 s; ours is beyond at its "
        "look after 42 s: at least 29 times as fast."
    )
    flat = [point(script, seconds, min(seconds / 100, 0.4 - 0.002 * (seconds < 90))) for seconds in range(0, 120, 10)]
    assert "after 40 s; ours is beyond at its look after 42 s: at least 1 times" in script.verdict(
        {"ours": ours, "annotated": flat}
    )
    assert script.verdict({"ours": ours[:10], "annotated": annotated}).endswith("does not get there within 27 s.")
    assert (
        script.table({"ours": ours[:1]}, {"ours": 8})[-1] == "| ours | 8 | 0 s | - | 2.000 | 0.000 | 2.100 | -0.010 |"
    )
    script.draw(curves, tmp_path / "curve.svg")
    drawn = (tmp_path / "curve.svg").read_text()
    assert drawn.startswith("<svg")
    assert all(colour in drawn for colour in script.COLOURS.values())


def test_the_positions_of_a_step(script: types.ModuleType) -> None:
    assert script.positions(script.Work("annotated", 1.0, "data")) == 64 * 32
    assert script.positions(script.Work("ours", 1.0, "data")) == load_recipe("shakespeare-chars").training.batch_tokens
    small = ("training.batch_tokens=256",)
    assert script.positions(script.Work("ours", 1.0, "data", overrides=small)) == 256


def test_it_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^bench-long: .*\n(\t.*\n)*\t.*benchmarks/characters\.py", makefile, re.MULTILINE)


@pytest.mark.slow
def test_the_whole_script(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "curve.svg"
    page.write_text("before\n<!-- characters -->\n<!-- end characters -->\nafter\n")
    command = [sys.executable, str(BENCHMARKS / "characters.py"), "--minutes", "0.01", "--reference-minutes", "0.01"]
    options = [
        "--slice-seconds",
        "0.4",
        "--rows",
        "64",
        "--set",
        "model.num_layers=1",
        "--table",
        str(page),
        "--picture",
        str(picture),
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n<!-- characters -->")
    assert all(f"| {system} | " in text for system in ("ours", "annotated"))
    assert "The annotated experiment ends at" in text
    assert "](curve.svg)\n<!-- end characters -->\nafter\n" in text
    assert picture.read_text().startswith("<svg")
    looks = re.findall(r"^(ours|annotated): (\d+) s", done.stderr, re.MULTILINE)
    assert {name for name, _ in looks} == {"ours", "annotated"}
    assert len(looks) >= 4
