"""Curves, comparisons and searches as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

# Blue, vermilion, green, purple, gold and sky: each has a contrast of 3 with white at the least, and they stay apart
# for the colour-blind. The studio's page has the same (unmask/web/static/style.css).
COLOURS = ("#0072b2", "#c2410c", "#00845f", "#a3457f", "#a87400", "#2b93c7")
INK, SOFT, TRAIN, HELD = "#1d2733", "#8a94a3", "#9db4d6", COLOURS[1]
_LONGEST = 40  # letters of a label: more leave no room for the figures

Metrics = Sequence[Mapping[str, Any]]
"""The lines of a metrics.jsonl."""
Curve = tuple[Sequence[float], Sequence[float], dict[str, Any]]
"""Places, values and matplotlib's style of a line."""


def plot_lines(curves: Sequence[Curve], x_label: str, y_label: str, *, from_zero: bool = False) -> str:
    """Lines of one figure, with a legend where they have labels; nothing where none has two points."""
    if all(len(places) < 2 for places, _, _ in curves):
        return ""
    figure, axes = new_figure()
    for places, values, style in curves:
        axes.plot(places, values, **{"lw": 1.4, **style})
    if any("label" in style for _, _, style in curves):
        axes.legend(frameon=False, fontsize=9)
    if x_label == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return to_svg(figure)


def training_curves(metrics: Metrics, unigram_entropy: float) -> list[str]:
    """Loss, held-out accuracy, learning rate with gradient norm, and speed of a pretraining."""
    train = [line for line in metrics if line["kind"] == "train"]
    held = [line for line in metrics if line["kind"] == "evaluation"]
    unit, scale = ("minutes", 60.0) if metrics and metrics[-1]["seconds"] > 180 else ("seconds", 1.0)
    thin: dict[str, Any] = {"color": TRAIN, "lw": 1.2}
    marked: dict[str, Any] = {"color": HELD, "lw": 1.8, "marker": "o", "ms": 3.5}
    dashed: dict[str, Any] = {"color": SOFT, "lw": 1, "ls": "--"}
    times = [[m["seconds"] / scale for m in lines] for lines in (train, held)]
    every = [*times[0], *times[1]] or [0.0]
    losses: list[Curve] = [
        (times[0], [m["loss"] for m in train], {**thin, "label": "training"}),
        (times[1], [m["validation_loss"] for m in held], {**marked, "label": "held out"}),
        ([min(every), max(every)], [unigram_entropy] * 2, {**dashed, "label": "word frequencies alone"}),
    ]
    accuracy = [m["step"] for m in held], [100 * m["validation_accuracy"] for m in held], marked
    # Evaluations and checkpoints count into the speed.
    pairs = [(a, b) for a, b in pairwise(train) if b["seconds"] > a["seconds"]]
    speed = [b["step"] for _, b in pairs], [b["tokens"] / (b["seconds"] - a["seconds"]) for a, b in pairs], thin

    figure, axes = new_figure()
    steps = [m["step"] for m in train]
    axes.plot(steps, [m["gradient_norm"] for m in train], color=TRAIN, lw=1, label="gradient norm")
    axes.set_yscale("log")
    axes.set_xlabel("steps")
    axes.set_ylabel("gradient norm")
    right = axes.twinx()
    right.plot(steps, [m["learning_rate"] for m in train], color=INK, lw=1.5, label="learning rate")
    right.set_ylabel("learning rate")
    right.spines["top"].set_visible(False)
    return [
        plot_lines(losses, f"{unit} of training", "nats per predicted token"),
        plot_lines([accuracy], "steps", "held-out tokens predicted right, %", from_zero=True),
        to_svg(figure),
        plot_lines([speed], "steps", "tokens a second", from_zero=True),
    ]


def comparison_plot(
    recipes: Mapping[str, Mapping[str, Any]], *, what: str, level: str = "95 %", from_zero: bool = False
) -> str:
    """A comparison of a figure: by recipe, or pair of recipes, the `values` of each seed, their `mean`, and its
    `interval` at a level, or None. `from_zero`: they are differences, which a line at 0 parts."""
    figure, axes = new_figure()
    for place, estimate in enumerate(recipes.values()):
        axes.plot(estimate["values"], [place] * len(estimate["values"]), "o", color="#9aa4b2", ms=4)
        if estimate["interval"] is not None:
            axes.plot(estimate["interval"], [place, place], color="#1f5fa8", lw=2)
        axes.plot([estimate["mean"]], [place], "D", color="#1f5fa8", ms=6)
    axes.set_yticks(range(len(recipes)), list(map(_label, recipes)))
    axes.set_ylim(-0.6, len(recipes) - 0.4)
    axes.invert_yaxis()
    if from_zero:
        axes.axvline(0.0, color=SOFT, lw=1, ls="--")
    axes.set_xlabel(f"{what}: each seed, mean and {level} interval")
    return to_svg(figure)


def comparison_curves(metrics: Mapping[str, Sequence[Metrics]], entropy: float | None) -> str:
    """The held-out loss of each recipe's runs as they train, beside that of word frequencies where it is known."""
    curves: list[Curve] = []
    for number, (name, of_recipe) in enumerate(metrics.items()):
        for seed, lines in enumerate(of_recipe):
            held = [line for line in lines if line["kind"] == "evaluation"]
            style = {"color": COLOURS[number % len(COLOURS)], "alpha": 0.8} | ({} if seed else {"label": _label(name)})
            curves.append(([line["step"] for line in held], [line["validation_loss"] for line in held], style))
    if entropy is not None:
        steps = [step for places, _, _ in curves for step in places] or [0]
        dashed = {"color": SOFT, "lw": 1, "ls": "--", "label": "word frequencies alone"}
        curves.append(([min(steps), max(steps)], [entropy] * 2, dashed))
    return plot_lines(curves, "steps", "held-out loss, nats per token")


def _label(name: str) -> str:
    """Of a file's path the end says most. Dollars are no formulas."""
    return (name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}").replace("$", r"\$")


def search_plot(trials: Sequence[Mapping[str, Any]]) -> str:
    """A search: the `loss` of each trial that succeeded, one at least, over each of the `parameters`."""
    keys = list(trials[0]["parameters"])
    columns = min(2, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(3.7 * columns, 2.6 * rows), layout="constrained")
    best = min(trials, key=lambda trial: trial["loss"])
    for number, key in enumerate(keys):
        axes = figure.add_subplot(rows, columns, number + 1)
        values = [trial["parameters"][key] for trial in trials]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        different = sorted(set(numbers))
        # Numbers that reach over several factors are drawn by factors, with plain numbers at the ticks.
        if len(numbers) == len(values) and different[0] > 0 and different[-1] / different[0] >= 4.0:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(different) if len(different) <= 6 else LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.plot(values, [trial["loss"] for trial in trials], "o", color=TRAIN, ms=5)
        axes.plot([best["parameters"][key]], [best["loss"]], "D", color=HELD, ms=6)
        axes.set_xlabel(key, fontsize=9)
        axes.tick_params(labelsize=8, colors=SOFT)
        if number % columns == 0:
            axes.set_ylabel("held-out loss", fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return to_svg(figure)


def new_figure() -> tuple[Figure, Axes]:
    """A figure in the report's style."""
    figure = Figure(figsize=(6.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e6e9ee", lw=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def to_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
