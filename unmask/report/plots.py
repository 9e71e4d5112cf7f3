"""Curves, comparisons and searches as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

INK, SOFT, TRAIN, HELD = "#1d2733", "#8a94a3", "#9db4d6", "#c2410c"
_LONGEST = 40  # letters of a label: more leave no room for the figures
_COLUMNS = 2
_FEW = 6


def loss_curve(metrics: Sequence[dict[str, Any]], unigram_entropy: float) -> str:
    """Training and held-out loss over training time, with the entropy of word frequencies as a line."""
    figure, axes = new_figure()
    train = [line for line in metrics if line["kind"] == "train"]
    held = [line for line in metrics if line["kind"] == "evaluation"]
    unit, scale = ("minutes", 60.0) if metrics and metrics[-1]["seconds"] > 180 else ("seconds", 1.0)
    axes.plot(
        [m["seconds"] / scale for m in train],
        [m["loss"] for m in train],
        color=TRAIN,
        lw=1.2,
        label="training",
    )
    axes.plot(
        [m["seconds"] / scale for m in held],
        [m["validation_loss"] for m in held],
        color=HELD, lw=1.8, marker="o", ms=3.5, label="held out",
    )  # fmt: skip
    axes.axhline(unigram_entropy, color=SOFT, lw=1, ls="--", label="word frequencies alone")
    axes.set_xlabel(f"{unit} of training")
    axes.set_ylabel("nats per predicted token")
    axes.legend(frameon=False, fontsize=9)
    return to_svg(figure)


def accuracy_curve(metrics: Sequence[dict[str, Any]]) -> str:
    """Held-out accuracy over the steps."""
    figure, axes = new_figure()
    held = [line for line in metrics if line["kind"] == "evaluation"]
    axes.plot(
        [m["step"] for m in held], [100 * m["validation_accuracy"] for m in held],
        color=HELD, lw=1.8, marker="o", ms=3.5,
    )  # fmt: skip
    axes.set_xlabel("steps")
    axes.set_ylabel("held-out tokens predicted right, %")
    axes.set_ylim(bottom=0)
    return to_svg(figure)


def optimizer_curve(metrics: Sequence[dict[str, Any]]) -> str:
    """Learning rate and gradient norm over the steps."""
    figure, axes = new_figure()
    train = [line for line in metrics if line["kind"] == "train"]
    steps = [m["step"] for m in train]
    axes.plot(steps, [m["gradient_norm"] for m in train], color=TRAIN, lw=1, label="gradient norm")
    axes.set_yscale("log")
    axes.set_xlabel("steps")
    axes.set_ylabel("gradient norm")
    right = axes.twinx()
    right.plot(steps, [m["learning_rate"] for m in train], color=INK, lw=1.5, label="learning rate")
    right.set_ylabel("learning rate")
    right.spines["top"].set_visible(False)
    return to_svg(figure)


def speed_curve(metrics: Sequence[dict[str, Any]]) -> str:
    """Tokens a second over the steps, evaluations and checkpoints included."""
    figure, axes = new_figure()
    train = [line for line in metrics if line["kind"] == "train"]
    pairs = [(a, b) for a, b in pairwise(train) if b["seconds"] > a["seconds"]]
    rates = [b["tokens"] / (b["seconds"] - a["seconds"]) for a, b in pairs]
    axes.plot([b["step"] for _, b in pairs], rates, color=TRAIN, lw=1.2)
    axes.set_xlabel("steps")
    axes.set_ylabel("tokens a second")
    axes.set_ylim(bottom=0)
    return to_svg(figure)


def comparison_plot(recipes: Mapping[str, Mapping[str, Any]], *, what: str) -> str:
    """A comparison: each recipe's figures by seed, their mean and its interval.

    Args:
        recipes: By name: `mean`, `interval` (None with one seed) and `values` of each seed.
        what: The figure's name.
    """
    figure, axes = new_figure()
    for place, estimate in enumerate(recipes.values()):
        axes.plot(estimate["values"], [place] * len(estimate["values"]), "o", color="#9aa4b2", ms=4)
        if estimate["interval"] is not None:
            axes.plot(estimate["interval"], [place, place], color="#1f5fa8", lw=2)
        axes.plot([estimate["mean"]], [place], "D", color="#1f5fa8", ms=6)
    axes.set_yticks(range(len(recipes)), [_ending(name) for name in recipes])
    axes.set_ylim(-0.6, len(recipes) - 0.4)
    axes.invert_yaxis()
    axes.set_xlabel(f"{what}: each seed, mean and 95 % interval")
    return to_svg(figure)


def _ending(name: str) -> str:
    """A name that fits beside the figures; of a file's path the end tells most. Dollars are no formulas."""
    shown = name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
    return shown.replace("$", r"\$")


def search_plot(trials: Sequence[Mapping[str, Any]]) -> str:
    """A search: the loss of each trial over each number that was searched.

    Args:
        trials: That succeeded, one at least: `loss` and `parameters` by key.
    """
    keys = list(trials[0]["parameters"])
    columns = min(_COLUMNS, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(3.7 * columns, 2.6 * rows), layout="constrained")
    best = min(trials, key=lambda trial: trial["loss"])
    for number, key in enumerate(keys):
        axes = figure.add_subplot(rows, columns, number + 1)
        values = [trial["parameters"][key] for trial in trials]
        _scale(axes, values)
        axes.plot(values, [trial["loss"] for trial in trials], "o", color=TRAIN, ms=5)
        axes.plot([best["parameters"][key]], [best["loss"]], "D", color=HELD, ms=6)
        axes.set_xlabel(key, fontsize=9)
        axes.tick_params(labelsize=8, colors=SOFT)
        if number % columns == 0:
            axes.set_ylabel("held-out loss", fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return to_svg(figure)


def _scale(axes: Axes, values: Sequence[Any]) -> None:
    """By factors, where the numbers reach over several; with plain numbers at the ticks, of the values where few."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or min(numbers) <= 0 or max(numbers) / min(numbers) < 4.0:
        return
    axes.set_xscale("log")
    different = sorted(set(numbers))
    axes.xaxis.set_major_locator(FixedLocator(different) if len(different) <= _FEW else LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


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
