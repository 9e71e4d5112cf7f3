"""An embedding model's report, one self-contained page, and its card, with a head that the hub reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.core.files import write_atomically
from unmask.model.card_head import CARD, CardSettings, Origin, card_head, name_of_folder
from unmask.report.cards import PLACE, as_code, called, table, toml
from unmask.report.pages import TEMPLATES, as_markup
from unmask.report.plots import HELD, TRAIN, Curve, Metrics, plot_lines

_TASK, _SPARSE_TASK = "sentence-similarity", "feature-extraction"
RECALL_HEADS = ("held-out pairs", "number", "recall@1 before", "after", "recall@10 before", "after")


def write_embedder_report(
    path: Path, *, summary: Mapping[str, Any], settings: Mapping[str, Any], metrics: Metrics
) -> None:
    """Writes the page, of a summary as in summary.json. It needs nothing but itself."""
    headline = []
    before, after = summary["before"], summary["after"]
    if after is not None:
        for kind, figures in after["kinds"].items():
            recall = f"(before: {before['kinds'][kind]['recall_at_10']:.1%})"
            headline.append((f"{figures['recall_at_10']:.1%}", f"recall@10 of held-out pairs: {kind} {recall}"))
        if after["mlm_loss"] is not None:
            headline.append((f"{after['mlm_loss']:.3f}", f"nats per hidden token (before: {before['mlm_loss']:.3f})"))
    headline += [
        (f"{summary['tokens_seen'] / 1e6:.2f}M", "tokens seen"),
        (f"{summary['steps']:,}", "steps"),
        (f"{summary['seconds'] / 60:.1f} min", f"of training on {summary['device']}"),
    ]
    train = [line for line in metrics if line.get("kind") == "train"]
    held = [line for line in metrics if line.get("kind") == "evaluation"]
    steps = [line["step"] for line in held]
    recalls: list[Curve] = []
    for number, kind in enumerate(held[0]["kinds"] if held else ()):
        style = {"color": HELD, "marker": "os^D"[number % 4], "ms": 3.5, "alpha": 1.0 - 0.2 * number, "label": kind}
        recalls.append((steps, [line["kinds"][kind]["recall_at_10"] for line in held], style))
    loss: Curve = [line["step"] for line in train], [line["loss"] for line in train], {"color": TRAIN}
    page = TEMPLATES.get_template("embedder.html").render(
        summary=summary,
        headline=headline,
        heads=list(RECALL_HEADS),
        rows=recall_rows(summary),
        plots=as_markup(
            plot_lines(recalls, "steps", "recall@10 of held-out pairs"),
            plot_lines([loss], "steps", "loss, nats per pair"),
        ),
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
    """Writes the card; `card` is what only the user knows, `files` what the model learned from."""
    sparse = summary["sparse"]
    head = card_head(
        card,
        name=name_of_folder(folder),
        task=(_SPARSE_TASK, "Feature Extraction") if sparse else (_TASK, "Sentence Similarity"),
        tags=("unmask", "sentence-transformers", *(("sparse-encoder", "splade") if sparse else (_TASK, _SPARSE_TASK))),
        base=origin.base_models,
        library="sentence-transformers",
    )
    text = TEMPLATES.get_template("embedder_card.md").render(
        head=head,
        place=PLACE,
        called=called(origin),
        has_base=bool(origin.base_models),
        summary=summary,
        files=", ".join(map(as_code, files)),
        figures=table(list(RECALL_HEADS), recall_rows(summary)) if summary["after"] is not None else None,
        settings=toml({"embedder": settings}),
    )
    write_atomically(folder / CARD, text)


def recall_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Under `RECALL_HEADS`, a row a kind of held-out pairs; none where nothing was measured."""
    if summary["after"] is None:
        return []
    before, after = summary["before"]["kinds"], summary["after"]["kinds"]
    return [
        [
            kind,
            f"{figures['pairs']:,}",
            *(f"{when[kind][key]:.1%}" for key in ("recall_at_1", "recall_at_10") for when in (before, after)),
        ]
        for kind, figures in after.items()
    ]
