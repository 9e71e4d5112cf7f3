"""Plots: curves for a script that pages share with the studio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple

Metrics = Sequence[Mapping[str, Any]]
"""The lines of a metrics.jsonl."""
MOST_POINTS = 4_000  # of a curve: more than a screen has


def thinned(number: int) -> int:
    """The stride at which a curve of this many points is drawn, in reports and in the studio."""
    return max(1, number // MOST_POINTS)


class Curve(NamedTuple):
    """A line of a plot. A `held out` one has points, `training` is thin, and a `level` is dashed."""

    label: str
    places: Sequence[float]
    values: Sequence[float | None]
    kind: Literal["held out", "training", "level"] = "held out"
    number: int = 0  # of its colour


def plot(title: str, x: str, *curves: Curve, log: bool = False, zero: bool = False) -> dict[str, Any]:
    """A plot for `static/plot.js`, on pages and in the studio; empty if no curve has two points.

    `log` makes the y axis logarithmic, `zero` starts it at 0. Long curves are thinned.
    """
    lines: list[dict[str, Any]] = []
    for label, places, values, kind, number in curves:
        stride = thinned(len(places))
        known = [(place, y) for place, y in zip(places[::stride], values[::stride], strict=True) if y is not None]
        known.sort(key=itemgetter(0))  # of several values at a place, the last counts: the final evaluation
        points = {place: float(f"{y:.6g}") for place, y in known if math.isfinite(y)}
        line = {"label": label, "kind": kind, "number": number}
        lines.append(line | {"places": list(points), "values": list(points.values())})
    if all(len(each["places"]) < 2 for each in lines if each["kind"] != "level"):
        return {}
    return {"title": title, "x": x, "curves": lines, "log": log, "zero": zero}


def training_curves(metrics: Metrics, unigram_entropy: float, *, weighted: bool = False) -> list[dict[str, Any]]:
    """Loss, held-out accuracy, learning rate, gradient norm and speed of a pretraining. `weighted` says that losses of
    training, unlike held-out ones, are weighted by the inverse of the rate."""
    train = [line for line in metrics if line["kind"] == "train"]
    # Callbacks may pass figures of their own (`Trainer.evaluated`), so evaluations need not have these.
    held, accurate = ([m for m in metrics if key in m] for key in ("validation_loss", "validation_accuracy"))
    unit, scale = ("minutes", 60.0) if metrics and metrics[-1]["seconds"] > 180 else ("seconds", 1.0)
    times = [[m["seconds"] / scale for m in lines] for lines in (train, held)]
    all_times = [*times[0], *times[1]] or [0.0]
    steps, losses = [m["step"] for m in train], [m["loss"] for m in train]
    # The speed includes checkpoints and, with a budget in minutes, evaluations.
    pairs = [(a, b) for a, b in pairwise(train) if b["seconds"] > a["seconds"]]
    speed = [b["step"] for _, b in pairs], [b["tokens"] / (b["seconds"] - a["seconds"]) for a, b in pairs]

    def of_steps(title: str, key: str, *, log: bool = False) -> dict[str, Any]:
        return plot(title, "step", Curve("training", steps, [m[key] for m in train], "training"), log=log)

    return [
        plot(
            f"loss, nats per predicted token, over {unit}",
            unit,
            Curve("training (weighted by 1 / rate)" if weighted else "training", times[0], losses, "training"),
            Curve("held out", times[1], [m["validation_loss"] for m in held]),
            Curve("word frequencies alone", [min(all_times), max(all_times)], [unigram_entropy] * 2, "level"),
        ),
        plot(
            "held-out tokens predicted right, %, over steps",
            "step",
            Curve("held out", [m["step"] for m in accurate], [100 * m["validation_accuracy"] for m in accurate]),
            zero=True,
        ),
        of_steps("gradient norm over steps", "gradient_norm", log=True),
        of_steps("learning rate over steps", "learning_rate"),
        plot("tokens a second over steps", "step", Curve("training", *speed, "training"), zero=True),
    ]


def comparison_curves(metrics: Mapping[str, Sequence[Metrics]], entropy: float | None) -> dict[str, Any]:
    """The held-out loss of each recipe's runs during training, and that of word frequencies, if known."""
    curves = []
    for number, (name, of_recipe) in enumerate(metrics.items()):
        for seed, lines in enumerate(of_recipe):
            held = [line for line in lines if "validation_loss" in line]
            label = f"{name}, seed {seed}" if len(of_recipe) > 1 else name
            places, values = [line["step"] for line in held], [line["validation_loss"] for line in held]
            curves.append(Curve(label, places, values, number=number))
    if entropy is not None:
        steps = [step for curve in curves for step in curve.places] or [0]
        curves.append(Curve("word frequencies alone", [min(steps), max(steps)], [entropy] * 2, "level"))
    return plot("held-out loss, nats per token, over steps", "step", *curves)
