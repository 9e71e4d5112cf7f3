"""Pictures of pages, as SVG."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

SOFT, HELD = "#8a94a3", "#c2410c"


def new_figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e6e9ee", lw=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def to_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
