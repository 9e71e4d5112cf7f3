"""What time_to_loss.py has found, as a table and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import NOT_RECORDED, told

PEERS = ("run_mlm", "tuned")
GOALS = {"tuned": 10.0, "run_mlm": 40.0}  # ours gets there in at most one so-many-th of the time
COLOURS = {"run_mlm": "#8a94a0", "tuned": "#1d2733"}
OURS = "#c2410c"

Results = Mapping[str, Mapping[str, Any]]


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a results file by name; none where there is no file yet."""
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {entry["name"]: entry for entry in entries}


def table(results: Results) -> list[str]:
    """A line a run, the slowest systems first, and what comes of it."""
    lines = [
        "| system | measured | minutes | steps | positions a step | learning rate | held-out loss | accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, entry in sorted(results.items(), key=_place):
        work, (seconds, loss, accuracy) = entry["work"], entry["points"][-1]
        ours = work["system"] == "ours"
        rate = "" if ours else f"{work['learning_rate']:g}"
        minutes, steps = f"{seconds / 60.0:.1f}", f"{entry['steps']:,}"
        told = [
            name,
            entry.get("date", NOT_RECORDED),
            minutes,
            steps,
            _positions(entry),
            rate,
            f"{loss:.3f}",
            f"{accuracy:.1%}",
        ]
        lines.append(f"| {' | '.join(told)} |")
    return [*lines, "", *(verdict(results, peer) for peer in PEERS if peer in results)]


def _positions(entry: Mapping[str, Any]) -> str:
    """Positions a step: those of ours as its run told them; older runs name their recipe only."""
    work, facts = entry["work"], entry.get("facts", {})
    if work["system"] != "ours":
        return f"{work['batch_tokens']:,}"
    return f"{facts['batch_tokens']:,}" if "batch_tokens" in facts else f"recipe `{work['recipe']}`"


def made(results: Results) -> list[str]:
    """On what and with which versions the runs were measured, as they say themselves: a line for all that agree."""
    names: dict[str, list[str]] = {}
    for name, entry in sorted(results.items(), key=_place):
        names.setdefault(told(entry), []).append(name)
    if len(names) == 1:
        return [f"Measured on {where}." for where in names]
    return [f"- {', '.join(some)}: {where}." for where, some in names.items()]


def _place(item: tuple[str, Mapping[str, Any]]) -> tuple[bool, float, str]:
    """Of a run in the table: peers first, then ours by their budgets."""
    name, entry = item
    return entry["work"]["system"] == "ours", entry["work"]["minutes"], name


def verdict(results: Results, peer: str) -> str:
    """In what time ours comes to a peer's last loss: the shortest budget whose runs all end at or below it."""
    seconds, loss, _ = results[peer]["points"][-1]
    budgets: dict[float, list[float]] = {}
    for entry in results.values():
        if entry["work"]["system"] == "ours":
            budgets.setdefault(entry["work"]["minutes"], []).append(entry["points"][-1][1])
    enough = [minutes for minutes, losses in sorted(budgets.items()) if max(losses) <= loss]
    said = f"`{peer}` ends at {loss:.3f} nats after {seconds / 60.0:.1f} minutes; "
    if not enough:
        return f"{said}no budget of ours ends there."
    share = seconds / (enough[0] * 60.0)
    return f"{said}ours in at most {enough[0]:g}: 1/{share:.0f} of the time (the goal is 1/{GOALS[peer]:.0f})."


def draw(results: Results, path: Path) -> None:
    """Held-out loss over minutes of training, on a logarithmic axis of time."""
    from unmask.report.plots import new_figure, to_svg

    figure, axes = new_figure()
    seen: set[str] = set()
    for name, entry in results.items():
        system = entry["work"]["system"]
        label = f"ours, {entry['work']['minutes']:g} min" if system == "ours" else name
        minutes = [seconds / 60.0 for seconds, _, _ in entry["points"]]
        losses = [loss for _, loss, _ in entry["points"]]
        colour = COLOURS.get(system, OURS)
        axes.plot(minutes, losses, color=colour, linewidth=1.6, marker="o", markevery=[-1], markersize=5)
        if label not in seen:
            axes.annotate(
                label, (minutes[-1], losses[-1]), (6, 2), textcoords="offset points", color=colour, fontsize=9
            )
        seen.add(label)
    axes.set_xscale("log")
    ticks: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.15, 90.0)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("held-out loss, nats a hidden token")
    path.write_text(to_svg(figure), encoding="utf-8")
