"""Curves as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, SOFT, TRAIN, HELD = "#1d2733", "#8a94a3", "#9db4d6", "#c2410c"


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
