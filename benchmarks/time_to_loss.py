r"""Held-out loss over wall-clock time.

    python benchmarks/time_to_loss.py TEXT... [--minutes 3] [--seeds 0,1,2] [--results FILE] [--picture FILE]

All systems have the same time, and train on the same rows of 128 positions of the same prepared text, with one
WordPiece tokenizer of 8,192 words and a model of 4 layers of 256. They are evaluated on the same held-out rows with the
same masks: 15 % of the tokens, all shown as `[MASK]`. Each is a separate process. They train in turns of a quarter of a
minute, so that other load on the machine affects all of them. Only a system's own training time counts, without
evaluations and without compiling beforehand (see turns.py).

    modernbert-adamw  transformers' ModernBertForMaskedLM in a plain loop in bf16 (float32 if the CPU lacks it),
                      compiled, with fused AdamW: the best loop that we could write (plain_loop.py)
    modernbert-muon   the same with torch's Muon for the matrices and AdamW for the rest
    ours              the recipe `tiny` with this budget

Learning rate and positions a step (`SETTINGS`) are the best of a `--sweep` for two minutes
(docs/explanation/benchmarks.md), in which every pair of `GRID` trains for the whole budget with the first seed; ours
has those of its recipe. Other budgets may need others. The results of each run are appended to FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from ours import assemble, prepare
from plain_loop import PEERS, TRAINER, Look, LookOf, held_out_figures, train_by_trainer, train_peer
from tables import append_lines, circumstances, head, parser_of, with_half
from turns import Ended, System, Turn, alternate, own_output

from unmask.commands.recipe import load_recipe
from unmask.commands.run_data import PreparedData, open_prepared
from unmask.core.errors import DivergedError
from unmask.measure.held_out import HeldOutSet
from unmask.model.encoder import MaskedLM

OURS = "ours"
SETTINGS = {"modernbert-adamw": (512, 1e-3), "modernbert-muon": (2048, 7e-3), OURS: (4096, 0.01)}
GRID = {  # positions a step, learning rates, around those of `SETTINGS`
    "modernbert-adamw": ((256, 512, 1024), (5e-4, 1e-3, 2e-3)),
    "modernbert-muon": ((1024, 2048, 4096), (3.5e-3, 7e-3, 0.014)),
}
COLOURS = {"modernbert-adamw": "#8a94a0", "modernbert-muon": "#1d2733", OURS: "#c2410c"}
VOCAB_SIZE = 8192
HELD_OUT_TOKENS = 100_000
TURN = 15.0  # seconds; shorter turns would measure the slow first steps after a pause, when others have used the memory
LOOKS = 12  # evaluations of a run


class Work(NamedTuple):
    """The settings of a run."""

    data: str
    system: str
    minutes: float
    batch_tokens: int
    learning_rate: float
    seed: int = 0
    threads: int = 2
    compiled: bool = True  # the peer's model
    length: int = 128
    overrides: Sequence[str] = ()  # settings of our recipe
    recipe: str = "tiny"  # our recipe
    size: Sequence[int] = (4, 256)  # layers and width of the peers
    device: str = "cpu"
    held_out: Sequence[str] = ()  # paths of text and of minimal pairs that record.py measures
    pairs: str = ""


PATHS = ("data", "held_out", "pairs")  # fields that results leave out

Entry = Mapping[str, Any]  # results of a run: `work`, `steps`, `tokens`, `points` of (seconds, loss, accuracy)
Runs = Mapping[str, Sequence[Entry]]  # by system, in the order of seeds


def serve(work: Work, look_of: LookOf | None = None) -> None:
    """A system's process. It is evaluated at regular times, by `look_of`; None: by its held-out loss."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no idle worker processes
    torch.set_num_threads(work.threads)
    out = own_output()
    marks = [work.minutes * 60.0 * number / LOOKS for number in range(1, LOOKS)]

    def held_out(data: PreparedData) -> Look:
        evaluated = HeldOutSet(data.validation, data.tokenizer, length=work.length, max_tokens=HELD_OUT_TOKENS)
        return partial(own_figures if work.system == OURS else held_out_figures, evaluated)

    train = {**dict.fromkeys(PEERS, train_peer), TRAINER: train_by_trainer, OURS: train_ours}[work.system]
    with suppress(Ended):
        train(work, out, marks, look_of or held_out)


def own_figures(evaluated: HeldOutSet, model: MaskedLM) -> tuple[float, float]:
    reached = evaluated.evaluate(model)
    return reached.loss, reached.accuracy


def train_ours(work: Work, out: Any, marks: list[float], look_of: LookOf) -> None:
    options = {f"training.{name}": getattr(work, name) for name in ("minutes", "seed", "batch_tokens", "learning_rate")}
    recipe = load_recipe(work.recipe, options=options, overrides=tuple(work.overrides))
    data, device = open_prepared(Path(work.data)), torch.device(work.device)
    next(assemble(recipe, data, device).reports())  # compiles the loops, once on a machine
    began = time.perf_counter()
    training = assemble(recipe, data, device)
    spent, model = time.perf_counter() - began, training.state.model
    turn = Turn(out, partial(look_of(data), model), marks, work.device)
    turn.seconds = spent  # counts, since weights may be initialised from the text
    turn.begin(parameters=model.num_parameters, batch_tokens=training.settings.batch_tokens)
    with suppress(DivergedError):  # the last evaluation is then that of the step before
        for report in training.reports(turn.now):
            turn.step(report.tokens)
    turn.end()


def last_loss(entry: Entry) -> float:
    return float(entry["points"][-1][1])


def seconds_to(points: Sequence[Sequence[float]], loss: float) -> float | None:
    """The time in seconds from which a curve stays at a loss or below, interpolated linearly; None if it never does.

    For a curve that is there at its first evaluation, the time of that is an upper bound.
    """
    if points[-1][1] > loss:
        return None
    above = [number for number, point in enumerate(points) if point[1] > loss]
    if not above:
        return float(points[0][0])
    (begin, high, *_), (end, low, *_) = points[above[-1]], points[above[-1] + 1]
    return float(begin + (end - begin) * (high - loss) / (high - low))


def table(runs: Runs) -> list[str]:
    """A line for each system, the highest loss first; and how soon ours reaches the last loss of each peer."""
    seeds = max(map(len, runs.values()))
    lines = head(
        "system | positions a step | learning rate | steps | tokens seen "
        f"| held-out loss, mean of {seeds} ± half of its 95 % t interval | accuracy | ours is as good after"
    )
    verdicts = []
    for system, entries in sorted(runs.items(), key=lambda item: -fmean(map(last_loss, item[1]))):
        after, verdict = against(entries, runs[OURS]) if OURS in runs and system != OURS else ("", "")
        verdicts += [f"`{system}` ends at {verdict}"] if verdict else []
        work = entries[0]["work"]
        lines.append(
            f"| {system} | {work['batch_tokens']:,} | {work['learning_rate']:g} "
            f"| {fmean(entry['steps'] for entry in entries):,.0f} | {fmean(entry['tokens'] for entry in entries):,.0f} "
            f"| {with_half([last_loss(entry) for entry in entries])} "
            f"| {fmean(entry['points'][-1][2] for entry in entries):.1%} | {after} |"
        )
    return [*lines, "", *verdicts]


def against(entries: Sequence[Entry], ours: Sequence[Entry]) -> tuple[str, str]:
    """When ours reaches a peer's last loss, as a cell of the table and as a sentence."""
    goal, budget = fmean(map(last_loss, entries)), fmean(entry["points"][-1][0] for entry in entries)
    verdict = f"{goal:.3f} nats after {budget:.0f} s; "
    reached = [seconds for entry in ours if (seconds := seconds_to(entry["points"], goal)) is not None]
    if len(reached) < len(ours):
        return "not within the budget", f"{verdict}{len(reached)} of {len(ours)} runs of ours come there."
    share = f"1/{budget / fmean(reached):.1f} of the time"
    by_seed = {entry["work"]["seed"]: last_loss(entry) for entry in ours}
    less = [last_loss(entry) - by_seed[entry["work"]["seed"]] for entry in entries]
    each = ", ".join(f"{seconds:.0f}" for seconds in reached)
    return f"{fmean(reached):.0f} s: {share}", (
        f"{verdict}ours is there after {fmean(reached):.0f} s ({each}): {share}. "
        f"At the end the peer's loss less ours, by seed, is {with_half(less, '+.3f')}."
    )


def draw(runs: Runs, path: Path) -> None:
    """Draws held-out loss over seconds of training: a curve for each run."""
    from pictures import new_figure, to_svg

    figure, axes = new_figure()
    for system, entries in runs.items():
        for entry in entries:
            seconds, losses = ([point[i] for point in entry["points"]] for i in (0, 1))
            axes.plot(seconds, losses, color=COLOURS[system], lw=1.6, marker="o", markevery=[-1], ms=5)
        end, colour = (seconds[-1], losses[-1]), COLOURS[system]
        axes.annotate(system, end, (6, 2), textcoords="offset points", color=colour, fontsize=9)
    axes.set_xlim(0.0, 1.32 * max(entry["points"][-1][0] for entries in runs.values() for entry in entries))
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("held-out loss, nats a hidden token")
    path.write_text(to_svg(figure), encoding="utf-8")


def run(works: Sequence[Work], results: Path | None, script: str = __file__, **facts: Any) -> dict[str, list[Entry]]:
    """Trains the systems seed by seed, those of a seed in turns; each run is a process of a script. `facts` are added
    to their results."""
    runs: dict[str, list[Entry]] = {}
    for seed in dict.fromkeys(work.seed for work in works):
        of_seed = {work.system: work for work in works if work.seed == seed}
        commands = [[sys.executable, script, "--serve", json.dumps(work._asdict())] for work in of_seed.values()]
        systems = dict(zip(of_seed, map(System, commands), strict=True))
        for name in alternate(systems, TURN):
            system = systems[name]
            work = {key: value for key, value in of_seed[name]._asdict().items() if key not in PATHS}
            entry = {"work": work, **facts, **circumstances(), "facts": system.facts}
            entry |= {key: getattr(system, key) for key in ("seconds", "steps", "tokens", "points")}
            runs.setdefault(name, []).append(entry)
            if results is not None:
                append_lines(results, entry)
            system.close()
    return runs


def sweep(works: Sequence[Work], results: Path | None) -> list[str]:
    """Trains each pair of positions a step and learning rate. Returns a line for each, a system's best one last."""
    ends = []
    for work in works:
        (entry,) = run([work], results)[work.system]
        ends.append((work.system, -last_loss(entry), work.batch_tokens, work.learning_rate, entry["steps"]))
    lines = head("system | positions a step | learning rate | steps | held-out loss")
    for system, negative_loss, batch_tokens, rate, steps in sorted(ends):
        lines.append(f"| {system} | {batch_tokens:,} | {rate:g} | {steps:,} | {-negative_loss:.3f} |")
    return lines


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("texts", type=Path, nargs="*", help="text, or one prepared folder")
    parser.add_argument("--minutes", type=float, default=3.0, help="training time of every system")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--systems", default=",".join(SETTINGS))
    parser.add_argument("--sweep", action="store_true", help="sweep the peers' settings instead, with the first seed")
    parser.add_argument("--results", type=Path, help="file to append runs to")
    parser.add_argument("--picture", type=Path, help="SVG of the curves")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Work(**json.loads(options.serve)))
        return
    systems = options.systems.split(",")
    if not options.texts or not set(systems) <= set(SETTINGS):
        parser.error(f"name some text; systems are {', '.join(SETTINGS)}")
    with tempfile.TemporaryDirectory() as folder:
        data = options.texts[0]
        if not (data / "manifest.json").is_file():
            data = Path(folder) / "data"
            prepare(options.texts, data, VOCAB_SIZE)
        works = [
            Work(str(data), system, options.minutes, *SETTINGS[system], int(seed))
            for seed in options.seeds.split(",") for system in systems
        ]  # fmt: skip
        if options.sweep:
            pairs = [
                work._replace(batch_tokens=batch_tokens, learning_rate=rate)
                for work in works[: len(systems)] for batch_tokens, rate in product(*GRID.get(work.system, ((), ())))
            ]  # fmt: skip
            print(*sweep(pairs, options.results), sep="\n")
            return
        runs = run(works, options.results)
    print(*table(runs), sep="\n")
    if options.picture:
        draw(runs, options.picture)


if __name__ == "__main__":
    main()
