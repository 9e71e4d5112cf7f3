"""An embedding model's report, one self-contained page, and its card, with a head that the hub reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.core.files import write_atomically
from unmask.model.card_head import CARD, CardSettings, Origin, card_head, name_of_folder
from unmask.report.cards import PLACE, as_code, called, table, toml
from unmask.report.pages import TEMPLATES, drawn
from unmask.report.plots import HELD, TRAIN, new_figure, to_svg

_TASK, _SPARSE_TASK = "sentence-similarity", "feature-extraction"
_HEADS = ("held-out pairs", "number", "recall@1 before", "after", "recall@10 before", "after")


def write_embedder_report(
    path: Path, *, summary: Mapping[str, Any], settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the page. It needs nothing but itself.

    Args:
        path: The file.
        summary: As in summary.json.
        settings: Of the training.
        metrics: The lines of metrics.jsonl.
    """
    page = TEMPLATES.get_template("embedder.html").render(
        summary=summary,
        headline=_headline(summary),
        heads=list(_HEADS),
        rows=_rows(summary),
        plots=drawn(recall_curves(metrics), pair_loss_curve(metrics)),
        settings=", ".join(f"{key} = {value}" for key, value in settings.items() if value is not None),
    )
    write_atomically(path, page)


def write_embedder_card(
    folder: Path,
    *,
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    card: CardSettings,
    files: Sequence[str],
    origin: Origin,
) -> None:
    """Writes the card.

    Args:
        folder: Of the model.
        summary: As in summary.json.
        settings: Of the training.
        card: What only the user knows.
        files: Names of the files that it learned from.
        origin: What it was before.
    """
    sparse = summary["sparse"]
    head = card_head(
        card,
        name=name_of_folder(folder),
        task=(_SPARSE_TASK, "Feature Extraction") if sparse else (_TASK, "Sentence Similarity"),
        tags=("unmask", "sentence-transformers", *(("sparse-encoder", "splade") if sparse else (_TASK, _SPARSE_TASK))),
        base=origin.base_models,
        figures=(),
        library="sentence-transformers",
    )
    text = TEMPLATES.get_template("embedder_card.md").render(
        head=head,
        place=PLACE,
        called=called(origin),
        has_base=bool(origin.base_models),
        summary=summary,
        files=", ".join(map(as_code, files)),
        figures=table(list(_HEADS), [[*row] for row in _rows(summary)]) if summary["after"] is not None else None,
        settings=toml({"embedder": settings}),
    )
    write_atomically(folder / CARD, text)


def _headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    cells = []
    if summary["after"] is not None:
        for kind, found in summary["after"]["kinds"].items():
            before = summary["before"]["kinds"][kind]["recall_at_10"]
            cells.append(
                (f"{found['recall_at_10']:.1%}", f"recall@10 of held-out pairs: {kind} (before: {before:.1%})")
            )
        if summary["after"]["mlm_loss"] is not None:
            before, after = summary["before"]["mlm_loss"], summary["after"]["mlm_loss"]
            cells.append((f"{after:.3f}", f"nats per hidden token (before: {before:.3f})"))
    return [
        *cells,
        (f"{summary['tokens_seen'] / 1e6:.2f}M", "tokens seen"),
        (f"{summary['steps']:,}", "steps"),
        (f"{summary['seconds'] / 60:.1f} min", f"of training on {summary['device']}"),
    ]


def _rows(summary: Mapping[str, Any]) -> list[list[str]]:
    if summary["after"] is None:
        return []
    before, after = summary["before"]["kinds"], summary["after"]["kinds"]
    return [
        [
            kind,
            f"{found['pairs']:,}",
            *(f"{each[kind][key]:.1%}" for key in ("recall_at_1", "recall_at_10") for each in (before, after)),
        ]
        for kind, found in after.items()
    ]


def recall_curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Recall@10 of held-out pairs over the steps, a line a kind."""
    figure, axes = new_figure()
    lines = [line for line in metrics if line.get("kind") == "evaluation"]
    for number, kind in enumerate(lines[0]["kinds"] if lines else ()):
        axes.plot(
            [line["step"] for line in lines],
            [line["kinds"][kind]["recall_at_10"] for line in lines],
            color=HELD, lw=1.4, marker="os^D"[number % 4], ms=3.5, alpha=1.0 - 0.2 * number, label=kind,
        )  # fmt: skip
    if lines:
        axes.legend(frameon=False)
    axes.set_xlabel("steps")
    axes.set_ylabel("recall@10 of held-out pairs")
    return to_svg(figure)


def pair_loss_curve(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The training loss over the steps."""
    figure, axes = new_figure()
    lines = [line for line in metrics if line.get("kind") == "train"]
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], color=TRAIN, lw=1.4)
    axes.set_xlabel("steps")
    axes.set_ylabel("loss, nats per pair")
    return to_svg(figure)
