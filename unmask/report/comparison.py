"""The plot of a comparison: each recipe's figures by seed, their mean and its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.report.plots import new_figure, to_svg

_LONGEST = 40  # letters of a label: more leave no room for the figures


def comparison_plot(recipes: Mapping[str, Mapping[str, Any]], *, what: str) -> str:
    """An `<svg>` element.

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
