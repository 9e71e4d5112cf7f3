"""What time_to_loss.py has found: who won the sweep, tables, a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from tables import NOT_RECORDED, told

from unmask.measure.uncertainty import mean_interval

OURS = "ours"
COLOURS = {"modernbert-adamw": "#8a94a0", "modernbert-muon": "#1d2733", OURS: "#c2410c"}
WITHOUT = {
    OURS: "everything",
    "no-muon": "AdamW instead of Muon",
    "no-loops": "tensor operations instead of compiled loops",
    "no-modernbert": "BERT's layout instead of ModernBERT's",
    "paragraphs": "everything; paragraphs as documents",
    "no-packing": "paragraphs as documents, each in padded rows of its own instead of packed ones",
}
WHOLE = (OURS, "paragraphs")  # nothing is taken away
BESIDE = {"no-packing": "paragraphs"}  # what a system is compared with, where that is not ours

Entry = Mapping[str, Any]
Runs = Mapping[str, Sequence[Entry]]  # of each system, by seed
Candidate = TypeVar("Candidate", bound=Hashable)


def load(path: Path) -> list[dict[str, Any]]:
    """The entries of a results file; none where there is no file yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def ranked(candidates: Sequence[Candidate], losses: Mapping[Candidate, float]) -> list[Candidate]:
    """Candidates, that of the lowest loss first; behind them those that diverged, and those not measured yet."""

    def place(candidate: Candidate) -> float:
        loss = losses.get(candidate, math.inf)
        return math.inf if math.isnan(loss) else loss

    return sorted(candidates, key=place)


def last_loss(entry: Entry) -> float:
    """Held-out loss at a run's end."""
    return float(entry["points"][-1][1])


def with_half(values: Sequence[float], sign: str = "") -> str:
    """Their mean, and half of its 95 % interval where that can be told; `+` shows the sign of positive ones."""
    interval = mean_interval(values)
    mean = f"{fmean(values):{sign}.3f}"
    return mean if interval is None else f"{mean} ± {(interval[1] - interval[0]) / 2:.3f}"


def reached(points: Sequence[Sequence[float]], loss: float) -> float | None:
    """Seconds from which on a curve is at a loss or below, in a line between two looks; None: it never is.

    A curve that is there at its first look already was there at most so many seconds after its beginning.
    """
    if points[-1][1] > loss:
        return None
    above = [number for number, point in enumerate(points) if point[1] > loss]
    if not above:
        return float(points[0][0])
    (begin, high, *_), (end, low, *_) = points[above[-1]], points[above[-1] + 1]
    return float(begin + (end - begin) * (high - loss) / (high - low))


def table(runs: Runs) -> list[str]:
    """A line a system, those with the highest loss first, and what comes of it."""
    seeds = max(len(some) for some in runs.values())
    loss = f"held-out loss, mean of {seeds} ± half of its 95 % t interval"
    lines = [
        f"| system | positions a step | learning rate | steps | tokens seen | {loss} | accuracy "
        "| ours is as good after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for system, some in sorted(runs.items(), key=lambda item: -fmean(map(last_loss, item[1]))):
        times = [] if system == OURS or OURS not in runs else times_to(runs[OURS], some)
        lines.append(f"| {' | '.join([system, *_facts(some), _after(times, some)])} |")
    peers = [system for system in runs if system != OURS]
    return [*lines, "", *(verdict(runs, peer) for peer in peers if OURS in runs)]


def _facts(some: Sequence[Entry]) -> list[str]:
    """What the runs of a system have in common, and the means of what they found."""
    work = some[0]["work"]
    return [
        f"{work['batch_tokens']:,}",
        f"{work['learning_rate']:g}",
        f"{fmean(entry['steps'] for entry in some):,.0f}",
        f"{fmean(entry['tokens'] for entry in some):,.0f}",
        with_half([last_loss(entry) for entry in some]),
        f"{fmean(entry['points'][-1][2] for entry in some):.1%}",
    ]


def times_to(ours: Sequence[Entry], peers: Sequence[Entry]) -> list[float | None]:
    """Seconds after which each of our runs is as good as the mean of the peer's runs at their end."""
    goal = fmean(map(last_loss, peers))
    return [reached(entry["points"], goal) for entry in ours]


def _after(times: Sequence[float | None], peers: Sequence[Entry]) -> str:
    there = [seconds for seconds in times if seconds is not None]
    if len(there) < len(times) or not there:
        return "not within the budget" if times else ""
    return f"{fmean(there):.0f} s: 1/{ratio(there, peers):.1f} of the time"


def ratio(times: Sequence[float], peers: Sequence[Entry]) -> float:
    """How many times as long the peer takes, on average."""
    return fmean(entry["points"][-1][0] for entry in peers) / fmean(times)


def verdict(runs: Runs, peer: str) -> str:
    """In what time ours comes to a peer's last loss, and by how much it ends below it."""
    some, ours = runs[peer], runs[OURS]
    seconds = fmean(entry["points"][-1][0] for entry in some)
    said = f"`{peer}` ends at {fmean(map(last_loss, some)):.3f} nats after {seconds:.0f} s; "
    times = times_to(ours, some)
    there = [time for time in times if time is not None]
    if len(there) < len(times):
        return f"{said}{len(there)} of {len(times)} runs of ours come there."
    less = with_half(differences(ours, some), "+")
    each = ", ".join(f"{time:.0f}" for time in there)
    return (
        f"{said}ours is there after {fmean(there):.0f} s ({each}): 1/{ratio(there, some):.1f} of the time. "
        f"At the end the peer's loss less ours, by seed, is {less}."
    )


def differences(ours: Sequence[Entry], others: Sequence[Entry]) -> list[float]:
    """Losses of others less that of ours with the same seed."""
    of_seed = {entry["work"]["seed"]: last_loss(entry) for entry in ours}
    return [last_loss(entry) - of_seed[entry["work"]["seed"]] for entry in others if entry["work"]["seed"] in of_seed]


def ablations(runs: Runs) -> list[str]:
    """A line for ours, and for ours without each of its parts."""
    seeds = max(len(some) for some in runs.values())
    lines = [
        "| ours with | positions a step | learning rate | steps | tokens seen "
        f"| held-out loss, mean of {seeds} ± half of its 95 % t interval | accuracy | more than with it, by seed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for system, some in runs.items():
        whole = runs.get(BESIDE.get(system, OURS))
        more = with_half(differences(whole, some), "+") if whole and system not in WHOLE else ""
        lines.append(f"| {' | '.join([WITHOUT[system], *_facts(some), more])} |")
    return lines


def sweep_table(entries: Sequence[Entry]) -> list[str]:
    """A line for each run that a choice was made by: the short ones, then those of the whole time."""
    lines = [
        "| system | minutes | positions a step | learning rate | steps | held-out loss |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in sorted(
        entries, key=lambda entry: (entry["work"]["system"], entry["work"]["minutes"], last_loss(entry))
    ):
        work = entry["work"]
        lines.append(
            f"| {work['system']} | {work['minutes']:g} | {work['batch_tokens']:,} | {work['learning_rate']:g} "
            f"| {entry['steps']:,} | {last_loss(entry):.3f} |"
        )
    return lines


def made(entries: Sequence[Entry]) -> list[str]:
    """When, on what and with which versions runs were measured, as they say themselves: a line for all that agree."""
    names: dict[str, dict[str, None]] = {}
    for entry in entries:
        of = f"{entry.get('date', NOT_RECORDED)}, {told(entry)}, threads a system {entry['work']['threads']}"
        names.setdefault(of, {})[entry["work"]["system"]] = None
    if len(names) == 1:
        return [f"{of}." for of in names]
    return [f"- {', '.join(some)}: {of}." for of, some in names.items()]


def draw(runs: Runs, path: Path) -> None:
    """Held-out loss over seconds of training: a curve a run."""
    from unmask.report.plots import new_figure, to_svg

    figure, axes = new_figure()
    for system, some in runs.items():
        colour = COLOURS[system]
        for entry in some:
            seconds, losses = ([point[i] for point in entry["points"]] for i in (0, 1))
            axes.plot(seconds, losses, color=colour, linewidth=1.6, marker="o", markevery=[-1], markersize=5)
        axes.annotate(system, (seconds[-1], losses[-1]), (6, 2), textcoords="offset points", color=colour, fontsize=9)
    longest = max(entry["points"][-1][0] for some in runs.values() for entry in some)
    axes.set_xlim(0.0, 1.25 * longest)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("held-out loss, nats a hidden token")
    path.write_text(to_svg(figure), encoding="utf-8")
