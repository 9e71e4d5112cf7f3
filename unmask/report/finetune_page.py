"""The result of fine-tuning as one self-contained page: figures, seeds, curves, confusion, classes, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unmask.files import write_atomically
from unmask.report.page import TEMPLATES, drawn
from unmask.report.plots import HELD, INK, TRAIN, new_figure, to_svg

MOST_CLASSES = 24
_WITH_COUNTS = 12  # more cells have no room for numbers
_SHADES = LinearSegmentedColormap.from_list("unmask", ["#ffffff", TRAIN, "#1f4b8f"])


def write_finetune_report(
    path: Path,
    *,
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    classes: tuple[Sequence[str], Sequence[str]],
    files: Mapping[str, str],
) -> None:
    """Writes the page. It needs nothing but itself.

    Args:
        path: The file.
        summary: As in summary.json.
        settings: Of the fine-tuning.
        history: The lines of metrics.jsonl.
        classes: The right and the predicted classes of the validation file; empty where the task has none.
        files: Names of the files, by what they are for.
    """
    right, predicted = classes
    page = TEMPLATES.get_template("finetune.html").render(
        title=f"{summary['task']}, {files['train']}",
        summary=summary,
        files=files,
        headline=_headline(summary),
        columns=["seed", *summary["metrics"], "epochs", "best epoch", "seconds"],
        shown=_shown,
        plots=drawn(metric_curves(history, summary["metric"]), loss_curves(history)),
        confusion=drawn(confusion_plot(right, predicted)) if right else None,
        classes=_by_class(right, predicted) if right else [],
        settings=", ".join(_settings(settings)),
    )
    write_atomically(path, page)


def _headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    several = len(summary["seeds"]) > 1
    cells = []
    for name, value in summary["metrics"].items():
        spread = summary["margin"][name]
        label = name.replace("_", " ")
        if several and spread is not None:
            seeds = f"{len(summary['seeds'])} seeds"
            label += f"; mean of {seeds} {_shown(summary['mean'][name])} ± {_shown(spread)} (± 95 %, over seeds)"
        cells.append((_shown(value), label))
    cells += [(_shown(value), f"{name.replace('_', ' ')} on the test file") for name, value in _test(summary).items()]
    cells.append((f"{summary['num_parameters'] / 1e6:.3g}M", "parameters of the encoder"))
    return cells


def _test(summary: Mapping[str, Any]) -> Mapping[str, float | None]:
    found: Mapping[str, float | None] = summary.get("test_metrics", {})
    return found


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _by_class(right: Sequence[str], predicted: Sequence[str]) -> list[tuple[str, tuple[float, ...], int]]:
    """Precision, recall and F1 of each class, and its examples."""
    from sklearn.metrics import precision_recall_fscore_support

    names = sorted(set(right) | set(predicted))
    found = precision_recall_fscore_support(right, predicted, labels=names, zero_division=0)
    return [(name, tuple(values), int(count)) for name, *values, count in zip(names, *found, strict=True)]


def _settings(settings: Mapping[str, Any]) -> list[str]:
    shown = [f"{key} = {value}" for key, value in settings.items() if value is not None and not isinstance(value, dict)]
    shown += [
        f"{key}.{inner} = {value}"
        for key, table in settings.items()
        if isinstance(table, dict)
        for inner, value in table.items()
        if value is not None
    ]
    return shown


def metric_curves(history: Sequence[Mapping[str, Any]], metric: str) -> str:
    """The metric on the validation file over the epochs, a line a seed."""
    figure, axes = new_figure()
    for lines in _by_seed(history):
        known = [(line["epoch"], line["metrics"][metric]) for line in lines if line["metrics"][metric] is not None]
        axes.plot([e for e, _ in known], [v for _, v in known], color=HELD, lw=1.4, marker="o", ms=3.5, alpha=0.75)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs")
    axes.set_ylabel(f"{metric.replace('_', ' ')} on the validation file")
    return to_svg(figure)


def loss_curves(history: Sequence[Mapping[str, Any]]) -> str:
    """The mean training loss between evaluations over the epochs, a line a seed."""
    figure, axes = new_figure()
    for lines in _by_seed(history):
        axes.plot(
            [line["epoch"] for line in lines],
            [line["loss"] for line in lines],
            color="#4c78b5", lw=1.4, marker="o", ms=3.5, alpha=0.75,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs")
    axes.set_ylabel("training loss")
    return to_svg(figure)


def confusion_plot(right: Sequence[str], predicted: Sequence[str]) -> str:
    """How often which class is taken for which. Shades are shares of the right class's examples.

    More than 24 classes are cut to the commonest, with all others as one.
    """
    from sklearn.metrics import confusion_matrix

    counts = Counter([*right, *predicted])
    names = sorted(counts)
    if len(names) > MOST_CLASSES:
        kept = {name for name, _ in counts.most_common(MOST_CLASSES - 1)}
        right, predicted = ([n if n in kept else "others" for n in each] for each in (right, predicted))
        names = [*sorted(kept), "others"]
    matrix = confusion_matrix(right, predicted, labels=names)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    size = 2.2 + 0.42 * max(len(names), 5)
    figure = Figure(figsize=(size + 0.6, size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap=_SHADES, vmin=0.0, vmax=1.0)
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=90 if len(names) > 4 else 0)
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    if len(names) <= _WITH_COUNTS:
        for (row, column), count in np.ndenumerate(matrix):
            color = "#ffffff" if shares[row, column] > 0.6 else INK
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=color)
    axes.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the class")
    return to_svg(figure)


def _short(name: str) -> str:
    shown = name or "(none)"
    return shown.replace("$", r"\$") if len(shown) <= 16 else shown[:15].replace("$", r"\$") + "…"


def _by_seed(history: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    seeds = dict.fromkeys(line["seed"] for line in history)
    return [[line for line in history if line["seed"] == seed] for seed in seeds]
