"""README.md of a fine-tuned model: its card, written from the result, with a head that the hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.files import write_atomically
from unmask.folders.card_head import CARD, CardFigures, Origin, card_head, name_of_folder
from unmask.margins import over
from unmask.report.card import PLACE
from unmask.report.markdown import as_code, called, table, toml
from unmask.report.page import TEMPLATES
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import Metrics, Task

MOST_CLASSES = 50
_PARTS = {"validation": ("metrics", ""), "test": ("test_metrics", "test_")}  # of a summary; what its means begin with
# What the hub calls a metric, where that is another name than ours. Those of entities are seqeval's.
_HUB_NAMES = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "entity_f1": "f1",
    "entity_precision": "precision",
    "entity_recall": "recall",
    "subset_accuracy": "accuracy",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "ranking_precision": "label_ranking_average_precision",
}


_SHOWN_NAMES = {
    "rmse": "Root mean squared error",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "ranking_precision": "Label ranking average precision",
}


def write_task_card(
    folder: Path,
    *,
    task: Task,
    summary: Mapping[str, Any],
    settings: FinetuneSettings,
    files: Mapping[str, str],
    classes: Mapping[str, int],
    max_length: int,
    origin: Origin,
) -> None:
    """Writes the card.

    Args:
        folder: Of the model.
        task: What it does.
        summary: As in summary.json.
        settings: Of the fine-tuning; `card` says what only the user knows.
        files: Names of the files, by what they are for.
        classes: How many examples of the training file have each class or tag; empty where there are none.
        max_length: Longest input in tokens, special tokens included.
        origin: What it was before.
    """
    columns: Mapping[str, str] = task.content().get("columns", {})
    card = TEMPLATES.get_template("task_card.md").render(
        head=_head(folder, task, summary, settings, files, origin),
        task=task,
        place=PLACE,
        called=called(origin),
        starts_anew=settings.initial_weights == "random",
        has_base=bool(origin.base_models),
        summary=summary,
        own=task.content(),
        column=as_code(columns["label"]) if "label" in columns else None,
        of_entities="entity_f1" in summary["metrics"],
        data=_data(summary, files),
        classes=_classes(task, classes),
        figures=_figures(summary, files),
        metric=_shown_name(summary["metric"]),
        chosen_on=as_code(files["validation"]),
        test=as_code(files["test"]) if "test" in files else None,
        max_length=max_length,
        settings=_settings(summary, settings, columns),
    )
    write_atomically(folder / CARD, card)


def _head(
    folder: Path,
    task: Task,
    summary: Mapping[str, Any],
    settings: FinetuneSettings,
    files: Mapping[str, str],
    origin: Origin,
) -> str:
    return card_head(
        settings.card,
        name=name_of_folder(folder),
        task=(task.pipeline, task.pipeline.replace("-", " ").title()),
        tags=("unmask", task.pipeline, task.kind.replace("_", "-")),
        base=() if settings.initial_weights == "random" else origin.base_models,
        figures=[
            CardFigures(
                files[part], part, {_shown_name(name): (_hub_name(name), value) for name, value in found.items()}
            )
            for part, (key, _) in _PARTS.items()
            if (found := _metrics(summary, key))
        ],
    )


def _metrics(summary: Mapping[str, Any], key: str) -> Metrics:
    found: Metrics = summary.get(key, {})
    return found


def _hub_name(metric: str) -> str:
    return _HUB_NAMES.get(metric, metric)


def _shown_name(metric: str) -> str:
    if metric in _SHOWN_NAMES:
        return _SHOWN_NAMES[metric]
    words = metric.replace("_", " ").replace("f1", "F1")
    return words[:1].upper() + words[1:]


def _data(summary: Mapping[str, Any], files: Mapping[str, str]) -> str:
    counts = ("records", "inputs", "truncated", "split")
    rows = [
        [f"{part}: {as_code(files[part])}", *(f"{found[key]:,}" for key in counts)]
        for part, found in summary["examples"].items()
    ]
    return table(["file", "examples", "inputs", "cut at the end", "seen in parts"], rows)


def _classes(task: Task, counts: Mapping[str, int]) -> str | None:
    """How often the training file has each class, the commonest first; of many classes those alone."""
    if not counts:
        return None
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])
    rows = [[as_code(name), f"{count:,}"] for name, count in ranked[:MOST_CLASSES]]
    more = f"\n\nAnd {len(ranked) - MOST_CLASSES:,} more, which are rarer." if len(ranked) > MOST_CLASSES else ""
    return table(["tag" if task.pipeline == "token-classification" else "class", "times"], rows) + more


def _figures(summary: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """A row a metric: of the saved model, and of several seeds the mean, on each file."""
    several = len(summary["seeds"]) > 1
    parts = {part: found for part, found in _PARTS.items() if part in files}
    heads = ["metric"]
    for part in parts:
        heads += [part, *([f"{part}, mean of {len(summary['seeds'])} seeds ({over('seeds')})"] if several else [])]
    rows = []
    for name in summary["metrics"]:
        row = [_shown_name(name)]
        for key, prefix in parts.values():
            row.append(_number(summary[key][name]))
            if several:
                margin = summary[f"{prefix}margin"][name]
                row.append(
                    _number(summary[f"{prefix}mean"][name]) + ("" if margin is None else f" ± {_number(margin)}")
                )
        rows.append(row)
    return table(heads, rows)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _settings(summary: Mapping[str, Any], settings: FinetuneSettings, columns: Mapping[str, str]) -> str:
    """All that a training with the same files would be asked for, with the rate and the columns that were found."""
    values = {**settings.model_dump(exclude={"card", "columns"}), "learning_rate": summary["learning_rate"]}
    return toml({"finetune": values | ({"columns": columns} if columns else {})})
