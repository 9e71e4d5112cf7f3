"""The annotated experiment by character: how long until hidden characters are guessed as well.

    python benchmarks/characters.py [--reference-minutes 20] [--minutes 3] [--table PAGE] [--picture FILE]
    python benchmarks/characters.py --systems ours --minutes 1 --set training.learning_rate=0.02

    annotated  the experiment as it is, in plain PyTorch (see annotated.py)
    ours       the packaged recipe (`--recipe`), on the same characters, with the budget that is given

Both train on the first 90 % of Tiny Shakespeare, and are measured on the same hidden characters: the last 10 % in rows
of 32, of which 15 % are chosen once, by a fixed seed. They are shown in two ways: `80/10/10` is the experiment's own
(81 % masks, 10 % random ids, 9 % as they are), `masks` shows [MASK] at all of them. Each system is a process of its own
and trains when it is its turn, some seconds at a time. What counts as training is the number of steps of a turn times
their median: neither evaluation, nor loops that are compiled (a few steps are made and thrown away before), nor what
else the machine does now and then. Ours follows that clock too, where its schedule asks how much time has passed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from annotated import LENGTH, MASK, ROWS, Annotated, hide, read_ids
from tables import shown, write_table
from torch import Tensor
from torch.nn import functional
from turns import Child, own_output

SYSTEMS = ("ours", "annotated")
COLOURS = {"ours": "#c2410c", "annotated": "#1d2733"}
SEED = 20181011  # of the hidden characters
POINTS = 20  # evaluations of each system
EVALUATED_ROWS = 256  # at once
LEAST_TURN = 0.5  # seconds
STANDARD_ERROR = 0.0033  # of an accuracy of 0.24, at the 16,700 hidden characters of the held-out text
WARMING_STEPS = 3


class Work(NamedTuple):
    """What a system is told."""

    system: str
    minutes: float
    data: str
    recipe: str = "shakespeare-chars"
    overrides: tuple[str, ...] = ()
    seed: int = 0
    rows: int | None = None  # of the held-out text, which are looked at


class Point(NamedTuple):
    """What a system had reached after some training; losses in nats per hidden character."""

    seconds: float
    steps: int
    characters: int
    loss: float
    accuracy: float
    masks_loss: float
    masks_accuracy: float


class Learner(Protocol):
    """A system: makes a step and says how many characters it read (0: it is done), and guesses hidden characters."""

    def step(self) -> int: ...

    def predict(self, seen: Tensor, chosen: Tensor) -> Tensor: ...


class Clock:
    """Counts a system's own training time; `counted` is what earlier turns came to."""

    def __init__(self) -> None:
        self.counted, self.began = 0.0, time.perf_counter()

    def now(self) -> float:
        return self.counted + time.perf_counter() - self.began

    def turn(self, learner: Learner, seconds: float) -> dict[str, Any]:
        """Lets it train for some seconds, and counts them as steps x median of a step."""
        self.began = begin = time.perf_counter()
        times: list[float] = []
        characters = made = 0
        while begin - self.began < seconds and (made := learner.step()):
            end = time.perf_counter()
            times.append(end - begin)
            characters, begin = characters + made, end
        self.counted += len(times) * statistics.median(times) if times else 0.0
        return {"seconds": self.counted, "steps": len(times), "characters": characters, "done": not made}


class Ours:
    """This project, by a recipe."""

    def __init__(self, work: Work, clock: Clock) -> None:
        from assembly import assemble

        from unmask.commands.recipe import load_recipe
        from unmask.commands.run_data import open_prepared

        options = {"training.minutes": work.minutes, "training.seed": work.seed}
        recipe = load_recipe(work.recipe, options=options, overrides=work.overrides)
        training = assemble(recipe, open_prepared(Path(work.data)), torch.device("cpu"))
        self.model, self.reports = training.state.model, training.reports(clock.now)

    def step(self) -> int:
        self.model.train()
        report = next(self.reports, None)
        return 0 if report is None else report.tokens

    @torch.no_grad()
    def predict(self, seen: Tensor, chosen: Tensor) -> Tensor:
        self.model.eval()
        return self.model(seen, positions_N=chosen.flatten().nonzero().squeeze(1)).float()


class Hidden(NamedTuple):
    """Rows of text, what is shown of them, and which places are to be guessed."""

    ids: Tensor
    seen: Tensor
    chosen: Tensor


def hidden_rows(held_out: Tensor) -> dict[str, Hidden]:
    """The held-out text in rows, its hidden characters shown in both ways; the same in every process."""
    rows = held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)
    seen, chosen = hide(rows, torch.Generator().manual_seed(SEED))
    return {"80/10/10": Hidden(rows, seen, chosen), "masks": Hidden(rows, rows.masked_fill(chosen, MASK), chosen)}


def measure(learner: Learner, hidden: Hidden) -> tuple[float, float]:
    """Loss and accuracy at the hidden characters."""
    loss, right = 0.0, 0
    for ids, seen, chosen in zip(*(part.split(EVALUATED_ROWS) for part in hidden), strict=True):
        logits, targets = learner.predict(seen, chosen), ids[chosen]
        loss += functional.cross_entropy(logits, targets, reduction="sum").item()
        right += int((logits.argmax(-1) == targets).sum())
    count = int(hidden.chosen.sum())
    return loss / count, right / count


def serve(work: Work) -> None:
    """A system's process: a number on a line of standard input is a turn of so many seconds, an empty one a look."""
    from unmask.commands.run_folder import packaged_corpus

    out = own_output()
    train, held_out = read_ids(packaged_corpus().read_text(encoding="utf-8"))
    hidden, clock = hidden_rows(held_out[: None if work.rows is None else work.rows * LENGTH]), Clock()

    def begin() -> Learner:
        return Ours(work, clock) if work.system == "ours" else Annotated(train, work.seed)

    warming = begin()
    for _ in range(WARMING_STEPS):
        warming.step()
    learner, clock.began = begin(), time.perf_counter()
    for line in sys.stdin:
        if line.strip():
            answer = clock.turn(learner, float(line))
        else:
            answer = {"ways": {name: measure(learner, way) for name, way in hidden.items()}}
        print(json.dumps(answer), file=out, flush=True)


class System(Child):
    """A process that trains when it is asked to, and what it has reached."""

    def __init__(self, work: Work) -> None:
        super().__init__([sys.executable, __file__, "--serve", json.dumps(work._asdict())])
        self.name, self.limit = work.system, work.minutes * 60.0
        self.seconds, self.steps, self.characters, self.done = 0.0, 0, 0, False
        self.points: list[Point] = []
        self._look()

    def go(self, seconds: float) -> None:
        """A turn, and a look where one is due: closer together at the beginning. Ours knows its minutes, and ends by
        itself."""
        due = self.limit * (len(self.points) / POINTS) ** 2
        answer = self.ask(min(seconds, max(due - self.seconds, LEAST_TURN)))
        self.seconds = answer["seconds"]
        self.steps += answer["steps"]
        self.characters += answer["characters"]
        self.done = answer["done"] or self.seconds >= self.limit
        if self.done or self.seconds >= due:
            self._look()

    def _look(self) -> None:
        ways = self.ask("")["ways"]
        self.points.append(Point(self.seconds, self.steps, self.characters, *ways["80/10/10"], *ways["masks"]))
        print(f"{self.name}: {describe(self.points[-1])}", file=sys.stderr, flush=True)


def describe(point: Point) -> str:
    speed = point.characters / point.seconds if point.seconds else 0.0
    return (
        f"{point.seconds:.0f} s, {point.steps:,} steps, {speed:,.0f} characters a second; 80/10/10: loss "
        f"{point.loss:.3f}, accuracy {point.accuracy:.3f}; masks: {point.masks_loss:.3f}, {point.masks_accuracy:.3f}"
    )


def seconds_to(points: Sequence[Point], accuracy: float) -> float | None:
    """Training time at the first look behind a step that shows an accuracy (80/10/10); None: it never was reached."""
    return next((point.seconds for point in points if point.steps and point.accuracy >= accuracy), None)


def positions(work: Work) -> int:
    """Of a step: what the recipe of ours says, with what was set."""
    from unmask.commands.recipe import load_recipe

    if work.system == "annotated":
        return ROWS * LENGTH
    return load_recipe(work.recipe, overrides=work.overrides).training.batch_tokens


def table(curves: dict[str, list[Point]], batches: Mapping[str, int]) -> list[str]:
    """Some looks of each system, and how long ours took to what the experiment came to.

    Args:
        curves: By system.
        batches: Positions a step, by the same names.
    """
    lines = [
        "| system | positions a step | training | characters a second | loss, 80/10/10 | accuracy | loss, masks "
        "| accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, points in curves.items():
        for point in [points[place] for place in sorted({len(points) * part // 8 - 1 for part in range(1, 9)} - {-1})]:
            speed = f"{point.characters / point.seconds:,.0f}" if point.seconds else "-"
            lines.append(
                f"| {name} | {batches[name]:,} | {point.seconds:,.0f} s | {speed} | {point.loss:.3f} "
                f"| {point.accuracy:.3f} | {point.masks_loss:.3f} | {point.masks_accuracy:.3f} |"
            )
    return lines + (["", verdict(curves)] if len(curves) == len(SYSTEMS) else [])


def verdict(curves: dict[str, list[Point]]) -> str:
    """How long ours took to the last accuracy of the experiment, which had it as soon as it was near."""
    last = curves["annotated"][-1].accuracy
    near = seconds_to(curves["annotated"], last - STANDARD_ERROR)
    taken = seconds_to(curves["ours"], last)
    assert near is not None, "the last look shows it"
    reached = f"The annotated experiment ends at {last:.3f}, within a standard error of it after {near:,.0f} s; ours "
    if taken is None:
        return f"{reached}does not get there within {curves['ours'][-1].seconds:,.0f} s."
    return f"{reached}is beyond at its look after {taken:,.0f} s: at least {near / taken:.0f} times as fast."


def draw(curves: dict[str, list[Point]], path: Path) -> None:
    """Accuracy over training time as an SVG."""
    from unmask.report.plots import new_figure, to_svg

    figure, axes = new_figure()
    for name, points in curves.items():
        seen = [point for point in points if point.seconds]
        times = [point.seconds / 60.0 for point in seen]
        axes.plot(times, [point.accuracy for point in seen], color=COLOURS[name], marker="o", ms=3, label=name)
        axes.plot(times, [point.masks_accuracy for point in seen], color=COLOURS[name], lw=1, ls=":")
    axes.set_xscale("log")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("hidden characters guessed (dotted: all shown as [MASK])")
    axes.legend(frameon=False, fontsize=9)
    path.write_text(to_svg(figure), encoding="utf-8")


def prepare(recipe: str, folder: Path) -> None:
    """The characters as ours reads them."""
    from unmask.commands.recipe import load_recipe
    from unmask.commands.run_folder import packaged_corpus
    from unmask.data.prepare import prepare as prepare_text

    made = load_recipe(recipe)
    prepare_text([str(packaged_corpus())], folder, corpus=made.corpus, tokenizer=made.tokenizer, workers=1)


def run(works: Sequence[Work], slice_seconds: float) -> dict[str, list[Point]]:
    """Lets the systems train in turn, until each has used up its minutes."""
    systems = [System(work) for work in works]
    while waiting := [system for system in systems if not system.done]:
        for system in waiting:
            system.go(slice_seconds)
    for system in systems:
        system.close()
    return {system.name: system.points for system in systems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="budget of ours")
    parser.add_argument("--reference-minutes", type=float, default=20.0)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--recipe", default="shakespeare-chars")
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe, as for unmask pretrain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slice-seconds", type=float, default=5.0)
    parser.add_argument("--rows", type=int, help="of the held-out text, which are looked at; by default all")
    parser.add_argument("--table", type=Path, help="page whose table `characters` is rewritten")
    parser.add_argument("--picture", type=Path, help="SVG that is drawn")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(Work(**json.loads(asked.serve)))
        return
    minutes = {"ours": asked.minutes, "annotated": asked.reference_minutes}
    with tempfile.TemporaryDirectory() as folder:
        prepare(asked.recipe, Path(folder) / "data")
        works = [
            Work(name, minutes[name], f"{folder}/data", asked.recipe, tuple(asked.set), asked.seed, asked.rows)
            for name in asked.systems.split(",")
        ]
        curves = run(works, asked.slice_seconds)
    lines = table(curves, {work.system: positions(work) for work in works})
    print(*lines, sep="\n")
    if asked.picture:
        draw(curves, asked.picture)
    if asked.table:
        says = "Hidden characters guessed over minutes of training, ours and the annotated experiment"
        write_table(asked.table, "characters", lines + shown(asked.picture, asked.table, says))


if __name__ == "__main__":
    main()
