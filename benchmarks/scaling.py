"""What a training step costs as the work grows: length, width, depth, vocabulary, corpus, documents of mixed length.

    python benchmarks/scaling.py TEXT [--rounds 3] [--table PAGE] [--picture FILE]

One thing is changed at a time, from 4 layers of 256, 8,192 words, rows of 128 and 8,192 positions a step with Muon. The
systems of an axis are processes of their own that train in turn. Tokens are those of the text in the steps that count,
without special tokens and padding, over the time of these steps; memory is the largest that a process had. `documents`
compares the text as documents of mixed length (a line each, packed and kept apart) with the same text as one document a
file, whose rows are full by themselves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tables import shown, write_table
from timed import Work
from train import start

POSITIONS = 8192  # a step
SHARES = (0.01, 0.1, 1.0)  # of the text
SIZES = (2048, 8192, 32768)  # of vocabularies; a short text has fewer words than it is asked for


class Cost(NamedTuple):
    """What one point of an axis costs."""

    positions: int  # a step, at most
    tokens_per_second: float
    memory: int


Axis = Mapping[str, Cost]


def prepare(text: Path, out: Path, *options: str) -> str:
    subprocess.run([sys.executable, "-m", "unmask", "prepare", str(text), "--out", str(out), *options], check=True)
    return str(out)


def cut(text: Path, share: float, out: Path) -> Path:
    """The first part of a text, whole lines of it."""
    content = text.read_bytes()
    out.write_bytes(content[: content.rindex(b"\n", 0, int(len(content) * share)) + 1])
    return out


def vocab_size(data: str) -> int:
    return int(json.loads((Path(data) / "manifest.json").read_text(encoding="utf-8"))["vocab_size"])


def axes(text: Path, folder: Path) -> dict[str, dict[str, Work]]:
    """What is compared with what."""

    def work(data: str, size: str = "4x256", length: int = 128) -> Work:
        return Work(data, size, length, POSITIONS, "modernbert", "muon", "no", "cpu")

    usual = prepare(text, folder / "usual", "--vocab-size", "8192")
    same_words = f"{usual}/tokenizer"
    whole = ("--tokenizer", same_words, "--set", "corpus.documents=file")
    return {
        "length": {f"{length:,}": work(usual, length=length) for length in (128, 256, 512, 1024, 2048)},
        "width": {str(width): work(usual, f"4x{width}") for width in (128, 256, 512, 768)},
        "depth": {str(depth): work(usual, f"{depth}x256") for depth in (2, 4, 8, 16)},
        "vocabulary": {
            f"{vocab_size(data):,}": work(data)
            for data in (prepare(text, folder / f"words-{size}", "--vocab-size", str(size)) for size in SIZES)
        },
        "corpus": {
            f"{share * text.stat().st_size / 1e3:,.0f} kB": work(
                prepare(cut(text, share, folder / f"{share}.txt"), folder / f"part-{share}", "--tokenizer", same_words)
            )
            for share in SHARES
        },
        "documents": {"mixed": work(usual), "whole files": work(prepare(text, folder / "whole", *whole))},
    }


def measure(works: Mapping[str, Work], rounds: int) -> Axis:
    """All points of an axis, in turn."""
    systems = start({name: ("ours", work) for name, work in works.items()})
    for _ in range(rounds):
        for system in systems.values():
            system.go()
    costs = {}
    for name, system in systems.items():
        positions = works[name].rows * works[name].length
        costs[name] = Cost(positions, sum(system.tokens) / sum(system.seconds), system.memory)
        system.close()
    return costs


def table(found: Mapping[str, Axis]) -> list[str]:
    lines = [
        "| what grows | to | positions a step | tokens a second | of the first | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for axis, costs in found.items():
        first = next(iter(costs.values())).tokens_per_second
        for name, cost in costs.items():
            share = f"{cost.tokens_per_second / first:.0%}"
            lines.append(
                f"| {axis} | {name} | {cost.positions:,} | {cost.tokens_per_second:,.0f} | {share} "
                f"| {cost.memory / 2**20:,.0f} |"
            )
    return lines


def draw(found: Mapping[str, Axis], path: Path) -> None:
    """Tokens a second (bars) and memory (line), a panel an axis."""
    from matplotlib.figure import Figure

    from unmask.report.plots import HELD, SOFT, to_svg

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    for place, (axis, costs) in zip(figure.subplots(2, 3).flat, found.items(), strict=True):
        names = list(costs)
        place.bar(names, [cost.tokens_per_second / 1000 for cost in costs.values()], color=SOFT, width=0.6)
        place.set_title(axis, fontsize=10)
        place.set_ylabel("thousand tokens a second", fontsize=8)
        place.tick_params(labelsize=8)
        place.spines[["top"]].set_visible(False)
        memory = place.twinx()
        memory.plot(names, [cost.memory / 2**30 for cost in costs.values()], color=HELD, marker="o", ms=4)
        memory.set_ylim(0, 1.1 * max(cost.memory for cost in costs.values()) / 2**30)
        memory.set_ylabel("memory, GiB", fontsize=8, color=HELD)
        memory.tick_params(labelsize=8, colors=HELD)
        memory.spines[["top"]].set_visible(False)
    path.write_text(to_svg(figure), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path, help="page whose table `scaling` is rewritten")
    parser.add_argument("--picture", type=Path, help="SVG of the table")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(works, asked.rounds) for name, works in axes(asked.text, Path(folder)).items()}
    lines = table(found)
    print(*lines, sep="\n")
    if asked.picture:
        draw(found, asked.picture)
    if asked.table:
        says = "Tokens a second (bars) and memory (line) as length, width, depth, vocabulary and corpus grow"
        write_table(asked.table, "scaling", lines + shown(asked.picture, asked.table, says))


if __name__ == "__main__":
    main()
