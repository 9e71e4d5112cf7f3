"""The annotated experiment by character: how long each system takes to guess hidden characters equally well.

    python benchmarks/characters.py [--reference-minutes 20] [--minutes 3] [--table PAGE] [--picture FILE]

    annotated  the experiment in plain PyTorch (see annotated.py)
    ours       the packaged recipe `shakespeare-chars`, on the same characters, with this budget

Both train on the first 90 % of Tiny Shakespeare, and are measured on the same hidden characters: 15 % of the last 10 %,
in rows of 32, chosen once by a fixed seed. They are hidden in two ways: `80/10/10` is the experiment's own (81 % masks,
10 % random ids, 9 % unchanged), `masks` shows [MASK] at all of them. Each system is a separate process. They train in
turns of a few seconds (turns.py). The time of evaluations does not count, nor does that of compiling loops (a few steps
are made and discarded before).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from annotated import LENGTH, MASK, Annotated, hide, read_ids
from ours import assemble
from tables import parser_of, shown, write_table
from torch import Tensor
from torch.nn import functional
from turns import Ended, System, Turn, alternate, own_output

from unmask.commands.recipe import load_recipe
from unmask.commands.run_data import open_prepared, packaged_corpus
from unmask.data.prepare import prepare

RECIPE = "shakespeare-chars"
COLOURS = {"ours": "#c2410c", "annotated": "#1d2733"}
SEED = 20181011  # of the hidden characters
LOOKS = 20  # evaluations of each system
EVALUATED_ROWS = 256  # rows evaluated at once
STANDARD_ERROR = 0.0033  # of an accuracy of 0.24, over the 16,700 hidden characters of the held-out text
WARM_STEPS = 3
TURN = 5.0  # seconds

Predict = Callable[[Tensor, Tensor], Tensor]  # rows as shown, chosen places -> logits at these places
Curves = Mapping[str, Sequence[Sequence[float]]]  # (seconds, characters, loss, accuracy; masks: loss, accuracy)


class Work(NamedTuple):
    """The job of a system's process."""

    system: str
    minutes: float
    data: str
    overrides: Sequence[str] = ()
    rows: int | None = None  # held-out rows to evaluate; None: all


class Hidden(NamedTuple):
    """Rows of text, the rows as shown to the model, and the places to guess."""

    ids: Tensor
    seen: Tensor
    chosen: Tensor


def hidden_rows(held_out: Tensor) -> tuple[Hidden, Hidden]:
    """The held-out text in rows, with characters hidden as 80/10/10 and as masks; the same in every process."""
    rows = held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)
    seen, chosen = hide(rows, torch.Generator().manual_seed(SEED))
    return Hidden(rows, seen, chosen), Hidden(rows, rows.masked_fill(chosen, MASK), chosen)


def measure(predict: Predict, hidden: Hidden) -> tuple[float, float]:
    loss, right = 0.0, 0
    for ids, seen, chosen in zip(*(part.split(EVALUATED_ROWS) for part in hidden), strict=True):
        logits, targets = predict(seen, chosen), ids[chosen]
        loss += functional.cross_entropy(logits, targets, reduction="sum").item()
        right += int((logits.argmax(-1) == targets).sum())
    count = int(hidden.chosen.sum())
    return loss / count, right / count


def serve(work: Work) -> None:
    out = own_output()
    train, held_out = read_ids(packaged_corpus().read_text(encoding="utf-8"))
    ways = hidden_rows(held_out[: None if work.rows is None else work.rows * LENGTH])
    limit = work.minutes * 60.0
    marks = [limit * (number / LOOKS) ** 2 for number in range(1, LOOKS)]  # closer together at the beginning
    predict: Predict

    def evaluate() -> list[float]:
        return [turn.tokens, *(figure for way in ways for figure in measure(predict, way))]

    turn = Turn(out, evaluate, marks)
    with suppress(Ended):
        if work.system == "annotated":
            warm = Annotated(train, seed=0)
            for _ in range(WARM_STEPS):
                warm.step()
            learner = Annotated(train, seed=0)
            predict = learner.predict
            turn.begin()
            while turn.now() < limit:
                turn.step(learner.step())
        else:
            recipe = load_recipe(RECIPE, options={"training.minutes": work.minutes}, overrides=tuple(work.overrides))
            data, cpu = open_prepared(Path(work.data)), torch.device("cpu")
            steps = assemble(recipe, data, cpu).reports()
            for _ in range(WARM_STEPS):
                next(steps, None)  # compiling loops may use up a short budget
            training = assemble(recipe, data, cpu)
            model = training.state.model

            @torch.no_grad()
            def predict(seen: Tensor, chosen: Tensor) -> Tensor:
                model.eval()
                logits = model(seen, positions_N=chosen.flatten().nonzero().squeeze(1)).float()
                model.train()
                return logits

            turn.begin()
            for report in training.reports(turn.now):
                turn.step(report.tokens)
        turn.end()


def table(curves: Curves) -> list[str]:
    """Four evaluations of each system, and how long ours took to reach the experiment's result."""
    lines = [
        "| system | training | characters a second | loss, 80/10/10 | accuracy | loss, masks | accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, points in curves.items():
        for place in sorted({len(points) * part // 4 - 1 for part in range(1, 5)} - {-1}):
            seconds, characters, loss, accuracy, masks_loss, masks_accuracy = points[place]
            lines.append(
                f"| {name} | {seconds:,.0f} s | {characters / seconds:,.0f} | {loss:.3f} | {accuracy:.3f} "
                f"| {masks_loss:.3f} | {masks_accuracy:.3f} |"
            )
    return [*lines, "", verdict(curves)]


def verdict(curves: Curves) -> str:
    """How long ours took to reach the experiment's last accuracy. The experiment's own time is that until it was within
    a standard error of it."""

    def seconds_to(points: Sequence[Sequence[float]], accuracy: float) -> float | None:
        return next((point[0] for point in points if point[3] >= accuracy), None)

    last = curves["annotated"][-1][3]
    near = seconds_to(curves["annotated"], last - STANDARD_ERROR)
    taken = seconds_to(curves["ours"], last)
    assert near is not None, "the last look shows it"
    reached = f"The annotated experiment ends at {last:.3f}, within a standard error of it after {near:,.0f} s; ours "
    if taken is None:
        return f"{reached}does not get there within {curves['ours'][-1][0]:,.0f} s."
    return f"{reached}is beyond at its look after {taken:,.0f} s: at least {near / taken:.0f} times as fast."


def draw(curves: Curves, path: Path) -> None:
    from unmask.report.plots import new_figure, to_svg

    figure, axes = new_figure()
    for name, points in curves.items():
        times = [point[0] / 60.0 for point in points]
        axes.plot(times, [point[3] for point in points], color=COLOURS[name], marker="o", ms=3, label=name)
        axes.plot(times, [point[5] for point in points], color=COLOURS[name], lw=1, ls=":")
    axes.set_xscale("log")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("hidden characters guessed (dotted: all shown as [MASK])")
    axes.legend(frameon=False, fontsize=9)
    path.write_text(to_svg(figure), encoding="utf-8")


def main() -> None:
    parser = parser_of(__doc__, table="characters")
    parser.add_argument("--minutes", type=float, default=3.0, help="our budget")
    parser.add_argument("--reference-minutes", type=float, default=20.0)
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe, as for unmask pretrain")
    parser.add_argument("--rows", type=int, help="held-out rows to evaluate; by default all")
    parser.add_argument("--picture", type=Path, help="SVG to draw")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Work(**json.loads(options.serve)))
        return
    minutes = {"ours": options.minutes, "annotated": options.reference_minutes}
    recipe = load_recipe(RECIPE, overrides=tuple(options.set))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare([str(packaged_corpus())], data, corpus=recipe.corpus, tokenizer=recipe.tokenizer, workers=1)
        systems = {}
        for name in COLOURS:
            work = Work(name, minutes[name], str(data), options.set, options.rows)
            systems[name] = System([sys.executable, __file__, "--serve", json.dumps(work._asdict())])
        for name in alternate(systems, TURN):
            systems[name].close()
    curves = {name: system.points for name, system in systems.items()}
    lines = table(curves)
    print(*lines, sep="\n")
    if options.picture:
        draw(curves, options.picture)
    if options.table:
        says = "Hidden characters guessed over minutes of training, ours and the annotated experiment"
        write_table(options.table, "characters", lines + shown(options.picture, options.table, says))


if __name__ == "__main__":
    main()
