"""The result of fine-tuning as one self-contained page: figures, seeds, curves, confusion, classes, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from unmask.files import write_atomically
from unmask.report.finetune_plots import confusion_plot, loss_curves, metric_curves
from unmask.report.page import STYLE


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
    title = f"{summary['task']}, {files['train']}"
    right, predicted = classes
    parts = [
        f"<h1>unmask finetune: {escape(title)}</h1>",
        f"<p class=soft>Measured on {escape(files['validation'])}; the best model is told by {summary['metric']}.</p>",
        _headline(summary),
        "<h2>Seeds</h2>" if len(summary["seeds"]) > 1 else "<h2>The run</h2>",
        _seeds(summary),
        "<h2>Curves</h2><div class=curves>",
        metric_curves(history, summary["metric"]),
        loss_curves(history),
        "</div>",
    ]
    if right:
        parts += [
            "<h2>Confusion</h2><div class=curves style='max-width: 620px'>",
            confusion_plot(right, predicted),
            "</div>",
        ]
        parts += ["<h2>Classes</h2>", _classes(right, predicted)]
    parts += ["<h2>Data</h2>", _ledger(summary["examples"], files), "<h2>Settings</h2>", _settings(settings)]
    page = (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>unmask finetune: {escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
    write_atomically(path, page)


def _headline(summary: Mapping[str, Any]) -> str:
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
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in cells)
    return f"<div class=figures>{boxes}</div>"


def _test(summary: Mapping[str, Any]) -> Mapping[str, float | None]:
    found: Mapping[str, float | None] = summary.get("test_metrics", {})
    return found


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _seeds(summary: Mapping[str, Any]) -> str:
    names = list(summary["metrics"])
    head = "".join(f"<th>{escape(name)}</th>" for name in ("seed", *names, "epochs", "best epoch", "seconds"))
    rows = "".join(
        f"<tr><td>{run['seed']}{' (saved)' if run['seed'] == summary['best_seed'] else ''}</td>"
        + "".join(f"<td class=number>{_shown(run['metrics'][name])}</td>" for name in names)
        + f"<td class=number>{run['epochs']:g}{', stopped early' if run['stopped_early'] else ''}</td>"
        f"<td class=number>{run['best_epoch']:g}</td><td class=number>{run['seconds']:.0f}</td></tr>"
        for run in summary["seeds"]
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _classes(right: Sequence[str], predicted: Sequence[str]) -> str:
    from sklearn.metrics import precision_recall_fscore_support

    names = sorted(set(right) | set(predicted))
    found = precision_recall_fscore_support(right, predicted, labels=names, zero_division=0)
    head = "".join(f"<th>{name}</th>" for name in ("class", "precision", "recall", "F1", "examples"))
    rows = "".join(
        f"<tr><td>{escape(name) or '<i>none</i>'}</td>"
        + "".join(f"<td class=number>{value:.3f}</td>" for value in (precision, recall, f1))
        + f"<td class=number>{count:,}</td></tr>"
        for name, precision, recall, f1, count in zip(names, *found, strict=True)
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _ledger(examples: Mapping[str, Mapping[str, int]], files: Mapping[str, str]) -> str:
    columns = ("", "file", "examples", "inputs", "cut at the end", "seen in parts")
    head = "".join(f"<th>{name}</th>" for name in columns)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(files[name])}</td>"
        + "".join(f"<td class=number>{counts[key]:,}</td>" for key in ("records", "inputs", "truncated", "split"))
        + "</tr>"
        for name, counts in examples.items()
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _settings(settings: Mapping[str, Any]) -> str:
    shown = [f"{key} = {value}" for key, value in settings.items() if value is not None and not isinstance(value, dict)]
    shown += [
        f"{key}.{inner} = {value}"
        for key, table in settings.items()
        if isinstance(table, dict)
        for inner, value in table.items()
        if value is not None
    ]
    return f"<table><tr><td>finetune</td><td><code>{escape(', '.join(shown))}</code></td></tr></table>"
