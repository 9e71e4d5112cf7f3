"""The plot of a search: the loss of each trial over each number that was searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from unmask.report.plots import HELD, SOFT, TRAIN, to_svg

_COLUMNS = 2
_FEW = 6


def search_plot(trials: Sequence[Mapping[str, Any]]) -> str:
    """An `<svg>` element.

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
